"""The heat map of the timeline: cells whose shade tells how many runs there are, what became of those in the
past, bars for all together, and the times below them. Pure.

Invariant: a shade, a colour and a height are never all there is: each row and each column has its numbers in
words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from statistics import fmean
from typing import NamedTuple

from redbeat.entries.load import LoadChart, LoadRow
from redbeat.entries.timeline import edges_of, level_of
from redbeat.entries.wording import clock, local_time, offset_of
from redbeat.schedules.durations import length_in_words

__all__ = ["FATES", "WIDTH", "Column", "HeatMap", "HeatRow", "draw_heat_map"]

#: the width of a chart, in its own units; the height of a row's cells and of what became of them; of the bars
WIDTH, ROW_HEIGHT, FATE_HEIGHT, BARS_HEIGHT = 640.0, 16.0, 6.0, 48.0
LEVELS = 5
#: how much room the label of a time takes, and that of a number; how many columns with many runs are named
LABEL_WIDTH, NUMBER_WIDTH, MAX_PILES = 40.0, 30.0, 4
#: a column has many runs if it has so many times the mean of those with any; the highest of all, if so many
PILE_FACTOR, PEAK_FACTOR = 2.0, 1.5

#: what became of planned runs, in words that a row has numbers for: the words of ``HAPPENED`` that each has,
#: its class, and its height; the worst comes first
FATES: Mapping[str, tuple[Sequence[str], str, float]] = {
    "lost": (("lost",), "fill-danger", 1.0),
    "failed": (("failed",), "fill-danger", 1.0),
    "skipped": (("skipped",), "fill-neutral", 0.35),
    "sent": (("succeeded", "sent", "other"), "fill-good", 0.6),
}


class Path(NamedTuple):
    """A shape: its class, and what it is drawn by."""

    name: str
    path: str


class Column(NamedTuple):
    """A column, for its title and for the table.

    Attributes:
        x: where it begins; its width is that of the map.
        when: its time, in the viewer's zone.
        words: its numbers.
        runs: how many are planned.
        fates: how many there were of each of ``FATES``; {}: it isn't in the past.
        is_pile: many runs are there.
        label: their number, where there is room for it; '': none.
    """

    x: float
    when: str
    words: str
    runs: int
    fates: Mapping[str, int]
    is_pile: bool
    label: str


class Mark(NamedTuple):
    """Something below the bars. Its ``kind``: 'hour', 'day', or 'clocks' where they change."""

    x: float
    text: str
    kind: str


@dataclass(frozen=True)
class HeatRow:
    """A row.

    Attributes:
        name: of an entry, a task or a prefix.
        cells: its planned runs.
        fates: what became of them.
        runs: how many are planned.
        counts: how many of them became what, by the words of ``FATES``.
        words: all that in words.
    """

    name: str
    cells: Sequence[Path]
    fates: Sequence[Path]
    runs: int
    counts: Mapping[str, int]
    words: str


@dataclass(frozen=True)
class HeatMap:
    """What the page draws.

    Attributes:
        bars: all runs; ``fates``: what became of them, over these.
        columns: one for each, from left to right; ``width`` is their width.
        marks: the times below.
        now_x: where the present is; None: at the left edge or outside.
        fates_shown: those of ``FATES`` of which there are any, and 'sent' in the past.
        legend: six texts, for the shades.
        summary: how many runs, and where the most are.
    """

    rows: Sequence[HeatRow]
    bars: Sequence[Path]
    fates: Sequence[Path]
    columns: Sequence[Column]
    width: float
    marks: Sequence[Mark]
    now_x: float | None
    fates_shown: Sequence[str]
    legend: Sequence[str]
    summary: str


def draw_heat_map(found: LoadChart, rows: Sequence[LoadRow], zone: tzinfo) -> HeatMap:
    """Return the heat map of these rows, with times in ``zone``."""
    width = WIDTH / found.columns
    past = max(min((found.now - found.begin) // found.step + 1, found.columns), 0) if found.has_past else 0
    edges = edges_of(max((max(row.counts) for row in rows), default=0), LEVELS)
    highest = _highest(found.total.counts)
    piles = _piles(found.total.counts, highest)
    labelled = _labelled(piles or highest[:1], width)
    columns = [
        _column(found, column, zone, past, width, is_pile=column in piles, is_labelled=column in labelled)
        for column in range(found.columns)
    ]
    now_x = (found.now - found.begin) / found.step * width
    return HeatMap(
        [_row(row, edges, width, past, found, zone) for row in rows],
        _bars(found.total.counts, piles, width),
        _fates(found.total, width, past, BARS_HEIGHT),
        columns,
        width,
        _marks(found, zone, width),
        now_x if found.has_past and 0 < now_x < WIDTH else None,
        [fate for fate, number in _counts(found.total).items() if past and (number or fate == "sent")],
        _legend(edges),
        _summary(found, highest, zone),
    )


def _row(
    row: LoadRow, edges: Sequence[int], width: float, past: int, found: LoadChart, zone: tzinfo
) -> HeatRow:
    cells: dict[str, str] = {}
    for column, runs in enumerate(row.counts):
        if runs:
            name = f"heat-{level_of(runs, edges)}"
            cells[name] = cells.get(name, "") + _cell(column * width, 0, width, ROW_HEIGHT)
    counts = _counts(row)
    most = max(row.counts, default=0)
    words = _many(row.runs)
    if most:
        at = found.begin + row.counts.index(most) * found.step
        words += f"; the most, {most}, from {_short(at, found, zone)} on"
    if past:
        words += "".join(f"; {number} {word}" for word, number in counts.items() if number)
    return HeatRow(row.name, _paths(cells), _fates(row, width, past, ROW_HEIGHT), row.runs, counts, words)


def _counts(row: LoadRow) -> dict[str, int]:
    return {
        fate: sum(sum(row.happened[word]) for word in words if word in row.happened)
        for fate, (words, _, _) in FATES.items()
    }


def _column(
    found: LoadChart, column: int, zone: tzinfo, past: int, width: float, *, is_pile: bool, is_labelled: bool
) -> Column:
    begin = found.begin + column * found.step
    runs = found.total.counts[column]
    fates = {}
    if column < past:
        for fate, (words, _, _) in FATES.items():
            fates[fate] = sum(
                found.total.happened[word][column] for word in words if word in found.total.happened
            )
    words = [_many(runs), *(f"{number} {fate}" for fate, number in fates.items() if number)]
    when, label = _short(begin, found, zone), f"{runs:,}" if is_labelled else ""
    return Column(_round(column * width), when, ", ".join(words), runs, fates, is_pile, label)


def _highest(total: Sequence[int]) -> list[int]:
    """Return the columns with many runs, the highest first; the highest of all in any case."""
    order = sorted((column for column, runs in enumerate(total) if runs), key=lambda column: -total[column])
    mean = fmean(total[column] for column in order) if order else 0.0
    return [
        column for column in order[:MAX_PILES] if column == order[0] or total[column] >= PILE_FACTOR * mean
    ]


def _piles(total: Sequence[int], highest: Sequence[int]) -> list[int]:
    """Return those of the highest columns in which runs pile up: none, where all are much the same."""
    if not highest:
        return []
    mean = fmean(runs for runs in total if runs)
    return [*highest] if total[highest[0]] >= PEAK_FACTOR * mean else []


def _labelled(columns: Sequence[int], width: float) -> list[int]:
    """Return the columns over which there is room for a number, the highest first."""
    labelled: list[int] = []
    for column in columns:
        if all(abs(column - other) * width >= NUMBER_WIDTH for other in labelled):
            labelled.append(column)
    return labelled


def _bars(total: Sequence[int], piles: Sequence[int], width: float) -> list[Path]:
    most, paths = max(total, default=0) or 1, dict[str, str]()
    for column, runs in enumerate(total):
        if runs:
            tall = max(BARS_HEIGHT * runs / most, 1.0)
            name = "fill-warn" if column in piles else "fill-accent"
            paths[name] = paths.get(name, "") + _cell(column * width, BARS_HEIGHT - tall, width, tall)
    return _paths(paths)


def _fates(row: LoadRow, width: float, past: int, top: float) -> list[Path]:
    """Return what became of planned runs, in a lane below ``top``: in each column the worst."""
    paths: dict[str, str] = {}
    for column in range(past):
        for words, name, height in FATES.values():
            if any(row.happened[word][column] for word in words if word in row.happened):
                tall = FATE_HEIGHT * height
                y = top + 2 + FATE_HEIGHT - tall
                paths[name] = paths.get(name, "") + _cell(column * width, y, width, tall)
                break
    return _paths(paths)


def _marks(found: LoadChart, zone: tzinfo, width: float) -> list[Mark]:
    """Return the times below the bars, as many as there is room for."""
    marks: list[Mark] = []
    before = local_time(found.begin - timedelta(seconds=1), zone)
    free_from = 0.0
    by_days = found.columns * found.step > timedelta(days=2)
    for column in range(found.columns):
        last = local_time(found.begin + (column + 1) * found.step - timedelta(seconds=1), zone)
        x = column * width
        if last.utcoffset() != before.utcoffset():
            marks.append(Mark(_round(x), f"clocks change to {offset_of(last)}", "clocks"))
        if last.date() != before.date():
            if marks and marks[-1].kind == "hour" and x < marks[-1].x + LABEL_WIDTH:
                marks.pop()  # the day needs its room
            marks.append(Mark(_round(x), f"{last:%a %d}", "day"))
            free_from = x + 1.3 * LABEL_WIDTH
        elif last.hour != before.hour and x >= free_from and x + 0.8 * LABEL_WIDTH < WIDTH and not by_days:
            marks.append(Mark(_round(x), f"{last:%H}:00", "hour"))
            free_from = x + LABEL_WIDTH
        before = last
    return marks


def _legend(edges: Sequence[int]) -> list[str]:
    words, least = ["none"], 1
    for most in edges:
        words.append(str(least) if least == most else f"{least} to {most}")
        least = most + 1
    return words


def _summary(found: LoadChart, piles: Sequence[int], zone: tzinfo) -> str:
    if not piles:
        return "Nothing runs in this time."
    total, length = found.total.counts, length_in_words(found.step.total_seconds())
    first = found.begin + piles[0] * found.step
    words = (
        f"{_many(sum(total))}; most: {total[piles[0]]:,} in the {length} from {_short(first, found, zone)}"
    )
    others = [
        f"{total[column]:,} from {_short(found.begin + column * found.step, found, zone)}"
        for column in piles[1:]
    ]
    return f"{words}; many, too: {', '.join(others)}." if others else f"{words}."


def _many(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _short(moment: datetime, found: LoadChart, zone: tzinfo) -> str:
    """Return a time without the day, where the chart is about one day, and without seconds."""
    text = clock(moment, zone)
    day, _, rest = text.partition(" ")
    rest = f"{rest[:5]}{rest[8:]}"
    is_short = found.columns * found.step <= timedelta(days=1)
    return rest if is_short else f"{day} {rest}"


def _paths(found: Mapping[str, str]) -> list[Path]:
    return [Path(name, path) for name, path in found.items()]


def _cell(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle, a little narrower than its column."""
    wide = _round(width * 0.9)
    return f"M{_round(x):g} {_round(y):g}h{wide:g}v{_round(height):g}h-{wide:g}z"


def _round(number: float) -> float:
    return round(number, 1)
