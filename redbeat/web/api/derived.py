"""What the REST interface derives from an operation: its route, what it reads, and what it answers.

``msgspec`` checks values by their types, and makes the schemas of parameters and results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from redbeat.entries.search import MAX_PATTERN, pattern_problem
from redbeat.operations.operation import Operation, Parameter
from redbeat.operations.pausing import PauseChange
from redbeat.operations.running import History
from redbeat.schedules.times import TypedTime
from redbeat.web.api.entries import stored_answer
from redbeat.web.api.kinds import AHEAD, BACK, Field, Kind
from redbeat.web.api.operations import Answer, Body, Call
from redbeat.web.api.operations import Operation as Endpoint
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import COMPONENTS, of

_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")
#: how results that are more than plain data are answered, and by which schema
_PRESENTERS: Mapping[Any, tuple[Callable[[Call, Any], Answer], str]] = {
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
        present, _ = _PRESENTERS.get(type(result), (_plain, ""))
        return present(call, result)

    call_operation.__name__ = operation.function.__name__
    return Endpoint(
        *(method, path, operation.command, operation.right, operation.summary, call_operation),
        {200: schema},
        fields if is_query else (),
        None
        if is_query
        else Body(
            fields,
            is_needed="names" in names or any(field.is_needed for field in fields),
            exactly_one=("names", "match") if "names" in names and "by" not in names else (),
        ),
        headers=[*headers],
        has_etag=operation.result is PauseChange,
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
    return Answer(msgspec.to_builtins(result, builtin_types=(datetime,)))


def _schema_of(result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a result, and those that it refers to, by their names."""
    if result in _PRESENTERS:
        return of(_PRESENTERS[result][1]), {}
    [schema], components = msgspec.json.schema_components([result], ref_template=f"{COMPONENTS}{{name}}")
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
    words = {str: "text, and not empty", bool: "true or false", list: "an array", dict: "an object"}
    return f"must be {words[kind]}." if kind in words else f"must be one of {', '.join(get_args(kind))}."
