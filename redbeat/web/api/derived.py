"""What the REST interface derives from an operation: its route, what it reads, and what it answers.

``msgspec`` checks values by their types, and makes the schemas of parameters and results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from redbeat.diagnostics.routes import Destination
from redbeat.entries.search import MAX_PATTERN, pattern_problem
from redbeat.errors import EntryNotFound
from redbeat.operations.later import StoredMessage, StoredMessages, cancel_message, show_message
from redbeat.operations.operating import AuditPage
from redbeat.operations.operation import Operation, Parameter
from redbeat.operations.pausing import PauseChange
from redbeat.operations.running import History
from redbeat.schedules.times import TypedTime
from redbeat.web.api.cursors import path_on, path_with
from redbeat.web.api.entries import stored_answer
from redbeat.web.api.etags import changed, check, etag_of, is_conditional
from redbeat.web.api.kinds import AHEAD, BACK, Field, Kind
from redbeat.web.api.operations import IF_MATCH, Answer, Body, Call
from redbeat.web.api.operations import Operation as Endpoint
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import COMPONENTS, ETAG, HREF, NEXT, of

_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")


def _messages(call: Call, found: StoredMessages) -> Answer:
    messages = [_message(call, one) for one in found.messages]
    return Answer({**_builtins(found), "messages": messages, "next": path_on(call, "/later", found.next)})


def _message(call: Call, found: StoredMessage) -> dict[str, Any]:
    shown = {name: value for name, value in _builtins(found).items() if name != "revision"}
    return {**shown, "href": call.href("later", found.task_id), "etag": etag_of(found.revision)}


def _shown_message(call: Call, found: StoredMessage) -> Answer:
    shown = _message(call, found)
    return Answer(shown, headers={"ETag": shown["etag"]})


def _cancel_message(call: Call) -> Answer:
    """Take a stored message away, if it is the one that the caller has seen."""
    task_id = call.place["task_id"]
    found = show_message(call.actor, task_id)
    check(call, found.revision)
    try:
        seen = found.revision if is_conditional(call) else None
        return Answer(_builtins(cancel_message(call.actor, task_id, revision=seen)))
    except EntryNotFound:
        # another one may be stored under its id by now
        now = show_message(call.actor, task_id)
        raise changed("It has been changed meanwhile, so nothing was done.", now.revision) from None


def _audit(call: Call, found: AuditPage) -> Answer:
    query = {**call.query, "before": found.before}
    following = None if found.before is None else path_with("/audit", query)
    return Answer({**_builtins(found), "next": following})


#: what the REST interface does with the headers of a request before and after an operation
_HANDLERS: Mapping[str, tuple[Callable[[Call], Answer], Sequence[str]]] = {
    "message.cancel": (_cancel_message, (IF_MATCH,)),
}
#: how results that are more than plain data are answered, and by which schema; '': their own
_PRESENTERS: Mapping[Any, tuple[Callable[[Call, Any], Answer], str]] = {
    AuditPage: (_audit, ""),
    Destination: (lambda _call, found: Answer(found.to_dict()), "Route"),
    StoredMessage: (_shown_message, ""),
    StoredMessages: (_messages, ""),
    History: (lambda _call, found: Answer(_history(found)), "History"),
    PauseChange: (lambda call, change: stored_answer(call, change.entry), "Entry"),
}


def endpoint_of(operation: Operation[..., Any]) -> Endpoint:
    """Return the endpoint that offers an operation."""
    method, path = operation.rest.split()
    placed = re.findall(r"{(\w+)}", path)
    headers = {one.option.header: one.name for one in operation.parameters if one.option.header}
    fields = [
        field_of(one) for one in operation.parameters if one.name not in placed and not one.option.header
    ]
    is_query = method in ("GET", "DELETE")
    names = {field.name for field in fields}
    schema, components = _schema_of(operation.result)

    def call_operation(call: Call) -> Answer:
        given = {**(call.query if is_query else call.body), **call.place}
        given |= {name: _read_header(call, header) for header, name in headers.items()}
        result = operation(call.actor, **operation.arguments(given))
        present, _ = _PRESENTERS.get(operation.result, (_plain, ""))
        return present(call, result)

    handler, more_headers = _HANDLERS.get(operation.name, (call_operation, ()))
    call_operation.__name__ = operation.function.__name__
    return Endpoint(
        *(method, path, operation.command, operation.right, operation.summary, handler),
        {200: schema},
        fields if is_query else (),
        None
        if is_query
        else Body(
            fields,
            is_needed="names" in names or any(field.is_needed for field in fields),
            exactly_one=("names", "match") if "names" in names and "by" not in names else (),
        ),
        headers=[*headers, *more_headers],
        has_etag=operation.result in (PauseChange, StoredMessage),
        is_heavy=operation.is_heavy,
        components=components,
    )


def _history(found: History) -> dict[str, Any]:
    return {"name": found.name, "history": [run.to_dict() for run in found.history]}


def _read_header(call: Call, header: str) -> str | None:
    text = call.headers[header]
    if text and not _HEADER.fullmatch(text):
        raise Refusal(400, f"{header} must be 1 to 255 printable characters of ASCII.")
    return text or None


def _plain(_call: Call, result: Any) -> Answer:
    return Answer(_builtins(result))


def _builtins(result: Any) -> Any:
    return msgspec.to_builtins(result, builtin_types=(datetime,))


def _schema_of(result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a result, and those that it refers to, by their names."""
    _, name = _PRESENTERS.get(result, (None, ""))
    if name:
        return of(name), {}
    [schema], components = msgspec.json.schema_components([result], ref_template=f"{COMPONENTS}{{name}}")
    for component in components.values():
        if "revision" in component.get("properties", {}):  # answered as the ETag of an address
            del component["properties"]["revision"]
            component["required"].remove("revision")
            component["properties"] |= {"href": HREF, "etag": ETAG}
    if result is AuditPage:
        components["AuditPage"]["properties"]["next"] = NEXT
    return schema, components


