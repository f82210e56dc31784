"""``celery redbeat timeline``: which entries run when, as a chart of shaded cells, which shows times with
many runs.

Invariant: the chart fits the terminal's width, and its total counts all entries, shown or not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any

import click
from celery.schedules import schedule
from rich.cells import cell_len
from rich.text import Text

from redbeat.cli.documents import ONE_OBJECT, iso
from redbeat.cli.grid import UNLIMITED_WIDTH, cut_middle
from redbeat.cli.next_runs import RUNNING, in_time, note_untold, reason_of
from redbeat.cli.progress import meter
from redbeat.cli.selection import ONLY_MATCHING
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.values import MOMENT, in_zone
from redbeat.cli.words import clock, label_of
from redbeat.cli.zone import zone_options
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.preview import runs_between
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.schedules.occurrences import is_own_kind

#: possible lengths of a column, minutes
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080)
_BARS = " ▁▂▃▄▅▆▇█"
#: the cells: without runs, and with more and more of them
_SHADES = "·░▒▓█"
_SHADE_STYLES = ("dim", "blue", "cyan", "yellow", "red")
MOST_FOR_NAMES = 44
_TICK = timedelta(microseconds=1)
#: how many columns there are where the output isn't a terminal
PIPED_WIDTH = 120

#: the functions that name the row of an entry, by the value of --by
GROUPS: dict[str, Callable[[Any], str]] = {
    "load": lambda entry: str(entry.name),
    "task": lambda entry: str(entry.task),
    "prefix": lambda entry: _prefix_of(str(entry.name)),
    "next": lambda entry: str(entry.name),
}


def _prefix_of(name: str) -> str:
    """Return the pattern of ``name`` up to its first separator, as 'billing.*' of 'billing.send-invoices'."""
    found = re.match(r".+?[.:/_\-\s]+", name)
    return f"{found[0]}*" if found is not None else name


#: the name of a row, and its number of runs in each column
Row = tuple[str, Counter[int]]


@dataclass
class Chart:
    """How many runs there are in each column.

    Attributes:
        begin: where the first column begins.
        step: the length of a column.
        total: the runs of all entries.
        rows: how many runs which row has in which columns.
    """

    begin: datetime
    step: timedelta
    columns: int
    total: list[int] = field(default_factory=list)
    rows: dict[str, Counter[int]] = field(default_factory=dict)

    @property
    def end(self) -> datetime:
        return self.begin + self.columns * self.step

    def add(self, row: str, counts: Mapping[int, int]) -> None:
        """Count the runs of an entry in its ``row``."""
        if counts:
            self.rows.setdefault(row, Counter()).update(counts)
            for column, runs in counts.items():
                self.total[column] += runs


@click.command(cls=SessionCommand)
@click.option(
    "--hours",
    type=click.FloatRange(0.25, 24 * 366),
    default=24.0,
    show_default=True,
    help="How many hours to show.",
)
@click.option("--start", type=MOMENT, help="When the chart begins. Default: now.")
@click.option(
    "--by",
    "group",
    type=click.Choice(list(GROUPS)),
    default="load",
    show_default=True,
    help="What a row stands for: an entry, the busiest first (load) or the next to run first (next); a task; "
    "or all entries with the same prefix, the name up to the first of . : / _ -",
)
@ONLY_MATCHING
@click.option(
    "--rows", type=click.IntRange(0), default=40, show_default=True, help="Show at most this many rows."
)
@zone_options
@ONE_OBJECT
@click.pass_context
def timeline(
    ctx: click.Context,
    /,
    hours: float,
    start: datetime | None,
    group: str,
    match: str | None,
    rows: int,
    is_json: bool,
) -> None:
    """Draw a chart of which entries run when: a row for each entry, and one for all together.

    The more runs, the darker the cell; the line below the chart gives the numbers. Disabled entries aren't
    shown, and paused ones only after the end of their pause. With --start in the past the chart has the runs
    that the schedules had then, whether or not they were sent.
    """
    session = Session.of(ctx)
    now, zone = session.now(), session.zone
    since = now if start is None else in_zone(start, zone)
    width = session.console.width if session.console.width < UNLIMITED_WIDTH else PIPED_WIDTH
    name_width = min(MOST_FOR_NAMES, max(width * 3 // 10, 5))
    chart = _empty_chart(since, zone, hours, max(width - name_width - 2, 5))
    untold: list[str] = []
    with meter("Looking") as progress:
        # for the past, entries that are due later count, too
        last = chart.end if since >= now else None
        listed = RedBeatSchedulerEntry.list(session.app, match=match, due_before=last)
        for number, entry in enumerate(listed, start=1):
            if entry.state in RUNNING:
                counts: Counter[int] = Counter()
                try:
                    _count(counts, entry, since, now, chart)
                except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
                    untold.append(reason_of(entry, exc))
                chart.add(GROUPS[group](entry), counts)
            progress(number)
    note_untold(session, untold)
    shown = list(chart.rows.items())
    if group != "next":
        shown.sort(key=lambda row: (-sum(row[1].values()), row[0]))
    del shown[rows:]
    if is_json:
        session.print_json(_document(chart, shown))
        return
    name_width = min(name_width, max([cell_len(printable(name)) for name, _ in shown] + [len("total")]))
    session.draw(Text(_heading(chart, zone), "bold").wrap(session.console, width))
    for line in _lines(chart, shown, zone, name_width):
        session.console.print(line, no_wrap=True, overflow="crop", crop=True)
    peak = max(chart.total)
    if peak:
        at = chart.begin + chart.total.index(peak) * chart.step
        session.draw(Text(_legend(_peak(shown)), "dim").wrap(session.console, width))
        most = f"the most, {peak}, in the {_length(chart.step)} from {clock(at, zone)} on"
        session.say(f"{sum(chart.total)} runs; {most}.")
    else:
        session.say("Nothing is going to run.")


def _length(step: timedelta) -> str:
    minutes = int(step.total_seconds() // 60)
    for unit, name in ((1440, "d"), (60, "h")):
        if minutes % unit == 0:
            return f"{minutes // unit} {name}"
    return f"{minutes} min"


def _heading(chart: Chart, zone: tzinfo) -> str:
    begin, end = chart.begin.astimezone(zone), chart.end.astimezone(zone)
    change = ", clocks change in between" if begin.utcoffset() != end.utcoffset() else ""
    return (
        f"{begin:%A %Y-%m-%d %H:%M} to {end:%A %Y-%m-%d %H:%M}, {label_of(zone)}{change}; "
        f"a column is {_length(chart.step)}"
    )


def _empty_chart(since: datetime, zone: tzinfo, hours: float, room: int) -> Chart:
    """Return a chart whose columns begin at full hours, or at parts of them, in ``zone``."""
    minutes = next((step for step in _STEPS if hours * 60 / step <= room), _STEPS[-1])
    step = timedelta(minutes=minutes)
    local = since.astimezone(zone)
    into = timedelta(hours=local.hour, minutes=local.minute, seconds=local.second)
    begin = since.replace(microsecond=0) - into % step
    columns = max(min(int(-(-hours * 60 // minutes)), room), 1)
    return Chart(begin, step, columns, total=[0] * columns)


def _count(
    counts: Counter[int], entry: RedBeatSchedulerEntry, since: datetime, now: datetime, chart: Chart
) -> None:
    """Count the runs of ``entry`` by their columns: the one in Redis, and those after it.

    Arguments:
        since: before now: those that its schedule had until then are counted, too.
    """
    due = entry.next_due_at
    if due is None:
        return
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = None if most is None else most - entry.total_run_count
    last = chart.end - _TICK if policy.end_time is None else min(chart.end - _TICK, policy.end_time)
    at_once = max(due, now)  # an entry that is due already runs now
    if since < now and left is None:
        _count_past(counts, entry, since, due - _TICK, chart)
    if at_once >= chart.end or (left is not None and left <= 0):
        return
    if at_once >= chart.begin:
        counts[(at_once - chart.begin) // chart.step] += 1
    every = _interval_of(entry) if left is None else None
    if every is not None:
        _count_interval(counts, due, max(now, chart.begin - _TICK), every, last, chart)
        return
    first = due if left is not None else max(due, now, chart.begin - _TICK)
    for number, run in enumerate(in_time(entry, runs_between(entry, first + _TICK, last)), start=2):
        if left is not None and number > left:
            break
        if run >= chart.begin:
            counts[(run - chart.begin) // chart.step] += 1


def _interval_of(entry: RedBeatSchedulerEntry) -> timedelta | None:
    """Return the interval of ``entry``, if its schedule is only an interval."""
    schedule_ = entry.schedule
    is_interval = isinstance(schedule_, schedule) and not is_own_kind(schedule_, schedule)
    is_plain = is_interval and not schedule_.relative and not entry.policy.exclude
    return schedule_.run_every if is_plain else None


def _count_past(
    counts: Counter[int], entry: RedBeatSchedulerEntry, since: datetime, until: datetime, chart: Chart
) -> None:
    """Count the runs that the schedule of ``entry`` has from ``since`` to ``until``."""
    until = min(until, chart.end - _TICK)
    every, due = _interval_of(entry), entry.next_due_at
    if every is None or due is None:
        for run in in_time(entry, runs_between(entry, since, until)):
            counts[(run - chart.begin) // chart.step] += 1
        return
    if entry.policy.start_time is not None:
        since = max(since, entry.policy.start_time)
    first = due - ((due - since) // every) * every
    if first <= until:
        counts[(first - chart.begin) // chart.step] += 1
        _count_interval(counts, first, first, every, until, chart)


def _count_interval(
    counts: Counter[int], due: datetime, now: datetime, every: timedelta, end: datetime, chart: Chart
) -> None:
    """Count the runs after ``due`` by arithmetic, as there may be many thousands."""
    # in whole microseconds from the beginning of the first column, as timedeltas take ten times as long
    step, length = chart.step // _TICK, every // _TICK
    start, stop = (due - chart.begin) // _TICK, (end - chart.begin) // _TICK
    # runs that were missed before now aren't counted one by one
    before = max(((now - chart.begin) // _TICK - start) // length, 0)
    for column in range(max(start // step, 0), chart.columns):
        upto = max((min((column + 1) * step - 1, stop) - start) // length, 0)
        if upto > before:
            counts[column] += upto - before
            before = upto


def _document(chart: Chart, shown: list[Row]) -> dict[str, Any]:
    return {
        "begin": iso(chart.begin),
        "end": iso(chart.end),
        "column_seconds": chart.step.total_seconds(),
        "total": chart.total,
        "entries": [
            {"name": name, "runs": [counts.get(column, 0) for column in range(chart.columns)]}
            for name, counts in shown
        ],
    }


def _lines(chart: Chart, shown: list[Row], zone: tzinfo, name_width: int) -> list[Text]:
    lines = [Text(_fit("", name_width) + _ruler(chart, zone), "bold")]
    edges = _edges(_peak(shown))
    for name, counts in shown:
        line = Text(_fit(printable(name), name_width))
        for column in range(chart.columns):
            level = _level(counts.get(column, 0), edges)
            line.append(_SHADES[level], _SHADE_STYLES[level])
        lines.append(line)
    if len(chart.rows) > len(shown):
        lines.append(Text(f"and {len(chart.rows) - len(shown)} more, in the total", "dim"))
    most = max(chart.total) or 1
    bars = "".join(_BARS[-(-runs * (len(_BARS) - 1) // most)] for runs in chart.total)
    lines.append(Text(_fit("total", name_width) + bars, "bold"))
    return lines


def _edges(peak: int) -> list[int]:
    """Return the most runs of each shade, of which there are four: in equal ratios up to ``peak``."""
    edges: list[int] = []
    for level in range(1, len(_SHADES)):
        edges.append(max(round(peak ** (level / (len(_SHADES) - 1))), edges[-1] + 1 if edges else 1))
    edges[-1] = max(edges[-1], peak)
    return edges


def _level(runs: int, edges: list[int]) -> int:
    return 0 if not runs else next(level for level, most in enumerate(edges, start=1) if runs <= most)


def _peak(shown: list[Row]) -> int:
    return max((max(counts.values()) for _, counts in shown), default=0)


def _legend(peak: int) -> str:
    """Return the legend: each shade and its numbers of runs."""
    words, least = [f"{_SHADES[0]} none"], 1
    for shade, most in zip(_SHADES[1:], _edges(peak), strict=True):
        if least > peak:
            break
        most = min(most, peak)
        words.append(f"{shade} {least}" if least == most else f"{shade} {least} to {most}")
        least = most + 1
    return ",  ".join(words)


def _fit(text: str, width: int) -> str:
    shown = cut_middle(text, width)
    return shown + " " * (width - cell_len(shown)) + "  "


def _ruler(chart: Chart, zone: tzinfo) -> str:
    """Return the hours, or the days, above the columns in which they begin, where there is room."""
    by_days = chart.step * 8 >= timedelta(days=1)
    line, before = "", ""
    for column in range(chart.columns):
        begin = chart.begin + column * chart.step
        label = f"{begin.astimezone(zone):%m-%d}" if by_days else _full_hour(begin, chart.step, zone)
        if label not in ("", before) and len(line) <= column - (1 if line else 0):
            line = line.ljust(column) + label
        before = label or before
    return line[: chart.columns].ljust(chart.columns)


def _full_hour(begin: datetime, step: timedelta, zone: tzinfo) -> str:
    """Return the first hour that begins in the column, '' for none: where clocks change by half an hour, it
    begins amid one."""
    to_full = timedelta(minutes=-begin.astimezone(zone).minute % 60)
    return f"{(begin + to_full).astimezone(zone):%H}" if to_full < step else ""
