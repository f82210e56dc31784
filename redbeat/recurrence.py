"""Recurrence rules of RFC 5545: ``dateutil`` walks them on a clock on the wall, and this says on which.

A rule that comes hourly or more often follows real time where the clocks change; any other one names fixed
times (see :mod:`redbeat.zones`).
"""

from __future__ import annotations

from datetime import MAXYEAR, date, datetime, timedelta, timezone, tzinfo
from math import gcd, lcm
from typing import Any

from celery.schedules import BaseSchedule, schedstate
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.never import is_never
from redbeat.steps import UNIT_SECONDS, next_step
from redbeat.zones import instant_of, next_fixed, next_in_real_time, wall_of

__all__ = ["rrule"]

FREQUENCIES = {
    "YEARLY": YEARLY,
    "MONTHLY": MONTHLY,
    "WEEKLY": WEEKLY,
    "DAILY": DAILY,
    "HOURLY": HOURLY,
    "MINUTELY": MINUTELY,
    "SECONDLY": SECONDLY,
}

_CALENDAR_CYCLE = timedelta(days=146_097)  # 400 years, whole weeks
_INSTANT, _NO_TIME = timedelta(microseconds=1), timedelta(0)


def _shift_to_the_end(start: datetime) -> timedelta:
    """Return how far from ``start`` the last years are, 30 at least, that begin with one just like it."""
    if start.year > MAXYEAR - 58:
        return _NO_TIME
    first = date(start.year, 1, 1)
    for year in range(MAXYEAR - 57, MAXYEAR - 29):
        if year % 4 == start.year % 4 and date(year, 1, 1).weekday() == first.weekday():
            return date(year, 1, 1) - first
    raise AssertionError("28 years have one of each kind")


def _is_century_between(first: int, last: int) -> bool:
    """Tell whether a year that should be a leap year and isn't, as 2100, is in [first, last]."""
    return any(year % 100 == 0 and year % 400 for year in range(first, last + 1))


