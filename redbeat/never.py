"""Recurrence rules that never come true, told at once: ``dateutil`` would look until the year 9999.

Owns no answer but "never, for certain" and "perhaps". Pure.
"""

from __future__ import annotations

from datetime import MAXYEAR, date, datetime, timedelta
from functools import lru_cache
from typing import Any

from dateutil.easter import easter
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

__all__ = ["is_never"]

#: the frequencies whose steps may be whole days
_STEP_SECONDS = {DAILY: 86_400, HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}
#: how many of byhour, byminute and bysecond only choose among its steps
_CHOOSING = {DAILY: 0, HOURLY: 1, MINUTELY: 2, SECONDLY: 3}

#: 35 days of Easter, in years with and without the 29th of February
_EASTER_KINDS = 70
_SUNDAY = 6

#: 28 years have one of each kind, and dateutil looks at no later ones
_LAST_YEARS = datetime(MAXYEAR - 27, 1, 1)  # noqa: DTZ001 - on a clock on the wall


def is_never(rule: Any, start: datetime) -> bool:
    """Tell whether ``rule`` names what doesn't exist, or days and times that it steps over for ever.

    Arguments:
        rule: has the attributes of ``redbeat.schedules.rrule``.
        start: where it begins, on a clock on the wall.
    """
    if rule.interval > 1 and rule.freq in _STEP_SECONDS:
        days, rest = divmod(_STEP_SECONDS[rule.freq] * rule.interval, 86_400)
        if not rest and not _is_reached(rule, start, days):
            return True
    if rule.freq == DAILY and rule.bysetpos is not None:
        times = len(_listed(rule.byhour)) * len(_listed(rule.byminute)) * len(_listed(rule.bysecond))
        if all(abs(position) > times for position in _listed(rule.bysetpos)):
            return True
    months, days = _hashable(rule.bymonth), _hashable(rule.bymonthday)
    if rule.byeaster is not None and not _has_easter_days(_hashable(rule.byeaster), months, days):
        return True
    filters = (days, _hashable(rule.byyearday), _hashable(rule.byweekno))
    if filters == (None, None, None):
        return False
    weekdays, frequency = rule.byweekday, rule.freq
    if frequency not in (YEARLY, MONTHLY):  # whose steps are shorter knows no n-th weekday
        weekdays = None if weekdays is None else [_number(day) for day in _listed(weekdays)]
        frequency = YEARLY
    return not _has_days(frequency, _hashable(weekdays), months, *filters)


def _is_reached(rule: Any, start: datetime, step_days: int) -> bool:
    """Tell whether steps of whole days from ``start`` on come to the times and weekdays that are named."""
    named = [(rule.byhour, start.hour), (rule.byminute, start.minute), (rule.bysecond, start.second)]
    if any(given is not None and own not in _listed(given) for given, own in named[: _CHOOSING[rule.freq]]):
        return False
    if step_days % 7:
        return True
    weekdays = {day for day in map(_number, _listed(rule.byweekday)) if day is not None}
    easter_weekdays = {(_SUNDAY + days) % 7 for days in _listed(rule.byeaster) if days is not None}
    return all(not allowed or start.weekday() in allowed for allowed in (weekdays, easter_weekdays))


@lru_cache(maxsize=256)
def _has_days(frequency: Any, byweekday: Any, bymonth: Any, *filters: Any) -> bool:
    """Tell whether there is a day in any year that a rule with these filters names."""
    bymonthday, byyearday, byweekno = filters
    days = dateutil_rrule(
        frequency,
        dtstart=_LAST_YEARS,
        bymonth=bymonth,
        byweekday=byweekday,
        bymonthday=bymonthday,
        byyearday=byyearday,
        byweekno=byweekno,
    )
    return next(iter(days), None) is not None


@lru_cache(maxsize=256)
def _has_easter_days(days: Any, bymonth: Any, bymonthday: Any) -> bool:
    """Tell whether there is a year in which one of the ``days`` after Easter is in these months and days."""
    for easter_day in _easter_days():
        for distance in _listed(days):
            day = easter_day + timedelta(days=distance)
            last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
            is_month = bymonth is None or day.month in _listed(bymonth)
            if is_month and (
                bymonthday is None or {day.day, day.day - last.day - 1} & {*_listed(bymonthday)}
            ):
                return True
    return False


@lru_cache(maxsize=1)
def _easter_days() -> list[date]:
    """Return Easter in one year of each kind: weekdays follow from Easter's date and the year's length."""
    found: dict[tuple[int, int, int], date] = {}
    for year in range(2000, MAXYEAR):
        day = easter(year)
        found.setdefault((day.month, day.day, date(year, 12, 31).timetuple().tm_yday), day)
        if len(found) == _EASTER_KINDS:
            break
    return list(found.values())


def _number(weekday: Any) -> Any:
    return getattr(weekday, "weekday", weekday)


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
