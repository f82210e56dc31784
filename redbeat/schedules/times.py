"""The one grammar of times and lengths of time that users type.

docs/time.rst, section "Typing times", is its reference. The place where a form such as '2h' or 'monday' is
typed decides whether it is ahead of now or back from it; every other form means the same everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone, tzinfo

from redbeat.schedules.timezones import instant_of, time_of

_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.ASCII)
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII)

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_AND_CLOCK = re.compile(
    rf"({'|'.join([*_DAYS, *_WEEKDAYS, *(day[:3] for day in _WEEKDAYS)])})?"
    r"(?:(?:^|\s+)(?:at\s+)?(\d{1,2}:\d\d(?::\d\d)?))?",
    re.ASCII,
)
_LENGTH = re.compile(r"(in )?(.*?)( ago)?")


def is_span(text: str) -> bool:
    """Return True if ``text`` consists of numbers with units, such as '30s' and '1h 30m'."""
    parts = _PART.findall(text.lower())
    return bool(parts) and not _PART.sub("", text.lower()) and all(unit in _SECONDS for _, unit in parts)


def read_seconds(text: str) -> float:
    """Return the seconds of '30s', '1h30m' or '0.2'.

    Raises:
        ValueError: it isn't a length of time; the message says why.
    """
    number = text.strip().lower()
    if _NUMBER.fullmatch(number):
        seconds = float(number)
    elif is_span(number):
        seconds = round(sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(number)), 6)
    else:
        raise ValueError(
            f"{text!r} is not a length of time; write it as 30s, 1h30m or 0.2 (units: ms, s, m, h, d, w)."
        )
    return int(seconds) if seconds.is_integer() else seconds


@dataclass(frozen=True)
class TypedTime:
    """A time as a user typed it, whose meaning depends on the server's clock and on a time zone.

    Attributes:
        ahead: as in ``read_time``.

    Raises:
        ValueError: it isn't a time.
    """

    text: str
    ahead: bool

    def __post_init__(self) -> None:
        self.at(datetime.now(timezone.utc), timezone.utc)

    def __str__(self) -> str:
        return self.text

    def at(self, now: datetime, zone: tzinfo) -> datetime:
        """Return the time that it means at ``now``, in UTC."""
        return read_time(self.text, now, zone, ahead=self.ahead)


def read_time(text: str, now: datetime, zone: tzinfo, *, ahead: bool) -> datetime:
    """Return the time that ``text`` means at ``now``, in UTC.

    Arguments:
        zone: of clocks, days and times without an offset.
        ahead: a length alone, a clock or a weekday is the next such time; else the last one.

    Raises:
        ValueError: it isn't a time; the message says how to write one.
    """
    words = " ".join(text.lower().split())
    if words == "now":
        return now
    if words == "last night":
        words = "yesterday 22:00"
    try:
        length, day_and_clock = _LENGTH.fullmatch(words), _DAY_AND_CLOCK.fullmatch(words)
        if length and is_span(length[2]) and not (length[1] and length[3]):
            is_ahead = length[1] is not None or (ahead and length[3] is None)
            moment = now + timedelta(seconds=read_seconds(length[2]) * (1 if is_ahead else -1))
        elif words and day_and_clock:
            hour, minute, second, *_ = map(int, f"{day_and_clock[2] or '0:00'}:0".split(":"))
            moment = _on_day(day_and_clock[1], time(hour, minute, second), now, zone, ahead=ahead)
        else:
            moment = time_of(text.strip())
            moment = moment.astimezone(timezone.utc) if moment.tzinfo else instant_of(moment, zone)
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1970 to 9998.") from None
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write it as 2h, 2h ago, tomorrow 9:00, monday 9:00, 18:30 or "
            "2030-12-24T18:00."
        ) from None
    if not 1970 <= moment.year <= 9998:
        raise ValueError(f"{text!r} is outside the years 1970 to 9998.")
    return moment


def _on_day(day: str | None, clock: time, now: datetime, zone: tzinfo, *, ahead: bool) -> datetime:
    """Return when it is ``clock`` on that day; on a weekday, or without a day, the next or last time."""
    today = now.astimezone(zone).date()
    if day in _DAYS:
        return instant_of(datetime.combine(today + timedelta(days=_DAYS[day]), clock), zone)
    direction, period = 1 if ahead else -1, 1 if day is None else 7
    weekday = next((at for at, name in enumerate(_WEEKDAYS) if day and name.startswith(day)), today.weekday())
    days = direction * ((weekday - today.weekday()) * direction % 7)
    moment = instant_of(datetime.combine(today + timedelta(days=days), clock), zone)
    if (moment - now).total_seconds() * direction > 0:
        return moment
    return instant_of(datetime.combine(today + timedelta(days=days + direction * period), clock), zone)
