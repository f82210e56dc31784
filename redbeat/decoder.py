"""The JSON of entries in Redis: the same as that of celery-redbeat 2.x, read tolerantly.

Each schedule and each datetime is an object with a ``__type__``. Reading is tolerant. Writing is strict:
exactly the keys that 2.x writes and knows, besides unknown keys that were there already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _encode_text
from typing import Any

from celery.schedules import BaseSchedule, ParseException, crontab, schedule
from dateutil.rrule import weekday
from kombu.utils import json as kombu_json

from redbeat.config.settings import as_number
from redbeat.config.suggestions import find_typos
from redbeat.legacy import lookup_of
from redbeat.process.memory import Memory
from redbeat.schedules.codec import (
    SCHEDULE_FIELDS,
    cronspecs,
    decoder_of,
    encode_crontab,
    encode_datetime,
    encode_interval,
    encode_schedule,
)
from redbeat.schedules.codec import from_timestamp as from_timestamp
from redbeat.schedules.codec import read_cron as read_cron
from redbeat.schedules.codec import to_timestamp as to_timestamp
from redbeat.schedules.occurrences import KINDS

#: the keys of a definition, in the order in which they are written
DEFINITION_FIELDS = ("name", "task", "args", "kwargs", "options", "schedule", "enabled")

#: a meta without unknown keys
OWN_META = re.compile(
    r'\{"last_run_at": (null|\{"__type__": "datetime"[^{}\[\]]*\}), "total_run_count": \d+\}\s*'
)
_DATETIME_JSON = (
    '{"__type__": "datetime", "year": %d, "month": %d, "day": %d, "hour": %d, "minute": %d, "second": %d, '
    '"microsecond": %d, "timezone": "UTC"}'
)


class BadObject(ValueError):
    """An object with a ``__type__`` of which no value can be made; its sentence quotes what is in it.

    Attributes:
        kind: its ``__type__``.
    """

    def __init__(self, kind: str, reason: object) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class RedBeatJSONEncoder(json.JSONEncoder):
    """Writes datetimes, schedules and weekdays; TypeError: a value has no form in JSON."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, datetime):
            return encode_datetime(obj)
        if isinstance(obj, BaseSchedule):
            return encode_schedule(obj)
        if isinstance(obj, weekday):
            encoded = {"__type__": "weekday", "wkday": obj.weekday}
            return {**encoded, "n": obj.n} if obj.n else encoded
        return super().default(obj)


class _ArgumentsEncoder(RedBeatJSONEncoder):
    """Writes besides all that kombu writes in a message.

    A set becomes a list, and a timedelta its seconds, as messages have neither.
    """

    def default(self, obj: Any) -> Any:
        try:
            return super().default(obj)
        except TypeError:
            if isinstance(obj, timedelta):
                return obj.total_seconds()
            return sorted(obj, key=repr) if isinstance(obj, (set, frozenset)) else _encode_as_kombu(obj)


