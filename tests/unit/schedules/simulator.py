"""Plain models of the runs of a schedule, minute after minute on the clock of a zone.

They are slow, and share no code with what is compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Any

from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import runs_after

UTC = timezone.utc
INSTANT, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: tells whether a rule names a minute on the clock on the wall
IsNamed = Callable[[datetime], bool]


@dataclass(frozen=True)
class Change:
    """One change of the clocks: when, in UTC, and the offsets from UTC before and after it."""

    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before

    @property
    def shift(self) -> timedelta:
        return abs(self.after - self.before)

    @property
    def wall(self) -> datetime:
        """The first wall time that is skipped, or that comes again."""
        return (self.at + min(self.before, self.after)).replace(tzinfo=None)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%dT%H:%M:%S} {self.before} to {self.after}"


def wall_at(instant: datetime, tz: tzinfo) -> datetime:
    return instant.astimezone(tz).replace(tzinfo=None, fold=0)


def offset_at(instant: datetime, tz: tzinfo) -> timedelta:
    return instant.astimezone(tz).utcoffset() or timedelta(0)


def steps_between(begin: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    """Yield ``begin`` and every ``step`` after it, before ``end``."""
    while begin < end:
        yield begin
        begin += step


def changes_between(tz: tzinfo, begin: datetime, end: datetime) -> list[Change]:
    """Return the changes in (begin, end]; of two within six hours that undo each other, none."""
    changes = []
    for early in steps_between(begin, end, 6 * HOUR):
        late, before = early + 6 * HOUR, offset_at(early, tz)
        if offset_at(late, tz) == before:
            continue
        while late - early > SECOND:
            middle = early + (late - early) // 2 // SECOND * SECOND
            if offset_at(middle, tz) == before:
                early = middle
            else:
                late = middle
        changes.append(Change(late, before, offset_at(late, tz)))
    return changes


def runs_between(
    schedule_: Any, policy: Policy, begin: datetime, end: datetime, anchor: datetime | None = None
) -> list[datetime]:
    """Return the instants in (begin, end] at which an entry runs whose beat is never late."""
    return list(takewhile(lambda due: due <= end, runs_after(schedule_, policy, begin, anchor)))


@lru_cache(maxsize=2)
def clock_between(tz: tzinfo, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Return (instant, what the clock in ``tz`` shows) for ``begin`` and every minute until ``end``."""
    return [(instant, wall_at(instant, tz)) for instant in steps_between(begin, end + INSTANT, MINUTE)]


def shown_between(is_named: IsNamed, tz: tzinfo, begin: datetime, end: datetime) -> list[datetime]:
    """Return the minutes in (begin, end] at which the clock in ``tz`` shows a time that is named."""
    return [instant for instant, wall in clock_between(tz, begin, end)[1:] if is_named(wall)]


def reached_between(is_named: IsNamed, tz: tzinfo, begin: datetime, end: datetime) -> list[datetime]:
    """Return the minutes in (begin, end] at which the clock in ``tz`` first shows or passes a named time."""
    (_, latest), *minutes = clock_between(tz, begin, end)
    reached = []
    for instant, wall in minutes:
        while latest < wall:
            latest += MINUTE
            if is_named(latest) and instant not in reached[-1:]:
                reached.append(instant)
    return reached
