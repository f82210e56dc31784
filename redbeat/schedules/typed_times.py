"""Times as people type them: '2h', 'tomorrow 9:00', '18:30', '2030-12-24T18:00'. Pure.

Invariant: what is typed is read without a clock; a time that depends on now is returned as a function of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta, timezone, tzinfo
from functools import partial

from redbeat.schedules.durations import is_span, read_seconds
from redbeat.schedules.timezones import instant_of


def read_moment(text: str) -> datetime:
    """Return a time in ISO 8601, naive where no offset is given."""
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no time; write it as 2030-12-24T18:00 or 2030-12-24T18:00+01:00."
        ) from exc
    if not 1970 <= moment.year <= 9998:
        raise ValueError(f"{text!r} is not in the years 1970 to 9998.")
    return moment


#: returns a time that was given, the end of a pause, say, for the server's time and a zone
Future = Callable[[datetime, tzinfo], datetime]

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_AND_CLOCK = re.compile(
    rf"({'|'.join([*_DAYS, *_WEEKDAYS, *(day[:3] for day in _WEEKDAYS)])})?"
    r"(?:(?:^|\s+)(?:at\s+)?(\d{1,2}:\d\d(?::\d\d)?))?",
    re.ASCII,
)
#: the longest time that is allowed
_MAX_SPAN = timedelta(days=36_525)


def read_span(text: str) -> timedelta:
    """Return a length of time such as '2h' that can be added to now, or taken from it."""
    span = timedelta(seconds=min(read_seconds(text), _MAX_SPAN.total_seconds() + 1))
    if span > _MAX_SPAN:
        raise ValueError(f"{text!r} is more than a hundred years.")
    return span


def read_future(text: str) -> Future:
    """Return the end of '2h' (from now), 'tomorrow', 'monday 9:00', '18:30', or a time, as a function."""
    words = " ".join(text.lower().split())
    if is_span(words):
        ahead = read_span(words)
        return lambda now, _zone: now + ahead
    try:
        on_day = _read_day(words, ("today", "tomorrow"), following=1)
        if on_day is not None:
            return on_day
        moment = read_moment(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no time; write it as 2h, tomorrow, monday 9:00, 18:30 or 2030-12-24T18:00."
        ) from exc
    return lambda _now, zone: in_zone(moment, zone)


def read_past(text: str) -> Future:
    """Return the time of '2h' (ago), 'yesterday', 'monday 9:00', '18:30', or a time, as a function."""
    words = " ".join(text.lower().split())
    if is_span(words):
        ago = read_span(words)
        return lambda now, _zone: max(now - ago, datetime.fromtimestamp(0, timezone.utc))
    try:
        on_day = _read_day(words, ("today", "yesterday"), following=-1)
        if on_day is not None:
            return on_day
        moment = read_moment(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no time; write it as 1d, 2h, yesterday, monday 9:00, 18:30 or 2030-12-24T18:00."
        ) from exc
    return lambda _now, zone: in_zone(moment, zone)


def _read_day(words: str, days: Sequence[str], following: int) -> Future | None:
    """Return the time of one of ``days`` or of a weekday, of a clock or of both, as a function; None: it is
    none of these.

    Arguments:
        following: a weekday, or a clock without a day, is the next such time (1), or the last one (-1).
    """
    found = _DAY_AND_CLOCK.fullmatch(words)
    if not words or found is None or (found[1] in _DAYS and found[1] not in days):
        return None
    hour, minute, second, *_ = map(int, f"{found[2] or '0:00'}:0".split(":"))
    return partial(_on_day, found[1], time(hour, minute, second), following)


def _on_day(day: str | None, clock: time, following: int, now: datetime, zone: tzinfo) -> datetime:
    """Return when it is ``clock`` on that day; on a weekday, or without one, the next or last time."""
    today = now.astimezone(zone).date()
    ahead, again = _DAYS.get(day or "today", 0), 0 if day in _DAYS else 1
    if day is not None and day not in _DAYS:
        weekday = next(number for number, name in enumerate(_WEEKDAYS) if name.startswith(day))
        ahead, again = following * ((weekday - today.weekday()) * following % 7), 7
    moment = instant_of(datetime.combine(today + timedelta(days=ahead), clock), zone)
    if again and (moment - now).total_seconds() * following <= 0:
        moment = instant_of(datetime.combine(today + timedelta(days=ahead + again * following), clock), zone)
    return moment


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return ``moment`` in UTC; a naive one is in ``zone``."""
    return moment.astimezone(timezone.utc) if moment.tzinfo else instant_of(moment, zone)