class RedBeatJSONDecoder(json.JSONDecoder):
    """Reads what the encoder writes, and what people write by hand.

    Raises ValueError, TypeError or KeyError for bad JSON, and for an object of which it can't make a value.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, object_hook=self.dict_to_object, **kwargs)

    def dict_to_object(self, d: dict[str, Any]) -> Any:
        """Return the datetime, schedule or weekday that ``d`` describes, or ``d`` itself."""
        if "__type__" not in d:  # nearly always
            return d
        kind = d["__type__"]
        if not isinstance(kind, str):
            return d
        if "__value__" in d:  # as kombu writes a value in a message
            try:
                return kombu_json.object_hook(d)
            except (ValueError, TypeError, ArithmeticError, AttributeError):  # a task's own argument
                return d
        if kind in _SHARED_KINDS and kind not in KINDS:
            return (_SHARED.get(key := repr(d)) or self._remember(key, kind, d)).copy()
        return self._decoded(kind, d)

    def _remember(self, key: str, kind: str, d: dict[str, Any]) -> _Original:
        original = _Original(self._decoded(kind, d))
        if len(key) <= MAX_SHARED_LENGTH:
            _SHARED[key] = original
        return original

    @staticmethod
    def _decoded(kind: str, d: dict[str, Any]) -> Any:
        decode = decoder_of(kind)
        if decode is None:  # perhaps a task's own argument; if it should be a schedule, the reader finds out
            return d
        try:
            decoded = decode(d)
        except KeyError as exc:
            raise BadObject(kind, f"{exc.args[0]!r} is missing.") from exc
        except (ValueError, TypeError, ArithmeticError, AttributeError, OSError, ParseException) as exc:
            raise BadObject(kind, exc) from exc
        if kind in SCHEDULE_FIELDS and (typos := find_typos(d.keys(), SCHEDULE_FIELDS[kind])):
            decoded.typos = typos
        return decoded


class _Original:
    """A schedule, given to everybody as a copy, with copies of the lists and sets in it."""

    def __init__(self, schedule_: BaseSchedule) -> None:
        self._class = type(schedule_)
        self._values = schedule_.__dict__
        self._changeable = [
            (name, value) for name, value in self._values.items() if type(value) in (list, set)
        ]

    def copy(self) -> BaseSchedule:
        copied: BaseSchedule = object.__new__(self._class)
        values = copied.__dict__ = self._values.copy()
        for name, value in self._changeable:
            values[name] = value.copy()
        return copied


#: types of which schedules are remembered: many entries share a few, and copying takes a tenth of making one
_SHARED_KINDS = frozenset({"interval", "crontab", "cron", "rrule"})
#: how many schedules are remembered, and the most characters of their JSON
MAX_SHARED, MAX_SHARED_LENGTH = 1024, 1000
_SHARED = Memory[str, _Original](MAX_SHARED)


_encode_as_kombu: Callable[[Any], Any] = kombu_json.JSONEncoder().default
# made once, as making one takes longer than using it
_ENCODER = RedBeatJSONEncoder()
_ARGUMENTS_ENCODER = _ArgumentsEncoder()
_STRICT_ENCODER = RedBeatJSONEncoder(allow_nan=False)
_DECODER = RedBeatJSONDecoder()


def _prepared(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """Return a fast ``encoder.encode``, which itself makes a new writer at each call."""
    make_writer: Any = getattr(json.encoder, "c_make_encoder", None)
    if make_writer is None:  # a Python without C
        return encoder.encode
    # without a check for values that contain themselves; encode below raises the error for those
    options = (None, ": ", ", ", encoder.sort_keys, encoder.skipkeys, encoder.allow_nan)
    write = make_writer(None, encoder.default, _encode_text, *options)

    def encode(value: Any) -> str:
        try:
            return "".join(write(value, 0))
        except RecursionError:
            return encoder.encode(value)

    return encode


_encode_plain = _prepared(_STRICT_ENCODER)
_encode_arguments = _prepared(_ARGUMENTS_ENCODER)  # NaN and infinity go to tasks, as in 2.x


def plain_json(value: Any) -> Any:
    """Return ``value`` as plain JSON, with objects with a ``__type__`` for schedules and datetimes.

    Raises TypeError, ValueError or RecursionError if a value has no form in JSON.
    """
    return json.loads(_ARGUMENTS_ENCODER.encode(value))


def objects_of(value: Any) -> Any:
    """Return ``value`` with its schedules and datetimes as Python objects, also those that are JSON objects.

    Raises TypeError, ValueError or RecursionError if a value has no form in JSON, or can't be decoded.
    """
    text = _ARGUMENTS_ENCODER.encode(value)
    return decode(text) if '"__type__"' in text else json.loads(text)


def decode(text: str) -> Any:
    """Return the value of JSON ``text``, with schedules and datetimes as objects; ValueError: bad JSON."""
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:  # perhaps there is white space before the value
        return _DECODER.decode(text)
    return value if end == len(text) else _DECODER.decode(text)


def read_json(text: str, kind: type | tuple[type, ...], what: str) -> Any:
    """Return the value of JSON that a user has typed; ValueError if it isn't ``what``."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        place = f"column {exc.colno}" if exc.lineno == 1 else f"line {exc.lineno}, column {exc.colno}"
        raise ValueError(f"it isn't JSON: {exc.msg} at {place}.") from exc
    except RecursionError as exc:
        raise ValueError("it is nested too deep for JSON.") from exc
    if not isinstance(value, kind):
        raise ValueError(f"it must be {what}.")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it isn't JSON: {name}.")


