"""Recurrence rules whose days don't exist, told at once: ``dateutil`` would look until the year 9999.

Owns no answer but "never, for certain" and "perhaps". Pure.
"""

from __future__ import annotations

from datetime import MAXYEAR, date, datetime, timedelta
from functools import lru_cache
from typing import Any

from dateutil.easter import easter
from dateutil.rrule import MONTHLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

__all__ = ["is_never", "listed", "weekday_numbers"]

#: 35 days of Easter, in years with and without the 29th of February
_EASTER_KINDS = 70

#: 28 years have one of each kind, and dateutil looks at no later ones
_LAST_YEARS = datetime(MAXYEAR - 27, 1, 1)  # noqa: DTZ001 - on a clock on the wall


def is_never(rule: Any) -> bool:
    """Tell whether ``rule`` names days there are none of; its interval isn't asked.

    It has the attributes of ``redbeat.schedules.rrule``.
    """
    months, days = _hashable(rule.bymonth), _hashable(rule.bymonthday)
    numbers = weekday_numbers(rule.byweekday)
    if rule.byeaster is not None and not _has_easter_days(_hashable(rule.byeaster), months, days, numbers):
        return True
    filters = (days, _hashable(rule.byyearday), _hashable(rule.byweekno))
    if filters == (None, None, None):
        return False
    is_long = rule.freq in (YEARLY, MONTHLY)  # what has shorter steps knows no n-th weekday
    weekdays = _hashable(rule.byweekday) if is_long else numbers
    return not _has_days(rule.freq if is_long else YEARLY, weekdays, months, *filters)


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
def _has_easter_days(distances: Any, bymonth: Any, bymonthday: Any, weekdays: Any) -> bool:
    """Tell whether there is a year in which one of these days after Easter is in these months, and so on."""
    for easter_day in _easter_days():
        for distance in listed(distances):
            day = easter_day + timedelta(days=distance)
            last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
            is_named = (
                bymonth is None or day.month in listed(bymonth),
                bymonthday is None or {day.day, day.day - last.day - 1} & {*listed(bymonthday)},
                weekdays is None or day.weekday() in weekdays,
            )
            if all(is_named):
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


def weekday_numbers(byweekday: Any) -> tuple[int, ...] | None:
    """Return the weekdays from 0, Monday, that ``byweekday`` names, without any n; None for None."""
    if byweekday is None:
        return None
    return tuple({int(getattr(day, "weekday", day)) for day in listed(byweekday)})


def listed(value: Any) -> Any:
    """Return ``value`` as many."""
    return value if isinstance(value, (list, tuple)) else [value]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
