"""``celery redbeat timeline``: which entries run when, as a chart of shaded cells, which shows times with
many runs.

Invariant: the chart fits the terminal's width, and its total counts all entries, shown or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

import click
from rich.cells import cell_len
from rich.text import Text

from redbeat.cli.flags import ONE_OBJECT, ONLY_MATCHING, pass_session, zone_options
from redbeat.cli.listing import note_untold
from redbeat.cli.operations import options_of
from redbeat.cli.progress import meter
from redbeat.cli.session import ReadingCommand, Session
from redbeat.cli.tables import MIDDLE, shortened
from redbeat.entries.timeline import (
    Chart,
    Counting,
    Row,
    Timeline,
    chart_from,
    edges_of,
    legend_of,
    level_of,
)
from redbeat.entries.wording import clock, label_of
from redbeat.log.text import printable
from redbeat.operations.operating import show_timeline
from redbeat.schedules.durations import length_in_words
from redbeat.schedules.times import TypedTime

_BARS = " ▁▂▃▄▅▆▇█"
#: the cells: without runs, and with more and more of them
_SHADES = "·░▒▓█"
_SHADE_STYLES = ("dim", "blue", "cyan", "yellow", "red")
MOST_FOR_NAMES = 44
#: how many columns there are where the output isn't a terminal
PIPED_WIDTH = 120


@click.command(cls=ReadingCommand)
@options_of(show_timeline, "hours", "start", "by")
@ONLY_MATCHING
@click.option(
    "--rows", type=click.IntRange(0), default=40, show_default=True, help="Show at most this many rows."
)
@zone_options
@ONE_OBJECT
@pass_session
def timeline(
    session: Session,
    hours: float,
    start: TypedTime | None,
    by: str,
    match: str | None,
    rows: int,
) -> None:
    """Draw a chart of which entries run when, and where runs pile up.

    It has a row for each entry, and one for all together. The more runs, the darker the cell; the line
    below the chart gives the numbers. Disabled entries aren't shown, and paused ones only after the end of
    their pause. With --start in the past the chart has the runs that the schedules had then, whether or not
    they were sent.
    """
    now, zone = session.now(), session.zone
    since = None if start is None else session.time(start)
    width = PIPED_WIDTH if session.is_piped else session.console.width
    name_width = min(MOST_FOR_NAMES, max(width * 3 // 10, 5))
    chart = chart_from(since or now, zone, hours, max(width - name_width - 2, 5))
    counting = Counting(session.app, chart, since, by=by, match=match, max_rows=rows)
    with meter("Looking") as progress:
        for _ in counting.steps():
            progress(counting.found.looked_at)
    found = counting.found
    note_untold(session, found.untold)
    if session.is_json:
        session.print_json(found.to_dict())
        return
    shown = found.rows
    name_width = min(name_width, max([cell_len(printable(row.name)) for row in shown] + [len("total")]))
    session.draw(Text(_heading(chart, zone), "bold").wrap(session.console, width))
    for line in _lines(found, zone, name_width):
        session.console.print(line, no_wrap=True, overflow="crop", crop=True)
    total = found.total.counts
    peak = max(total)
    if peak:
        at = chart.begin + total.index(peak) * chart.step
        session.draw(Text(_legend(_peak(shown)), "dim").wrap(session.console, width))
        step = length_in_words(chart.step.total_seconds())
        session.say(f"{sum(total)} runs; the most, {peak}, in the {step} from {clock(at, zone)} on.")
    else:
        session.say("Nothing is going to run.")


def _heading(chart: Chart, zone: tzinfo) -> str:
    begin, end = chart.begin.astimezone(zone), chart.end.astimezone(zone)
    change = ", clocks change in between" if begin.utcoffset() != end.utcoffset() else ""
    return (
        f"{begin:%A %Y-%m-%d %H:%M} to {end:%A %Y-%m-%d %H:%M}, {label_of(zone)}{change}; "
        f"a column is {length_in_words(chart.step.total_seconds())}"
    )


def _lines(found: Timeline, zone: tzinfo, name_width: int) -> list[Text]:
    shown, total = found.rows, found.total.counts
    lines = [Text(_fit("", name_width) + _ruler(found.chart, zone), "bold")]
    edges = edges_of(_peak(shown), len(_SHADES) - 1)
    for row in shown:
        line = Text(_fit(printable(row.name), name_width))
        for runs in row.counts:
            level = level_of(runs, edges)
            line.append(_SHADES[level], _SHADE_STYLES[level])
        lines.append(line)
    more = found.row_count - len(shown)
    if more:
        lines.append(Text(f"and {more} more, in the total", "dim"))
    most = max(total) or 1
    bars = "".join(_BARS[-(-runs * (len(_BARS) - 1) // most)] for runs in total)
    lines.append(Text(_fit("total", name_width) + bars, "bold"))
    return lines


def _peak(shown: Sequence[Row]) -> int:
    return max((max(row.counts) for row in shown), default=0)


def _legend(peak: int) -> str:
    """Return the legend: each shade and its numbers of runs."""
    words = legend_of(edges_of(peak, len(_SHADES) - 1), peak)
    return ",  ".join(f"{shade} {word}" for shade, word in zip(_SHADES, words, strict=False))


def _fit(text: str, width: int) -> str:
    shown = shortened(text, width, MIDDLE)
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
