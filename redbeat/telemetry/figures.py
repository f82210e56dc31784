"""The figures of one beat: what it has counted, and what it shows of itself."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from redbeat.leadership.election import Election

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
    """What one beat has done: written by the thread of the tick, read by any thread.

    Attributes:
        last_tick_at: when its last tick ended, UNIX seconds by its own clock; 0: it hasn't ticked.
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


class OwnFigures:
    """What one beat shows of itself; a part of its telemetry.

    Arguments:
        election: its part in who leads.
        figures: what it counts.
        count_waiting: returns how many runs are prepared and wait for their time.

    Attributes:
        led_since: since when it has led without interruption, monotonic; None: it doesn't lead.
        wasted: how many prepared runs weren't sent as they were prepared.
    """

    def __init__(self, election: Election, figures: BeatFigures, count_waiting: Callable[[], int]) -> None:
        self.figures = figures
        self.wasted = 0
        self.election = election
        self._count_waiting = count_waiting
        self.led_since: float | None = None

    def look(self) -> None:
        """Note what changes between two ticks."""
        self.figures.last_tick_at = time.time()
        self.wasted = max(self.figures.prepared - self.figures.used - self._count_waiting(), 0)
        if not self.election.is_leader:
            self.led_since = None
        elif self.led_since is None:
            self.led_since = time.monotonic()

    def stop(self) -> None:
        """Do nothing."""


def find_version() -> str:
    """Return RedBeat's version; 'unknown' where it runs from a source tree."""
    try:
        return version("celery-redbeat")
    except PackageNotFoundError:
        return "unknown"
