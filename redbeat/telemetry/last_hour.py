"""What was counted in the last hour, minute by minute: for people who look, without a system of metrics.

Invariant: a minute in which nothing was counted is told apart from an hour without a beat that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from redbeat.history import FAILED_OUTCOMES
from redbeat.store.figures import BOUNDS, read_minutes
from redbeat.store.store import Store

MINUTES = 60
#: what is counted of runs that have gone wrong
FAILURES = (*FAILED_OUTCOMES, "unsent")


@dataclass(frozen=True)
class Minute:
    """What was counted in one minute, under all labels together.

    Attributes:
        at: its begin, UTC.
        sent: how many runs were sent.
        failed: of how many it was found that they had gone wrong, whenever they were sent.
        late: how many of those sent were late by at most each of ``BOUNDS["late"]``, and more than the one
            before; behind them by more than the last.
    """

    at: datetime
    sent: int = 0
    failed: int = 0
    late: tuple[int, ...] = (0,) * (len(BOUNDS["late"]) + 1)


@dataclass(frozen=True)
class LastHour:
    """The minutes of the last hour.

    Attributes:
        minutes: the oldest first; the last one isn't over.
        is_counted: a run was ever counted.
    """

    minutes: Sequence[Minute]
    is_counted: bool

    @property
    def sent(self) -> int:
        """How many runs were sent."""
        return sum(minute.sent for minute in self.minutes)

    @property
    def failed(self) -> int:
        """How many have gone wrong."""
        return sum(minute.failed for minute in self.minutes)

    def late_seconds(self, part: float) -> float | None:
        """Return by how much ``part`` of the runs were late at most; None: there were none."""
        of_buckets = zip(*(minute.late for minute in self.minutes), strict=True)
        return quantile_of(map(sum, of_buckets), part)


def read_last_hour(app: Any, now: datetime) -> LastHour:
    """Return the minutes until ``now``, the server's clock.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    is_counted, counted = read_minutes(Store(app))
    last = int(now.timestamp()) // 60
    return LastHour(
        [_minute_of(number, counted.get(number, {})) for number in range(last - MINUTES + 1, last + 1)],
        is_counted or bool(counted),
    )


def _minute_of(number: int, counted: Mapping[str, int]) -> Minute:
    return Minute(
        datetime.fromtimestamp(number * 60, timezone.utc),
        counted.get("sent", 0),
        sum(counted.get(word, 0) for word in FAILURES),
        tuple(counted.get(f"late/{bucket}", 0) for bucket in range(1, len(BOUNDS["late"]) + 2)),
    )


def quantile_of(late: Iterable[int], part: float) -> float | None:
    """Return below which number of seconds ``part`` of a histogram is, between the bounds of its bucket.

    In the last bucket, which has no upper bound, its lower one; None: nothing was counted.
    """
    counts = list(late)
    rest, lower = part * sum(counts), 0.0
    if not rest:
        return None
    for count, upper in zip(counts, BOUNDS["late"], strict=False):
        if count and rest <= count:
            return lower + (upper - lower) * rest / count
        rest, lower = rest - count, upper
    return lower
