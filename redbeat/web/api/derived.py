"""What the REST interface derives from an operation: its route, what it reads, and what it answers.

``msgspec`` checks values by their types, and makes the schemas of parameters and results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import msgspec

from redbeat.diagnostics.routes import Destination
from redbeat.entries.documents import Overview, document_of, outcome_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.manifest.format import Declared
from redbeat.manifest.transfer import Exported
from redbeat.operations.calendars import CalendarAndEntries, CalendarChange, CalendarList
from redbeat.operations.editing import EntryChange, revision_of
from redbeat.operations.files import Applied, declared_in, fingerprint
from redbeat.operations.files import document_of as plan_document
from redbeat.operations.hiding import hide
from redbeat.operations.later import StoredMessage, StoredMessages
from redbeat.operations.operating import AuditPage
from redbeat.operations.operation import Operation, Parameter, Seen
from redbeat.operations.reading import EntryList, NextOfAll
from redbeat.operations.running import History
from redbeat.operations.showing import hide_in_sentence
from redbeat.web.api import schemas
from redbeat.web.api.operations import (
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    MERGE_PATCH,
    YAML,
    Answer,
    Body,
    Call,
    etag_of,
)
from redbeat.web.api.operations import Operation as Endpoint
from redbeat.web.api.parameters import Field, field_of
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import COMPONENTS, ETAG, HREF, NEXT, of

Presenter = Callable[[Call, Any], Answer]

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|\Z)')
_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


def endpoint_of(operation: Operation[..., Any]) -> Endpoint:
    """Return the endpoint that offers an operation."""
    method, path = operation.rest.split()
    placed = re.findall(r"{(\w+)}", path)
    given = [one for one in operation.parameters if one.name not in placed]
    headers = {header: one for one in given for header in _headers_of(one, method)}
    whole = next((one for one in given if one.option.component or one.option.media), None)
    fields = [field_of(one) for one in given if one is not whole and not one.option.header]
    is_query = method in ("GET", "DELETE") or whole is not None
    schema, components = _schema_of(operation.result)

    def call_operation(call: Call) -> Answer:
        body = call.body or {}
        if whole is not None:
            body = {whole.name: declared_in(call.body) if whole.type is Declared else call.body}
        values = {**call.query, **body, **call.place}
        values |= {one.name: _read_header(call, one) for one in headers.values()}
        result = operation(call.actor, **operation.arguments(values))
        present: Presenter = _PRESENTERS.get(operation.result, (_plain, None))[0]
        return present(call, result)

    call_operation.__name__ = operation.function.__name__
    return Endpoint(
        *(method, path, operation.command, operation.right, operation.summary, call_operation),
        {
            200: schema,
            **({201: schema} if IF_NONE_MATCH in headers or operation.result is CalendarChange else {}),
        },
        fields if is_query else (),
        _body_of(method, fields, whole),
        headers=[*headers],
        has_etag=operation.result in _WITH_ETAG,
        is_heavy=operation.is_heavy,
        components=components,
    )


def _body_of(method: str, fields: Sequence[Field], whole: Parameter | None) -> Body | None:
    if whole is not None and whole.option.media:
        return Body(media=whole.option.media, is_needed=True)
    media = (MERGE_PATCH, JSON) if method == "PATCH" else (JSON,)
    if whole is not None:
        return Body(component=whole.option.component, media=media, is_needed=True)
    if method in ("GET", "DELETE"):
        return None
    names = {field.name for field in fields}
    return Body(
        fields,
        media=media,
        is_needed=method == "PATCH" or "names" in names or any(field.is_needed for field in fields),
        exactly_one=("names", "match") if "names" in names and "by" not in names else (),
    )


def _headers_of(parameter: Parameter, method: str) -> Sequence[str]:
    if parameter.type is Seen:
        return (IF_MATCH, IF_NONE_MATCH) if method == "PUT" else (IF_MATCH,)
    return [parameter.option.header] if parameter.option.header else []


def _read_header(call: Call, parameter: Parameter) -> Any:
    if parameter.type is Seen:
        return _seen_by(call)
    header = parameter.option.header
    text = call.headers[header]
    if text and not _HEADER.fullmatch(text):
        raise Refusal(400, f"{header} must be 1 to 255 printable characters of ASCII.")
    return text or None


def _seen_by(call: Call) -> Seen | None:
    """Return what the caller relies on; None: on nothing.

    Raises:
        Refusal: the headers are invalid.
    """
    match, none_match = call.headers[IF_MATCH].strip(), call.headers[IF_NONE_MATCH].strip()
    if match and none_match:
        raise Refusal(400, f"Give either {IF_MATCH} or {IF_NONE_MATCH}.")
    if none_match not in ("", "*"):
        raise Refusal(400, f"{IF_NONE_MATCH} must be '*' here.")
    if match == "*":
        return Seen(is_any=True)
    return Seen(_tags_in(match)) if match or none_match else None


def _tags_in(given: str) -> list[str]:
    """Return the revisions in If-Match; a weak one stays what it is, and never matches."""
    tags, at = list[str](), 0
    while at < len(given):
        found = _TAG.match(given, at)
        if found is None:
            raise Refusal(400, f"{IF_MATCH} must be an ETag in quotes, as in \"0a1b2c\", or '*'.")
        tags.append(f"{found[1] or ''}{found[2]}")
        at = found.end()
    return tags


# -- answers


def _path_on(call: Call, place: str | None, parameter: str = "cursor") -> str | None:
    """Return the path and query with which a look goes on at ``place``; None: it has ended."""
    if place is None:
        return None
    query = {**call.query, parameter: place}
    texts = {name: _written(value) for name, value in query.items() if value is not None}
    return f"{call.path}?{urlencode(texts)}"


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _tagged(call: Call, document: dict[str, Any], *, is_new: bool = False) -> Answer:
    """Return the answer that is a document with an ETag."""
    location = {"Location": call.root + document["href"]} if is_new else {}
    return Answer(document, 201 if is_new else 200, {"ETag": document["etag"], **location})


def _plain(call: Call, result: Any) -> Answer:
    document = _builtins(result)
    if call.query and "next" in document:
        document["next"] = _path_on(call, document["next"])
    return Answer(document)


def _builtins(result: Any) -> Any:
    return msgspec.to_builtins(result, builtin_types=(datetime,))


def _document(call: Call, entry: RedBeatSchedulerEntry, **more: Any) -> dict[str, Any]:
    """Return the document of an entry, without what is hidden, with more fields where it hasn't these."""
    try:
        fields = entry.to_dict()  # secrets are hidden once, so that they are recognized when they come back
    except EntryError:
        fields = document_of(entry)
    error = hide_in_sentence(call.app, entry.stored, fields["error"] or "") or None
    return {
        **more,
        **hide(fields, call.actor.hiding),
        "error": error,
        "href": call.href("entries", str(entry.name)),
        "etag": etag_of(revision_of(entry)),
    }


