"""Recurrence rules that come daily or more often: their days by ``dateutil``, their times by arithmetic.

dateutil walks such a rule step by step, in the worst case every second of thousands of years. Here each day
is looked at once, and no more than so many of them: a rule that names none of those has none. Pure.

Times are counted in seconds, from the day before year 1 on: a day's ordinal times 86,400 is its midnight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import count, product, takewhile
from math import gcd
from typing import Any

from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY
from dateutil.rrule import rrule as dateutil_rrule

from redbeat.never import is_never, listed, weekday_numbers

__all__ = ["UNIT_SECONDS", "next_step"]

#: how long a step of each frequency is with an interval of 1
UNIT_SECONDS = {DAILY: 86_400, HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}
_DAY = 86_400

#: so many of a rule's days are looked at, in so many years
MAX_DAYS, MAX_YEARS = 10_000, 400
#: so many are counted through for a rule with a count
MAX_COUNTED_DAYS = 40_000


def next_step(rule: Any, wall: datetime, start: datetime, inclusive: bool) -> datetime | None:
    """Return the first occurrence of ``rule`` after (``inclusive``: not before) ``wall``; None: none.

    Arguments:
        rule: has the attributes of ``redbeat.schedules.rrule``.
        start: what a clock on the wall showed at its dtstart.

    Raises:
        ValueError: counting its ``count`` would take too long.
    """
    if is_never(rule):
        return None
    walk = _Walk(rule, start)
    least = _seconds_of(wall) + (not inclusive or wall.microsecond > 0)
    found = walk.first(least)
    if found is None or (rule.count is not None and walk.count_before(found, rule.count) >= rule.count):
        return None
    return datetime.fromordinal(found // _DAY) + timedelta(seconds=found % _DAY)


@dataclass(frozen=True)
class _Day:
    """A rule's day, seen without its interval.

    Attributes:
        units: when a step may begin, seconds after midnight.
        offsets: a step's times, seconds after that.
        step: from one step to the next, seconds.
        residues: how many units leave which rest when they are divided by ``step``.
    """

    units: range | tuple[int, ...]
    offsets: tuple[int, ...]
    step: int
    residues: Counter[int]

    def count(self, residue: int) -> int:
        """Return how many steps begin on a day; ``residue`` is when, modulo ``step``, after its midnight."""
        if isinstance(self.units, range):
            return len(range(residue, _DAY, self.step))
        return self.residues[residue]

    def units_from(self, least: int, residue: int) -> Iterator[int]:
        """Yield the steps that begin at ``least`` or later."""
        if isinstance(self.units, range):
            yield from range(least + (residue - least) % self.step, _DAY, self.step)
            return
        if not self.residues[residue]:
            return
        for unit in self.units[bisect_left(self.units, least) :]:
            if unit % self.step == residue:
                yield unit


@lru_cache(maxsize=256)
def _day_of(freq: int, interval: int, hours: Any, minutes: Any, seconds: Any, positions: Any) -> _Day:
    named = [(hours, 24, 3_600), (minutes, 60, 60), (seconds, 60, 1)]
    choosing = {DAILY: 0, HOURLY: 1, MINUTELY: 2, SECONDLY: 3}[freq]  # so many only choose among the steps
    unit_seconds = UNIT_SECONDS[freq]
    units: range | tuple[int, ...] = range(0, _DAY, unit_seconds)
    if any(given is not None for given, _, _ in named[:choosing]):
        units = _sums(named[:choosing])
    offsets = _sums(named[choosing:])
    if positions is not None:
        at = {position - 1 if position > 0 else len(offsets) + position for position in listed(positions)}
        offsets = tuple(offsets[place] for place in sorted(at) if 0 <= place < len(offsets))
    step = unit_seconds * interval
    residues = Counter(unit % step for unit in units) if isinstance(units, tuple) else Counter[int]()
    return _Day(units, offsets, step, residues)


def _sums(named: list[tuple[Any, int, int]]) -> tuple[int, ...]:
    choices = [
        [
            value * seconds
            for value in (range(size) if given is None else sorted(set(listed(given))))
            if 0 <= value < size
        ]
        for given, size, seconds in named
    ]
    return tuple(sum(parts) for parts in product(*choices))


class _Walk:
    """The occurrences of a rule that begins at ``start``."""

    def __init__(self, rule: Any, start: datetime) -> None:
        def named(given: Any, own: int, least: int) -> Any:
            """What is not said is what the start has, unless the steps are shorter."""
            given = own if given is None and rule.freq < least else given
            return tuple(given) if isinstance(given, list) else given

        self._rule = rule
        self._day = _day_of(
            rule.freq,
            rule.interval,
            named(rule.byhour, start.hour, HOURLY),
            named(rule.byminute, start.minute, MINUTELY),
            named(rule.bysecond, start.second, SECONDLY),
            named(rule.bysetpos, 0, DAILY),
        )
        self._start = _seconds_of(start)
        unit = UNIT_SECONDS[rule.freq]
        self._origin = self._start // unit * unit
        self._unit = unit
        self._weekdays = weekday_numbers(rule.byweekday)
        self._is_by_date = any(
            given is not None
            for given in (rule.bymonth, rule.bymonthday, rule.byyearday, rule.byweekno, rule.byeaster)
        )
        #: after so many days the steps are at the same times again
        self._period = self._day.step // gcd(self._day.step, _DAY)
        #: after so many steps, or days, they are on the same weekdays again, and at the same times
        self._week_steps = 7 * _DAY // gcd(self._day.step, 7 * _DAY)

    def first(self, least: int) -> int | None:
        """Return the first occurrence at ``least`` or later."""
        least = max(least, self._start)
        limit = MAX_DAYS
        if not self._is_by_date:  # each weekday at each time that the steps come to
            limit = min((self._week_steps if self._day.step > _DAY else 7 * self._period) + 1, MAX_DAYS)
        for _, day in zip(range(limit), self._days(least // _DAY), strict=False):
            for occurrence in self._on(day, least):
                return occurrence
        return None

    def count_before(self, last: int, enough: int) -> int:
        """Return how many occurrences there are before ``last``, or ``enough`` when there are more."""
        first_day, last_day = self._start // _DAY, last // _DAY
        found = (
            sum(1 for one in self._on(first_day, self._start) if one < last) if self._has(first_day) else 0
        )
        if last_day > first_day:
            found += sum(1 for one in self._on(last_day, last_day * _DAY) if one < last)
            found += self._count_between(first_day + 1, last_day, enough)
        return found

    def _count_between(self, first: int, last: int, enough: int) -> int:
        if self._period == 1 and not self._is_by_date:
            weeks, rest = divmod(last - first, 7)
            days = weeks * len(self._weekdays or range(7))
            days += sum(1 for day in range(last - rest, last) if self._has(day))
            return days * self._count_on(first)
        found = 0
        for number, day in enumerate(takewhile(lambda day: day < last, self._days(first))):
            if found >= enough:
                break
            if number >= MAX_COUNTED_DAYS:
                raise ValueError(f"count: after {number} days it can't be counted any more; use until.")
            found += self._count_on(day)
        return found

    def _count_on(self, day: int) -> int:
        return self._day.count((self._origin - day * _DAY) % self._day.step) * len(self._day.offsets)

    def _on(self, day: int, least: int) -> Iterator[int]:
        """Yield the occurrences on ``day`` at ``least`` or later."""
        midnight = day * _DAY
        begin = max(least - midnight, 0) // self._unit * self._unit
        for unit in self._day.units_from(begin, (self._origin - midnight) % self._day.step):
            for offset in self._day.offsets:
                if midnight + unit + offset >= least:
                    yield midnight + unit + offset

    def _has(self, day: int) -> bool:
        return next(iter(self._days(day)), None) == day

    def _days(self, first: int) -> Iterator[int]:
        """Yield the days that the rule names from ``first`` on, whatever its steps."""
        final = date.max.toordinal()
        if not self._is_by_date:
            in_vain = 0
            for day in self._steps(first) if self._day.step > _DAY else count(first):
                if day > final or in_vain > self._week_steps:
                    return
                in_vain += 1
                if self._weekdays is None or (day + 6) % 7 in self._weekdays:
                    in_vain = 0
                    yield day
            return
        rule, begin = self._rule, date.fromordinal(min(first, final))
        has_days = (rule.bymonthday, rule.byyearday, rule.byweekno, rule.byweekday, rule.byeaster)
        days = dateutil_rrule(
            MONTHLY,
            dtstart=datetime(begin.year, begin.month, 1),  # noqa: DTZ001 - on a clock on the wall
            wkst=rule.wkst,
            bymonth=rule.bymonth,
            bymonthday=range(1, 32) if has_days == (None,) * 5 else rule.bymonthday,
            byyearday=rule.byyearday,
            byweekno=rule.byweekno,
            byweekday=self._weekdays,
            byeaster=rule.byeaster,
        )
        for found in days:
            if found.year > begin.year + MAX_YEARS:
                return
            if found.toordinal() >= first:
                yield found.toordinal()

    def _steps(self, first: int) -> Iterator[int]:
        """Yield the days from ``first`` on to which steps of more than a day come."""
        passed = max(first * _DAY - self._origin, 0)
        for number in count(-(-passed // self._day.step)):
            yield (self._origin + number * self._day.step) // _DAY


def _seconds_of(wall: datetime) -> int:
    return wall.toordinal() * _DAY + wall.hour * 3_600 + wall.minute * 60 + wall.second
