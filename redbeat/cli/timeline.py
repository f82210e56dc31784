"""``celery redbeat timeline``: which entries run when, as a chart of shaded cells, which shows times with
many runs.

Invariant: the chart fits the terminal's width, and its total counts all entries, shown or not.
"""

from __future__ import annotations

from datetime import timedelta, tzinfo

import click
from rich.cells import cell_len
from rich.text import Text

from redbeat.cli.listing import note_untold
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import ONE_OBJECT, pass_session, zone_options
from redbeat.cli.session import ReadingCommand, Session
from redbeat.cli.tables import MIDDLE, meter, shortened
from redbeat.entries.timeline import Chart, Counting, chart_from, edges_of, legend_of, level_of
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
@options_of(show_timeline, "hours", "start", "by", "match")
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
    rows_shown, total = found.rows, found.total.counts
    names = [shortened(printable(row.name), name_width, MIDDLE) for row in rows_shown]
    name_width = max(map(cell_len, [*names, "total"]))
    peak = max((max(row.counts) for row in rows_shown), default=0)
    edges = edges_of(peak, len(_SHADES) - 1)

    def line(name: str, *cells: str | tuple[str, str], style: str = "") -> Text:
        return Text.assemble(name + " " * (name_width - cell_len(name) + 2), *cells, style=style)

    session.say(_heading(chart, zone), "bold")
    lines = [line("", _ruler(chart, zone), style="bold")]
    for name, row in zip(names, rows_shown, strict=True):
        levels = [level_of(runs, edges) for runs in row.counts]
        lines.append(line(name, *((_SHADES[level], _SHADE_STYLES[level]) for level in levels)))
    if more := found.row_count - len(rows_shown):
        lines.append(Text(f"and {more} more, in the total", "dim"))
    most = max(total)
    bars = "".join(_BARS[-(-runs * (len(_BARS) - 1) // (most or 1))] for runs in total)
    session.draw([*lines, line("total", bars, style="bold")])
    if not most:
        session.say("Nothing is going to run.")
        return
    legend = zip(_SHADES, legend_of(edges, peak), strict=False)
    session.say(",  ".join(f"{shade} {words}" for shade, words in legend), "dim")
    at, step = chart.begin + total.index(most) * chart.step, length_in_words(chart.step.total_seconds())
    session.say(f"{sum(total)} runs; the most, {most}, in the {step} from {clock(at, zone)} on.")


def _heading(chart: Chart, zone: tzinfo) -> str:
    begin, end = chart.begin.astimezone(zone), chart.end.astimezone(zone)
    change = ", clocks change in between" if begin.utcoffset() != end.utcoffset() else ""
    return (
        f"{begin:%A %Y-%m-%d %H:%M} to {end:%A %Y-%m-%d %H:%M}, {label_of(zone)}{change}; "
        f"a column is {length_in_words(chart.step.total_seconds())}"
    )


def _ruler(chart: Chart, zone: tzinfo) -> str:
    """Return the hours, or the days, above their first columns, where there is room."""
    form = "%m-%d" if chart.step * 8 >= timedelta(days=1) else "%H"
    line, before = "", (chart.begin - chart.step).astimezone(zone).strftime(form)
    for column in range(chart.columns):
        label = (chart.begin + column * chart.step).astimezone(zone).strftime(form)
        if label != before and len(line) <= column - (1 if line else 0):
            line = line.ljust(column) + label
        before = label
    return line[: chart.columns]
