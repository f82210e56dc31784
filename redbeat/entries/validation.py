"""What is wrong with an entry's values, in words: with values that were read or given, or are to be written.

Invariant: what may be written can be used when it is read again. Pure: values in, a sentence or None out. The
fields of a policy are checked in ``redbeat.policy.policy``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dateutil.parser import isoparse
from kombu.entity import Exchange, Queue

from redbeat.config.settings import as_flag
from redbeat.decoder import DEFINITION_FIELDS, BadObject, objects_of
from redbeat.keys import is_reserved_name
from redbeat.log.text import is_utf8, printable, quoted
from redbeat.policy.policy import DEFINITION
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.schedules.occurrences import KINDS

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: the types of an entry's fields, and their names in JSON
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **{name: (row.types, row.words) for name, row in DEFINITION.items()},
    "last_run_at": (datetime, "a datetime"),
    "total_run_count": (int, "a whole number"),
}
#: the fields with what a task is given, which may be secrets: these are never quoted
_GIVEN = ("args", "kwargs", "options")
#: what the options of ``apply_async`` about times may be
_TIME_OPTIONS = {
    "expires": "a number of seconds, a datetime, or its ISO text",
    "countdown": "a number of seconds",
    "eta": "a datetime, or its ISO text",
}
#: the largest priority of a message
MAX_PRIORITY = 255
#: PHP writes an empty object as [], Lua an empty list as {}, and a form may leave ''
_EMPTY: tuple[Any, ...] = ([], {}, "")


def as_name(name: Any) -> Any:
    """Return the name or the key that a number, a UUID or bytes stand for, as text; else what it is."""
    if type(name) is str:  # nearly always
        return name
    if isinstance(name, (int, float, UUID, Decimal)) and not isinstance(name, bool):
        return str(name)
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    return name


def as_enabled(value: Any) -> Any:
    """Return whether an entry is enabled, also by a number or a text such as 'true'; else what was given.

    None is False, as in 2.x.
    """
    if value is True or value is False:  # nearly always
        return value
    flag = as_flag(value)
    if flag is None or flag == "":
        return False
    return bool(flag) if isinstance(flag, (int, float)) else flag


def as_containers(args: Any, kwargs: Any, options: Any) -> tuple[Any, Any, Any]:
    """Return a definition's containers, the right ones instead of empty ones of another kind.

    In the options a length of time becomes its seconds, and a queue or an exchange its name.
    """
    args = [] if not isinstance(args, (list, tuple)) and args in _EMPTY else args
    kwargs = {} if not isinstance(kwargs, dict) and kwargs in _EMPTY else kwargs
    options = {} if not isinstance(options, dict) and options in _EMPTY else options
    if not isinstance(options, dict) or not options:
        return args, kwargs, options
    plain = {name: _plain_option(value) for name, value in options.items()}
    if plain.get("headers") in _EMPTY:
        plain["headers"] = {}
    return args, kwargs, plain


def _plain_option(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.name if isinstance(value, (Queue, Exchange)) else value


def find_option_problem(options: Mapping[str, Any]) -> str | None:
    """Return which option would fail at each run, and why, a sentence; None: none."""
    for name, allowed in _TIME_OPTIONS.items():
        value = options.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        is_time = isinstance(value, datetime) or _is_iso(value)
        if value is None or (is_number and name != "eta") or (is_time and name != "countdown"):
            continue
        return f"options: {name}: must be {allowed}, got {quoted(value)}."
    return None


def _is_iso(value: Any) -> bool:
    if not isinstance(value, str) or value.isdigit():  # Celery takes '3600' for a year
        return False
    try:
        isoparse(value)
    except ValueError:
        return False
    return True


def why_undecoded(values: Any, exc: Exception) -> str:
    """Return why an entry's plain values can't be decoded; ``exc`` is the error.

    It quotes what it is about, but nothing that a task is given.
    """
    for field in _GIVEN if isinstance(values, Mapping) else ():
        try:
            objects_of(values.get(field))
        except (TypeError, ValueError, RecursionError) as found:
            return f"{field}: {_without_quotes(found)}"
    return str(exc) if isinstance(values, Mapping) else _without_quotes(exc)


def _without_quotes(exc: Exception) -> str:
    return f"the {exc.kind} in it can't be read." if isinstance(exc, BadObject) else str(exc)


def find_priority_problem(priority: Any) -> str | None:
    """Return what is wrong with a priority, as 'must be from 0 to 255, not 300'; None: nothing is.

    A priority of another type is the transport's business: that of Redis takes '5', too.
    """
    if isinstance(priority, (int, float)) and not 0 <= priority <= MAX_PRIORITY:
        return f"must be from 0 to {MAX_PRIORITY}, not {priority!r}"
    return None


def find_problem(values: Mapping[str, Any], needed: Sequence[str] = ()) -> str | None:
    """Return what is wrong with the values of an entry's fields, as 'args: must be a list, not text.'; None:
    nothing is.

    Arguments:
        needed: the fields that must not be missing. None counts as missing.
    """
    for field in needed:
        if values.get(field) is None:
            return f"{field}: is missing."
    for field, value in values.items():
        if value is None or field not in _KINDS:
            continue
        kinds, words = _KINDS[field]
        if kinds is str and isinstance(value, str) and value:
            if not value.isascii() and not is_utf8(value):
                return f"{field}: must be UTF-8, not {printable(value)!r}."
        elif kinds is str or not isinstance(value, kinds) or (kinds is int and isinstance(value, bool)):
            known = ", ".join([*SCHEDULE_FIELDS, *KINDS])
            return f"{field}: must be {words.format(known)}, not {_shown(field, value)}."
    if _is_out_of_range(values.get("last_run_at")):
        return f"last_run_at: is out of range: {values['last_run_at']}."
    return _find_header_problem(values.get("options") or {})


def _find_header_problem(options: Mapping[str, Any]) -> str | None:
    headers, task_id = options.get("headers"), options.get("task_id")
    if headers is not None and not isinstance(headers, Mapping):
        return f"options: headers: must be an object, not {_shown('options', headers)}."
    if task_id is not None and not is_utf8(str(task_id)):
        return f"options: task_id: must be UTF-8, got {printable(str(task_id))!r}."
    return None


def read_fields(definition: Any, meta: Any) -> dict[str, Any]:
    """Return the fields of a decoded definition and meta, containers of another kind and flags put right.

    Raises:
        ValueError: an entry can't be made of them; the sentence says why.
    """
    for part, decoded in (("definition", definition), ("meta", meta)):
        if not isinstance(decoded, dict):
            raise ValueError(f"{part}: must be an object, not {_shown('args', decoded)}.")
    args, kwargs, options = as_containers(*map(definition.get, ("args", "kwargs", "options")))
    fields = {
        "task": definition.get("task"),
        "schedule": definition.get("schedule"),
        "args": args,
        "kwargs": kwargs or {},
        "options": options or {},
        "enabled": as_enabled(definition.get("enabled", True)),
    }
    state = {name: meta.get(name) for name in ("last_run_at", "total_run_count")}
    problem = find_problem(fields, ("schedule", "task"))
    if problem:
        raise ValueError(f"definition: {problem}")
    problem = find_problem(state)
    if problem:
        raise ValueError(f"meta: {problem}")
    return {**fields, **state, "total_run_count": state["total_run_count"] or 0}


def find_entry_problem(entry: RedBeatSchedulerEntry) -> str | None:
    """Return what of an entry could be written, but not read again, and why; None: nothing."""
    return find_problem({name: getattr(entry, name) for name in DEFINITION_FIELDS}, ("task", "schedule"))


def _is_out_of_range(moment: datetime | None) -> bool:
    """Return True if ``moment`` is outside the years 1 to 9999 in UTC."""
    if moment is not None and moment.tzinfo is not None:
        try:
            moment.astimezone(timezone.utc)
        except OverflowError:
            return True
    return False


def find_name_problem(name: Any, reserved: Set[str]) -> str | None:
    """Return why no entry may have this name, as a sentence; None: one may.

    ``reserved``: the names of RedBeat's own keys.
    """
    if not isinstance(name, str) or not name:
        return "An entry must have a name, a non-empty string."
    if is_reserved_name(name, reserved):
        return f"An entry can't be called {name!r}: that key is RedBeat's own."
    return None


def find_size_problem(size_bytes: int, max_bytes: int) -> str | None:
    """Return what is wrong with the size of an entry, as a sentence; None: nothing is."""
    if size_bytes <= max_bytes:
        return None
    return (
        f"it has {size_bytes:,} bytes, and redbeat_max_entry_bytes allows {max_bytes:,}: store large "
        "data elsewhere, and only a reference to it in the entry, or raise the setting."
    )


def _shown(field: str, value: Any) -> str:
    """Return a value as errors show it; of what a task is given only its kind, as it may be a secret."""
    kinds = ((str, "text"), (Mapping, "an object"), ((list, tuple), "a list"))
    words = [kind for types, kind in kinds if isinstance(value, types)] if field in _GIVEN else []
    return words[0] if words else quoted(value)
