"""Excluded times: the days and spans of a calendar, and when the exclusion around an instant ends. Pure.

Owns how they are written: the day ``2026-12-25``; the days ``2026-12-24/2026-12-31``, both included; or the
span ``2026-12-24T18:00+01:00/2026-12-25T06:00+01:00``, whose end isn't included. A day is meant in the time
zone of the entry that asks; a span is the same in all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from datetime import date, datetime, time, timezone, tzinfo
from typing import Any, Generic, TypeVar

from redbeat.schedules.timezones import instant_of, time_of

#: the end of an exclusion that has none
NEVER_FREE = datetime.max.replace(tzinfo=timezone.utc)

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?[+-]\d\d:\d\d", re.ASCII)
_HOW = (
    "Write 2026-12-25, 2026-12-24/2026-12-31 for several days, or two times with offsets, as "
    "2026-12-24T18:00+01:00/2026-12-25T06:00+01:00."
)

#: days by their number, or instants
Point = TypeVar("Point", int, datetime)


class _Ranges(Generic[Point]):
    """Ranges whose ends aren't included; those that overlap or adjoin are joined."""

    def __init__(self, ranges: Iterable[tuple[Point, Point]]) -> None:
        self.starts: list[Point] = []
        self.ends: list[Point] = []
        for start, end in sorted(ranges):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def start_after(self, point: Point) -> Point | None:
        """Return the start of the range that ``point`` is in, or of the next one; None: there is none."""
        place = bisect_right(self.ends, point)
        return self.starts[place] if place < len(self.starts) else None

    def end_around(self, point: Point) -> Point | None:
        """Return the end of the range that ``point`` is in, None: it is in none."""
        place = bisect_right(self.starts, point) - 1
        return self.ends[place] if place >= 0 and point < self.ends[place] else None


class Exclusions:
    """Days and spans at which nothing runs.

    Arguments:
        fields: written as above.

    Raises:
        ValueError: one is written differently; the message quotes it.
    """

    def __init__(self, fields: Iterable[str]) -> None:
        days: list[tuple[int, int]] = []
        spans: list[tuple[datetime, datetime]] = []
        for field in fields:
            day = _day_of(field)
            if day is not None:
                days.append((day, day + 1))
                continue
            first, last = bounds_of(field)
            if isinstance(first, datetime):
                spans.append((first, last))
            else:
                days.append((first.toordinal(), last.toordinal() + 1))
        self._days = _Ranges(days)
        self._spans = _Ranges(spans)

    def count_days(self) -> int:
        """Return how many days it excludes, each counted once, and spans not counted."""
        return sum(end - start for start, end in zip(self._days.starts, self._days.ends, strict=True))

    def end_of_exclusion(self, instant: datetime, tz: tzinfo) -> datetime | None:
        """Return the first instant after an excluded ``instant`` that isn't excluded; None: ``instant``
        isn't.

        Arguments:
            instant: in UTC, as is the result; that is ``NEVER_FREE`` if everything later is excluded.
            tz: the time zone in which days are meant.
        """
        free = instant
        while free < NEVER_FREE:
            day = self._days.end_around(free.astimezone(tz).toordinal()) if self._days.starts else None
            if day is not None:
                free = _start_of(day, tz, free)
                continue
            end = self._spans.end_around(free)
            if end is None:
                break
            free = end
        return None if free == instant else free

    def next_excluded(self, instant: datetime, tz: tzinfo) -> date | datetime | None:
        """Return the first excluded day or instant (UTC) at ``instant`` or later; None: there is none.

        Arguments:
            instant: in UTC.
            tz: the time zone in which days are meant.
        """
        found: list[tuple[datetime, date | datetime]] = []
        today = instant.astimezone(tz).toordinal()
        if (start := self._days.start_after(today)) is not None:
            day = date.fromordinal(max(start, today))
            found.append((instant_of(datetime.combine(day, time()), tz), day))
        if (begin := self._spans.start_after(instant)) is not None:
            found.append((max(begin, instant), max(begin, instant)))
        return min(found, key=lambda one: one[0])[1] if found else None


def spelled(day: Any) -> str:
    """Return the text of ``day``, which is a date, two dates, two aware datetimes, or such a text.

    Raises:
        ValueError: it is none of these.
    """
    field = day
    if isinstance(day, (tuple, list)) and len(day) == 2:
        field = "/".join(map(_spelled_point, day))
    elif isinstance(day, date):
        field = _spelled_point(day)
    if not isinstance(field, str):
        raise ValueError(f"{day!r} is not a date. {_HOW}")
    bounds_of(field)
    return field


def _spelled_point(point: Any) -> str:
    if isinstance(point, datetime):
        is_short = point.second == point.microsecond == 0
        return point.isoformat(timespec="minutes" if is_short else "auto")
    return point.isoformat() if isinstance(point, date) else str(point)


def bounds_of(field: str) -> tuple[Any, Any]:
    """Return the first and the last day of ``field``, or the start and the end of a span, in UTC.

    Raises:
        ValueError: it is neither.
    """
    first_text, slash, last_text = field.partition("/")
    try:
        if _DATE.fullmatch(first_text):
            first = date.fromisoformat(first_text)
            last = _date_of(last_text) if slash else first
            is_ordered = first <= last
        else:
            first, last = _instant_of(first_text), _instant_of(last_text)
            is_ordered = first < last
    except (ValueError, OverflowError) as exc:
        why = f": {exc}." if slash or _DATE.fullmatch(first_text) else "."
        raise ValueError(f"{field!r} is not a date{' or a span' if slash else ''}{why} {_HOW}") from exc
    if not is_ordered:
        raise ValueError(f"{field!r} ends before it begins.")
    return first, last


def _day_of(field: str) -> int | None:
    """Return the ordinal of the day that ``field`` is; None: it isn't a single day. A fast path."""
    if len(field) != 10 or field[4] != "-" or field[7] != "-":
        return None
    try:
        return date.fromisoformat(field).toordinal()
    except ValueError:
        return None


def _date_of(text: str) -> date:
    if not _DATE.fullmatch(text):
        raise ValueError(f"{text!r} is no date")
    return date.fromisoformat(text)


def _instant_of(text: str) -> datetime:
    try:
        # time_of takes ten times as long
        moment = datetime.fromisoformat(text) if _PLAIN_TIME.fullmatch(text) else time_of(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} is no time") from exc
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset")
    return moment.astimezone(timezone.utc)


def _start_of(day: int, tz: tzinfo, after: datetime) -> datetime:
    """Return the first instant later than ``after`` at which it is ``day`` in ``tz``."""
    if day > date.max.toordinal():
        return NEVER_FREE
    midnight = datetime.fromordinal(day)
    start = instant_of(midnight, tz)
    if start > after:
        return start
    # the clocks were set back over midnight, so the day begins twice
    again = midnight.replace(tzinfo=tz, fold=1).astimezone(timezone.utc)
    return again if again > after else NEVER_FREE
