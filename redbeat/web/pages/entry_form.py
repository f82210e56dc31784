"""An entry as a form: its fields in groups, and the way from a document to what fields show, and back. Pure.

Invariant: a document that is shown and sent back untouched is the same document; what can't be read stands
with a sentence at its field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Any

from redbeat.decoder import DEFINITION_FIELDS
from redbeat.decoder import read_json as read_typed_json
from redbeat.entries.notation import SCHEDULE_FORMS, write_schedule
from redbeat.entries.validation import MAX_PRIORITY, find_priority_problem
from redbeat.entries.wording import typed
from redbeat.log.text import printable_json
from redbeat.operations.hiding import MAX_VALUES, has_too_many
from redbeat.policy.fields import Kind
from redbeat.policy.policy import (
    DEFINITION,
    FIELDS,
    LENGTHS,
    MESSAGES,
    MISSED,
    PAUSE,
    PAUSE_FIELDS,
    ROWS,
    RUNS,
    WHEN,
)
from redbeat.schedules.durations import write_seconds
from redbeat.schedules.times import read_seconds, read_time
from redbeat.schedules.timezones import time_of, zone_called

#: the fields of a document that can be edited, in this order
EDITABLE = (*DEFINITION_FIELDS, *FIELDS)
#: the options that have a field of their own, and of which type they are there
OWN_OPTIONS = {"queue": str, "priority": int}
#: kinds of schedule: those of files, and JSON as in Redis for all others
KINDS = (*SCHEDULE_FORMS, "json")
#: how each kind of schedule is written: examples, and what they are
EXAMPLES = {
    "cron": ("0 9 * * mon-fri", "minute, hour, day of the month, month, day of the week; or @daily, @hourly"),
    "every": ("1h30m", "a length of time, such as 30s, 5m or 1d"),
    "at": ("2030-12-24T18:00", "one time"),
    "rrule": ("FREQ=WEEKLY;BYDAY=MO;BYHOUR=9", "a rule of RFC 5545, with or without a DTSTART before it"),
    "solar": ("sunset,52.5,13.4", "an event of the sun, latitude, longitude"),
    "json": ('{"__type__": "interval", "every": 30}', "an object as it stands in Redis"),
}
STATES = ("runs", "paused", "disabled")

Form = Mapping[str, str]


@dataclass(frozen=True)
class Field:
    """A field of the form.

    Attributes:
        name: under which it is sent.
        kind: 'text', 'wide', 'note', 'schedule', 'json' (these three of several lines), 'check' or 'choice'.
        choices: of a choice; '' is the default.
        example: what stands in it while it is empty.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: tuple[str, ...] = ()
    example: str = ""


#: the kind of the form's field for a kind of the policy's
_KINDS = {Kind.FLAG: "check", Kind.CHOICE: "choice", Kind.TEXT: "note", Kind.URL: "wide"}


def _given_field(name: str, kind: str, label: str = "") -> Field:
    """Return the form's field for a field of the definition."""
    row = DEFINITION[name]
    return Field(name, label or row.label, kind, row.about, example=row.example)


def _policy_fields(group: str) -> tuple[Field, ...]:
    """Return the fields of the policy in a group, but those that ``state`` shows."""
    return tuple(
        Field(
            name,
            row.label,
            _KINDS.get(row.kind, "text"),
            "" if row.label == row.about.rstrip(".") else row.help,
            ("", *row.values),
            row.example,
        )
        for name, row in ROWS.items()
        if row.group == group and name not in ("paused", "paused_by")
    )


GROUPS: tuple[tuple[str, tuple[Field, ...]], ...] = (
    (
        "What it runs",
        (
            _given_field("task", "wide"),
            _given_field("args", "json"),
            _given_field("kwargs", "json"),
        ),
    ),
    (
        WHEN,
        (
            Field("schedule_kind", "Kind of schedule", "choice", choices=KINDS),
            Field("schedule", "Schedule", "schedule"),
            Field(
                "relative",
                "At whole hours, minutes or seconds: every 2h at 10:00 and 12:00, say",
                "check",
            ),
            *_policy_fields(WHEN),
        ),
    ),
    (PAUSE, (Field("state", "It", "choice", choices=STATES), *_policy_fields(PAUSE))),
    (MISSED, _policy_fields(MISSED)),
    (RUNS, _policy_fields(RUNS)),
    (
        MESSAGES,
        (
            Field("queue", "Queue", hint="Default: what task_routes says."),
            Field("priority", "Priority", hint=f"From 0 to {MAX_PRIORITY}."),
            _given_field("options", "json", "Other options"),
            *_policy_fields(MESSAGES),
        ),
    ),
)


