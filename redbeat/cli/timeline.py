"""``celery redbeat timeline``: who runs when, as a chart of letters, so that pile-ups can be seen.

Invariant: the chart fits the terminal's width, and its total counts all entries, shown or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any

import click
from celery.schedules import schedule
from rich.text import Text

from redbeat.cli.documents import iso
from redbeat.cli.progress import meter
from redbeat.cli.session import UNLIMITED_WIDTH, Session, SessionCommand
from redbeat.cli.words import offset_of, one_line, when
from redbeat.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.preview import runs_between
from redbeat.schedules import is_own_kind

__all__ = ["timeline"]

#: lengths of a column, minutes
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080)
_BARS = " ▁▂▃▄▅▆▇█"
MAX_NAME = 24
_TICK = timedelta(microseconds=1)
#: columns where the output is no terminal
PIPED_WIDTH = 120


#: an entry's name, and how many runs it has in which columns
Row = tuple[str, dict[int, int]]


@dataclass
class Chart:
    """How many runs there are in each column.

    Attributes:
        begin: where the first column begins.
        step: the length of a column.
        rows: name and columns of the entries that run first.
    """

    begin: datetime
    step: timedelta
    columns: int
    most_rows: int
    total: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    entries: int = 0

    @property
    def end(self) -> datetime:
        return self.begin + self.columns * self.step

    def add(self, name: str, counts: dict[int, int]) -> None:
        """Count the runs of an entry."""
        if not counts:
            return
        self.entries += 1
        for column, runs in counts.items():
            self.total[column] += runs
        if len(self.rows) < self.most_rows:
            self.rows.append((name, counts))


@click.command(cls=SessionCommand)
@click.option("--hours", type=click.FloatRange(0.25, 24 * 366), default=24.0, show_default=True)
@click.option("--match", metavar="PATTERN", help="Only entries whose names match; * and ?, case counts.")
@click.option(
    "--rows", type=click.IntRange(0), default=40, show_default=True, help="So many entries at the most."
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def timeline(ctx: click.Context, /, hours: float, match: str | None, rows: int, is_json: bool) -> None:
    """Show which entries run when, and how many at a time: a row for each entry, and one for all.

    Digits count the runs in a column, # stands for ten or more. Times are in the application's zone. Disabled
    entries don't run, and aren't shown; those that are paused until a time are shown from then on.
    """
    session = Session.of(ctx)
    now, zone = session.now(), session.app.timezone
    width = session.console.width if session.console.width != UNLIMITED_WIDTH else PIPED_WIDTH
    name_width = min(MAX_NAME, max(width // 3, 5))
    chart = _empty_chart(now, zone, hours, max(width - name_width - 2, 5), rows)
    with meter("Looking") as progress:
        listed = RedBeatSchedulerEntry.list(session.app, match=match, due_before=chart.end)
        for number, entry in enumerate(listed, start=1):
            if entry.state in ("scheduled", "due", "failing", "paused"):
                chart.add(entry.name, _counts_of(entry, now, chart))
            progress(number)
    if is_json:
        session.print_json(_document(chart))
        return
    for line in _lines(chart, zone, name_width):
        session.console.print(line, no_wrap=True, overflow="crop", crop=True)
    peak = max(chart.total)
    if peak:
        at = chart.begin + chart.total.index(peak) * chart.step
        minutes = int(chart.step.total_seconds() // 60)
        session.say(
            f"{sum(chart.total)} runs; the most, {peak}, in the {minutes} min from {when(at, zone)} on."
        )
    else:
        session.say("Nothing is going to run.")


def _empty_chart(now: datetime, zone: tzinfo, hours: float, room: int, rows: int) -> Chart:
    """Return a chart whose columns begin at full hours, or at parts of them, on the clocks of ``zone``."""
    minutes = next((step for step in _STEPS if hours * 60 / step <= room), _STEPS[-1])
    step = timedelta(minutes=minutes)
    local = now.astimezone(zone)
    into = timedelta(hours=local.hour, minutes=local.minute, seconds=local.second)
    begin = now.replace(microsecond=0) - into % step
    columns = max(min(int(-(-hours * 60 // minutes)), room), 1)
    return Chart(begin, step, columns, rows, total=[0] * columns)


def _counts_of(entry: Any, now: datetime, chart: Chart) -> dict[int, int]:
    """Return how many runs ``entry`` has in which columns: the one in Redis, and those after it."""
    due = entry.next_due_at
    counts: Counter[int] = Counter()
    if due is None or due >= chart.end:
        return counts
    counts[max((due - chart.begin) // chart.step, 0)] += 1  # what is due already runs at once
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = None if most is None else most - entry.total_run_count - 1
    if left is not None and left <= 0:
        return counts
    is_interval = isinstance(entry.schedule, schedule) and not is_own_kind(entry.schedule, schedule)
    is_plain = is_interval and not entry.schedule.relative and not policy.exclude and left is None
    try:
        first = max(due, now) + timedelta(microseconds=1)
        last = chart.end - timedelta(microseconds=1)
        if is_plain:
            end = last if policy.end_time is None else min(last, policy.end_time)
            _count_interval(counts, due, now, entry.schedule.run_every, end, chart)
            return counts
        for number, run in enumerate(runs_between(entry, first, last), start=1):
            if left is not None and number > left:
                break
            counts[(run - chart.begin) // chart.step] += 1
    except (EntryError, ValueError, OverflowError):  # its calendar is missing, say
        pass
    return counts


def _count_interval(
    counts: Counter[int], due: datetime, now: datetime, every: timedelta, end: datetime, chart: Chart
) -> None:
    """Count the runs after ``due`` without making each: there may be many thousands."""
    # in whole microseconds since the first column's beginning: timedeltas take ten times as long
    step, length = chart.step // _TICK, every // _TICK
    start, stop = (due - chart.begin) // _TICK, (end - chart.begin) // _TICK
    # what was missed before now isn't counted one by one
    before = max(((now - chart.begin) // _TICK - start) // length, 0)
    for column in range(max(start // step, 0), chart.columns):
        upto = max((min((column + 1) * step - 1, stop) - start) // length, 0)
        if upto > before:
            counts[column] += upto - before
            before = upto


def _document(chart: Chart) -> dict[str, Any]:
    return {
        "begin": iso(chart.begin),
        "end": iso(chart.end),
        "column_seconds": chart.step.total_seconds(),
        "total": chart.total,
        "entries": [
            {"name": name, "runs": [counts.get(column, 0) for column in range(chart.columns)]}
            for name, counts in chart.rows
        ],
    }


def _lines(chart: Chart, zone: tzinfo, name_width: int) -> list[Text]:
    lines = [Text(_fit(offset_of(chart.begin.astimezone(zone)), name_width) + _ruler(chart, zone), "bold")]
    for name, counts in chart.rows:
        marks = "".join(_digit(counts.get(column, 0)) for column in range(chart.columns))
        lines.append(Text(_fit(one_line(name), name_width) + marks))
    if chart.entries > len(chart.rows):
        lines.append(Text(f"and {chart.entries - len(chart.rows)} more entries, in the total", "dim"))
    peak = max(chart.total) or 1
    bars = "".join(_BARS[-(-runs * (len(_BARS) - 1) // peak)] for runs in chart.total)
    lines.append(Text(_fit("total", name_width) + bars, "bold"))
    digits = "".join(_digit(runs) for runs in chart.total)
    lines.append(Text(_fit("", name_width) + digits, "bold"))
    return lines


def _digit(runs: int) -> str:
    return "·" if not runs else str(runs) if runs < 10 else "#"


def _fit(text: str, width: int) -> str:
    shown = Text(text)
    shown.truncate(width, overflow="ellipsis", pad=True)
    return shown.plain + "  "


def _ruler(chart: Chart, zone: tzinfo) -> str:
    """Return the hours, or the days, above the columns in which they begin, where there is room."""
    by_days = chart.step * 8 >= timedelta(days=1)
    line, before = "", ""
    for column in range(chart.columns):
        local = (chart.begin + column * chart.step).astimezone(zone)
        label = f"{local:%m-%d}" if by_days else f"{local:%H}"
        is_new = label != before and (by_days or local.minute == 0)
        if is_new and len(line) <= column - (1 if line else 0):
            line = line.ljust(column) + label
        before = label
    return line[: chart.columns].ljust(chart.columns)
