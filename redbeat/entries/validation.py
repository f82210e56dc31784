"""What is wrong with an entry's values, in words: with values that were read or given, or are to be written.

Invariant: what may be written can be used when it is read again. Pure: values in, a sentence or None out. The
fields of a policy are checked in ``redbeat.policy.policy``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery.schedules import BaseSchedule
from dateutil.parser import isoparse
from kombu.entity import Exchange, Queue

from redbeat.config.settings import as_flag
from redbeat.decoder import BadObject, decode, objects_of
from redbeat.keys import is_reserved_name
from redbeat.log.text import is_utf8, printable, quoted
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.schedules.occurrences import KINDS

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

_OBJECT = (dict, NoneType, Mapping)  # dict first, as it is found faster
#: the allowed types of an entry's fields, None for a missing one, and their names in JSON
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "name": ((str, NoneType), "a string"),
    "task": ((str, NoneType), "a string"),
    "args": ((list, tuple, NoneType), "a list"),
    "kwargs": (_OBJECT, "an object"),
    "options": (_OBJECT, "an object"),
    "headers": (_OBJECT, "an object"),
    "enabled": ((bool, NoneType), "true or false"),
    "total_run_count": ((int, NoneType), "a whole number"),
}
#: the fields with what a task is given, which may be secrets: these are never quoted
_GIVEN = ("args", "kwargs", "options", "headers")
#: the largest priority of a message
MAX_PRIORITY = 255
#: a definition from its schedule to its end, for a schedule without objects in it
_PLAIN_END = re.compile(r'(\{"__type__"[^{}]*\}), "enabled": (?:true|false)\}')
#: with more brackets than this, JSON that could be written may be nested too deep to be read
_PLAIN_BRACKETS = 200


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
    if plain.get("headers") in _EMPTY[:1] + _EMPTY[2:]:
        plain["headers"] = {}
    return args, kwargs, plain


def _plain_option(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.name if isinstance(value, (Queue, Exchange)) else value


def find_option_problem(options: Mapping[str, Any]) -> str | None:
    """Return which option would fail at each run, and why, a sentence; None: none."""
    for name in ("expires", "countdown", "eta"):
        value, times = options.get(name), "a datetime, or its ISO text"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if value is None or (name != "eta" and is_number):
            continue
        if name != "countdown" and (isinstance(value, datetime) or _is_iso(value)):
            continue
        allowed = {"countdown": "a number of seconds", "expires": f"a number of seconds, {times}"}
        return f"options: {name}: must be {allowed.get(name, times)}, got {quoted(value)}."
    return None


def _is_iso(value: Any) -> bool:
    if not isinstance(value, str) or value.isdigit():  # Celery takes '3600' for a year
        return False
    try:
        isoparse(value)
    except ValueError:
        return False
    return True


def find_kind_problem(field: str, value: Any) -> str | None:
    """Return what is wrong with the type of a field's value, as 'must be a list, not 5'; None: nothing is.

    The value None counts as missing.
    """
    kinds, what = _KINDS[field]
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return None
    return f"must be {what}, not {_kind_of(value) if field in _GIVEN else quoted(value)}"


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

    One that is no number is the transport's business: that of Redis takes '5', too.
    """
    if isinstance(priority, (int, float)) and not 0 <= priority <= MAX_PRIORITY:
        return f"must be from 0 to {MAX_PRIORITY}, not {priority!r}"
    return None


def find_problem(definition: Any, meta: Any) -> str | None:
    """Return what is wrong with a decoded definition and meta, as a sentence; None: nothing is."""
    if not isinstance(definition, dict):
        return f"definition: must be an object, not {_kind_of(definition)}."
    schedule_ = definition.get("schedule")
    if schedule_ is None:
        return "definition: schedule: is missing."
    if not isinstance(schedule_, BaseSchedule):
        kinds = ", ".join([*SCHEDULE_FIELDS, *KINDS])
        return f"definition: schedule: {quoted(schedule_)} is no object with one of the __type__ {kinds}."
    task = definition.get("task")
    if task is None:
        return "definition: task: is missing."
    if not isinstance(task, str) or not task or not is_utf8(task):
        shown = quoted(task) if isinstance(task, str) else _kind_of(task)
        return f"definition: task: must be the name of a task, not {shown}."
    for name in ("args", "kwargs", "options"):
        value = definition.get(name)
        if not isinstance(value, _KINDS[name][0]) and value not in _EMPTY:
            return f"definition: {name}: {find_kind_problem(name, value)}."
    headers = (definition.get("options") or {}).get("headers")
    if not isinstance(headers, _OBJECT) and headers not in _EMPTY:
        return f"definition: options: headers: {find_kind_problem('headers', headers)}."
    problem = _find_task_id_problem(definition.get("options") or {})
    if problem:
        return f"definition: {problem}."
    if not isinstance(as_enabled(definition.get("enabled", True)), bool):
        return f"definition: enabled: {find_kind_problem('enabled', definition['enabled'])}."
    return find_meta_problem(meta)


