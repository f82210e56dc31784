"""How people write a schedule, in files, forms and Python: ``{cron: "0 9 * * *"}``, ``{every: 30s}``.

Owns the conversion from this notation to a schedule's JSON in Redis, and back. Pure. Invariant: what is
written for a schedule is read as the same schedule; one that this notation can't express is written as JSON.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar

from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import from_timestamp, objects_of, plain_json
from redbeat.errors import EntryError
from redbeat.schedules.codec import MAX_DAYS, encode_schedule, read_cron
from redbeat.schedules.crontab import CRON_FIELDS
from redbeat.schedules.durations import write_seconds
from redbeat.schedules.rfc5545 import read_rule, write_rule
from redbeat.schedules.times import is_span, read_seconds
from redbeat.schedules.timezones import zone_called, zone_name

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: classes whose ``tz`` is that of their app; a subclass may have one of its own
_WITHOUT_ZONE = (crontab, schedule, solar)
#: the forms of a schedule's object: the key that names the form, and the keys that may be beside it
SCHEDULE_FORMS = {
    "cron": frozenset[str](),
    "every": frozenset({"relative"}),
    "at": frozenset[str](),
    "rrule": frozenset[str](),
    "solar": frozenset({"lat", "lon"}),
}


class ScheduleField:
    """An entry's attribute ``schedule``, which turns what people write into a schedule.

    Its value is in the entry's ``__dict__``, where Celery puts it, too. There is no ``__get__``, so Python
    reads it from there.
    """

    if TYPE_CHECKING:

        def __get__(self, entry: RedBeatSchedulerEntry, owner: type) -> Any: ...

    def __set__(self, entry: RedBeatSchedulerEntry, value: Any) -> None:
        app = getattr(entry, "app", None)  # a subclass's constructor may set it afterwards
        entry.__dict__["schedule"] = as_schedule(value, entry.name, app, zone=entry.policy.timezone)


def as_schedule(
    value: Any, name: Any, app: Any, relative: bool = False, *, zone: Any = None
) -> BaseSchedule | None:
    """Return the schedule that ``value`` describes; None stays None.

    Arguments:
        value: a schedule, a timedelta, a number of seconds, or what ``parse_schedule`` takes.
        name: the entry's, for the error.
        relative: as in :class:`celery.schedules.schedule`, for a length of time.
        zone: the entry's time zone or its name, for a recurrence rule whose start has none.

    Raises:
        EntryError: it describes none.
    """
    if isinstance(value, BaseSchedule):  # nearly always, and this is called for every run
        is_kept = type(value) in _WITHOUT_ZONE and "tz" in value.__dict__ and value.app is not app
        if is_kept and value.tz == value.app.timezone:
            del value.tz  # Celery keeps the zone of the app that the schedule had before
        value.app = app
        return value
    try:
        if isinstance(value, str) and is_span(value):
            value = read_seconds(value)
        if isinstance(value, (str, dict)):
            value = parse_schedule(value, zone if isinstance(zone, str) else zone_name(zone))
        elif isinstance(value, bool) or not isinstance(value, (timedelta, int, float, type(None))):
            raise TypeError("must be a schedule, a timedelta, seconds, text, or an object as in files.")
        made: BaseSchedule | None = maybe_schedule(value, relative, app=app)
    except (ValueError, TypeError) as exc:
        raise EntryError(f"{name}: schedule: {exc}", str(name)) from exc
    except OverflowError as exc:
        words = f"{value!r} seconds is too long: {MAX_DAYS} at the most."
        raise EntryError(f"{name}: schedule: {words}", str(name)) from exc
    return made


def parse_schedule(value: Any, zone: str | None = None) -> BaseSchedule:
    """Return the schedule that ``value`` describes: in this notation, or JSON as in Redis.

    Arguments:
        zone: the name of the zone of a recurrence rule's start that has none.

    Raises:
        ValueError: it describes none.
    """
    if isinstance(value, str):
        value = {"every": value} if is_span(value) else {"cron": value}
    elif not isinstance(value, dict):
        value = {"every": value}
    if "__type__" in value:
        encoded = value
    else:
        forms = [form for form in SCHEDULE_FORMS if form in value]
        if len(forms) != 1:
            known = ", ".join(f"{{{form}: ...}}" for form in SCHEDULE_FORMS)
            hint = "".join(did_you_mean(str(key), SCHEDULE_FORMS) for key in value if not forms)
            raise ValueError(f"must have just one of {known}, or a __type__ as in Redis.{hint}")
        for unknown in value.keys() - {forms[0]} - SCHEDULE_FORMS[forms[0]]:
            raise ValueError(f"there is no {unknown!r} beside {forms[0]!r}.")
        encoded = _read(forms[0], value[forms[0]], value, zone)
    try:
        found = objects_of(encoded)
    except (TypeError, OverflowError, RecursionError) as exc:
        raise ValueError(f"{exc}") from exc
    if not isinstance(found, BaseSchedule):
        raise ValueError(f"there is no schedule of the kind {encoded.get('__type__')!r}.")
    return found


def _read(form: str, given: Any, value: dict[str, Any], zone: str | None) -> Any:
    """Return the schedule that an object of a form describes, or its JSON."""
    if form in _TEXTS and not isinstance(given, (str, datetime) if form == "at" else str):
        raise ValueError(f"{form}: must be text, such as {_TEXTS[form]!r}, not {given!r}.")
    match form:
        case "cron":
            return json.loads(_cron_json(given))
        case "at":
            return {"__type__": "clocked", "clocked_time": given}
        case "solar":
            return _read_solar(given, value)
    try:
        if form == "rrule":
            return {"__type__": "rrule", **read_rule(given, zone_called(zone or "UTC"))}
        every = read_seconds(given) if isinstance(given, str) else given
    except ValueError as exc:
        raise ValueError(f"{form}: {exc}") from exc
    every = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(every, float) and not math.isfinite(every):
        raise ValueError(f"every: {every} is not a length of time.")
    return {"__type__": "interval", "every": every, "relative": value.get("relative", False)}


@lru_cache(maxsize=1024)  # thousands of entries have a few expressions
def _cron_json(expression: str) -> str:
    return json.dumps(encode_schedule(read_cron(expression)))


def _read_solar(event: Any, value: dict[str, Any]) -> Any:
    place = [value[name] for name in ("lat", "lon") if name in value]
    try:
        if isinstance(event, str) and "," in event:
            event, *parts = (part.strip() for part in event.split(","))
            place = [float(part) for part in parts]
        lat, lon = place
    except ValueError as exc:
        raise ValueError("solar: must be an event, latitude and longitude, as sunset,52.5,13.4.") from exc
    return {"__type__": "solar", "event": event, "lat": lat, "lon": lon}


_TEXTS = {"cron": "0 9 * * mon-fri", "at": "2026-12-24T18:00", "rrule": "FREQ=WEEKLY;BYDAY=MO"}


def write_schedule(encoded: dict[str, Any], *, exact: bool = False) -> Any:
    """Return this notation for the schedule whose JSON is ``encoded``; where there is none, ``encoded``.

    Arguments:
        exact: only if what it is read as is stored as the same JSON again.
    """
    return json.loads(_written(json.dumps(encoded), exact))


@lru_cache(maxsize=1024)  # thousands of entries have a few schedules
def _written(text: str, exact: bool) -> str:
    encoded = json.loads(text)
    try:
        found = _in_words(plain_json(encode_schedule(objects_of(encoded))))
        again = None if found is None else plain_json(encode_schedule(parse_schedule(found)))
        if again is not None and (not exact or _without_nulls(again) == _without_nulls(encoded)):
            return json.dumps(found)
    except (ValueError, TypeError, RecursionError):  # stored by another program, or of an unknown kind
        pass
    return json.dumps(_without_nulls(encoded)) if encoded.get("__type__") == "rrule" else text


def _in_words(encoded: dict[str, Any]) -> dict[str, Any] | None:
    match encoded:
        case {"__type__": "interval", "every": every, "relative": relative}:
            return {"every": write_seconds(every), **({"relative": True} if relative else {})}
        case {"__type__": "crontab", **fields}:
            return {"cron": " ".join(_cron_field(fields[name]) for name in CRON_FIELDS)}
        case {"__type__": "cron", "expression": expression}:
            return {"cron": expression}
        case {"__type__": "clocked", "clocked_time": moment}:
            return {"at": objects_of(moment).isoformat()}
        case {"__type__": "solar", "event": event, "lat": lat, "lon": lon}:
            return {"solar": event, "lat": lat, "lon": lon}
        case {"__type__": "rrule"}:
            start, until = (_moment_in(encoded, name) for name in ("dtstart", "until"))
            # a rule without a start is stored with this one
            has_none = encoded["dtstart"] == 0 and not encoded["dtstart_tz"] and encoded["count"] is None
            return {"rrule": write_rule(encoded, None if has_none else start, until)}
    return None


def _cron_field(given: Any) -> str:
    return ",".join(str(one).replace(" ", "") for one in (given if isinstance(given, list) else [given]))


def _moment_in(encoded: dict[str, Any], name: str) -> datetime | None:
    seconds = encoded.get(name)
    return None if seconds is None else from_timestamp(seconds, encoded[f"{name}_tz"])


def _without_nulls(encoded: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in encoded.items() if value is not None}


def schedule_in_short(value: Any) -> str:
    """Return a schedule in this notation, or as in Redis, as a short text for people: 'every 5m'.

    What is neither stays JSON.
    """
    try:
        written = write_schedule(value) if isinstance(value, dict) and "__type__" in value else value
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
