"""The types of values on the command line: lengths of time, times, JSON, schedules; with errors in words.

Invariant: nothing here asks Redis, so a wrong value is refused before anything is read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta, timezone, tzinfo
from functools import partial
from typing import Any

import click

from redbeat.schedules.codec import make_solar, read_cron
from redbeat.schedules.crontab import CRON_FIELDS, cron
from redbeat.schedules.durations import is_span, read_seconds
from redbeat.schedules.timezones import instant_of, zone_called


class Value(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A value that ``read`` makes of its text, or refuses with a ValueError that says why."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text ``value``."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def _read_interval(text: str) -> float:
    seconds = read_seconds(text)
    if not 1e-6 <= seconds <= 86_399_999_999_999:
        raise ValueError(
            f"{text!r} is no interval: it must be longer than 0 s, and shorter than 2.7 million years."
        )
    return seconds


def _read_moment(text: str) -> datetime:
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
_DAY_AND_CLOCK = re.compile(
    r"(yesterday|today|tomorrow)?(?:(?:^|\s+)(?:at\s+)?(\d{1,2}:\d\d(?::\d\d)?))?", re.ASCII
)
#: the longest time that is allowed
_MAX_AHEAD = timedelta(days=36_525)


def _read_future(text: str) -> Future:
    """Return the end of '2h' (from now), 'tomorrow', 'tomorrow 9:00', '18:30', or a time, as a function."""
    words = " ".join(text.lower().split())
    if is_span(words):
        ahead = timedelta(seconds=min(read_seconds(words), _MAX_AHEAD.total_seconds() + 1))
        if ahead > _MAX_AHEAD:
            raise ValueError(f"{text!r} is more than a hundred years.")
        return lambda now, _zone: now + ahead
    try:
        on_day = _read_day(words, ("today", "tomorrow"), following=1)
        if on_day is not None:
            return on_day
        moment = _read_moment(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no time; write it as 2h, tomorrow, tomorrow 9:00, 18:30 or 2030-12-24T18:00."
        ) from exc
    return lambda _now, zone: in_zone(moment, zone)


def _read_past(text: str) -> Future:
    """Return the time of '2h' (ago), 'yesterday', 'yesterday 9:00', '18:30', or a time, as a function."""
    words = " ".join(text.lower().split())
    if is_span(words):
        ago = timedelta(seconds=min(read_seconds(words), _MAX_AHEAD.total_seconds() + 1))
        if ago > _MAX_AHEAD:
            raise ValueError(f"{text!r} is more than a hundred years.")
        return lambda now, _zone: max(now - ago, datetime.fromtimestamp(0, timezone.utc))
    try:
        on_day = _read_day(words, ("today", "yesterday"), following=-1)
        if on_day is not None:
            return on_day
        moment = _read_moment(text)
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no time; write it as 1d, 2h, yesterday, yesterday 9:00, 18:30 or 2030-12-24T18:00."
        ) from exc
    return lambda _now, zone: in_zone(moment, zone)


def _read_day(words: str, days: Sequence[str], following: int) -> Future | None:
    """Return the time of one of ``days``, of a clock or of both, as a function; None: it is none of these.

    Arguments:
        following: a clock without a day is the next time that clocks show it (1), or the last one (-1).
    """
    found = _DAY_AND_CLOCK.fullmatch(words)
    if not words or found is None or found[1] not in (None, *days):
        return None
    hour, minute, second, *_ = map(int, f"{found[2] or '0:00'}:0".split(":"))
    return partial(_on_day, found[1], time(hour, minute, second), following)


def _on_day(day: str | None, clock: time, following: int, now: datetime, zone: tzinfo) -> datetime:
    """Return when it is ``clock`` in ``zone`` on that day; without one, the next or the last time."""
    today = now.astimezone(zone).date()
    moment = instant_of(datetime.combine(today + timedelta(days=_DAYS[day or "today"]), clock), zone)
    if day is None and (moment - now).total_seconds() * following <= 0:
        moment = instant_of(datetime.combine(today + timedelta(days=following), clock), zone)
    return moment


def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return ``moment`` in UTC; a naive one is in ``zone``."""
    return moment.astimezone(timezone.utc) if moment.tzinfo else instant_of(moment, zone)


def _json_reader(kind: type, what: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as exc:
            place = f"column {exc.colno}" if exc.lineno == 1 else f"line {exc.lineno}, column {exc.colno}"
            raise ValueError(f"{text!r} is no JSON: {exc.msg} at {place}.") from exc
        except RecursionError as exc:
            raise ValueError("it is nested too deep for JSON.") from exc
        if not isinstance(value, kind):
            raise ValueError(f"{text!r} must be {what}.")
        return value

    return read


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON.")


def _read_cron(text: str) -> Any:
    try:
        return read_cron(text)
    except ValueError as exc:
        raise ValueError(f"{exc}{_place_in(text)}") from exc


def _place_in(expression: str) -> str:
    """Return a sentence with the place of the first wrong element of a cron expression; '': not known."""
    fields = list(re.finditer(r"\S+", expression))
    if len(fields) != len(CRON_FIELDS):
        return ""
    for number, field in enumerate(fields):
        place = field.start()
        for element in field[0].split(","):
            probe = ["*"] * len(fields)
            probe[number] = element
            try:
                cron(" ".join(probe))
            except ValueError:
                return f" It is field {number + 1}, at character {place + 1}."
            place += len(element) + 1
    return ""


def _read_solar(text: str) -> Any:
    parts = [part.strip() for part in text.split(",")]
    try:
        event, lat, lon = parts[0], *map(float, parts[1:])
    except ValueError as exc:
        raise ValueError(
            f"{text!r} is no event, latitude and longitude; write it as sunset,52.5,13.4."
        ) from exc
    return make_solar(event, lat, lon)


DURATION = Value("duration", read_seconds)
INTERVAL = Value("duration", _read_interval)
MOMENT = Value("time", _read_moment)
FUTURE = Value("time", _read_future)
PAST = Value("time", _read_past)
JSON_ARRAY = Value("JSON", _json_reader(list, "an array, as [1, 2]"))
JSON_OBJECT = Value("JSON", _json_reader(dict, 'an object, as {"key": 1}'))
CRON = Value("cron", _read_cron)
SOLAR = Value("solar", _read_solar)
ZONE = Value("zone", zone_called)
