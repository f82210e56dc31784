"""The JSON Schemas of what the interface takes and answers: those of the field API, and what is beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypedDict

from msgspec import Meta
from msgspec.json import schema as json_schema

from redbeat.entries.notation import SCHEDULE_FORMS
from redbeat.policy.policy import LENGTHS

#: where JSON Schema has the parts of a schema, and where OpenAPI has them
_PARTS, COMPONENTS = "#/$defs/", "#/components/schemas/"


def of(component: str) -> dict[str, Any]:
    """Return the reference to a schema of the document."""
    return {"$ref": f"{COMPONENTS}{component}"}


@cache
def published(name: str) -> Mapping[str, Any]:
    """Return one of the schemas that are published, of docs/schema in a checkout."""
    in_package = files("redbeat") / "schema"
    folder = in_package if in_package.is_dir() else Path(__file__).parents[3] / "docs" / "schema"
    schema: Mapping[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return schema


def _without_parts(value: Any, prefix: str) -> Any:
    """Return a schema whose parts stand among the components, as generators of clients want it."""
    if isinstance(value, dict):
        return {
            name: f"{COMPONENTS}{prefix}.{one.removeprefix(_PARTS)}"
            if name == "$ref" and isinstance(one, str) and one.startswith(_PARTS)
            else _without_parts(one, prefix)
            for name, one in value.items()
        }
    return [_without_parts(one, prefix) for one in value] if isinstance(value, list) else value


Href = Annotated[
    str,
    Meta(
        description="Its path below the path of the interface.", extra_json_schema={"format": "uri-reference"}
    ),
]
Etag = Annotated[str, Meta(description="What If-Match takes.")]
Next = Annotated[
    str | None,
    Meta(
        description="With what to go on: of a GET the path and query below the path of the interface, of a "
        "PUT the `cursor`; null: that was all."
    ),
]
HREF, ETAG, NEXT = map(json_schema, (Href, Etag, Next))
#: a schedule as in a file: text, seconds, or an object with one of these
_FORMS: Sequence[Mapping[str, Any]] = (
    {"type": "string", "minLength": 1},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "object", "oneOf": [{"required": [form]} for form in SCHEDULE_FORMS]},
)


# -- documents that are answered and are no result of an operation as it is


class Route(TypedDict):
    """Where messages go, and by which rules."""

    name: str
    task: str
    is_task_known: bool
    queues: list[str]
    declared: str | None
    exchange: str
    exchange_type: str
    routing_key: str
    priority: int | None
    rules: dict[str, Any]


class Plan(TypedDict):
    """What a file changes, or has changed."""

    added: dict[str, Any]
    changed: dict[str, Any]
    removed: dict[str, Any]
    calendars: dict[str, Any]
    warnings: list[str]
    is_applied: bool


class File(TypedDict, total=False):
    """A file with a schedule."""

    entries: dict[str, Any]
    calendars: dict[str, Any]
    owner: str


class Calendar(TypedDict):
    """A calendar."""

    name: str
    about: str
    days: dict[str, str]
    next_excluded: str | None
    error: str | None
    href: Href
    etag: Etag


class CalendarAndEntries(Calendar):
    """A calendar; `entries` are the names of entries that use it."""

    entries: list[str]
    next: Next


class Calendars(TypedDict):
    """Calendars; not `is_complete`: only calendars that entries use, as the dashboard may not SCAN."""

    calendars: list[Calendar]
    is_complete: bool
    next: Next


def components() -> dict[str, Any]:
    """Return the schemas of the document, by their names."""
    return {
        **_entries(),
        "Problem": {
            "type": "object",
            "description": "RFC 9457. `detail` is a sentence that one can act on.",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                **{name: {"type": "string"} for name in ("type", "title", "detail")},
                "status": {"type": "integer"},
            },
            "additionalProperties": True,
        },
    }


def _entries() -> dict[str, Any]:
    """Return those of entries as they are sent, changed and shown, of which the field API has the fields."""
    definition, entry, policy = (
        _without_parts(published(name), name.title()) for name in ("definition", "entry", "policy")
    )
    parts = {
        f"Definition.{name}": _without_parts(part, "Definition")
        for name, part in published("definition")["$defs"].items()
    }
    parts |= {
        f"Policy.{name}": _without_parts(part, "Policy")
        for name, part in published("policy")["$defs"].items()
    }
    fields = {**definition["properties"], **policy["properties"]}
    for name in LENGTHS:
        fields[name] = {**fields[name], "type": [*_types(fields[name]), "string"]}
    fields["schedule"] = {
        "title": "Schedule",
        "description": "As in Redis, or as in a file: '30 7 * * mon-fri', '1h', {\"at\": ...}",
        "anyOf": [{"oneOf": fields["schedule"]["oneOf"]}, *_FORMS],
    }
    fields["ping_url"] = {name: value for name, value in fields["ping_url"].items() if name != "pattern"}
    read_only = {
        name: {**schema, "readOnly": True}
        for name, schema in entry["properties"].items()
        if name not in fields
    }
    added = {"href": HREF, "etag": ETAG}
    return {
        **parts,
        "EntryInput": {
            "type": "object",
            "description": "An entry as it is sent. What is read-only is ignored, so that what was answered "
            "can be sent back; arguments that were hidden stay as they are.",
            "required": ["task", "schedule"],
            "properties": {**fields, **read_only, **added},
            "additionalProperties": False,
        },
        "EntryPatch": {
            "type": "object",
            "description": "Fields to change (RFC 7396): null removes one. A schedule of another `__type__` "
            "replaces the whole schedule.",
            "properties": {name: {} for name in (*fields, *read_only, *added)},
            "additionalProperties": False,
        },
        "EntryList": {
            "type": "object",
            "required": ["entries", "next"],
            "properties": {"entries": {"type": "array", "items": of("Entry")}, "next": NEXT},
        },
        "Entry": {
            "type": "object",
            "description": entry["description"],
            "required": [*entry["required"], "href"],
            "properties": {**fields, **entry["properties"], **added},
        },
    }


def _types(schema: Mapping[str, Any]) -> list[str]:
    given = schema["type"]
    return [given] if isinstance(given, str) else [*given]
