"""The charts of the last hour: runs a minute, and how late they were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from redbeat.telemetry.last_hour import Minute, quantile_of

#: the size of a chart in its own units; it is stretched to the width that there is
WIDTH, HEIGHT = 600.0, 100.0
#: what of the runs of a minute a line stands for
HALF, MOST = 0.5, 0.95
#: which lengths of time have a line, seconds, each ten times the one before; the first is the bottom, and one
#: of the others is the top
MARKS = {0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s", 100.0: "100 s", 1000.0: "17 min", 1e4: "3 h"}
LEAST_TOP = 1.0
#: how high a bar is at least: a single failure among thousands of runs must be seen
LEAST_SENT, LEAST_FAILED = 1.5, 10.0


class Bar(NamedTuple):
    """A minute: its bars, of runs sent upwards and of failed ones downwards, and how many seconds the half of
    its runs and most were late; None: nothing was sent.
    """

    minute: Minute
    x: float
    width: float
    sent_y: float
    sent_height: float
    failed_height: float
    half_late: float | None
    most_late: float | None


class Bars(NamedTuple):
    """The runs a minute. ``middle`` is where both kinds of bars begin; ``most`` and ``worst`` are the largest
    numbers of sent and failed runs.
    """

    bars: Sequence[Bar]
    middle: float
    most: int
    worst: int


class Lines(NamedTuple):
    """How late runs were: the half of them, and most, as paths; '' where nothing was sent. Marks are lines
    across the chart: their labels, and where they are.
    """

    half: str
    most: str
    marks: Mapping[str, float]


def bars_of(minutes: Sequence[Minute]) -> Bars:
    """Return the bars; both kinds have one scale, but failures that would be too small to be seen."""
    most = max([1, *(minute.sent for minute in minutes)])
    worst = max([0, *(minute.failed for minute in minutes)])
    scale = (HEIGHT - 4) / (most + worst)
    if worst and worst * scale < LEAST_FAILED:
        scale = (HEIGHT - 4 - LEAST_FAILED) / most
    middle = round(2 + most * scale, 2)
    step = WIDTH / max(len(minutes), 1)

    def length(count: int, least: float) -> float:
        return round(max(count * scale, least), 2) if count else 0.0

    bars = [
        Bar(
            minute,
            round(number * step + 1, 2),
            round(step - 2, 2),
            round(middle - length(minute.sent, LEAST_SENT), 2),
            length(minute.sent, LEAST_SENT),
            length(minute.failed, LEAST_FAILED),
            quantile_of(minute.late, HALF),
            quantile_of(minute.late, MOST),
        )
        for number, minute in enumerate(minutes)
    ]
    return Bars(bars, middle, most, worst)


def lines_of(bars: Sequence[Bar]) -> Lines:
    """Return the lines, on a logarithmic scale; a minute without runs interrupts them."""
    bottom, *others = MARKS
    half, most = [bar.half_late for bar in bars], [bar.most_late for bar in bars]
    worst = max([LEAST_TOP, *(one for one in most if one is not None)])
    top = next((mark for mark in others if mark >= worst), others[-1])

    def y_of(seconds: float) -> float:
        share = math.log(min(max(seconds, bottom), top) / bottom) / math.log(top / bottom)
        return round(HEIGHT - 3 - share * (HEIGHT - 6), 2)

    def path_of(values: Sequence[float | None]) -> str:
        step, parts, is_drawn = WIDTH / max(len(values), 1), list[str](), False
        for number, seconds in enumerate(values):
            if seconds is not None:
                x = round((number + 0.5) * step, 2)
                # a single point is a very short line, which its round ends make visible
                parts.append(f"L{x} {y_of(seconds)}" if is_drawn else f"M{x} {y_of(seconds)}h.01")
            is_drawn = seconds is not None
        return "".join(parts)

    marks = {label: y_of(mark) for mark, label in MARKS.items() if mark <= top}
    return Lines(path_of(half), path_of(most), marks)
