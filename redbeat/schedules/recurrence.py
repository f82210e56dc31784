"""Recurrence rules of RFC 5545, as ``dateutil`` understands them, from wall times to instants.

A rule that occurs hourly or more often follows real time where the clocks change; any other one names fixed
times (see :mod:`redbeat.schedules.timezones`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.schedules import BaseSchedule, schedstate
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.schedules.timezones import (
    back_fixed,
    back_in_real_time,
    instant_of,
    instants_after,
    next_fixed,
    next_in_real_time,
    wall_of,
)
from redbeat.schedules.walltimes import WallTimes, wall_times
from redbeat.schedules.yeardays import listed

FREQUENCIES = {
    "YEARLY": YEARLY,
    "MONTHLY": MONTHLY,
    "WEEKLY": WEEKLY,
    "DAILY": DAILY,
    "HOURLY": HOURLY,
    "MINUTELY": MINUTELY,
    "SECONDLY": SECONDLY,
}

_INSTANT, _NO_TIME = timedelta(microseconds=1), timedelta(0)


class rrule(BaseSchedule):  # noqa: N801 - the name is part of the 2.x interface
    """A recurrence rule of RFC 5545, as ``dateutil.rrule`` understands it.

    Arguments:
        freq: 'YEARLY' to 'SECONDLY', or dateutil's number for it.
        dtstart: the earliest occurrence, if the rule names it; default: now. A naive datetime is UTC. It is
            cut to whole seconds.
        until: the end, included. A naive datetime is UTC.

    All other arguments are those of ``dateutil.rrule.rrule``, which documents them.

    Raises:
        ValueError: dateutil can't use the rule.
    """

    #: names of frequencies to dateutil's numbers
    FREQ_MAP = FREQUENCIES
    #: a format string, as in 2.x: ``RRULE_REPR.format(rule)`` is the rule's repr
    RRULE_REPR = "{0!r}"

    FIELDS = (
        "freq",
        "dtstart",
        "interval",
        "wkst",
        "count",
        "until",
        "bysetpos",
        "bymonth",
        "bymonthday",
        "byyearday",
        "byeaster",
        "byweekno",
        "byweekday",
        "byhour",
        "byminute",
        "bysecond",
    )

    def __init__(
        self,
        freq: int | str,
        dtstart: datetime | None = None,
        interval: int = 1,
        wkst: Any = None,
        count: int | None = None,
        until: datetime | None = None,
        bysetpos: Any = None,
        bymonth: Any = None,
        bymonthday: Any = None,
        byyearday: Any = None,
        byeaster: Any = None,
        byweekno: Any = None,
        byweekday: Any = None,
        byhour: Any = None,
        byminute: Any = None,
        bysecond: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(freq, str):
            if freq.upper() not in FREQUENCIES:
                raise ValueError(f"rrule: freq must be one of {', '.join(FREQUENCIES)}, not {freq!r}.")
            freq = FREQUENCIES[freq.upper()]
        if freq not in FREQUENCIES.values():
            raise ValueError(f"rrule: freq must be one of dateutil's numbers, 0 (yearly) to 6, not {freq!r}.")
        if not isinstance(interval, int) or interval < 1:
            raise ValueError(f"rrule: interval must be 1 or more, not {interval!r}.")
        if not isinstance(count, (int, type(None))):
            raise ValueError(f"rrule: count must be a whole number, not {count!r}.")
        self.freq = freq
        #: the start as it was given, with fractions of a second; once it is stored, it is ``dtstart``
        self.given_start = _aware(dtstart or self.now())
        self.dtstart = self.given_start.replace(microsecond=0)
        self.interval = interval
        self.wkst = wkst
        self.count = count
        self.until = until and _aware(until).replace(microsecond=0)
        self.bysetpos = _listed(bysetpos)
        self.bymonth = _listed(bymonth)
        self.bymonthday = _listed(bymonthday)
        self.byyearday = _listed(byyearday)
        self.byeaster = _listed(byeaster)
        self.byweekno = _listed(byweekno)
        self.byweekday = _listed(byweekday)
        self.byhour = _listed(byhour)
        self.byminute = _listed(byminute)
        self.bysecond = _listed(bysecond)
        self._check_values()
        self._check_positions()
        self._check()

    def _check(self) -> None:
        """Raise ValueError if dateutil can't use the rule, whatever its interval is."""
        times = {name: _extremes(getattr(self, name)) for name in ("byhour", "byminute", "bysecond")}
        try:  # with the extremes only, as dateutil makes a list of all times of a day
            dateutil_rrule(**{**self._fields(), **times, "interval": 1})
        except (ValueError, TypeError, AttributeError, OverflowError) as exc:
            raise ValueError(f"rrule: {exc}") from exc

    @property
    def rrule(self) -> dateutil_rrule:
        """The rule as an object of dateutil, which raises ValueError if the rule never occurs."""
        return dateutil_rrule(**self._fields())

    def _check_values(self) -> None:
        """Raise ValueError if a by* argument isn't a number or a weekday, which dateutil doesn't check."""
        for name in self.FIELDS:
            given = getattr(self, name)
            if not name.startswith("by") or given is None:
                continue
            numbers = [getattr(value, "weekday", value) for value in listed(given)]
            is_wrong = any(type(number) is not int for number in numbers)
            if is_wrong or (name == "byweekday" and not set(numbers) <= set(range(7))):
                allowed = "weekdays, 0 (Monday) to 6" if name == "byweekday" else "whole numbers"
                raise ValueError(f"rrule: {name} must be {allowed}, not {given!r}.")

    def _check_positions(self) -> None:
        """Raise ValueError for a bysetpos that no period has, for which dateutil would search for ever."""
        size = {
            HOURLY: _size(self.byminute) * _size(self.bysecond),
            MINUTELY: _size(self.bysecond),
            SECONDLY: 1,
        }
        positions = listed(self.bysetpos)
        if self.freq in size and any(abs(position) > size[self.freq] for position in positions):
            raise ValueError(
                f"rrule: bysetpos {self.bysetpos!r}: there are only {size[self.freq]} positions."
            )

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def occurrence(
        self, after: datetime, inclusive: bool = False, tz: tzinfo | None = None
    ) -> datetime | None:
        """Return the first occurrence after ``after`` (``inclusive``: or at it); None: there is none.

        Arguments:
            tz: the time zone that the rule goes by; default: that of ``dtstart``.
        """
        tz = tz or self.dtstart.tzinfo or timezone.utc
        start = self.dtstart.astimezone(timezone.utc)
        after = after.astimezone(timezone.utc) - (_INSTANT if inclusive else _NO_TIME)
        if after < start:
            after = start - _INSTANT
            if self._begins_in_a_second_pass(start, tz):
                return None if self.until is not None and start > self.until else start

        def next_wall(wall: datetime, offset: timedelta, is_inclusive: bool) -> datetime | None:
            return self._walls(start, offset, tz).next(wall, is_inclusive)

        due = (next_in_real_time if self._is_real_time else next_fixed)(next_wall, after, tz)
        return None if due is None or (self.until is not None and due > self.until) else due

    def occurrences_after(self, after: datetime, tz: tzinfo | None = None) -> Iterator[datetime]:
        """Yield the occurrences after ``after`` that :meth:`occurrence` finds, one after the other."""
        tz = tz or self.dtstart.tzinfo or timezone.utc
        start = self.dtstart.astimezone(timezone.utc)
        after = after.astimezone(timezone.utc)
        if after < start:
            first = self.occurrence(after, tz=tz)
            if first is None:
                return
            yield first
            after = first

        def walls_after(wall: datetime, offset: timedelta) -> Iterator[datetime]:
            walls, found = self._walls(start, offset, tz), wall
            while (following := walls.next(found)) is not None:
                yield following
                found = following

        for due in instants_after(walls_after, lambda moment: self.occurrence(moment, tz=tz), after, tz):
            if self.until is not None and due > self.until:
                return
            yield due

    def occurrences_back(
        self, until: datetime, since: datetime, tz: tzinfo | None = None
    ) -> Iterator[datetime]:
        """Yield the occurrences from ``until`` back to ``since``, the last first; ``tz`` as above."""
        tz = tz or self.dtstart.tzinfo or timezone.utc
        start = self.dtstart.astimezone(timezone.utc)
        since = max(since.astimezone(timezone.utc), start)
        until = (until if self.until is None else min(until, self.until)).astimezone(timezone.utc)

        def walls_back(wall: datetime, offset: timedelta, oldest: datetime) -> Iterator[datetime]:
            return self._walls(start, offset, tz).backwards(wall, oldest)

        found = (back_in_real_time if self._is_real_time else back_fixed)(walls_back, until, tz, since)
        due = None
        for due in found:
            yield due
        if since == start != due and start <= until and self._begins_in_a_second_pass(start, tz):
            yield start

    @property
    def _is_real_time(self) -> bool:
        """Whether it follows real time where the clocks change."""
        if self.byhour is None:
            return self.freq >= HOURLY
        return len(set(listed(self.byhour))) == 24

    def _walls(self, start: datetime, offset: timedelta, tz: tzinfo) -> WallTimes:
        """Return the occurrences in wall time in ``tz``, on a clock that has this ``offset`` from UTC."""
        # a rule that counts hours, minutes or seconds from its start isn't shifted when the clocks change
        is_counting = self._is_real_time and self.freq >= HOURLY
        return wall_times(self, (start + offset).replace(tzinfo=None) if is_counting else wall_of(start, tz))

    def _begins_in_a_second_pass(self, start: datetime, tz: tzinfo) -> bool:
        """Return True if its start is an occurrence in the second pass of times that the clocks repeat.

        All other times of a second pass count as over.
        """
        wall = wall_of(start, tz)
        return instant_of(wall, tz) < start and wall_times(self, wall).next(wall, inclusive=True) == wall

    def remaining_estimate(self, last_run_at: datetime) -> timedelta | None:
        """Return how long from now to the first occurrence after ``last_run_at``; None: there is none."""
        due = self.occurrence(self.maybe_make_aware(last_run_at))
        return None if due is None else due - self.maybe_make_aware(self.now())

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return (is it due, seconds to the next look), as Celery's schedules do."""
        remaining = self.remaining_estimate(last_run_at)
        if remaining is None:
            return schedstate(is_due=False, next=None)
        if remaining.total_seconds() > 0:
            return schedstate(is_due=False, next=remaining.total_seconds())
        now = self.maybe_make_aware(self.now())
        following = self.occurrence(now)
        return schedstate(is_due=True, next=following and (following - now).total_seconds())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, rrule):
            return self._fields() == other._fields()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like Celery's schedules: equal by value, mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_rrule, (self._fields(),)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self._fields().items() if value is not None)
        return f"<rrule: {given}>"


def _extremes(value: Any) -> Any:
    return sorted({min(value), max(value)}) if isinstance(value, list) and value else value


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _listed(value: Any) -> Any:
    """Return a by* argument as JSON has it, so that a rule that is saved and read again equals the first."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)  # by text, as weekdays can't be compared
    return list(value) if isinstance(value, (tuple, range)) else value


def _rebuild_rrule(fields: dict[str, Any]) -> rrule:
    return rrule(**fields)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
