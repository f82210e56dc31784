"""The JSON of each type of schedule: of those of celery-redbeat 2.x, and of those it doesn't know.

Owns the objects with a ``__type__``, datetimes among them. Reading is tolerant, writing is strict.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar
from dateutil.rrule import weekday

from redbeat.config.settings import as_flag
from redbeat.log.text import quoted
from redbeat.schedules.crontab import CRON_FIELDS, has_special_days
from redbeat.schedules.occurrences import KINDS, clocked, cron, is_interval, rrule
from redbeat.schedules.timezones import time_of, zone_called, zone_name

#: in the order in which celery-redbeat 2.x writes them
_CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_RRULE_FIELDS = tuple(name for name in rrule.FIELDS if name not in ("dtstart", "until"))

#: the known keys of each schedule's JSON; unknown ones are kept when it is rewritten
SCHEDULE_FIELDS: dict[str, frozenset[str]] = {
    "interval": frozenset({"__type__", "every", "relative"}),
    "crontab": frozenset({"__type__", *CRON_FIELDS}),
    "rrule": frozenset({"__type__", *_RRULE_FIELDS, "dtstart", "dtstart_tz", "until", "until_tz"}),
    "cron": frozenset({"__type__", "expression"}),
    "clocked": frozenset({"__type__", "clocked_time"}),
    "solar": frozenset({"__type__", "event", "lat", "lon"}),
}


def to_timestamp(dt: datetime) -> int:
    """Return UNIX seconds, whole; a naive datetime is UTC."""
    return calendar.timegm(dt.utctimetuple())


def from_timestamp(seconds: float, tz_minutes: float = 0) -> datetime:
    """Return the aware datetime of UNIX ``seconds``, shown at ``tz_minutes`` east of UTC."""
    tz = timezone(timedelta(minutes=tz_minutes)) if tz_minutes else timezone.utc
    return datetime.fromtimestamp(seconds, tz=tz)


def encode_datetime(moment: datetime) -> dict[str, Any]:
    tz: tzinfo | None = moment.tzinfo
    offset = moment.utcoffset()
    name = zone_name(tz)
    if moment.fold and offset != moment.replace(fold=0).utcoffset():
        name = None  # in the zone of that name these would be the first of two equal times
    if tz is None or (name is None and not offset):
        name = "UTC"
    return {
        "__type__": "datetime",
        "year": moment.year,
        "month": moment.month,
        "day": moment.day,
        "hour": moment.hour,
        "minute": moment.minute,
        "second": moment.second,
        "microsecond": moment.microsecond,
        "timezone": name or (offset.total_seconds() if offset else 0.0),
    }


def _decode_datetime(d: dict[str, Any]) -> datetime:
    zone = d.get("timezone", "UTC")
    if isinstance(zone, bool) or not isinstance(zone, (str, int, float)):
        raise ValueError(f"timezone {quoted(zone)} is neither a name nor an offset in seconds.")
    tz = zone_called(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    hour, minute, second = d.get("hour", 0), d.get("minute", 0), d.get("second", 0)
    return datetime(d["year"], d["month"], d["day"], hour, minute, second, d.get("microsecond", 0), tz)


def cronspecs(rule: crontab) -> list[Any]:
    """Return a crontab's fields as they were given, but sets and other iterables as sorted lists."""
    given = [getattr(rule, f"_orig_{name}") for name in _CRONTAB_FIELDS]
    return [
        spec if isinstance(spec, (int, str)) else sorted(getattr(rule, name))
        for name, spec in zip(_CRONTAB_FIELDS, given, strict=True)
    ]


def encode_crontab(*specs: Any) -> dict[str, Any]:
    return {"__type__": "crontab", **dict(zip(_CRONTAB_FIELDS, specs, strict=True))}


def encode_interval(every: timedelta, relative: bool) -> dict[str, Any]:
    return {"__type__": "interval", "every": every.total_seconds(), "relative": relative}


def encode_schedule(schedule_: BaseSchedule) -> dict[str, Any]:
    for name, kind in KINDS.items():
        if type(schedule_) is kind.cls:
            return {**kind.encode(schedule_), "__type__": name}
    if isinstance(schedule_, rrule):
        return _encode_rrule(schedule_)
    if isinstance(schedule_, cron):
        return {"__type__": "cron", "expression": schedule_.expression}
    if isinstance(schedule_, clocked):
        moment = schedule_.clocked_time
        moment = moment if moment.tzinfo else schedule_.instant_in(schedule_.tz).astimezone(schedule_.tz)
        return {"__type__": "clocked", "clocked_time": encode_datetime(moment)}
    if isinstance(schedule_, crontab):
        return encode_crontab(*cronspecs(schedule_))
    if is_interval(schedule_):
        return encode_interval(schedule_.run_every, bool(schedule_.relative))
    if isinstance(schedule_, solar):
        return {"__type__": "solar", "event": schedule_.event, "lat": schedule_.lat, "lon": schedule_.lon}
    raise TypeError(
        f"its schedule is a {type(schedule_).__name__}, a class of your own: call "
        "redbeat.schedules.register_schedule for it, here and in beat"
    )


