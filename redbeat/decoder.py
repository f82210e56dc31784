"""The JSON in which entries stand in Redis: celery-redbeat 2.x's, read tolerantly.

Each schedule and each datetime is an object with a ``__type__``. What is read leniently here is still
written strictly: exactly the keys that 2.x writes and knows, and those that stood there already.
"""

from __future__ import annotations

import calendar
import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _encode_text
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab, schedule
from dateutil.rrule import weekday

from redbeat.schedules import CRONTAB_FIELDS, rrule

__all__ = [
    "DEFINITION_FIELDS",
    "SCHEDULE_FIELDS",
    "RedBeatJSONDecoder",
    "RedBeatJSONEncoder",
    "decode",
    "encode_definition",
    "encode_meta",
    "from_timestamp",
    "to_timestamp",
]

#: the keys of a definition, in the order in which they are written
DEFINITION_FIELDS = ("name", "task", "args", "kwargs", "options", "schedule", "enabled")

#: a meta that holds nothing but keys of ours
_OWN_META = re.compile(
    r'\{"last_run_at": (null|\{"__type__": "datetime"[^{}\[\]]*\}), "total_run_count": \d+\}'
)
_DATETIME_JSON = (
    '{"__type__": "datetime", "year": %d, "month": %d, "day": %d, "hour": %d, "minute": %d, "second": %d, '
    '"microsecond": %%d, "timezone": "UTC"}'
)

_RRULE_FIELDS = tuple(name for name in rrule.FIELDS if name not in ("dtstart", "until"))

#: what each schedule's JSON may hold; other keys are somebody else's and kept when it is rewritten
SCHEDULE_FIELDS: dict[str, frozenset[str]] = {
    "interval": frozenset({"__type__", "every", "relative"}),
    "crontab": frozenset({"__type__", *CRONTAB_FIELDS}),
    "rrule": frozenset({"__type__", *_RRULE_FIELDS, "dtstart", "dtstart_tz", "until", "until_tz"}),
}


def to_timestamp(moment: datetime) -> int:
    """Return UNIX seconds, whole; a naive datetime is UTC."""
    return calendar.timegm(moment.utctimetuple())


def from_timestamp(seconds: float, tz_minutes: float = 0) -> datetime:
    """Return the aware datetime of UNIX ``seconds``, shown at ``tz_minutes`` east of UTC."""
    tz = timezone(timedelta(minutes=tz_minutes)) if tz_minutes else timezone.utc
    return datetime.fromtimestamp(seconds, tz=tz)


class RedBeatJSONEncoder(json.JSONEncoder):
    """Writes datetimes, schedules and weekdays; TypeError for what has no form in JSON."""

    def default(self, o: Any) -> Any:
        if isinstance(o, datetime):
            return _encode_datetime(o)
        if isinstance(o, rrule):
            return _encode_rrule(o)
        if isinstance(o, crontab):
            return _encode_crontab(*_cronspecs(o))
        if isinstance(o, schedule):
            return _encode_interval(o.run_every, bool(o.relative))
        if isinstance(o, weekday):
            encoded = {"__type__": "weekday", "wkday": o.weekday}
            return {**encoded, "n": o.n} if o.n else encoded
        return super().default(o)


class RedBeatJSONDecoder(json.JSONDecoder):
    """Reads what the encoder writes, and what people write by hand.

    Raises ValueError (bad JSON included), TypeError or KeyError for an object it can't make.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, object_hook=self.dict_to_object, **kwargs)

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Return the datetime, schedule or weekday that ``d`` stands for, or ``d`` itself."""
        kind = d.get("__type__")
        decode = _DECODERS.get(kind) if isinstance(kind, str) else None
        if decode is None:  # maybe a task's own argument; whoever needs a schedule here will say so
            return d
        try:
            decoded = decode(d)
        except KeyError as exc:
            raise ValueError(f"{kind}: {exc.args[0]!r} is missing.") from exc
        except (ValueError, TypeError, ArithmeticError, AttributeError, OSError, ParseException) as exc:
            raise ValueError(f"{kind}: {exc}") from exc
        if kind in SCHEDULE_FIELDS and (typos := _find_typos(d.keys(), SCHEDULE_FIELDS[kind])):
            decoded.typos = typos
        return decoded


