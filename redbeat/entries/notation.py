"""How people write a schedule, in files, forms and Python: ``{cron: "0 9 * * *"}``, ``{every: 30s}``.

Owns the conversion from this notation to a schedule's JSON in Redis, and back. Pure. Invariant: what is
written for a schedule is read as the same schedule; one that this notation can't express is written as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from celery.schedules import BaseSchedule

from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import RedBeatJSONEncoder, decode, from_timestamp, objects_of, plain_json
from redbeat.schedules.codec import encode_schedule, read_cron
from redbeat.schedules.crontab import CRON_FIELDS
from redbeat.schedules.durations import write_seconds
from redbeat.schedules.rfc5545 import read_rule, write_rule
from redbeat.schedules.times import is_span, read_seconds
from redbeat.schedules.timezones import zone_called

#: the forms of a schedule's object: the key that names the form, and the keys that may be beside it
SCHEDULE_FORMS = {
    "cron": frozenset[str](),
    "every": frozenset({"relative"}),
    "at": frozenset[str](),
    "rrule": frozenset[str](),
    "solar": frozenset({"lat", "lon"}),
}


def parse_schedule(value: str | float | dict[str, Any], zone: str | None = None) -> BaseSchedule:
    """Return the schedule that ``value`` describes: in this notation, or JSON as in Redis.

    Arguments:
        zone: the name of the zone of a recurrence rule's start that has none.

    Raises:
        ValueError: it describes none.
    """
    read = read_schedule(value, zone)
    if isinstance(read, str):
        return read_cron(read)
    if not isinstance(read, dict):
        read = _interval(read, {})
    try:
        found = objects_of(read)
    except (TypeError, OverflowError, RecursionError) as exc:
        raise ValueError(f"{exc}") from exc
    if not isinstance(found, BaseSchedule):
        raise ValueError(f"there is no schedule of the kind {read.get('__type__')!r}.")
    return found


def read_schedule(value: Any, zone: str | None = None) -> Any:
    """Return the JSON of the schedule that ``value`` describes, or ``value`` itself: a number, a cron
    expression.

    Arguments:
        zone: the name of the zone of a recurrence rule's start that has none.

    Raises:
        ValueError: it is none of the forms.
    """
    if isinstance(value, str):
        return _interval(value, {}) if is_span(value) else value
    if not isinstance(value, dict) or "__type__" in value:
        return value
    forms = [form for form in SCHEDULE_FORMS if form in value]
    if len(forms) != 1:
        known = ", ".join(f"{{{form}: ...}}" for form in SCHEDULE_FORMS)
        hint = "".join(did_you_mean(str(key), SCHEDULE_FORMS) for key in value if not forms)
        raise ValueError(f"must have just one of {known}, or a __type__ as in Redis.{hint}")
    form = forms[0]
    for unknown in value.keys() - {form} - SCHEDULE_FORMS[form]:
        raise ValueError(f"there is no {unknown!r} beside {form!r}.")
    return _READERS[form](value[form], value, zone)


def _cron(expression: Any, _value: dict[str, Any], _zone: str | None) -> Any:
    if not isinstance(expression, str):
        raise ValueError(f"cron: must be text, such as '0 9 * * mon-fri', not {expression!r}.")
    return json.loads(_cron_json(expression))


@lru_cache(maxsize=1024)
def _cron_json(expression: str) -> str:
    return json.dumps(encode_schedule(read_cron(expression)))


def _interval(every: Any, value: dict[str, Any], _zone: str | None = None) -> Any:
    if isinstance(every, timedelta):
        every = every.total_seconds()
    elif isinstance(every, str):
        try:
            every = read_seconds(every)
        except ValueError as exc:
            raise ValueError(f"every: {exc}") from exc
    if isinstance(every, float) and not math.isfinite(every):
        raise ValueError(f"every: {every} is no length of time.")
    return {"__type__": "interval", "every": every, "relative": value.get("relative", False)}


def _clocked(moment: Any, _value: dict[str, Any], _zone: str | None) -> Any:
    if not isinstance(moment, (str, datetime)):
        raise ValueError(f"at: must be a time, such as '2026-12-24T18:00', not {moment!r}.")
    return {"__type__": "clocked", "clocked_time": moment}


def _solar(event: Any, value: dict[str, Any], _zone: str | None) -> Any:
    missing = sorted({"lat", "lon"} - value.keys())
    if missing:
        raise ValueError(f"solar: {missing[0]} is missing.")
    return {"__type__": "solar", "event": event, "lat": value["lat"], "lon": value["lon"]}


def _rrule(text: Any, _value: dict[str, Any], zone: str | None) -> Any:
    """Return a rule of RFC 5545, with or without its DTSTART."""
    if not isinstance(text, str):
        raise ValueError(f"rrule: must be text, such as 'FREQ=WEEKLY;BYDAY=MO', not {text!r}.")
    try:
        fields = read_rule(text, zone_called(zone or "UTC"))
    except ValueError as exc:
        raise ValueError(f"rrule: {exc}") from exc
    return json.loads(json.dumps({"__type__": "rrule", **fields}, cls=RedBeatJSONEncoder))


_READERS: dict[str, Callable[[Any, dict[str, Any], str | None], Any]] = {
    "cron": _cron,
    "every": _interval,
    "at": _clocked,
    "rrule": _rrule,
    "solar": _solar,
}


def write_schedule(encoded: dict[str, Any]) -> Any:
    """Return this notation for the schedule whose JSON is ``encoded``; where there is none, ``encoded``."""
    return json.loads(_written(json.dumps(encoded)))


@lru_cache(maxsize=1024)  # thousands of entries have a few schedules
def _written(text: str) -> str:
    return json.dumps(_in_words(json.loads(text)))


def _in_words(encoded: dict[str, Any]) -> Any:
    kind = encoded.get("__type__")
    candidate: Any = None
    if kind == "interval":
        candidate = {"every": _length(encoded.get("every"))}
        if encoded.get("relative"):
            candidate["relative"] = True
    elif kind == "crontab":
        fields = [encoded.get(name) for name in CRON_FIELDS]
        # a list, or a field with spaces, can't be written in an expression; a number would be read as text
        if all(isinstance(field, str) and field and not re.search(r"\s", field) for field in fields):
            candidate = {"cron": " ".join(map(str, fields))}
    elif kind == "cron":
        candidate = {"cron": encoded.get("expression")}
    elif kind == "clocked":
        moment = encoded.get("clocked_time")
        if isinstance(moment, dict):
            moment = decode(json.dumps(moment)).isoformat()
        candidate = {"at": moment}
    elif kind == "solar":
        candidate = {"solar": encoded.get("event"), "lat": encoded.get("lat"), "lon": encoded.get("lon")}
    elif kind == "rrule":
        encoded = {name: value for name, value in encoded.items() if value is not None}
        candidate = _rule_in_words(encoded)
    return candidate if candidate is not None and _stands_for(candidate, encoded) else encoded


def _stands_for(candidate: Any, encoded: dict[str, Any]) -> bool:
    try:
        found = plain_json(encode_schedule(decode(json.dumps(read_schedule(candidate)))))
    except (ValueError, TypeError, RecursionError):
        return False
    if found["__type__"] == "rrule":
        found = {name: value for name, value in found.items() if value is not None}
    return bool(found == encoded)


def _rule_in_words(encoded: dict[str, Any]) -> dict[str, str] | None:
    try:
        start, until = (_moment_in(encoded, name) for name in ("dtstart", "until"))
        # a rule without a start is stored with this one
        has_none = encoded.get("dtstart") == 0 and not encoded.get("dtstart_tz") and "count" not in encoded
        return {"rrule": write_rule(encoded, None if has_none else start, until)}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, OSError):
        return None


def _moment_in(encoded: dict[str, Any], name: str) -> datetime | None:
    seconds = encoded.get(name)
    return None if seconds is None else from_timestamp(seconds, encoded.get(f"{name}_tz") or 0)


def write_plainly(encoded: dict[str, Any]) -> Any:
    """Return what ``write_schedule`` does, also where what it writes is stored in another form.

    A number in a crontab counts as its text, one value in a rule as a list of one, as Python code gives them;
    and of the zone of a time its offset counts.
    """
    written = write_schedule(encoded)
    if written != {name: value for name, value in encoded.items() if value is not None}:
        return written
    plainer = {name: _plainer(str(encoded.get("__type__")), name, value) for name, value in encoded.items()}
    again = write_schedule(plainer)
    return again if "__type__" not in again else written


def _plainer(kind: str, name: str, value: Any) -> Any:
    if kind == "crontab" and name in CRON_FIELDS:
        values = value if isinstance(value, list) else [value]
        return ",".join(str(one).replace(" ", "") for one in values)
    if kind == "clocked" and isinstance(value, dict):
        moment = decode(json.dumps(value))
        return plain_json(moment.replace(tzinfo=timezone(moment.utcoffset())))
    if kind != "rrule" or value is None:
        return value
    if name == "wkst":
        return value["wkday"] if isinstance(value, dict) else value
    if not name.startswith("by"):
        return value
    values = value if isinstance(value, list) else [value]
    if name == "byweekday":
        values = [one if isinstance(one, dict) else {"__type__": "weekday", "wkday": one} for one in values]
    return values


def schedule_in_short(value: Any) -> str:
    """Return a schedule in this notation, or as in Redis, as a short text for people: 'every 5m'.

    What is neither stays JSON.
    """
    try:
        written = write_plainly(value) if isinstance(value, dict) and "__type__" in value else value
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        written = value  # stored by another program
    match written:
        case str():
            return written
        case {"cron": text} | {"rrule": text}:
            return str(text)
        case {"every": length, **rest}:
            return f"every {length}{', at whole ones' if rest.get('relative') else ''}"
        case {"at": moment}:
            return f"at {moment}"
        case {"solar": event, "lat": lat, "lon": lon}:
            return f"{event} at {lat}, {lon}"
    return json.dumps(written, ensure_ascii=False, default=str)


def _length(seconds: Any) -> Any:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return seconds
    return write_seconds(seconds)
