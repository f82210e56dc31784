"""The days of a year that a recurrence rule names, as the bits of a number: bit 0 is the 1st of January.
Pure.

Owns the meaning of each filter of days in RFC 5545 and ``dateutil``. Applying a filter is one AND, whatever
it names.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import date, datetime
from functools import cached_property, lru_cache
from math import gcd
from typing import Any

from dateutil.easter import easter
from dateutil.rrule import DAILY, MONTHLY, WEEKLY, YEARLY

from redbeat.process.memory import Memory

_MONTH_DAYS = {365: [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]}
_MONTH_DAYS[366] = [31, 29, *_MONTH_DAYS[365][2:]]
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097

#: days of the next year that are kept with a year, as a week may extend into the next year
_REST = 7


def listed(value: Any) -> tuple[Any, ...]:
    """Return a by* argument as a tuple; () for None."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def first_day_of(year: int) -> int:
    """Return the ordinal of a year's first day; unlike ``date``, this knows the year 0."""
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + 1


@lru_cache(maxsize=10_000)
def _easter_of(year: int) -> int:
    return int(easter(max(year, 1)).toordinal())


def _length_of(year: int) -> int:
    return 366 if calendar.isleap(year) else 365


def _run(first: int, count: int) -> int:
    return ((1 << count) - 1) << first if count > 0 else 0


@lru_cache(maxsize=4096)
def _every(step: int, first: int, length: int) -> int:
    """Return every ``step``-th bit below ``length``, beginning with ``first``."""
    if step == 1:
        return _run(first, length - first)
    return sum(1 << place for place in range(first, length, step))


def _month_runs(length: int) -> Iterator[tuple[int, int, int]]:
    """Yield each month, the place of its first day, and its number of days."""
    first = 0
    for month, count in enumerate(_MONTH_DAYS[length], start=1):
        yield month, first, count
        first += count