LABELS = {"name": "Name"} | {field.name: field.label for _, fields in GROUPS for field in fields}
#: the fields of the form that show a field of the document, if that isn't the one of the same name
_SHOWN_IN = {
    "schedule": ("schedule_kind", "schedule", "relative"),
    "options": ("options", *OWN_OPTIONS),
    "enabled": ("state",),
    "paused": ("state",),
    "paused_by": ("state",),
    "pause_note": ("state", "pause_note"),
    "paused_until": ("state", "paused_until"),
}
_OF_LINES = {one.name for _, fields in GROUPS for one in fields if one.kind in ("note", "schedule", "json")}


def editable(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry's document that can be edited, its schedule as files have it."""
    found = {name: document[name] for name in EDITABLE if document.get(name) is not None}
    if isinstance(found.get("schedule"), Mapping) and "__type__" in found["schedule"]:
        with suppress(ValueError, TypeError, RecursionError):  # of an invalid entry
            found["schedule"] = write_schedule(dict(found["schedule"]))
    return found


# -- from a document to a form


def form_of(document: Mapping[str, Any], zone: tzinfo) -> dict[str, str]:
    """Return what the fields of the form show of an editable document.

    Arguments:
        zone: in which times are shown, as they are read without an offset.
    """
    form = {name: str(document.get(name) or "") for name in ("name", "task")}
    form |= _form_of_schedule(document.get("schedule"))
    form["args"] = json_of(document.get("args") or None)
    form["kwargs"] = json_of(document.get("kwargs") or None)
    options = document.get("options") or {}
    if isinstance(options, Mapping):
        own = {
            name: options[name]
            for name, kind in OWN_OPTIONS.items()
            if type(options.get(name)) is kind and options[name] != ""
        }
        form |= {name: str(own.get(name, "")) for name in OWN_OPTIONS}
        options = {name: value for name, value in options.items() if name not in own}
    form["options"] = json_of(options or None)
    enabled = document.get("enabled", True)
    # celery-redbeat 2.x enables a paused entry, and leaves the pause in its policy: then it runs
    form["state"] = "runs" if enabled else "paused" if document.get("paused") else "disabled"
    for name in FIELDS:
        if name in ("paused", "paused_by"):
            continue
        value = document.get(name)
        form[name] = _shown(name, None if value == ROWS[name].default else value, zone)
    return form


def _form_of_schedule(schedule: Any) -> dict[str, str]:
    if isinstance(schedule, Mapping) and "__type__" not in schedule:
        kind = next((kind for kind in SCHEDULE_FORMS if kind in schedule), "json")
        if kind == "solar":
            parts = [str(schedule.get(name, "")) for name in ("solar", "lat", "lon")]
            return {"schedule_kind": kind, "schedule": ",".join(parts), "relative": ""}
        if kind != "json":
            relative = "yes" if schedule.get("relative") else ""
            return {"schedule_kind": kind, "schedule": str(schedule[kind]), "relative": relative}
    kind = "json" if schedule else "cron"
    return {"schedule_kind": kind, "schedule": json_of(schedule or None), "relative": ""}


def _shown(name: str, value: Any, zone: tzinfo) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if name in LENGTHS and isinstance(value, (int, float)):
        return str(write_seconds(value))
    if ROWS[name].kind is Kind.TIME and isinstance(value, str):
        try:
            return typed(time_of(value), zone)
        except (ValueError, OverflowError):
            return value
    return value if isinstance(value, str) else json_of(value)


def json_of(value: Any) -> str:
    """Return a value as JSON on one line, with what doesn't print escaped; '' for None."""
    return "" if value is None else printable_json(json.dumps(value, ensure_ascii=False, default=str))


# -- from a form to a document


def document_of(
    form: Form, before: Mapping[str, Any], *, app_zone: tzinfo, now: datetime, user: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the editable document that a form describes, and what is wrong with it, by field.

    Arguments:
        before: the document that was shown; {} for a new entry.
        app_zone: of times without an offset, if the form has no time zone.
        now: what a pause's end such as '2h' counts from.
        user: who pauses the entry, if it wasn't paused.
    """
    zone, problems = zone_named(form.get("timezone"), app_zone), dict[str, str]()

    def read(name: str, reader: Callable[[str], Any]) -> Any:
        text = _sent(name, form.get(name, "")).strip()
        try:
            return reader(text) if text else None
        except (ValueError, OverflowError, RecursionError) as exc:
            problems[name] = f"{str(exc)[:1].upper()}{str(exc)[1:]}"
            return None

    def read_moment(text: str) -> str:
        return read_time(text, now, zone, ahead=True).astimezone(zone).isoformat()

    state = form.get("state", "runs")
    options = read("options", partial(read_json, kind=dict, what='an object, as {"expires": 60}')) or {}
    own = {"queue": read("queue", str), "priority": read("priority", read_priority)}
    document: dict[str, Any] = {
        "name": form.get("name", ""),
        "task": form.get("task", "").strip(),
        "schedule": read("schedule", partial(_read_schedule, form=form, read_moment=read_moment)),
        "args": read("args", partial(read_json, kind=list, what="an array, as [1, 2]")) or [],
        "kwargs": read("kwargs", partial(read_json, kind=dict, what='an object, as {"x": 1}')) or {},
        "options": {**options, **{name: value for name, value in own.items() if value is not None}},
        "enabled": state == "runs",
    }
    readers = {**_READERS, Kind.TIME: read_moment}
    for name, row in ROWS.items():
        if state == "paused" or name not in PAUSE_FIELDS:
            value = read(name, readers.get(row.kind, str))
            document[name] = None if value == row.default else value
    if state == "paused":
        paused_by = before.get("paused_by") if before.get("paused") else user or None
        document |= {"paused": True, "paused_by": paused_by}
    # a form doesn't show each value faithfully, and times in the zone that the entry had
    for name in _untouched(form, before, app_zone):
        document[name] = before[name]
        for field in _SHOWN_IN.get(name, (name,)):
            problems.pop(field, None)
    return {name: document[name] for name in EDITABLE if document.get(name) is not None}, problems


def _untouched(form: Form, before: Mapping[str, Any], app_zone: tzinfo) -> Iterator[str]:
    """Yield the fields of ``before`` whose fields of the form came back as they were shown."""
    shown = form_of(before, zone_named(before.get("timezone"), app_zone))
    same = {field for field, text in shown.items() if _sent(field, text) == _sent(field, form.get(field, ""))}
    yield from (name for name in before if same.issuperset(_SHOWN_IN.get(name, (name,))))


def _sent(field: str, text: str) -> str:
    """Return what a browser sends of a field with this text, with its line breaks as they are here."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()
    return text if field in _OF_LINES else text.replace("\n", "")


def zone_named(name: Any, default: tzinfo) -> tzinfo:
    """Return the zone of a name; where it is missing or invalid, ``default``."""
    try:
        return zone_called(name) if name and isinstance(name, str) else default
    except ValueError:
        return default


def _read_schedule(text: str, form: Form, read_moment: Callable[[str], str]) -> Any:
    """Return a schedule as files have it; it is checked with the other fields."""
    match form.get("schedule_kind", "json"):
        case "json":
            return read_json(text, (dict, str, int, float), 'an object, as {"__type__": ...}')
        case "every":
            return {"every": text, **({"relative": True} if form.get("relative") else {})}
        case "at":
            return {"at": read_moment(text)}
        case kind:
            return {kind: text}


def _read_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} must be a whole number.") from exc


def read_priority(text: str) -> int:
    """Return the priority of messages that ``text`` is; ValueError: it is invalid."""
    priority = _read_number(text)
    problem = find_priority_problem(priority)
    if problem:
        raise ValueError(f"Priority {problem}.")
    return priority


#: how the text of a field is read; of other kinds it is the value
_READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.FLAG: bool,
    Kind.COUNT: _read_number,
    Kind.DELAY: read_seconds,
    Kind.LENGTH: read_seconds,
}


def read_json(text: str, kind: type | tuple[type, ...], what: str) -> Any:
    """Return the value of JSON text; ValueError if it isn't ``what``."""
    value = read_typed_json(text, kind, what)
    if has_too_many(value):
        raise ValueError(f"It has more than {MAX_VALUES:,} values.")
    return value
