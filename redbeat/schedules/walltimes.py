"""A recurrence rule's occurrences in wall time, found, counted and walked back by arithmetic. Pure.

The occurrences are the product of the days of a year and the times of a day. With ``bysetpos`` they are some
of these in each period. If a rule's steps of hours, minutes or seconds don't divide a day, each day has other
times. Occurrences are never listed one by one, so a rule costs the same however often it occurs, and however
long ago it began.

Invariant: the work of one search or count is bounded, whatever the rule says. A rule that needs more raises
ValueError.

A time is a number of whole seconds: a day's ordinal times 86,400 is its midnight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import islice
from math import gcd
from types import SimpleNamespace
from typing import Any

from dateutil.rrule import DAILY, HOURLY, MINUTELY, SECONDLY, WEEKLY, YEARLY

from redbeat.process.memory import Memory
from redbeat.schedules.daytimes import DayTimes, choose_times
from redbeat.schedules.yeardays import YearDays, first_day_of, listed

_DAY = 86_400
_LAST_DAY, _LAST_YEAR = date.max.toordinal(), date.max.year
_END = (_LAST_DAY + 1) * _DAY
#: the length of a step with an interval of 1
_UNIT_SECONDS = {HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}

#: for how many days of one rule the times are remembered
MAX_REMEMBERED = 1_000

#: the years, periods and days that one search may examine, and one count; a few microseconds each
MAX_EXAMINED = 2_000
MAX_COUNTED = 5_000

#: steps of one day that are filtered in the time of examining a day
_STEPS_PER_LOOK = 1_000

#: the fields on which a rule's occurrences in wall time depend, besides its start
_FIELDS = (
    *("freq", "interval", "wkst", "count", "bysetpos", "bymonth", "bymonthday", "byyearday"),
    *("byeaster", "byweekno", "byweekday", "byhour", "byminute", "bysecond"),
)


def wall_times(rule: Any, start: datetime) -> WallTimes:
    """Return the occurrences of ``rule``, an object with the attributes of ``redbeat.schedules.rrule``.

    Arguments:
        start: the wall time of its dtstart, in whole seconds.
    """
    given = [getattr(rule, name) for name in _FIELDS]
    return _wall_times(tuple([tuple(one) if isinstance(one, list) else one for one in given]), start)


@lru_cache(maxsize=256)
def _wall_times(given: tuple[Any, ...], start: datetime) -> WallTimes:
    rule = SimpleNamespace(**dict(zip(_FIELDS, given, strict=True)))
    if rule.freq > DAILY and rule.interval > 1:
        stepping = _Stepping(rule, start)
        if stepping.period > 1:
            return stepping
        return _Regular(rule, start, stepping.times_on(0))
    return _Regular(rule, start, _times_of(rule, start))


# -- times of a day


_NOTHING_MORE = DayTimes((0,), 1)


def _numbers(given: Any, own: int, size: int) -> Sequence[int]:
    """Return the numbers below ``size`` that are ``given``; None: the start's ``own``."""
    if given is None:
        return (own,)
    if type(given) is int and 0 <= given < size:
        return (given,)
    return sorted({number for number in listed(given) if 0 <= number < size})


def _filter(given: Any, size: int) -> Sequence[int]:
    """Return the numbers below ``size`` that pass a filter; None or () lets all of them pass."""
    return range(size) if given is None or given == () else _numbers(given, 0, size)


def _offsets_of(rule: Any, start: datetime) -> DayTimes:
    """Return the times within one step."""
    times = _NOTHING_MORE
    if rule.freq < SECONDLY:
        times = DayTimes(_numbers(rule.bysecond, start.second, 60), 1)
    if rule.freq < MINUTELY:
        times = DayTimes(_numbers(rule.byminute, start.minute, 60), 60, times)
    if rule.freq < HOURLY:
        times = DayTimes(_numbers(rule.byhour, start.hour, 24), 3_600, times)
    # in longer periods the days have a say, too
    return choose_times(times, listed(rule.bysetpos)) if rule.freq >= DAILY and rule.bysetpos else times


