"""The JSON Schemas of what the interface takes and answers: those of the field API, and what is beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

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


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*properties], "properties": properties}


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT, FLAG, COUNT = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
MAYBE_TEXT, MAYBE_COUNT = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
HREF = {"type": "string", "format": "uri-reference", "description": "Its path below that of the interface."}
ETAG = {"type": "string", "description": "What If-Match takes."}
NEXT = {
    "type": ["string", "null"],
    "description": "With what to go on: of a GET the path and query below the path of the interface, of a "
    "PUT the `cursor`; null: that was all.",
}
OBJECT = {"type": "object"}
#: a schedule as in a file: text, seconds, or an object with one of these
_FORMS: Sequence[Mapping[str, Any]] = (
    {"type": "string", "minLength": 1},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "object", "oneOf": [{"required": [form]} for form in SCHEDULE_FORMS]},
)


def components() -> dict[str, Any]:
    """Return the schemas of the document, by their names."""
    return {**_entries(), **_answers()}


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
        "Entry": {
            "type": "object",
            "description": entry["description"],
            "required": [*entry["required"], "href"],
            "properties": {**fields, **entry["properties"], **added},
        },
    }


def _answers() -> dict[str, Any]:
    """Return those of what else there is, above all of answers."""
    return {
        "Problem": {
            "description": "RFC 9457. `detail` is a sentence that one can act on.",
            **_object(type=TEXT, title=TEXT, status=COUNT, detail=TEXT),
            "additionalProperties": True,
        },
        **_of_entries(),
        **_of_files(),
    }


def _of_entries() -> dict[str, Any]:
    """Return those of what is answered about entries."""
    return {
        "EntryList": _object(entries=_array(of("Entry")), next=NEXT),
        "Route": _object(
            name=TEXT,
            task=TEXT,
            is_task_known=FLAG,
            queues=_array(TEXT),
            declared=MAYBE_TEXT,
            exchange=TEXT,
            exchange_type=TEXT,
            routing_key=TEXT,
            priority=MAYBE_COUNT,
            rules=OBJECT,
        ),
    }


def _of_files() -> dict[str, Any]:
    """Return those of files and calendars, and what is answered about them."""
    return {
        "Plan": _object(
            added=OBJECT,
            changed=OBJECT,
            removed=OBJECT,
            calendars=OBJECT,
            warnings=_array(TEXT),
            is_applied=FLAG,
        ),
        "File": {**OBJECT, "properties": {"entries": OBJECT, "calendars": OBJECT, "owner": TEXT}},
        "Calendar": _object(
            name=TEXT,
            about=TEXT,
            days={**OBJECT, "additionalProperties": TEXT},
            next_excluded=MAYBE_TEXT,
            error=MAYBE_TEXT,
            href=HREF,
            etag=ETAG,
        ),
        "CalendarAndEntries": {
            "allOf": [of("Calendar"), _object(entries=_array(TEXT), next=NEXT)],
            "description": "`entries` are the names of those that name the calendar.",
        },
        "Calendars": _object(
            calendars=_array(of("Calendar")),
            is_complete={
                **FLAG,
                "description": "false: only those that entries name, as the dashboard may not SCAN.",
            },
            next=NEXT,
        ),
    }


def _types(schema: Mapping[str, Any]) -> list[str]:
    given = schema["type"]
    return [given] if isinstance(given, str) else [*given]
