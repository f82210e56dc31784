"""The year of a calendar: twelve months with the days that it excludes, and their labels. Pure.

Invariant: a day is marked as a whole only if all of it is excluded; a span that begins or ends within a day
marks it as excluded in part.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo
from itertools import islice

from redbeat.entries.wording import local_time
from redbeat.schedules.exclusions import bounds_of

_DAY, _INSTANT = timedelta(days=1), timedelta(microseconds=1)
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

    def add(self, label: str, *, is_whole: bool) -> None:
        """Note what excludes it, as a whole or in part, by its label; '': it has none."""
        self.is_excluded = self.is_excluded or is_whole
        self.is_partly = self.is_partly or not is_whole
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
class Year:
    """A year.

    Attributes:
        months: the name of each, and its days.
        rows: the fields of the calendar that are about it, each with its label, in order.
        excluded: how many days are excluded as a whole.
        partly: how many in part.
    """

    number: int
    months: list[tuple[str, list[Day]]]
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
            begins, ends = local_time(begin, zone), local_time(end, zone) - _INSTANT
        else:
            begins, ends = datetime.combine(begin, time.min), datetime.combine(end, time.max)
        begins, ends = begins.replace(tzinfo=None), ends.replace(tzinfo=None)
        at, until = max(begins.date(), first), min(ends.date(), last)
        for on in (at + later * _DAY for later in range((until - at).days + 1)):
            is_whole = begins <= datetime.combine(on, time.min) and datetime.combine(on, time.max) <= ends
            days[on].add(label, is_whole=is_whole)
        if at <= until:
            rows.append((text, label))
    if today in days:
        days[today].is_today = True
    months = [
        (calendar.month_name[month], [day for day in days.values() if day.on.month == month])
        for month in range(1, 13)
    ]
    excluded = sum(day.is_excluded for day in days.values())
    partly = sum(day.is_partly and not day.is_excluded for day in days.values())
    return Year(number, months, sorted(rows), excluded, partly)