def _times_of(rule: Any, start: datetime) -> DayTimes:
    """Return the times of each day, for a rule whose steps are all days, hours, minutes or seconds."""
    times = _offsets_of(rule, start)
    if rule.freq == SECONDLY:
        times = DayTimes(_filter(rule.bysecond, 60), 1, times)
    if rule.freq >= MINUTELY:
        times = DayTimes(_filter(rule.byminute, 60), 60, times)
    if rule.freq >= HOURLY:
        times = DayTimes(_filter(rule.byhour, 24), 3_600, times)
    return times


# -- spans of days


class _Span:
    """Days, each with the same times; all occurrences of these, or some of them by their places.

    Arguments:
        first: the ordinal of bit 0.
        bits: the days.
        places: the places of the chosen occurrences, sorted; None: all.

    Attributes:
        count: how many occurrences there are.
    """

    __slots__ = ("_bits", "_first", "_places", "_times", "count")

    def __init__(self, first: int, bits: int, times: DayTimes, places: Sequence[int] | None = None) -> None:
        self._first, self._bits, self._times, self._places = first, bits, times, places
        self.count = bits.bit_count() * times.count if places is None else len(places)

    def count_before(self, second: int) -> int:
        """Return how many occurrences are before ``second``, which is the place of the first that isn't."""
        day, second = divmod(second, _DAY)
        day -= self._first
        if day < 0:
            return 0
        count = (self._bits & ((1 << day) - 1)).bit_count() * self._times.count
        if self._bits >> day & 1:
            count += self._times.count_before(second)
        return count if self._places is None else bisect_left(self._places, count)

    def at(self, place: int) -> int:
        """Return the occurrence at ``place``."""
        if self._places is not None:
            place = self._places[place]
        day, rest = divmod(place, self._times.count)
        return (self._first + _nth_bit(self._bits, day)) * _DAY + self._times.at(rest)


def _nth_bit(bits: int, n: int) -> int:
    """Return the position of the set bit that has ``n`` set bits below it."""
    if (bits & ((2 << n) - 1)).bit_count() == n + 1:  # the lowest bits are all set
        return n
    low, high = 0, bits.bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        if (bits & ((1 << middle) - 1)).bit_count() <= n:
            low = middle
        else:
            high = middle
    return low


# -- occurrences


class _Search:
    """The bound of one search for an occurrence."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew: an occurrence was found."""
        self._left = MAX_EXAMINED

    def examine(self, count: int = 1) -> None:
        """Count years, periods or days that are about to be examined.

        Raises:
            ValueError: they are too many.
        """
        self._left -= count
        if self._left < 0:
            raise ValueError(
                f"rrule: too sparse: no occurrence among {MAX_EXAMINED:,} years, periods or days. Use a "
                "smaller interval, or fewer filters."
            )