class YearDays:
    """The days of a rule that begins at ``start``, year by year.

    Arguments:
        rule: an object with the attributes of ``redbeat.schedules.rrule``.
        start: the wall time of its dtstart.

    Attributes:
        is_by_date: whether it names days by anything but plain weekdays.
    """

    def __init__(self, rule: Any, start: datetime) -> None:
        self._freq: int = rule.freq
        self._interval: int = rule.interval
        self._start = start
        self._first = start.toordinal()
        wkst = calendar.firstweekday() if rule.wkst is None else rule.wkst
        self._wkst: int = getattr(wkst, "weekday", wkst)
        self._months, self._month_days = rule.bymonth, rule.bymonthday
        self._weekdays = rule.byweekday
        self._year_days, self._weeks = listed(rule.byyearday), listed(rule.byweekno)
        self._easter_days = listed(rule.byeaster)
        given = (rule.byweekno, rule.byyearday, rule.bymonthday, rule.byweekday, rule.byeaster)
        if self._freq <= WEEKLY and given == (None,) * 5:  # the start determines the day
            if self._freq == WEEKLY:
                self._weekdays = start.weekday()
            else:
                self._month_days = start.day
            if self._freq == YEARLY and self._months is None:
                self._months = start.month
        self._months = listed(self._months)
        self._month_days = tuple([day for day in listed(self._month_days) if day])
        self._nth_weekdays: list[tuple[int, int]] = []
        if self._weekdays is not None:
            plain = set()
            for day in listed(self._weekdays):
                if self._freq <= MONTHLY and getattr(day, "n", None):
                    self._nth_weekdays.append((day.weekday, day.n))
                else:
                    plain.add(int(getattr(day, "weekday", day)))
            self._weekdays = plain
        self.is_by_date = bool(
            self._months or self._month_days or self._year_days or self._weeks or self._easter_days
        )
        self._named: dict[Any, int] = {}
        self._chosen = Memory[int, int](limit=1_000)

    @cached_property
    def cycle_years(self) -> int:
        """Years after which the days repeat; those that depend on Easter don't within 9999 years."""
        if self._easter_days:
            return 10_000
        steps = {YEARLY: _CYCLE_YEARS, MONTHLY: 12 * _CYCLE_YEARS, WEEKLY: _CYCLE_DAYS // 7}
        in_cycle = steps.get(self._freq, _CYCLE_DAYS)
        interval = self._interval if self._freq <= DAILY else 1
        return _CYCLE_YEARS * (interval // gcd(interval, in_cycle))

    def of_year(self, year: int) -> int:
        """Return the bits of the days that pass its filters and its interval, also before its start."""
        bits = self._chosen.get(year)
        if bits is None:
            bits = self._chosen[year] = self._choose(year)
        return bits

    def next_year(self, year: int) -> int:
        """Return the first year from ``year`` on in which it may occur by its interval."""
        if self._freq > DAILY or self._interval == 1:
            return year
        first = first_day_of(year)
        if self._freq == YEARLY:
            return year + (self._start.year - year) % self._interval
        if self._freq == MONTHLY:
            months = 12 * year
            return (months + (12 * self._start.year + self._start.month - 1 - months) % self._interval) // 12
        if self._freq == DAILY:
            return self._year_of(first + (self._first - first) % self._interval, year)
        step, monday = 7 * self._interval, self._week_of(self._first)
        return self._year_of(first + max((monday - (first - 6)) % step - 6, 0), year)

    @staticmethod
    def _year_of(ordinal: int, least: int) -> int:
        last = date.max
        return max(date.fromordinal(ordinal).year, least) if ordinal <= last.toordinal() else last.year + 1

    def _week_of(self, ordinal: int) -> int:
        """Return the first day of the week that ``ordinal`` is in."""
        return ordinal - (ordinal + 6 - self._wkst) % 7

    def _choose(self, year: int) -> int:
        length, first = _length_of(year), first_day_of(year)
        if self._freq == YEARLY and (year - self._start.year) % self._interval:
            return 0
        if self._freq != WEEKLY:
            bits = self._name(year) & _run(0, length)
            if self._interval > 1 and self._freq in (MONTHLY, DAILY):
                bits &= self._steps_in(year)
            return bits
        # a week is filtered with the year that it begins in, except for the very first one
        bits, in_week = self._name(year), (self._wkst - (first + 6)) % 7
        if in_week and not first <= self._first < first + in_week:
            bits &= ~_run(0, in_week)
            bits |= self._name(year - 1) >> _length_of(year - 1) & _run(0, in_week)
        bits &= _run(0, length)
        return bits & self._steps_in(year) if self._interval > 1 else bits

    def _steps_in(self, year: int) -> int:
        length, first = _length_of(year), first_day_of(year)
        if self._freq == DAILY:
            return _every(self._interval, (self._first - first) % self._interval, length)
        if self._freq == MONTHLY:
            begin = 12 * (year - self._start.year) - self._start.month
            return sum(
                _run(at, count)
                for month, at, count in _month_runs(length)
                if not (begin + month) % self._interval
            )
        step = 7 * self._interval
        begin = (self._week_of(self._first) - first) % step
        weeks = sum(_run(at, 7) for at in range(begin, length, step))
        return weeks | (_run(0, begin + 7 - step))  # the rest of a week that began in the year before

    def weeks_of(self, year: int) -> Iterator[int]:
        """Yield the bits of each week that begins in ``year``; the very first one begins with the start."""
        first, length, step = first_day_of(year), _length_of(year), 7 * self._interval
        named, begin = self._name(year), self._week_of(self._first) - first
        if self._start.year == year:
            at = self._first - first
            yield named & _run(at, begin + 7 - at)
            begin += step
        elif begin < 0:
            begin %= step
        if not named >> begin:
            return
        for at in range(begin, length, step):
            yield named & _run(at, 7)

    def months_of(self, year: int) -> Iterator[int]:
        """Yield the bits of each of its months in ``year``."""
        bits = self.of_year(year)
        for _, at, count in _month_runs(_length_of(year)):
            if bits & _run(at, count):
                yield bits & _run(at, count)

    def _name(self, year: int) -> int:
        """Return the bits of the days that pass the filters, in ``year`` and in the week after it."""
        length, first = _length_of(year), first_day_of(year)
        key: Any = (length, first % 7)
        if self.is_by_date:
            sunday = _easter_of(year) - first if self._easter_days else 0
            key = (*key, _length_of(year - 1), _length_of(year + 1), sunday)
        bits = self._named.get(key)
        if bits is None:
            bits = self._named[key] = self._filter(year, length, (first + 6) % 7)
        return bits

    def _filter(self, year: int, length: int, weekday: int) -> int:
        size = length + _REST
        bits = _run(0, size)
        if self._weekdays:
            bits &= sum(_every(7, (day - weekday) % 7, size) for day in self._weekdays)
        if self._months:
            bits &= _months_in(length, self._months)
        if self._month_days:
            bits &= _month_days_in(length, self._month_days)
        if self._year_days:
            bits &= _year_days_in(length, _length_of(year + 1), self._year_days)
        if self._nth_weekdays:
            bits &= self._nth_in(length, weekday)
        if self._weeks:
            bits &= _weeks_in(year, length, weekday, self._wkst, frozenset(self._weeks))
        if self._easter_days:
            sunday = _easter_of(year) - first_day_of(year)
            bits &= _any(
                1 << (sunday + days) % size for days in self._easter_days if -size <= sunday + days < size
            )
        return bits

    def _nth_in(self, length: int, weekday: int) -> int:
        """Return the n-th weekdays of each month, or of the year where a yearly rule names no months."""
        spans = [(0, length)]
        if self._freq == MONTHLY or self._months:
            spans = [
                (at, count)
                for month, at, count in _month_runs(length)
                if self._freq == MONTHLY or month in self._months
            ]
        bits = 0
        for at, count in spans:
            for day, n in self._nth_weekdays:
                if n > 0:
                    place = (day - weekday - at) % 7 + (n - 1) * 7
                else:
                    place = count - 1 - (weekday + at + count - 1 - day) % 7 + (n + 1) * 7
                if 0 <= place < count:
                    bits |= 1 << at + place
        return bits


def _any(bits: Iterator[int]) -> int:
    found = 0
    for one in bits:
        found |= one
    return found


@lru_cache(maxsize=1024)
def _months_in(length: int, months: tuple[int, ...]) -> int:
    bits = _any(_run(at, count) for month, at, count in _month_runs(length) if month in months)
    return bits | _run(length, _REST) if 1 in months else bits


@lru_cache(maxsize=1024)
def _month_days_in(length: int, days: tuple[int, ...]) -> int:
    runs = [(at, count, count) for _, at, count in _month_runs(length)]
    runs.append((length, _REST, 31))  # the next year's first days
    return _places_in(runs, days)


@lru_cache(maxsize=1024)
def _year_days_in(length: int, next_length: int, days: tuple[int, ...]) -> int:
    return _places_in([(0, length, length), (length, _REST, next_length)], days)


def _places_in(runs: list[tuple[int, int, int]], days: tuple[int, ...]) -> int:
    """Return the bits of ``days``, counted from 1, or from -1 at the end, in each of ``runs``.

    A run is the place of its first day, the number of its days that are looked at, and the number of its
    days.
    """
    bits = 0
    for day in days:
        for at, shown, count in runs:
            place = day - 1 if day > 0 else count + day
            if day and 0 <= place < shown:
                bits |= 1 << at + place
    return bits


def _weeks_in(year: int, length: int, weekday: int, wkst: int, weeks: frozenset[int]) -> int:
    """Return the days of these weeks of the year, counted as ``dateutil`` does."""
    first = monday = (wkst - weekday) % 7  # the first whole week, and week 1
    if monday >= 4:
        monday = 0
        counted = length + (weekday - wkst) % 7
    else:
        counted = length - monday
    number = counted // 7 + counted % 7 // 4

    def week_at(place: int) -> int:
        return _run(place, 7 - (weekday + place - wkst) % 7)

    def place_of(week: int) -> int:
        place = monday + (week - 1) * 7
        return place - (7 - first) if week > 1 and monday != first else place

    chosen = {week + number + 1 if week < 0 else week for week in weeks}
    bits = _any(week_at(place_of(week)) for week in chosen if 0 < week <= number)
    if 1 in weeks:  # week 1 of the next year may begin in this one
        place = monday + number * 7 - (7 - first if monday != first else 0)
        if place < length:
            bits |= week_at(place)
    if monday:  # the days before week 1 are in the last week of the year before
        last = -1
        if -1 not in weeks:
            before = _length_of(year - 1)
            last_weekday = (weekday - before) % 7
            if (wkst - last_weekday) % 7 >= 4:
                last = 52 + (before + (last_weekday - wkst) % 7) % 7 // 4
            else:
                last = 52 + (length - monday) % 7 // 4
        if last in weeks:
            bits |= _run(0, monday)
    return bits