def _entries(call: Call, found: EntryList) -> Answer:
    entries = [_document(call, entry, **outcome_of(last)) for entry, last in found.entries]
    return Answer({"entries": entries, "next": _path_on(call, found.next)})


def _overview(call: Call, found: Overview) -> Answer:
    return _tagged(call, _document(call, found.entry, **found.to_dict()))


def _changed(call: Call, change: EntryChange) -> Answer:
    return _tagged(call, _document(call, change.entry), is_new=change.outcome == "added")


def _next_of_all(call: Call, found: NextOfAll) -> Answer:
    answer = _plain(call, found)
    for run in answer.document["runs"]:
        run["href"] = call.href("entries", run["name"])
    return answer


def _history(_call: Call, found: History) -> Answer:
    return Answer({"name": found.name, "history": [run.to_dict() for run in found.history]})


def _messages(call: Call, found: StoredMessages) -> Answer:
    messages = [_message(call, one) for one in found.messages]
    return Answer({**_builtins(found), "messages": messages, "next": _path_on(call, found.next)})


def _message(call: Call, found: StoredMessage) -> dict[str, Any]:
    shown = {name: value for name, value in _builtins(found).items() if name != "revision"}
    return {**shown, "href": call.href("later", found.task_id), "etag": etag_of(found.revision)}