# -- parameters


def field_of(parameter: Parameter) -> Field:
    """Return what the query or the body has for a parameter."""
    return Field(
        parameter.name, _kind_of(parameter), parameter.option.help, parameter.is_required, parameter.default
    )


def _kind_of(parameter: Parameter) -> Kind:
    if parameter.type is TypedTime:
        return AHEAD if parameter.option.ahead else BACK
    hint = _hint_of(parameter)
    expected = _expectation(parameter)

    def read(value: Any, *, strict: bool = True) -> Any:
        try:
            made = msgspec.convert(value, hint, strict=strict)
        except msgspec.ValidationError:
            raise ValueError(expected) from None
        problem = pattern_problem(made) if parameter.option.is_pattern else None
        if problem:
            raise ValueError(problem)
        return made

    def read_text(text: str) -> Any:
        is_list = get_origin(parameter.type) is list
        return read([part.strip() for part in text.split(",")] if is_list else text, strict=False)

    return Kind(msgspec.json.schema(hint), read, read_text)


def _hint_of(parameter: Parameter) -> Any:
    """Return the type of a parameter's values with its bounds."""
    kind, option = parameter.type, parameter.option
    if kind is str:
        return Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN if option.is_pattern else None)]
    if kind in (int, float):
        return Annotated[kind, Meta(ge=option.least, le=option.most)]
    if kind in (list[Any], dict[str, Any]):
        return get_origin(kind)
    if get_origin(kind) is list:
        item: Any = Literal[tuple(option.choices)] if option.choices else Annotated[str, Meta(min_length=1)]
        return Annotated[list[item], Meta(min_length=1, max_length=int(option.most or 1000))]
    return kind


def _expectation(parameter: Parameter) -> str:
    """Return the sentence for a value of another type, or beyond the bounds."""
    kind, option = parameter.type, parameter.option
    if kind in (int, float):
        what = "a whole number" if kind is int else "a number"
        return f"must be {what} from {option.least:g} to {option.most:g}."
    kind = get_origin(kind) if kind in (list[Any], dict[str, Any]) else kind
    if get_origin(kind) is list:
        texts = f"texts of {', '.join(option.choices)}" if option.choices else "texts"
        return f"must be an array of 1 to {option.most:g} {texts}."
    words = {
        str: "text, and not empty",
        bool: "true or false",
        date: "a date: 2030-12-24",
        list: "an array",
        dict: "an object",
    }
    return f"must be {words[kind]}." if kind in words else f"must be one of {', '.join(get_args(kind))}."
