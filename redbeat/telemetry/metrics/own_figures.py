"""What one beat shows of itself: noted at each tick, and read whenever somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from redbeat.leadership.election import Election
from redbeat.telemetry.metrics.beat_figures import BeatFigures


class OwnFigures:
    """What one beat shows of itself.

    Arguments:
        leadership: its part in who leads.
        figures: what it counts.
        count_waiting: returns how many runs are prepared and wait for their time.

    Attributes:
        wasted: how many prepared runs weren't sent as they were prepared.
    """

    def __init__(self, leadership: Election, figures: BeatFigures, count_waiting: Callable[[], int]) -> None:
        self.figures = figures
        self.wasted = 0
        self.version = _find_version()
        self._leadership = leadership
        self._count_waiting = count_waiting
        self._led_since: float | None = None  # monotonic

    def look(self) -> None:
        """Note what is so between two ticks."""
        self.figures.last_tick_at = time.time()
        self.wasted = max(self.figures.prepared - self.figures.used - self._count_waiting(), 0)
        if not self._leadership.is_leader:
            self._led_since = None
        elif self._led_since is None:
            self._led_since = time.monotonic()

    def stop(self) -> None:
        """Do nothing."""

    @property
    def is_leader(self) -> bool:
        """Whether it leads, and no other beat can lead by now; without a lock all beats do."""
        return self._leadership.lock_key is None or self._leadership.is_certain

    @property
    def shards(self) -> int:
        """Into how many shards the schedule is divided; 0: it isn't."""
        election = self._leadership
        return len(election.leaderships) if election.is_divided else 0

    @property
    def lock_age_seconds(self) -> float:
        """For how long it has led without interruption; 0: it doesn't lead."""
        since = self._led_since
        return 0.0 if since is None or not self.is_leader else time.monotonic() - since


def _find_version() -> str:
    try:
        return version("celery-redbeat")
    except PackageNotFoundError:  # it runs from a source tree
        return "unknown"