class WallTimes(ABC):
    """The occurrences of a rule that begins at ``start``."""

    def __init__(self, rule: Any, start: datetime) -> None:
        self._rule = rule
        self._start = _seconds_of(start)
        self._first_year = start.year
        self._days = YearDays(rule, start)
        self._none_from = _END
        self._totals = {start.year: 0}  # year to the number of occurrences before it
        self._known_year = start.year

    def next(self, wall: datetime, inclusive: bool = False) -> datetime | None:
        """Return the first occurrence after ``wall`` (``inclusive``: or at it); None: there is none."""
        least = max(_seconds_of(wall) + (not inclusive or wall.microsecond > 0), self._start)
        if least < self._none_from:
            for span in self._spans_from(least, _Search()):
                place = span.count_before(least)
                if place < span.count:
                    found = span.at(place)
                    if found < _END and self._is_counted(found):
                        return _wall_of(found)
                    break
            self._none_from = least
        return None

    def backwards(self, wall: datetime, oldest: datetime) -> Iterator[datetime]:
        """Yield the occurrences from ``wall`` back to ``oldest``, the last first."""
        before, first = self._end_before(_seconds_of(wall) + 1), max(self._start, _seconds_of(oldest))
        if before <= first:
            return
        search = _Search()
        earliest = max(_year_of(first) - 1, self._first_year)  # its last week may extend into the next year
        for year in range(min(_year_of(before), _LAST_YEAR), earliest - 1, -1):
            for span in self._spans_back(year, before, first, search):
                for place in range(span.count_before(before) - 1, -1, -1):
                    found = span.at(place)
                    if found < first:
                        return
                    yield _wall_of(found)
                    search.begin()

    @abstractmethod
    def _spans_from(self, least: int, search: _Search) -> Iterator[_Span]:
        """Yield the spans that may have occurrences at ``least`` or later."""

    @abstractmethod
    def _spans_in(self, year: int) -> Iterator[_Span]:
        """Yield the spans that begin in ``year``."""

    @abstractmethod
    def _spans_back(self, year: int, before: int, first: int, search: _Search) -> Iterator[_Span]:
        """Yield the spans of ``year`` that may have occurrences from ``first`` to ``before``, the last
        first.
        """

    @cached_property
    @abstractmethod
    def _cost_of_year(self) -> int:
        """How many spans of days are counted for one year."""

    # -- the count

    def _is_counted(self, found: int) -> bool:
        count: int | None = self._rule.count
        if count is None or found - self._start < count:  # there is at most one a second
            return True
        return not self._reaches(self._skipped + count, found)

    def _end_before(self, before: int) -> int:
        """Return the end of what ``count`` allows, ``before`` at the latest."""
        before, count = min(before, _END), self._rule.count
        if count is None or before - self._start <= count:
            return before
        if not self._reaches(self._skipped + count + 1, before):
            return before
        return self._at(self._skipped + count - 1) + 1 if count > 0 else self._start

    @cached_property
    def _skipped(self) -> int:
        """How many there are in the first year before the start; they are counted with the others."""
        return self._count_in(self._first_year, self._start)

    def _reaches(self, total: int, second: int) -> bool:
        """Return True if there are ``total`` or more before ``second``."""
        year = _year_of(second)
        early = max(year - 1, self._first_year)  # its last week may extend into ``year``
        while self._known_year < early and self._totals[self._known_year] < total:
            self._count_next_year()
        count = self._totals[min(self._known_year, early)]
        return count >= total or (
            count + sum(self._count_in(one, second) for one in range(early, year + 1)) >= total
        )

    def _count_in(self, year: int, before: int | None = None) -> int:
        spans = self._spans_in(year)
        return sum(span.count if before is None else span.count_before(before) for span in spans)

    def _count_next_year(self) -> None:
        year = self._known_year
        years = year + 1 - self._first_year
        if years * self._cost_of_year > MAX_COUNTED:
            raise ValueError(
                f"rrule: count: {years:,} years of such a rule take too long to count; use until instead."
            )
        self._totals[year + 1] = self._totals[year] + self._count_in(year)
        self._known_year = year + 1

    def _at(self, place: int) -> int:
        """Return the occurrence at ``place``, counted from the first year's first; it is known to exist."""
        while self._totals[self._known_year] <= place:
            self._count_next_year()
        years = range(self._first_year, self._known_year + 1)
        year = years[bisect_right(years, place, key=self._totals.__getitem__) - 1]
        place -= self._totals[year]
        for span in self._spans_in(year):
            if place < span.count:
                return span.at(place)
            place -= span.count
        raise AssertionError(f"{place} too few in {year}")


class _Regular(WallTimes):
    """The same times on each day; with positions, some of them in each period."""

    def __init__(self, rule: Any, start: datetime, times: DayTimes) -> None:
        super().__init__(rule, start)
        self._times = times
        self._positions = listed(rule.bysetpos) if rule.freq < DAILY else ()
        self._has_periods = bool(self._positions) and rule.freq != YEARLY
        self._places: dict[int, Sequence[int]] = {}

    def _spans_from(self, least: int, search: _Search) -> Iterator[_Span]:
        year = first = _year_of(least)
        if self._has_periods:
            year = max(year - 1, self._first_year)  # its last week may extend into this year
        while self._times.count and (year := self._days.next_year(year)) <= _LAST_YEAR:
            if year > first + 1 and year > first + self._days.cycle_years:
                return
            search.examine(self._cost_of_year)
            yield from self._spans_in(year)
            year += 1

    def _spans_back(self, year: int, before: int, first: int, search: _Search) -> Iterator[_Span]:  # noqa: ARG002
        search.examine(self._cost_of_year)
        spans = self._spans_in(year)
        return reversed(list(spans)) if self._has_periods else spans

    @cached_property
    def _cost_of_year(self) -> int:
        if not self._has_periods:
            return 1
        return 53 if self._rule.freq == WEEKLY else 12

    def _spans_in(self, year: int) -> Iterator[_Span]:
        first = first_day_of(year)
        if not self._has_periods:
            bits = self._days.of_year(year)
            yield _Span(first, bits, self._times, self._places_of(bits) if self._positions else None)
            return
        periods = self._days.weeks_of if self._rule.freq == WEEKLY else self._days.months_of
        for bits in periods(year):
            if bits:
                yield _Span(first, bits, self._times, self._places_of(bits))

    def _places_of(self, bits: int) -> Sequence[int]:
        """Return the places of ``bysetpos`` in a period of these days."""
        total = bits.bit_count() * self._times.count
        places = self._places.get(total)
        if places is None:
            found = {place - 1 if place > 0 else total + place for place in self._positions}
            places = self._places[total] = sorted(place for place in found if 0 <= place < total)
        return places


