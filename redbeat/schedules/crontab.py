"""Crontabs: which minutes they name in wall time, and at which instants that is.

As in Celery a minute counts if all five fields match it, day of month AND day of week. A crontab whose hour
field matches every hour follows real time where the clocks change. Any other one names fixed times, which are
never skipped and never run twice (see :mod:`redbeat.schedules.timezones`).
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import MAXYEAR, date, datetime, time, timedelta, timezone, tzinfo
from functools import cached_property, lru_cache
from typing import Any

from celery.schedules import crontab, schedstate

from redbeat.config.suggestions import did_you_mean
from redbeat.schedules.daytimes import DayTimes
from redbeat.schedules.timezones import (
    back_fixed,
    back_in_real_time,
    count_fixed,
    count_in_real_time,
    instants_after,
    next_fixed,
    next_in_real_time,
)

#: the fields in the order of an expression
CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}

#: the lowest and the highest number of each field; Sunday is 0 and 7
_LIMITS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_month": (1, 31),
    "month_of_year": (1, 12),
    "day_of_week": (0, 7),
}
_NAMES = {"month_of_year": _MONTHS, "day_of_week": _WEEKDAYS}

_NUMBERS = re.compile(r"(?:[*?]|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)
_LAST = re.compile(r"L(?:-(?P<earlier>\d+))?", re.ASCII | re.IGNORECASE)
_NEAREST = re.compile(r"(?P<day>\d+|L)W", re.ASCII | re.IGNORECASE)
#: L, W and #, which Celery's crontab refuses or misreads
_SPECIAL = re.compile(r"#|l(?:-\d+)?\s*(?:,|$)|w\s*(?:,|$)", re.IGNORECASE)
_NTH = re.compile(r"(?P<weekday>\w+)#(?P<nth>[1-5])|(?P<last>\w+)L", re.ASCII | re.IGNORECASE)

#: years after which the calendar repeats: a crontab that names no day within them names none
_CYCLE_YEARS = 400
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)


@dataclass(frozen=True)
class Days:
    """The days that a crontab names by L, W and #.

    Attributes:
        last: days before the month's last; 0 is the last itself.
        nearest: days of the month whose nearest working day in the same month counts; 0 is the last day.
        nth: (weekday, 0 for Sunday; which one of the month, from 1, -1 for the last).
        has_numbers: whether the field day_of_month names plain days, too.
        has_weekdays: whether the field day_of_week names plain days, too.
    """

    last: tuple[int, ...] = ()
    nearest: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()
    has_numbers: bool = True
    has_weekdays: bool = True


NO_DAYS = Days()


class cron(crontab):  # noqa: N801 - schedules are called so in Celery
    """A crontab written as one expression of five fields: minute, hour, day of month, month, day of week.

    It allows what Celery's crontab allows, and besides ``@daily`` and the like, 7 for Sunday, ``5/15`` (every
    15, beginning with 5), and for days ``L`` (the month's last; ``L-2``: two days earlier), ``15W`` (the
    working day nearest to the 15th in the same month; ``LW``: the last one), ``FRI#2`` (the second Friday)
    and ``FRIL`` (the last one). As in Celery a day counts if day of month AND day of week match it; for other
    crons one of them is enough.

    Arguments:
        expression: the five fields, or a nickname.
        app, nowfun: as in Celery's crontab.

    Raises:
        ValueError: it can't be understood; the message says which field and why.
    """

    def __init__(self, expression: str, **kwargs: Any) -> None:
        self.expression = expression
        #: the five fields, also of a nickname
        self.fields = tuple(_split(expression))
        numbers: dict[str, set[int]] = {name: set() for name in CRON_FIELDS}
        days: dict[str, set[Any]] = {"last": set(), "nearest": set(), "nth": set()}
        for name, text in zip(CRON_FIELDS, self.fields, strict=True):
            for element in text.split(","):
                try:
                    _read_element(name, element, numbers[name], days)
                except ValueError as exc:
                    raise ValueError(f"cron {expression!r}: {name}: {exc}") from exc
        self.days = Days(
            last=tuple(sorted(days["last"])),
            nearest=tuple(sorted(days["nearest"])),
            nth=tuple(sorted(days["nth"])),
            has_numbers=bool(numbers["day_of_month"]),
            has_weekdays=bool(numbers["day_of_week"]),
        )
        super().__init__(**kwargs)
        for (
            name,
            found,
        ) in numbers.items():  # some versions of Celery refuse the 30th of February
            setattr(self, name, found)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return how long from now to the first run after ``last_run_at``; a century if there is none."""
        now = self.maybe_make_aware(self.now())
        due = next_of_crontab(self, self.maybe_make_aware(last_run_at).astimezone(timezone.utc), self.tz)
        return timedelta(days=36_525) if due is None else due - now

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return (is it due, seconds to the next look), as Celery's schedules do."""
        seconds = self.remaining_estimate(last_run_at).total_seconds()
        if seconds > 0:
            return schedstate(is_due=False, next=seconds)
        return schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, cron):
            return self.days == other.days and super().__eq__(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like Celery's schedules: equal by value, mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.expression,)

    def __repr__(self) -> str:
        return f"<cron: {self.expression}>"


def has_special_days(field: Any) -> bool:
    """Return True if a field of days, as it was given, has L, W or #."""
    return _SPECIAL.search(str(field)) is not None


def _split(expression: str) -> list[str]:
    text = _NICKNAMES.get(expression.strip().lower(), expression)
    fields = text.split()
    if len(fields) == len(CRON_FIELDS):
        return fields
    if text.strip().startswith("@"):
        raise ValueError(
            f"cron {expression!r}: must be one of {', '.join(_NICKNAMES)}.{did_you_mean(text, _NICKNAMES)}"
        )
    counted = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    raise ValueError(
        f"cron {expression!r}: it has {counted} instead of five: minute, hour, day of month, month, "
        "day of week."
    )


def _read_element(name: str, element: str, numbers: set[int], days: dict[str, set[Any]]) -> None:
    """Add what one element of the field ``name`` means to its ``numbers`` or to ``days``."""
    if name == "day_of_month" and (match := _LAST.fullmatch(element)):
        days["last"].add(_number(name, match["earlier"], least=0) if match["earlier"] else 0)
    elif name == "day_of_month" and (match := _NEAREST.fullmatch(element)):
        days["nearest"].add(0 if match["day"] in "lL" else _number(name, match["day"]))
    elif name == "day_of_week" and (match := _NTH.fullmatch(element)):
        weekday = _number(name, match["weekday"] or match["last"]) % 7
        days["nth"].add((weekday, int(match["nth"] or -1)))
    else:
        numbers.update(_expand(name, element))


def _expand(name: str, element: str) -> list[int]:
    """Return the numbers that ``element`` means: '*', '5', '1-5', '22-2', each perhaps with '/3'."""
    match = _NUMBERS.fullmatch(element)
    if match is None and "#" in element and name == "day_of_week":
        raise ValueError(f"{element!r} is no weekday with # and a number from 1 to 5, as 'fri#2'.")
    if match is None:
        raise ValueError(f"{element!r} is no number, range or step.")
    low, high = _LIMITS[name]
    if name == "day_of_week" and match["first"] is None:
        high = 6
    step = int(match["step"] or 1)
    if step == 0:
        raise ValueError(f"{element!r}: a step must be 1 or more.")
    first = _number(name, match["first"]) if match["first"] else low
    if match["last"]:
        last = _number(name, match["last"])
    else:
        last = first if match["first"] and not match["step"] else high
    size = 7 if name == "day_of_week" else high - low + 1
    count = last - first + 1 if last >= first else last - first + 1 + size
    return [low + (first + passed - low) % size for passed in range(0, count, step)]


def _number(name: str, text: str, least: int | None = None) -> int:
    low, high = _LIMITS[name]
    names = _NAMES.get(name, {})
    number = int(text) if text.isdigit() else names.get(text.upper(), -1)
    if not (low if least is None else least) <= number <= high:
        known = f", or {', '.join(names)}" if names else ""
        raise ValueError(f"{text!r} is no number from {low} to {high}{known}.")
    return number


def next_of_crontab(rule: crontab, after: datetime, tz: tzinfo) -> datetime | None:
    """Return the first instant after ``after`` at which a clock in ``tz`` matches ``rule``; None: there is
    none.

    Arguments:
        after: in UTC, as is the result.
    """
    times = _times_of(rule)
    if not (times.minutes and times.hours and times.months):
        raise ValueError("a crontab names no minute, no hour or no month")
    walk = next_in_real_time if len(times.hours) == 24 else next_fixed
    return walk(times.next_wall, after, tz)


def runs_of_crontab(rule: crontab, after: datetime, tz: tzinfo) -> Iterator[datetime]:
    """Yield the instants later than ``after`` that :func:`next_of_crontab` finds, one after the other."""
    times = _times_of(rule)
    return instants_after(times.walls_after, lambda moment: next_of_crontab(rule, moment, tz), after, tz)


def runs_back_of_crontab(rule: crontab, until: datetime, tz: tzinfo, since: datetime) -> Iterator[datetime]:
    """Yield the instants from ``until`` back to ``since`` at which a clock in ``tz`` matches ``rule``."""
    times = _times_of(rule)
    if len(times.hours) == 24:
        return back_in_real_time(times.walls_back, until, tz, since)
    return back_fixed(times.walls_back, until, tz, since)


def count_of_crontab(rule: crontab, after: datetime, until: datetime, tz: tzinfo) -> int:
    """Return at how many instants in (after, until] a clock in ``tz`` matches ``rule``.

    They are counted by arithmetic: a year of minutes takes no longer than a year of days.
    """
    times = _times_of(rule)
    count = count_in_real_time if len(times.hours) == 24 else count_fixed
    return count(times.count_walls, after, until, tz)


@dataclass(frozen=True)
class Times:
    """A crontab's fields, sorted."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    month_days: frozenset[int]
    weekdays: frozenset[int]
    days: Days = field(default=NO_DAYS)

    def next_wall(self, after: datetime, _offset: object = None, inclusive: bool = False) -> datetime | None:
        """Return the first minute that it names and that begins after ``after`` (``inclusive``: or at it)."""
        if after.year >= MAXYEAR:
            return None
        start = after.replace(second=0, microsecond=0)
        if start < after or not inclusive:
            start += _MINUTE
        today = start.date()
        day = self._next_day(today)
        if day == today:
            later_today = self._next_time(start.hour, start.minute)
            if later_today is not None:
                return datetime.combine(day, later_today)
            day = self._next_day(today + _DAY)
        if day is None:
            return None
        return datetime.combine(day, time(self.hours[0], self.minutes[0]))

    def walls_after(self, wall: datetime, _offset: object = None) -> Iterator[datetime]:
        """Yield the minutes that it names and that begin after ``wall``, the first first."""
        today = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        later_today = self._day_times[bisect_right(self._day_times, wall - today) :]
        days_of: dict[tuple[int, int], list[int]] = {}  # months have only 28 forms
        for year in range(wall.year, min(wall.year + _CYCLE_YEARS, MAXYEAR - 1) + 1):
            for month in self.months:
                if (year, month) < (wall.year, wall.month):
                    continue
                shape = calendar.monthrange(year, month)
                if shape not in days_of:
                    days_of[shape] = self._days_in(*shape)
                for day in days_of[shape]:
                    begin = datetime(year, month, day)  # noqa: DTZ001 - on a clock on the wall
                    if begin >= today:
                        yield from map(begin.__add__, later_today if begin == today else self._day_times)

    @cached_property
    def _day_times(self) -> list[timedelta]:
        return [timedelta(hours=hour, minutes=minute) for hour in self.hours for minute in self.minutes]

    def walls_back(self, wall: datetime, _offset: object, since: datetime) -> Iterator[datetime]:
        """Yield the minutes that it names, from ``wall`` back to the month of ``since``, the last first."""
        for year in range(wall.year, since.year - 1, -1):
            for month in reversed(self.months):
                if not (since.year, since.month) <= (year, month) <= (wall.year, wall.month):
                    continue
                for day in reversed(self._days_in(*calendar.monthrange(year, month))):
                    for hour in reversed(self.hours):
                        begin = datetime(year, month, day, hour)  # noqa: DTZ001 - on a clock on the wall
                        if begin <= wall:
                            last = (wall - begin) // _MINUTE
                            minutes = self.minutes[: bisect_right(self.minutes, last)]
                            yield from (begin.replace(minute=minute) for minute in reversed(minutes))

    def count_walls(self, begin: datetime, end: datetime) -> int:
        """Return how many minutes it names from ``begin``, included, to ``end``, not included."""
        times = DayTimes(self.hours, 3600, DayTimes(self.minutes, 60))
        days_of = lru_cache(maxsize=None)(self._days_in)  # months have only 28 forms
        count = 0
        for year in range(begin.year, end.year + 1):
            for month in self.months:
                if not (begin.year, begin.month) <= (year, month) <= (end.year, end.month):
                    continue
                days = days_of(*calendar.monthrange(year, month))
                first, last = 0, len(days)
                if (year, month) == (begin.year, begin.month):
                    first = bisect_left(days, begin.day)
                    count -= begin.day in days and times.count_before(_second_of(begin))
                if (year, month) == (end.year, end.month):
                    last = bisect_left(days, end.day)
                    count += end.day in days and times.count_before(_second_of(end))
                count += (last - first) * times.count
        return count

    def _next_time(self, hour: int, minute: int) -> time | None:
        place = bisect_left(self.hours, hour)
        if place < len(self.hours) and self.hours[place] == hour:
            in_hour = bisect_left(self.minutes, minute)
            if in_hour < len(self.minutes):
                return time(hour, self.minutes[in_hour])
            place += 1
        return time(self.hours[place], self.minutes[0]) if place < len(self.hours) else None

    def _next_day(self, start: date) -> date | None:
        days_of: dict[tuple[int, int], list[int]] = {}  # months have only 28 forms
        for year in range(start.year, min(start.year + _CYCLE_YEARS, MAXYEAR - 1) + 1):
            for month in self.months:
                if (year, month) < (start.year, start.month):
                    continue
                shape = calendar.monthrange(year, month)
                if shape not in days_of:
                    days_of[shape] = self._days_in(*shape)
                first = start.day if (year, month) == (start.year, start.month) else 1
                for day in days_of[shape]:
                    if day >= first:
                        return date(year, month, day)
        return None

    def _days_in(self, first_weekday: int, count: int) -> list[int]:
        """Return the days that it names in a month of ``count`` days; ``first_weekday``: 0 for Monday."""
        return [
            day
            for day in range(1, count + 1)
            if self._has_month_day(day, count, first_weekday)
            and self._has_weekday(day, count, weekday=(first_weekday + day) % 7)
        ]

    def _has_month_day(self, day: int, count: int, first_weekday: int) -> bool:
        if self.days.has_numbers and day in self.month_days:
            return True
        if count - day in self.days.last:
            return True
        return any(day == _nearest_working_day(n or count, count, first_weekday) for n in self.days.nearest)

    def _has_weekday(self, day: int, count: int, weekday: int) -> bool:
        if self.days.has_weekdays and weekday in self.weekdays:
            return True
        which = (day + 6) // 7
        return any(
            weekday == wanted and (which == n or (n == -1 and day + 7 > count)) for wanted, n in self.days.nth
        )


def _second_of(wall: datetime) -> int:
    """Return the second of the day, rounded up."""
    return (wall.hour * 60 + wall.minute) * 60 + wall.second + (wall.microsecond > 0)


def _nearest_working_day(day: int, count: int, first_weekday: int) -> int | None:
    """Return the day from Monday to Friday nearest to ``day`` in the month; None: it has no such ``day``."""
    if day > count:
        return None
    weekday = (first_weekday + day - 1) % 7  # 0 is Monday
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < count else day - 2
    return day


def _times_of(rule: crontab) -> Times:
    return Times(
        tuple(sorted(rule.minute)),
        tuple(sorted(rule.hour)),
        tuple(sorted(rule.month_of_year)),
        frozenset(rule.day_of_month),
        frozenset(rule.day_of_week),
        getattr(rule, "days", NO_DAYS),
    )