def _find_typos(keys: Iterable[str], known: Iterable[str]) -> str:
    """Return the unknown ones of ``keys`` that are nearly known ones, in words; '' when there are none."""
    nearest = {
        key: difflib.get_close_matches(key, known, n=1, cutoff=0.75) for key in keys if key not in known
    }
    return ", ".join(f"{key} (did you mean {match[0]}?)" for key, match in nearest.items() if match)


def _encode_datetime(moment: datetime) -> dict[str, Any]:
    tz: tzinfo | None = moment.tzinfo
    offset = moment.utcoffset()
    name = getattr(tz, "key", None) or getattr(tz, "zone", None)
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
        raise ValueError(f"timezone {zone!r} is neither a name nor an offset in seconds.")
    tz = _zone(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    time = {part: d.get(part, 0) for part in ("hour", "minute", "second", "microsecond")}
    return datetime(d["year"], d["month"], d["day"], **time, tzinfo=tz)


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as exc:  # an absurd name may be a bad path, too
        raise ValueError(f"unknown time zone {name!r}.") from exc


def _cronspecs(rule: crontab) -> list[Any]:
    """Return a crontab's fields as they were given; JSON has lists only for the rest of the iterables."""
    given = [getattr(rule, f"_orig_{name}") for name in CRONTAB_FIELDS]
    return [
        spec if isinstance(spec, (int, str)) else sorted(getattr(rule, name))
        for name, spec in zip(CRONTAB_FIELDS, given, strict=True)
    ]


def _encode_crontab(*specs: Any) -> dict[str, Any]:
    return {"__type__": "crontab", **dict(zip(CRONTAB_FIELDS, specs, strict=True))}


def _encode_interval(every: timedelta, relative: bool) -> dict[str, Any]:
    return {"__type__": "interval", "every": every.total_seconds(), "relative": relative}


def _decode_crontab(d: dict[str, Any]) -> crontab:
    return crontab(**{name: d[name] for name in CRONTAB_FIELDS if d.get(name) is not None})


def _decode_interval(d: dict[str, Any]) -> schedule:
    every, relative = d["every"], d.get("relative", False)
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise ValueError(f"every must be a number of seconds, not {every!r}.")
    if timedelta(seconds=every) <= timedelta(0):  # raises for NaN and for what no timedelta holds
        raise ValueError(f"every must be more than 0 seconds (a microsecond at least), not {every!r}.")
    return schedule(run_every=every, relative=bool(relative))


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
        fields["dtstart"] = _EPOCH  # the same at every reading, so that the rule keeps its phase
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
        raise ValueError(f"wkday must be 0 (Monday) to 6 and n a whole number, not {day!r} and {n!r}.")
    return weekday(int(day), n)


_DECODERS = {
    "interval": _decode_interval,
    "crontab": _decode_crontab,
    "rrule": _decode_rrule,
    "weekday": _decode_weekday,
    "datetime": _decode_datetime,
}


#: making one takes longer than using it
_ENCODER = RedBeatJSONEncoder()
_STRICT_ENCODER = RedBeatJSONEncoder(allow_nan=False)
_DECODER = RedBeatJSONDecoder()


def _prepared(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """Return ``encoder.encode``, ready: it makes itself a writer at each call, as costly as the writing."""
    make_writer: Any = getattr(json.encoder, "c_make_encoder", None)
    if make_writer is None:  # a Python without C
        return encoder.encode
    # without a note of what it is in: whoever contains himself is found out by encode, which says so
    options = (None, ": ", ", ", encoder.sort_keys, encoder.skipkeys, encoder.allow_nan)
    write = make_writer(None, encoder.default, _encode_text, *options)

    def encode(value: Any) -> str:
        try:
            return "".join(write(value, 0))
        except RecursionError:
            return encoder.encode(value)

    return encode


_encode_plain = _prepared(_STRICT_ENCODER)


def decode(text: str) -> Any:
    """Return what ``text`` stands for, schedules and datetimes as objects; ValueError for bad JSON."""
    return _DECODER.decode(text)


def encode_definition(
    name: str,
    task: str,
    args: Sequence[Any] | None,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    schedule: Any,
    enabled: bool,
    stored: str | None = None,
) -> str:
    """Return a definition's JSON; what ``stored`` holds besides keys of ours is kept.

    Raises TypeError, ValueError or RecursionError for what has no form in JSON.
    """
    encoded = (
        f'{{"name": {_encode_text(name)}, "task": {_encode_text(task)}, '
        f'"args": {_encode_plain(args) if args or args is None else "[]"}, '
        f'"kwargs": {_encode_plain(kwargs) if kwargs else "{}"}, '
        f'"options": {_encode_plain(options) if options else "{}"}, '
        f'"schedule": {_schedule_json(schedule)}, "enabled": {"true" if enabled else "false"}}}'
    )
    if stored is None or stored == encoded:
        return encoded
    before = _plain(stored)
    unknown = {name: value for name, value in before.items() if name not in DEFINITION_FIELDS}
    kind, unknown_of_schedule = _unknown_of_schedule(before.get("schedule"))
    if not unknown and not unknown_of_schedule:
        return encoded
    plain = json.loads(encoded)
    if plain["schedule"]["__type__"] == kind:
        plain["schedule"].update(unknown_of_schedule)
    return json.dumps({**plain, **unknown})


def _schedule_json(schedule_: Any) -> str:
    """Return a schedule's JSON. Thousands of entries share a few of Celery's own: theirs is remembered."""
    if type(schedule_) is schedule:
        return _interval_json(schedule_.run_every, bool(schedule_.relative))
    if type(schedule_) is crontab:
        specs = _cronspecs(schedule_)
        if list not in map(type, specs):
            return _crontab_json(*specs)
    return _STRICT_ENCODER.encode(schedule_)


@lru_cache(maxsize=1024)
def _interval_json(every: timedelta, relative: bool) -> str:
    return _STRICT_ENCODER.encode(_encode_interval(every, relative))


@lru_cache(maxsize=1024, typed=True)  # True is written as true, and equal to 1
def _crontab_json(*specs: int | str) -> str:
    return _STRICT_ENCODER.encode(_encode_crontab(*specs))


def _unknown_of_schedule(encoded: Any) -> tuple[str, dict[str, Any]]:
    """Return a schedule's kind and what its JSON holds besides keys of ours; '' and {} for no schedule."""
    kind = encoded.get("__type__") if isinstance(encoded, dict) else None
    if not isinstance(kind, str) or kind not in SCHEDULE_FIELDS:
        return "", {}
    return kind, {key: value for key, value in encoded.items() if key not in SCHEDULE_FIELDS[kind]}


def encode_meta(last_run_at: datetime | None, total_run_count: int, stored: str | None = None) -> str:
    """Return a meta's JSON, its time in UTC; what else ``stored`` holds is kept."""
    is_aware = last_run_at is not None and last_run_at.tzinfo is not None
    moment = last_run_at.astimezone(timezone.utc) if last_run_at and is_aware else last_run_at
    if not stored or _OWN_META.fullmatch(stored):
        # the encoder would take ten times as long to write the same, and this is done for every run
        return f'{{"last_run_at": {_moment_json(moment)}, "total_run_count": {total_run_count}}}'
    meta = {**_plain(stored), "last_run_at": moment, "total_run_count": total_run_count}
    return _ENCODER.encode(meta)


@lru_cache(maxsize=64)  # entries that are saved or run together have one
def _moment_json(moment: datetime | None) -> str:
    return "null" if moment is None else _DATETIME_JSON % moment.timetuple()[:6] % moment.microsecond


def _plain(text: str | None) -> dict[str, Any]:
    """Return ``text`` as an object of plain JSON, {} when it is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