def is_only_ours(given: dict[str, Any]) -> bool:
    """Return True if a crontab's fields have L, W or #, which Celery's crontab refuses or misreads."""
    return any(has_special_days(given.get(name)) for name in ("day_of_month", "day_of_week"))


def _decode_crontab(d: dict[str, Any]) -> crontab:
    return _crontab_or_cron({name: d[name] for name in CRON_FIELDS if d.get(name) is not None})


def _crontab_or_cron(given: dict[str, Any]) -> crontab:
    """Return Celery's crontab of these fields, or RedBeat's ``cron`` where Celery's can't express them."""
    is_ours = is_only_ours(given)
    try:
        if is_ours:
            raise ValueError("Celery takes 'mon#1' and 'monL' for 'mon'")
        return crontab(**given)
    except (ValueError, TypeError, ArithmeticError, ParseException):
        if not all(isinstance(value, (str, int)) for value in given.values()):
            raise
        expression = " ".join(str(given.get(name, "*")) or "-" for name in CRON_FIELDS)
        try:
            return cron(expression)
        except ValueError:
            if is_ours:
                raise
        raise  # Celery's own error, which may be about something that only Celery refuses


def read_cron(expression: str) -> crontab:
    """Return the schedule of an expression: five fields in one string, or '@daily'; else raise ValueError.

    It is Celery's crontab wherever possible, so that celery-redbeat 2.x reads it, too.
    """
    return _crontab_or_cron(dict(zip(CRON_FIELDS, cron(expression).fields, strict=True)))


def _decode_clocked(d: dict[str, Any]) -> clocked:
    moment = d["clocked_time"]
    return clocked(time_of(moment) if isinstance(moment, str) else moment)


def make_solar(event: Any, lat: Any, lon: Any) -> solar:
    """Return Celery's schedule of a solar event; ValueError: it can't be made."""
    try:
        return solar(event, lat, lon)
    except (ImproperlyConfigured, ImportError) as exc:  # ImportError: Celery 5.3
        raise ValueError("it needs the package ephem: pip install ephem") from exc


def _decode_solar(d: dict[str, Any]) -> solar:
    return make_solar(d["event"], d["lat"], d["lon"])


def decoder_of(kind: str) -> Callable[[dict[str, Any]], Any] | None:
    own = KINDS.get(kind)
    if own is None:
        return _DECODERS.get(kind)
    return lambda d: own.decode({name: value for name, value in d.items() if name != "__type__"})


#: the longest interval, which is the longest timedelta
MAX_DAYS = f"{timedelta.max.days:,} days"


def _decode_interval(d: dict[str, Any]) -> schedule:
    every, relative = d["every"], d.get("relative", False)
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise ValueError(f"every must be a number of seconds, not {quoted(every)}.")
    try:
        length = timedelta(seconds=every)
    except (ValueError, OverflowError) as exc:  # NaN, and infinity
        raise ValueError(
            f"every: {quoted(every)} seconds is no length of time: {MAX_DAYS} at the most."
        ) from exc
    if length <= timedelta(0):
        raise ValueError(f"every must be more than 0 seconds (a microsecond at least), not {quoted(every)}.")
    return schedule(run_every=every, relative=bool(as_flag(relative)))


def _encode_rrule(rule: rrule) -> dict[str, Any]:
    encoded: dict[str, Any] = {"__type__": "rrule"}
    encoded.update((name, getattr(rule, name)) for name in _RRULE_FIELDS)
    for name in ("dtstart", "until"):
        moment: datetime | None = getattr(rule, name)
        if moment is not None:
            offset = moment.utcoffset() or timedelta(0)
            encoded[name] = to_timestamp(moment)
            encoded[f"{name}_tz"] = offset.total_seconds() / 60
    return encoded


def _decode_rrule(d: dict[str, Any]) -> rrule:
    fields = {name: d[name] for name in _RRULE_FIELDS if d.get(name) is not None}
    if d.get("dtstart") is None:
        if "count" in fields:
            raise ValueError("count needs a dtstart to count from.")
        fields["dtstart"] = _EPOCH  # the same each time it is read, so that the rule keeps its phase
    for name in ("dtstart", "until"):
        if d.get(name) is not None:
            moment = d[name]
            is_decoded = isinstance(moment, datetime)
            fields[name] = moment if is_decoded else from_timestamp(moment, d.get(f"{name}_tz") or 0)
    return rrule(**fields)


_EPOCH = from_timestamp(0)


def _decode_weekday(d: dict[str, Any]) -> weekday:
    day, n = d["wkday"], d.get("n")
    if day not in range(7) or not isinstance(n, (int, type(None))):
        raise ValueError(
            f"wkday must be 0 (Monday) to 6 and n a whole number, not {quoted(day)} and {quoted(n)}."
        )
    return weekday(int(day), n)


_DECODERS = {
    "interval": _decode_interval,
    "crontab": _decode_crontab,
    "rrule": _decode_rrule,
    "cron": lambda d: cron(d["expression"]),
    "clocked": _decode_clocked,
    "solar": _decode_solar,
    "weekday": _decode_weekday,
    "datetime": _decode_datetime,
}
