"""An entry as a dict of plain JSON, for forms, admin pages and files: each argument under its own name. Pure.

Invariant: ``from_dict`` makes the same entry of what ``to_dict`` returns. The dict also has the entry's
state, its next run and its error, which ``from_dict`` ignores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from celery.schedules import BaseSchedule

from redbeat.config.ping_urls import mask_ping_url
from redbeat.config.suggestions import did_you_mean
from redbeat.decoder import DEFINITION_FIELDS, objects_of, plain_json
from redbeat.entries.due import is_pause_over
from redbeat.entries.validation import find_priority_problem, find_problem, why_undecoded
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.policy.policy import FIELDS, PAUSE_FIELDS, given_of
from redbeat.schedules.timezones import time_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

EntryT = TypeVar("EntryT", bound=Any)

#: what runs have made of an entry
STATE_FIELDS = ("last_run_at", "total_run_count")
#: how many characters a schedule has at most: a rule that names each day of a year has 2,000
MAX_SCHEDULE_LENGTH = 20_000
#: the keys of the dict, in this order
FORM_FIELDS = (*DEFINITION_FIELDS, *FIELDS, *STATE_FIELDS)
#: what ``export --history`` adds: lists, as they are in Redis; and before them what ``export`` adds
PAST_FIELDS = ("history", "backfilled")
EXPORTED_FIELDS = ("next_run", "owner", "stored", *PAST_FIELDS)
#: what ``to_dict`` adds for readers, then what ``celery redbeat list`` and ``show`` add about its runs
RUN_FIELDS = ("last_outcome", "failures_in_a_row", "running", "figures")
READ_ONLY_FIELDS = ("state", "next_due_at", "description", "error", "next_runs", *RUN_FIELDS)
#: keys that are ignored; of those in exported files not ``stored``, as an entry without it would lose
#: something
IGNORED_FIELDS = {*READ_ONLY_FIELDS, *STATE_FIELDS, *EXPORTED_FIELDS} - {"stored"}

#: the field that an error of an entry names, and what it says about it
_NAMED = re.compile(rf"(?:^|: )({'|'.join(FORM_FIELDS)}): (.+)", re.DOTALL)


def placed(words: str, name: str) -> tuple[str, str]:
    """Return the field that an error of the entry ``name`` is about (or an empty text), and what it says."""
    words = words.removeprefix(f"{printable(name)}: ")  # the entry may be called as a field is
    named = _NAMED.search(words)
    field, said = named.groups() if named else ("", words)
    said = said[:1].upper() + said[1:] if named else said
    return field, said if said.endswith((".", "?")) else f"{said}."


def shown_value(field: str, value: Any) -> Any:
    """Return the value of ``field`` as it may be shown; only an export has secrets."""
    return mask_ping_url(value) if field == "ping_url" else value


def without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with secrets masked."""
    return {field: shown_value(field, value) for field, value in fields.items()}


def to_dict(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return ``entry`` as plain JSON has it; see :meth:`redbeat.RedBeatSchedulerEntry.to_dict`."""
    due = entry.next_due_at
    arguments = arguments_of(entry)
    if is_pause_over(entry, entry.seen_at):  # beat removes these fields with the next run
        arguments = {name: value for name, value in arguments.items() if name not in PAUSE_FIELDS}
        arguments["enabled"] = True
    return {
        **arguments,
        "state": entry.state,
        "next_due_at": None if due is None else due.isoformat(),
        "description": entry.description,
        "error": entry.error or None,
    }


def arguments_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the arguments of ``entry`` and its bookkeeping as plain JSON.

    Raises:
        EntryError: an argument has no form in JSON.
    """
    values: dict[str, Any] = {name: getattr(entry, name) for name in DEFINITION_FIELDS}
    values["args"] = list(entry.args or ())
    for name, value in given_of(entry.policy).items():
        values[name] = value.isoformat() if isinstance(value, datetime) else value
    moment = entry.last_run_at
    values["last_run_at"] = None if moment is None else moment.isoformat()
    values["total_run_count"] = entry.total_run_count
    try:
        plain: dict[str, Any] = plain_json(values)
    except (TypeError, ValueError, RecursionError) as exc:
        raise EntryError(f"{entry.name}: has no form in JSON: {exc}.", str(entry.name)) from exc
    return plain


def from_dict(cls: type[EntryT], values: Mapping[str, Any], app: Any) -> EntryT:
    """Return the entry that ``values`` describe; see :meth:`redbeat.RedBeatSchedulerEntry.from_dict`."""
    if not isinstance(values, Mapping):
        raise EntryError(f"an entry must be an object, not {values!r}.", "")
    name = values.get("name")
    for unknown in values.keys() - {*FORM_FIELDS, *IGNORED_FIELDS}:
        hint = did_you_mean(str(unknown), FORM_FIELDS)
        raise EntryError(f"{name}: there is no field {unknown!r}.{hint}", str(name))
    schedule = values.get("schedule")
    if isinstance(schedule, (str, Mapping)) and len(str(schedule)) > MAX_SCHEDULE_LENGTH:
        words = f"must have {MAX_SCHEDULE_LENGTH:,} characters at the most"
        raise EntryError(f"{name}: schedule: {words}, as it takes long to read.", str(name))
    is_object = isinstance(schedule, BaseSchedule)  # as JSON, a rule would lose the zone of its start
    try:
        given = objects_of({**values, "schedule": None if is_object else schedule})
    except (TypeError, ValueError, RecursionError) as exc:
        raise EntryError(f"{name}: {why_undecoded(values, exc)}", str(name)) from exc
    if is_object:
        given["schedule"] = schedule
    place = "" if name is None else f"{name}: "
    typed = {field: given.get(field) for field in DEFINITION_FIELDS if field != "schedule"}
    problem = find_problem(typed, ("name", "task"))
    if problem is None and given.get("schedule") is None:
        problem = "schedule: is missing."
    if problem:
        raise EntryError(f"{place}{problem}", str(name))
    problem = find_priority_problem((given.get("options") or {}).get("priority"))
    if problem:
        raise EntryError(f"{name}: options: priority {problem}.", str(name))
    moment = given.get("last_run_at")
    if isinstance(moment, str):
        try:
            given["last_run_at"] = time_of(moment)
        except ValueError as exc:
            raise EntryError(f"{name}: last_run_at: {moment!r} is not a time.", str(name)) from exc
    chosen = {field: given[field] for field in FORM_FIELDS if given.get(field) is not None}
    made: EntryT = cls(**chosen, app=app)
    if moment is None and "last_run_at" in given:
        made.last_run_at = made.known_last_run_at = None
    return made
