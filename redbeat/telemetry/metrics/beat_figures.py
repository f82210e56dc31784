"""What one beat counts of itself, in memory: written by the thread of the tick, read by anybody. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

#: upper bounds of the buckets but the last, seconds
TICK_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


class Histogram:
    """How long something has taken.

    Attributes:
        counts: how often, for each bucket; the last one is without an upper bound.
        total: of all lengths together, seconds.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one length."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass
class BeatFigures:
    """What one beat has done.

    Attributes:
        last_tick_at: when its last tick ended, UNIX seconds by its own clock; 0: there was none.
        ticks: how long its ticks took, without waiting.
        batches: how long it took to send and record what a tick has fetched.
        compiled, one_by_one: how many messages it has made from templates, and by Celery.
        later: how many stored messages it has sent.
        prepared, used: how many runs were prepared before they were due, and how many of these were sent.
    """

    last_tick_at: float = 0.0
    ticks: Histogram = field(default_factory=lambda: Histogram(TICK_BOUNDS))
    batches: Histogram = field(default_factory=lambda: Histogram(TICK_BOUNDS))
    compiled: int = 0
    one_by_one: int = 0
    later: int = 0
    prepared: int = 0
    used: int = 0