def encode_definition(
    name: str,
    task: str,
    args: Sequence[Any] | None,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    schedule: Any,
    enabled: bool,
    stored: str | None = None,
    find_moved: Callable[[], Collection[str]] = tuple,
) -> str:
    """Return a definition's JSON, with the unknown keys of ``stored``.

    Arguments:
        find_moved: returns which of these keys are in the policy from now on, and leave the definition.

    Raises TypeError, ValueError or RecursionError if a value has no form in JSON.
    """
    encoded = (
        f'{{"name": {_encode_text(name)}, "task": {_encode_text(task)}, '
        f'"args": {_encode_arguments(args) if args or args is None else "[]"}, '
        f'"kwargs": {_encode_arguments(kwargs) if kwargs else "{}"}, '
        f'"options": {_encode_plain(options) if options else "{}"}, '
        f'"schedule": {schedule_json(schedule)}, "enabled": {"true" if enabled else "false"}}}'
    )
    if stored is None or stored == encoded:
        return encoded
    before = _plain(stored)
    unknown = {name: value for name, value in before.items() if name not in DEFINITION_FIELDS}
    for name in unknown.keys() & find_moved() if unknown else ():
        del unknown[name]
    kind, unknown_of_schedule = _unknown_of_schedule(before.get("schedule"))
    if not unknown and not unknown_of_schedule:
        return encoded
    plain = json.loads(encoded)
    if plain["schedule"]["__type__"] == kind:
        plain["schedule"].update(unknown_of_schedule)
    return json.dumps({**plain, **unknown})


def schedule_json(schedule_: Any) -> str:
    """Return a schedule's JSON. That of Celery's own schedules is remembered, as many entries share a few."""
    if type(schedule_) is schedule:
        return _interval_json(schedule_.run_every, bool(schedule_.relative))
    if type(schedule_) is crontab:
        specs = cronspecs(schedule_)
        if list not in map(type, specs):
            return _crontab_json(*specs)
    return _STRICT_ENCODER.encode(schedule_)


@lru_cache(maxsize=1024)
def _interval_json(every: timedelta, relative: bool) -> str:
    return _STRICT_ENCODER.encode(encode_interval(every, relative))


@lru_cache(maxsize=1024, typed=True)  # True equals 1, but is written as true
def _crontab_json(*specs: int | str) -> str:
    return _STRICT_ENCODER.encode(encode_crontab(*specs))


def _unknown_of_schedule(encoded: Any) -> tuple[str, dict[str, Any]]:
    """Return a schedule's type and the unknown keys of its JSON; '' and {}: it isn't a schedule."""
    kind = encoded.get("__type__") if isinstance(encoded, dict) else None
    if not isinstance(kind, str) or kind not in SCHEDULE_FIELDS:
        return "", {}
    return kind, {key: value for key, value in encoded.items() if key not in SCHEDULE_FIELDS[kind]}


def encode_meta(last_run_at: datetime | None, total_run_count: int, stored: str | None = None) -> str:
    """Return a meta's JSON, with its time in UTC, and the unknown keys of ``stored``."""
    is_aware = last_run_at is not None and last_run_at.tzinfo is not None
    moment = last_run_at.astimezone(timezone.utc) if last_run_at and is_aware else last_run_at
    if not stored or OWN_META.fullmatch(stored):
        # the same as the encoder writes, in a tenth of the time, as this is done for every run
        return f'{{"last_run_at": {moment_json(moment)}, "total_run_count": {total_run_count}}}'
    return _ENCODER.encode({**_plain(stored), "last_run_at": moment, "total_run_count": total_run_count})


def moment_json(moment: datetime | None) -> str:
    """Return a time in UTC as it is written in a meta."""
    if moment is None:
        return "null"
    day = moment.year, moment.month, moment.day
    return _DATETIME_JSON % (*day, moment.hour, moment.minute, moment.second, moment.microsecond)


def read_meta(text: str | None) -> Any:
    """Return a meta, with its time as a datetime also where it is UNIX seconds; ValueError: bad JSON."""
    if not text:
        return {"last_run_at": None}
    meta = decode(text)
    if meta == []:  # PHP writes an empty object so
        meta = {}
    if isinstance(meta, dict):
        meta |= {name: read(meta[name]) for name, read in _META_VALUES if name in meta}
    return meta


def as_moment(value: Any) -> Any:
    """Return the datetime, in UTC, of UNIX seconds or their text; anything else as it is."""
    value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    try:
        return datetime.fromtimestamp(value, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return value


def as_count(value: Any) -> Any:
    """Return the whole number that a float or a text such as '5' stands for; anything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


_META_VALUES = (("last_run_at", as_moment), ("total_run_count", as_count))


def _plain(text: str | None) -> dict[str, Any]:
    """Return the JSON object in ``text``; {}: there is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


__getattr__, __dir__, __all__ = lookup_of(__name__, globals())