class _Stepping(WallTimes):
    """Steps of hours, minutes or seconds that fall on other times each day.

    Attributes:
        period: days after which the times repeat.
    """

    def __init__(self, rule: Any, start: datetime) -> None:
        super().__init__(rule, start)
        self._offsets = _offsets_of(rule, start)
        self._unit_seconds = _UNIT_SECONDS[rule.freq]
        self._units = _DAY // self._unit_seconds  # in a day
        self._origin = self._start // self._unit_seconds
        self._step: int = rule.interval
        self.period = self._step // gcd(self._step, self._units)
        filters = [
            (given, size)
            for given, size, least in (
                (rule.bysecond, 60, SECONDLY),
                (rule.byminute, 60, MINUTELY),
                (rule.byhour, 24, HOURLY),
            )
            if rule.freq >= least
        ]
        self._is_filtered = any(listed(given) for given, _ in filters)
        self._allowed = _units_allowed(filters) if self._is_filtered else b""
        self._times = Memory[int, DayTimes](MAX_REMEMBERED)
        self._cycle = self._units // gcd(self._step, self._units)  # steps after which their times repeat

    def times_on(self, day: int) -> DayTimes:
        """Return the times on the day with this ordinal."""
        phase = (self._origin - day * self._units) % self._step
        times = self._times.get(phase)
        if times is None:
            steps: Sequence[int] = range(phase, self._units, self._step)
            if self._is_filtered:
                steps = array("l", filter(self._allowed.__getitem__, steps))
            times = self._times[phase] = DayTimes(steps, self._unit_seconds, self._offsets)
        return times

    def _spans_from(self, least: int, search: _Search) -> Iterator[_Span]:
        if not self._has_times:
            return
        days = (
            self._days_of_steps(least) if self._step > self._units else self._days_from(least // _DAY, search)
        )
        if not self._days.is_by_date:  # then it repeats after a number of weeks
            week = 7 * self._units
            cycle = week // gcd(self._step, week) if self._step > self._units else 7 * self.period
            days = islice(days, cycle + 1)
        cost = self._cost_of_day
        for day in days:
            search.examine(cost)
            if day and self._has_times_on(day):
                yield _Span(day, 1, self.times_on(day))

    @cached_property
    def _cost_of_day(self) -> int:
        return 1 + self._units // self._step // _STEPS_PER_LOOK

    @cached_property
    def _cost_of_year(self) -> int:
        years = map(self._days.of_year, range(self._first_year - 3, self._first_year + 1))
        series = max(1, *((bits & ~(bits << 1)).bit_count() for bits in years))
        return series * (3 + self._cycle // _STEPS_PER_LOOK // 10 if self._is_filtered else 1)

    @cached_property
    def _has_times(self) -> bool:
        """Whether any day has times; also True where finding out would take long."""
        days = range(min(self.period, MAX_REMEMBERED))
        return self.period > len(days) or any(map(self._has_times_on, days))

    def _has_times_on(self, day: int) -> bool:
        """Return True if any step of a day passes the filters, without finding all of them."""
        phase = (self._origin - day * self._units) % self._step
        return 1 in self._allowed[phase :: self._step] if self._is_filtered else phase < self._units

    def _days_from(self, day: int, search: _Search) -> Iterator[int]:
        year = _year_of(day * _DAY)
        for one in range(year, min(year + self._days.cycle_years, _LAST_YEAR) + 1):
            search.examine()
            first, bits = first_day_of(one), self._days.of_year(one)
            if one == year:
                bits &= -1 << (day - first)
            while bits:
                lowest = bits & -bits
                yield first + lowest.bit_length() - 1
                bits ^= lowest

    def _days_of_steps(self, least: int) -> Iterator[int]:
        """Yield the days on which steps of more than a day fall; 0 for a day that the rule doesn't name."""
        passed = max(least // self._unit_seconds - self._origin, 0)
        unit = self._origin - (-passed // self._step) * self._step
        while (day := unit // self._units) <= _LAST_DAY:
            yield day if self._is_named(day) else 0
            unit += self._step

    def _is_named(self, day: int) -> bool:
        year = _year_of(day * _DAY)
        return bool(self._days.of_year(year) >> (day - first_day_of(year)) & 1)

    def _spans_in(self, year: int) -> Iterator[_Span]:
        for day in self._days_from(first_day_of(year), _Search()):
            if day >= first_day_of(year + 1):
                return
            yield _Span(day, 1, self.times_on(day))

    def _spans_back(self, year: int, before: int, first: int, search: _Search) -> Iterator[_Span]:
        least = max(first_day_of(year), first // _DAY)
        last = min(-(-before // _DAY), first_day_of(year + 1)) - 1
        days: Iterator[int] = iter(range(last, least - 1, -1))
        if self._step > self._units:
            unit = (last + 1) * self._units - 1
            unit -= (unit - self._origin) % self._step
            days = (one // self._units for one in range(unit, least * self._units - 1, -self._step))
        cost = self._cost_of_day
        for day in days:
            search.examine(cost)
            if self._is_named(day) and self._has_times_on(day):
                yield _Span(day, 1, self.times_on(day))

    def _count_in(self, year: int, before: int | None = None) -> int:
        first, bits, count = first_day_of(year), self._days.of_year(year), 0
        if before is not None:
            day = before // _DAY
            if bits >> max(day - first, 0) & 1 and day >= first:
                count = self.times_on(day).count_before(before % _DAY)
            bits &= (1 << max(day - first, 0)) - 1
        while bits:  # for each series of consecutive days
            begin = (bits & -bits).bit_length() - 1
            rest = ~(bits >> begin)
            days = (rest & -rest).bit_length() - 1
            count += self._count_days(first + begin, days)
            bits &= -1 << (begin + days)
        return count

    def _count_days(self, day: int, days: int) -> int:
        """Return how many occurrences there are on ``days`` consecutive days from ``day`` on."""
        begin = day * self._units - self._origin
        steps = self._steps_before(begin + days * self._units) - self._steps_before(begin)
        return steps * self._offsets.count

    def _steps_before(self, unit: int) -> int:
        """Return how many steps that pass the filters are before a unit, counted from the start's.

        Those before the start count negative, so that differences are right there, too.
        """
        steps = -(-unit // self._step)
        if not self._is_filtered:
            return steps
        cycles, rest = divmod(steps, self._cycle)
        passing = self._passing_steps
        return cycles * passing.bit_count() + (passing & ((1 << rest) - 1)).bit_count()

    @cached_property
    def _passing_steps(self) -> int:
        """The steps of a cycle that pass the filters, as bits; bit 0 is the start."""
        units = ((self._origin + number * self._step) % self._units for number in range(self._cycle))
        digits = "".join(["01"[self._allowed[unit]] for unit in units])
        return int(digits[::-1], 2)


def _seconds_of(wall: datetime) -> int:
    return wall.toordinal() * _DAY + wall.hour * 3_600 + wall.minute * 60 + wall.second


def _wall_of(second: int) -> datetime:
    day, second = divmod(second, _DAY)
    return datetime.fromordinal(day) + timedelta(seconds=second)


def _year_of(second: int) -> int:
    """Return the year of a time, 9999 at most."""
    return date.fromordinal(min(second // _DAY, _LAST_DAY)).year


def _units_allowed(filters: Sequence[tuple[Any, int]]) -> bytes:
    """Return a byte for each unit of a day: 1 if it passes all ``filters``, the finest first."""
    allowed = b"\1"
    for given, size in filters:
        wanted = set(_filter(given, size)) if listed(given) else range(size)
        never = bytes(len(allowed))
        allowed = b"".join(allowed if value in wanted else never for value in range(size))
    return allowed
