"""The year of a calendar: twelve months with the days that it excludes, and their labels. Pure.

Invariant: a day is marked as a whole only if all of it is excluded; a span that begins or ends within a day
marks it as excluded in part.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from itertools import islice

from redbeat.entries.wording import local_time
from redbeat.schedules.exclusions import bounds_of

__all__ = ["Day", "Month", "Year", "draw_year"]

_DAY = timedelta(days=1)
#: how many labels are told of a day
MAX_LABELS = 5


@dataclass
class Day:
    """A day of the year.

    Attributes:
        labels: of what excludes it, each once.
        is_excluded: all of it is excluded.
        is_partly: some of it is.
    """

    on: date
    labels: dict[str, None] = field(default_factory=dict)
    is_excluded: bool = False
    is_partly: bool = False
    is_today: bool = False

    def add(self, label: str) -> None:
        """Note the label of what excludes it; '': it has none."""
        if label:
            self.labels[label] = None

    @property
    def words(self) -> str:
        """What is told of it besides its number; '': nothing."""
        kind = "excluded" if self.is_excluded else "partly excluded" if self.is_partly else ""
        labels = ", ".join(islice(self.labels, MAX_LABELS))
        more = len(self.labels) - MAX_LABELS
        labels += f" and {more:,} more" if more > 0 else ""
        return f"{kind}: {labels}" if kind and labels else kind


@dataclass(frozen=True)
class Month:
    """A month; ``blank`` is how many days of the week come before its first, beginning with Monday."""

    name: str
    blank: int
    days: list[Day]


@dataclass(frozen=True)
class Year:
    """A year.

    Attributes:
        rows: the fields of the calendar that are about it, each with its label, in order.
        excluded: how many days are excluded as a whole.
        partly: how many in part.
    """

    number: int
    months: list[Month]
    rows: list[tuple[str, str]]
    excluded: int
    partly: int


def draw_year(fields: Mapping[str, str], number: int, zone: tzinfo, today: date) -> Year:
    """Return one year of a calendar.

    Arguments:
        fields: its days and spans, each with its label. What is none is left out.
        zone: in which the times of spans are told.
    """
    first, last = date(number, 1, 1), date(number, 12, 31)
    days = {first + at * _DAY: Day(first + at * _DAY) for at in range((last - first).days + 1)}
    rows = []
    for text, label in fields.items():
        try:
            begin, end = bounds_of(text)
        except ValueError:
            continue
        if isinstance(begin, datetime):
            is_about = _mark_span(days, local_time(begin, zone), local_time(end, zone), label)
        else:
            is_about = _mark_days(days, begin, end, label)
        if is_about:
            rows.append((text, label))
    if today in days:
        days[today].is_today = True
    months = []
    for month in range(1, 13):
        of_month = [day for day in days.values() if day.on.month == month]
        months.append(Month(calendar.month_name[month], of_month[0].on.weekday(), of_month))
    excluded = sum(day.is_excluded for day in days.values())
    partly = sum(day.is_partly and not day.is_excluded for day in days.values())
    return Year(number, months, sorted(rows), excluded, partly)


def _mark_days(days: Mapping[date, Day], begin: date, end: date, label: str) -> bool:
    first, last = max(begin, min(days)), min(end, max(days))
    for at in range((last - first).days + 1):
        day = days[first + at * _DAY]
        day.is_excluded = True
        day.add(label)
    return first <= last


def _mark_span(days: Mapping[date, Day], begin: datetime, end: datetime, label: str) -> bool:
    first, last = begin.date(), end.date()
    is_about = False
    for at in range(max((min(last, max(days)) - max(first, min(days))).days + 1, 0)):
        on = max(first, min(days)) + at * _DAY
        starts = on == first and (begin.hour, begin.minute, begin.second, begin.microsecond) != (0, 0, 0, 0)
        if on == last and (end.hour, end.minute, end.second, end.microsecond) == (0, 0, 0, 0):
            continue  # it ends as this day begins
        days[on].add(label)
        days[on].is_partly = days[on].is_partly or starts or on == last
        days[on].is_excluded = days[on].is_excluded or not (starts or on == last)
        is_about = True
    return is_about