def _shown_message(call: Call, found: StoredMessage) -> Answer:
    return _tagged(call, _message(call, found))


def _audit(call: Call, found: AuditPage) -> Answer:
    return Answer({**_builtins(found), "next": _path_on(call, found.before, "before")})


def _calendar(call: Call, document: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in document.items() if name not in ("entries", "revision")}
    href = call.href("calendars", str(document["name"]))
    return {**shown, "href": href, "etag": etag_of(document["revision"])}


def _calendars(call: Call, found: CalendarList) -> Answer:
    listed = [_calendar(call, one) for one in found.calendars]
    following = _path_on(call, found.next)
    return Answer({"calendars": listed, "is_complete": found.is_complete, "next": following})


def _calendar_and_entries(call: Call, found: CalendarAndEntries) -> Answer:
    more = {"entries": found.document["entries"], "next": _path_on(call, found.next)}
    return _tagged(call, {**_calendar(call, found.document), **more})


def _changed_calendar(call: Call, change: CalendarChange) -> Answer:
    return _tagged(call, _calendar(call, change.document), is_new=change.is_new)


def _file(_call: Call, found: Exported) -> Answer:
    return Answer(found.text(), media=JSON if found.is_json else YAML)


def _applied(call: Call, done: Applied) -> Answer:
    headers = {"ETag": etag_of(fingerprint(call.actor, done.plan))}
    if not done.is_done and not done.is_dry_run:
        raise Refusal(
            412,
            "The schedule has changed since that plan was made, so nothing was done. Look at the plan again.",
            headers,
        )
    is_applied = done.is_done and bool(done.plan)
    return Answer({**plan_document(call.actor, done.plan), "is_applied": is_applied}, headers=headers)


#: results whose answers have an ETag
_WITH_ETAG = (Applied, CalendarAndEntries, CalendarChange, EntryChange, Overview, StoredMessage)

#: how results that are more than plain data are answered, and by which schema: that of a type, or a published
#: one; None: their own
_PRESENTERS: Mapping[Any, tuple[Presenter, Any]] = {
    Applied: (_applied, schemas.Plan),
    AuditPage: (_audit, None),
    CalendarAndEntries: (_calendar_and_entries, schemas.CalendarAndEntries),
    CalendarChange: (_changed_calendar, schemas.Calendar),
    CalendarList: (_calendars, schemas.Calendars),
    Destination: (lambda _call, found: Answer(found.to_dict()), schemas.Route),
    EntryChange: (_changed, "Entry"),
    EntryList: (_entries, "EntryList"),
    Exported: (_file, schemas.File),
    History: (_history, None),
    NextOfAll: (_next_of_all, None),
    Overview: (_overview, "Entry"),
    StoredMessage: (_shown_message, None),
    StoredMessages: (_messages, None),
}


def _schema_of(result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a result, and those that it refers to, by their names."""
    _, shape = _PRESENTERS.get(result, (None, None))
    if isinstance(shape, str):
        return of(shape), {}
    kinds, template = [shape or result], f"{COMPONENTS}{{name}}"
    [schema], components = msgspec.json.schema_components(kinds, ref_template=template)
    for component in components.values():
        if "revision" in component.get("properties", {}):  # answered as the ETag of an address
            del component["properties"]["revision"]
            component["required"].remove("revision")
            component["properties"] |= {"href": HREF, "etag": ETAG}
        if "next" in component.get("properties", {}) or result is AuditPage:
            component["properties"]["next"] = NEXT
    if result is NextOfAll:
        components["NextOfEntry"]["properties"]["href"] = HREF
    return schema, components
