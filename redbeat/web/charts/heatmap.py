"""The heat map of the timeline: cells whose shade tells how many runs there are, how those of the past ended,
bars for all together, and the times below them. Pure.

Invariant: a shade, a colour and a height are never all there is: each row and each column has its numbers in
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from statistics import fmean
from typing import NamedTuple

from redbeat.entries.timeline import HAPPENED, Chart, Row, Timeline, edges_of, legend_of, level_of
from redbeat.entries.wording import clock, local_time, offset_of
from redbeat.schedules.durations import length_in_words

#: the width of a chart, in its own units; the height of a row's cells and of how they ended; of the bars
WIDTH, ROW_HEIGHT, FATE_HEIGHT, BARS_HEIGHT = 640.0, 16.0, 6.0, 48.0
LEVELS = 5
#: how much room the label of a time takes; how many columns with many runs are marked
LABEL_WIDTH, MAX_PILES = 40.0, 4
#: a column has many runs if it has so many times the mean of columns with any
PILE_FACTOR = 2.0
#: the class and the height of what is drawn for each of ``HAPPENED``
FATES = {
    "lost": ("fill-danger", 1.0),
    "failed": ("fill-danger", 1.0),
    "skipped": ("fill-neutral", 0.35),
    "sent": ("fill-good", 0.6),
}

#: what is drawn, by its class
Paths = Mapping[str, str]


class Column(NamedTuple):
    """A column, for its title and for the table.

    Attributes:
        x: where it begins; its width is that of the map.
        when: its time, in the viewer's zone.
        words: its numbers.
        runs: how many are planned.
        fates: how many ended as each of ``FATES``; {}: it isn't in the past.
        is_pile: many runs are there.
    """

    x: float
    when: str
    words: str
    runs: int
    fates: Mapping[str, int]
    is_pile: bool


class Mark(NamedTuple):
    """Something below the bars. Its ``kind``: 'hour', 'day', or 'clocks' where they change."""

    x: float
    text: str
    kind: str


class HeatRow(NamedTuple):
    """A row: its planned runs, how those of the past ended with their numbers, and all that in words."""

    name: str
    cells: Paths
    fates: Paths
    runs: int
    counts: Mapping[str, int]
    words: str


@dataclass(frozen=True)
class HeatMap:
    """What the page draws.

    Attributes:
        bars: all runs; ``fates``: how they ended, over these.
        columns: one for each, from left to right; ``width`` is their width.
        marks: the times below.
        now_x: where the present is; None: at the left edge or outside.
        fates_shown: those of ``FATES`` of which there are any, and 'sent' in the past.
        legend: texts for the shades, beginning with none.
        summary: how many runs, and where the most are.
    """

    rows: Sequence[HeatRow]
    bars: Paths
    fates: Paths
    columns: Sequence[Column]
    width: float
    marks: Sequence[Mark]
    now_x: float | None
    fates_shown: Sequence[str]
    legend: Sequence[str]
    summary: str


def draw_heat_map(found: Timeline, zone: tzinfo) -> HeatMap:
    """Return the heat map of a timeline, with times in ``zone``."""
    chart, total = found.chart, found.total.counts
    width = WIDTH / chart.columns
    past = max(min(chart.column_of(found.now) + 1, chart.columns), 0) if found.has_past else 0
    peak = max((max(row.counts) for row in found.rows), default=0)
    edges = edges_of(peak, LEVELS)
    busiest = sorted((column for column, runs in enumerate(total) if runs), key=lambda column: -total[column])
    mean = fmean(total[column] for column in busiest) if busiest else 0.0
    piles = [column for column in busiest[:MAX_PILES] if total[column] >= PILE_FACTOR * mean]
    columns = []
    for column, runs in enumerate(total):
        fates = {fate: found.total.happened[fate, column] for fate in HAPPENED} if column < past else {}
        words = [_many(runs), *(f"{number} {fate}" for fate, number in fates.items() if number)]
        when = _short(chart, column, zone)
        columns.append(Column(round(column * width, 1), when, ", ".join(words), runs, fates, column in piles))
    bars = (
        ("fill-warn" if column in piles else "fill-accent", column, max(BARS_HEIGHT * runs / max(total), 1.0))
        for column, runs in enumerate(total)
        if runs
    )
    now_x = (found.now - chart.begin) / chart.step * width
    return HeatMap(
        [_row(row, edges, width, past, chart, zone) for row in found.rows],
        _paths(bars, width, BARS_HEIGHT),
        _fates(found.total, width, past, BARS_HEIGHT),
        columns,
        width,
        _marks(chart, zone, width),
        now_x if found.has_past and 0 < now_x < WIDTH else None,
        [fate for fate in HAPPENED if past and (fate == "sent" or _ended(found.total, fate))],
        legend_of(edges, peak),
        _summary(chart, total, busiest[:1] + [one for one in piles if one != busiest[0]], zone),
    )


def _row(row: Row, edges: Sequence[int], width: float, past: int, chart: Chart, zone: tzinfo) -> HeatRow:
    cells = (
        (f"heat-{level_of(runs, edges)}", column, ROW_HEIGHT)
        for column, runs in enumerate(row.counts)
        if runs
    )
    counts = {fate: _ended(row, fate) for fate in HAPPENED}
    most = max(row.counts)
    words = _many(row.runs)
    if most:
        words += f"; the most, {most}, from {_short(chart, row.counts.index(most), zone)} on"
    if past:
        words += "".join(f"; {number} {fate}" for fate, number in counts.items() if number)
    fates = _fates(row, width, past, ROW_HEIGHT)
    return HeatRow(row.name, _paths(cells, width, ROW_HEIGHT), fates, row.runs, counts, words)


def _ended(row: Row, fate: str) -> int:
    return sum(runs for (word, _), runs in row.happened.items() if word == fate)


def _fates(row: Row, width: float, past: int, top: float) -> Paths:
    """Return how planned runs ended, in a lane below ``top``: in each column the worst."""
    worst = ((next((fate for fate in HAPPENED if row.happened[fate, at]), None), at) for at in range(past))
    shapes = ((FATES[fate][0], column, FATE_HEIGHT * FATES[fate][1]) for fate, column in worst if fate)
    return _paths(shapes, width, top + 2 + FATE_HEIGHT)


def _marks(chart: Chart, zone: tzinfo, width: float) -> list[Mark]:
    """Return the times below the bars, as many as there is room for."""
    marks: list[Mark] = []
    before = local_time(chart.begin - timedelta(seconds=1), zone)
    free_from = 0.0
    by_days = chart.columns * chart.step > timedelta(days=2)
    for column in range(chart.columns):
        last = local_time(chart.begin + (column + 1) * chart.step - timedelta(seconds=1), zone)
        x = column * width
        if last.utcoffset() != before.utcoffset():
            marks.append(Mark(round(x, 1), f"clocks change to {offset_of(last)}", "clocks"))
        if last.date() != before.date():
            if marks and marks[-1].kind == "hour" and x < marks[-1].x + LABEL_WIDTH:
                marks.pop()  # the day needs its room
            marks.append(Mark(round(x, 1), f"{last:%a %d}", "day"))
            free_from = x + 1.3 * LABEL_WIDTH
        elif last.hour != before.hour and x >= free_from and x + 0.8 * LABEL_WIDTH < WIDTH and not by_days:
            marks.append(Mark(round(x, 1), f"{last:%H}:00", "hour"))
            free_from = x + LABEL_WIDTH
        before = last
    return marks


def _summary(chart: Chart, total: Sequence[int], highest: Sequence[int], zone: tzinfo) -> str:
    if not highest:
        return "Nothing runs in this time."
    times = [_short(chart, column, zone) for column in highest]
    length = length_in_words(chart.step.total_seconds())
    words = f"{_many(sum(total))}; most: {total[highest[0]]:,} in the {length} from {times[0]}"
    others = [f"{total[column]:,} from {at}" for column, at in zip(highest[1:], times[1:], strict=True)]
    return f"{words}; many, too: {', '.join(others)}." if others else f"{words}."


def _many(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _short(chart: Chart, column: int, zone: tzinfo) -> str:
    """Return the time of a column without the day, where the chart is about one day, and without seconds."""
    day, _, rest = clock(chart.begin + column * chart.step, zone).partition(" ")
    rest = f"{rest[:5]}{rest[8:]}"
    return rest if chart.end - chart.begin <= timedelta(days=1) else f"{day} {rest}"


def _paths(shapes: Iterable[tuple[str, int, float]], width: float, foot: float) -> Paths:
    """Return rectangles on ``foot``, each given by its class, its column and its height."""
    paths: dict[str, str] = {}
    wide = round(width * 0.9, 1)  # a little narrower than a column
    for name, column, height in shapes:
        x, y = round(column * width, 1), round(foot - height, 1)
        paths[name] = paths.get(name, "") + f"M{x:g} {y:g}h{wide:g}v{round(height, 1):g}h-{wide:g}z"
    return paths