class rrule(BaseSchedule):  # noqa: N801 - the name is part of the 2.x interface
    """A recurrence rule of RFC 5545, as ``dateutil.rrule`` understands it.

    Arguments:
        freq: 'YEARLY' .. 'SECONDLY' (or dateutil's number for it).
        dtstart: the first candidate; default: now. A naive datetime is UTC. Whole seconds.
        until: no occurrence after it. A naive datetime is UTC.

    All other arguments are those of ``dateutil.rrule.rrule``, which documents them.

    Raises:
        ValueError: the rule makes no sense to dateutil.
    """

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
                raise ValueError(f"rrule: freq {freq!r} is none of {', '.join(FREQUENCIES)}.")
            freq = FREQUENCIES[freq.upper()]
        if freq not in FREQUENCIES.values():
            raise ValueError(f"rrule: freq {freq!r} is none of dateutil's numbers, 0 (yearly) to 6.")
        if not isinstance(interval, int) or interval < 1:
            raise ValueError(f"rrule: interval must be 1 or more, not {interval!r}.")
        if not isinstance(count, (int, type(None))):
            raise ValueError(f"rrule: count must be a whole number, not {count!r}.")
        self.freq = freq
        self.dtstart = _whole_seconds(dtstart or self.now())
        self.interval = interval
        self.wkst = wkst
        self.count = count
        self.until = until and _whole_seconds(until)
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
        """Raise ValueError for what makes no sense to dateutil, whatever the interval steps over."""
        try:
            dateutil_rrule(**{**self._fields(), "interval": 1})
        except (ValueError, TypeError, AttributeError) as exc:
            raise ValueError(f"rrule: {exc}") from exc

    @property
    def rrule(self) -> dateutil_rrule:
        """The rule as dateutil has it; ValueError: it sees that it never comes true."""
        return dateutil_rrule(**self._fields())

    def _check_values(self) -> None:
        """Raise ValueError for a by* argument that is no number, or no weekday: dateutil finds none."""
        for name in self.FIELDS:
            given = getattr(self, name)
            if not name.startswith("by") or given is None:
                continue
            numbers = [getattr(value, "weekday", value) for value in _iterable(given)]
            is_wrong = any(type(number) is not int for number in numbers)
            if is_wrong or (name == "byweekday" and not set(numbers) <= set(range(7))):
                allowed = "weekdays, 0 (Monday) to 6" if name == "byweekday" else "whole numbers"
                raise ValueError(f"rrule: {name} must be {allowed}, not {given!r}.")

    def _check_positions(self) -> None:
        """Raise ValueError for a bysetpos that no hour, minute or second has: dateutil looks for ever."""
        size = {
            HOURLY: _size(self.byminute) * _size(self.bysecond),
            MINUTELY: _size(self.bysecond),
            SECONDLY: 1,
        }
        positions = _iterable(self.bysetpos or 0)
        if self.freq in size and any(abs(position) > size[self.freq] for position in positions):
            raise ValueError(
                f"rrule: bysetpos {self.bysetpos!r}: there are only {size[self.freq]} positions."
            )

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def occurrence(
        self, after: datetime, inclusive: bool = False, tz: tzinfo | None = None
    ) -> datetime | None:
        """Return the first occurrence later than (with ``inclusive``: not before) ``after``, or None.

        Arguments:
            tz: whose clocks the rule goes by; default: those of ``dtstart``.

        Raises:
            ValueError: it would take too long to find, because of ``count``.
        """
        tz = tz or self.dtstart.tzinfo or timezone.utc
        start = self.dtstart.astimezone(timezone.utc)
        start_wall = wall_of(start, tz)
        after = after.astimezone(timezone.utc) - (_INSTANT if inclusive else _NO_TIME)
        if after < start:
            after = start - _INSTANT
            is_second_pass = instant_of(start_wall, tz) < start  # whose times count as over
            if is_second_pass and self._next_wall(start_wall, start_wall, True) == start_wall:
                return None if self.until is not None and start > self.until else start
        comes_hourly = self.byhour is None or len(set(_iterable(self.byhour))) == 24
        is_by_hours = self.freq >= HOURLY  # what counts the hours, minutes or seconds since dtstart

        def next_wall(wall: datetime, offset: timedelta, is_inclusive: bool) -> datetime | None:
            begin = (start + offset).replace(tzinfo=None) if is_real and is_by_hours else start_wall
            return self._next_wall(wall, begin, is_inclusive)

        is_real = comes_hourly and (is_by_hours or self.byhour is not None)
        due = (next_in_real_time if is_real else next_fixed)(next_wall, after, tz)
        return None if due is None or (self.until is not None and due > self.until) else due

    def _next_wall(self, wall: datetime, start: datetime, inclusive: bool) -> datetime | None:
        """Return the first occurrence on a clock on the wall that showed ``start`` at dtstart; None: none."""
        if self.freq in UNIT_SECONDS:
            return next_step(self, wall, start, inclusive)
        if is_never(self):
            return None
        count = self.count
        if count is None and wall > start:
            start = self._skip(wall, start)
        if self.byeaster is None:
            shift = _shift_to_the_end(start)
            found = self._walk(wall, start, count, shift, inclusive)
            if found is None and self.interval == 1 and start.year >= wall.year - 1:
                return None  # those years have every kind of year in them
            if found is None and self._walk(start, start, None, shift, True, interval=1) is None:
                return None  # nor is there any with every step taken
            if found is not None and not _is_century_between(start.year, found.year):
                return found
        # the calendar repeats every 400 years (Easter doesn't)
        cycles = 0 if self.byeaster is not None else max((MAXYEAR - max(wall, start).year) // 400 - 1, 0)
        return self._walk(wall, start, count, cycles * _CALENDAR_CYCLE, inclusive)

    def _walk(
        self,
        wall: datetime,
        start: datetime,
        count: int | None,
        shift: timedelta,
        inclusive: bool,
        interval: int | None = None,
    ) -> datetime | None:
        """Let dateutil walk; in later years, as it gives up at the last one of all only."""
        changes = {"dtstart": start + shift, "count": count, "until": None}
        rule = dateutil_rrule(**{**self._fields(), **changes, "interval": interval or self.interval})
        try:
            found: datetime | None = rule.after(wall + shift, inc=inclusive)
        except OverflowError:  # beyond the last year
            return None
        return None if found is None else found - shift

    def _skip(self, wall: datetime, start: datetime) -> datetime:
        """Return a later start with the same occurrences after ``wall``: dateutil walks from there."""
        if self.freq == WEEKLY:
            step = timedelta(weeks=self.interval)
            return start + max((wall - start) // step - 1, 0) * step
        if self.freq == MONTHLY and start.day <= 28:  # every month has it
            passed = 12 * (wall.year - start.year) + wall.month - start.month - 1
            month = start.month - 1 + max(passed, 0) // self.interval * self.interval
            return start.replace(year=start.year + month // 12, month=month % 12 + 1)
        years = self.interval if self.freq == YEARLY else self.interval // gcd(self.interval, 12)
        if start.day > 28:  # not every month has it
            years = lcm(years, 4)
        skipped = max((wall.year - start.year - 1) // years, 0) * years
        while skipped:
            try:
                return start.replace(year=start.year + skipped)
            except ValueError:  # the 29th of February 2100
                skipped -= years
        return start

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


def _iterable(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _listed(value: Any) -> Any:
    """Return a by* argument as JSON has it: saved and read again, the rule must be equal to itself."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)  # weekdays have no order of their own
    return list(value) if isinstance(value, (tuple, range)) else value


def _rebuild_rrule(fields: dict[str, Any]) -> rrule:
    return rrule(**fields)


def _whole_seconds(moment: datetime) -> datetime:
    moment = moment.replace(microsecond=0)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