def _find_task_id_problem(options: Mapping[str, Any]) -> str:
    """Return what is wrong with an entry's own task id; '': nothing is."""
    task_id = options.get("task_id")
    if task_id is None or is_utf8(str(task_id)):
        return ""
    return f"options: task_id: must be UTF-8, got {printable(str(task_id))!r}"


def find_meta_problem(meta: Any) -> str | None:
    """Return what is wrong with a decoded meta, as a sentence; None: nothing is."""
    if not isinstance(meta, dict):
        return f"meta: must be an object, not {_kind_of(meta)}."
    if not isinstance(meta.get("last_run_at"), (datetime, type(None))):
        return f"meta: last_run_at: must be a datetime object or null, not {quoted(meta['last_run_at'])}."
    if _is_out_of_range(meta.get("last_run_at")):
        return f"meta: last_run_at: is out of range: {meta['last_run_at']}."
    problem = _find_count_problem(meta.get("total_run_count"))
    return f"meta: total_run_count: {problem}." if problem else None


def find_state_problem(last_run_at: Any, total_run_count: Any = None) -> str | None:
    """Return why an entry can't be made with these values, as a sentence; None: it can."""
    if not isinstance(last_run_at, (datetime, type(None))):
        return f"last_run_at must be a datetime, not {quoted(last_run_at)}."
    if last_run_at is not None and last_run_at.tzinfo is not None and _is_out_of_range(last_run_at):
        return f"last_run_at is out of range: {last_run_at}."
    problem = _find_count_problem(total_run_count)
    return f"total_run_count {problem}." if problem else None


def _find_count_problem(count: Any) -> str | None:
    return None if type(count) is int else find_kind_problem("total_run_count", count)


def _is_out_of_range(moment: datetime | None) -> bool:
    """Tell whether ``moment`` is outside the years 1 to 9999 in UTC."""
    if moment is not None:
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


def find_unwritable(entry: RedBeatSchedulerEntry) -> str | None:
    """Return which part of an entry could be written, but not read again, and why; None: there is none."""
    name, task = entry.name, entry.task
    if not name.isascii() and not is_utf8(name):
        return f"name must be UTF-8, not {printable(name)!r}"
    if not isinstance(task, str) or not task or (not task.isascii() and not is_utf8(task)):
        return f"task must be the name of a task, not {task!r}"
    if not isinstance(entry.schedule, BaseSchedule):
        return f"schedule must be a schedule, a timedelta or a number of seconds, not {entry.schedule!r}"
    if not isinstance(entry.args, (list, tuple, type(None))):
        return f"args must be a list or a tuple, not {_kind_of(entry.args)}"
    if not isinstance(entry.kwargs, dict) or not isinstance(entry.options, dict):
        return "kwargs and options must be dicts"
    if not isinstance(entry.options.get("headers"), (dict, type(None))):
        return f"options: headers must be a dict, not {_kind_of(entry.options['headers'])}"
    problem = _find_task_id_problem(entry.options)
    if problem:
        return problem
    if not isinstance(entry.enabled, bool):
        return f"enabled must be True or False, not {entry.enabled!r}"
    return None


def find_size_problem(size_bytes: int, max_bytes: int) -> str | None:
    """Return what is wrong with the size of an entry, as a sentence; None: nothing is."""
    if size_bytes <= max_bytes:
        return None
    return (
        f"it has {size_bytes:,} bytes, and redbeat_max_entry_bytes allows {max_bytes:,}: store large "
        "data elsewhere, and only a reference to it in the entry, or raise the setting."
    )


def check_readable(definition: str) -> None:
    """Raise ValueError or RecursionError if an encoded definition couldn't be used when read again."""
    start, _, end = definition.rpartition(', "schedule": ')
    is_flat = len(start) < _PLAIN_BRACKETS or start.count("{") + start.count("[") < _PLAIN_BRACKETS
    if is_flat and '"__type__"' not in start and _is_plain_end(end):
        return  # nothing before the schedule is decoded to an object
    problem = find_problem(decode(definition), {})
    if problem:
        raise ValueError(problem)


@lru_cache(maxsize=1024)  # thousands of entries may share a few schedules
def _is_plain_end(end: str) -> bool:
    plain = _PLAIN_END.fullmatch(end)
    if plain:
        decode(plain[1])
    return plain is not None


def _kind_of(value: Any) -> str:
    """Return what kind of value this is, or a number itself."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    return quoted(value)
