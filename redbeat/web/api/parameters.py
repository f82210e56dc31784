"""Parameters of operations in queries and bodies: their JSON Schemas, and how they are read. Pure.

``msgspec`` checks values by their types. Invariant: a value that its schema doesn't allow is refused with a
reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from redbeat.config.suggestions import did_you_mean
from redbeat.entries.search import MAX_PATTERN, pattern_problem
from redbeat.errors import ArgumentInvalid
from redbeat.log.text import shorten
from redbeat.operations.operation import Parameter
from redbeat.schedules.times import TypedTime
from redbeat.schedules.timezones import time_of

Reader = Callable[[Any], Any]

#: how many texts a list has at most, where its option doesn't say
MAX_TEXTS = 1000


@dataclass(frozen=True)
class Field:
    """A parameter of the query, or a member of the body.

    Attributes:
        about: a sentence or a part of one.
        schema: of its values, as JSON Schema has it.
        read: makes the value of what JSON has; raises ValueError with a reason.
        read_text: makes of the text in a query what JSON would have.
        is_needed: it can't be left out.
    """

    name: str
    about: str
    schema: Mapping[str, Any]
    read: Reader
    read_text: Reader
    is_needed: bool = False
    default: Any = None


def read_query(fields: Sequence[Field], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a query by the names of ``fields``, with None or the default for what is left out.

    Raises:
        ArgumentInvalid: one can't be used, is unknown, comes twice, or is missing.
    """
    texts: dict[str, Any] = {}
    readers = {field.name: field.read_text for field in fields}
    for name, text in given:
        if name in texts:
            raise ArgumentInvalid(shorten(name, 100), "must be given once.")
        texts[name] = text
        if name in readers:
            try:
                texts[name] = readers[name](text)
            except ValueError as exc:
                raise ArgumentInvalid(name, str(exc)) from None
    return read_members(fields, texts)


def read_members(fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object likewise; null is no value, unless its type has it.

    Raises:
        ArgumentInvalid: likewise.
    """
    known = [field.name for field in fields]
    for name in given:
        if name not in known:
            there = f" It takes {', '.join(known)}." if known else " It takes none."
            hint = did_you_mean(name, known) or there
            raise ArgumentInvalid(shorten(name, 100), f"is unknown here.{hint}")
    values: dict[str, Any] = {}
    for field in fields:
        if field.name not in given:
            if field.is_needed:
                raise ArgumentInvalid(field.name, "is missing.")
            values[field.name] = field.default
            continue
        try:
            values[field.name] = field.read(given[field.name])
        except ValueError as exc:
            raise ArgumentInvalid(field.name, str(exc)) from None
    return values


# -- fields of operations


def field_of(parameter: Parameter) -> Field:
    """Return what the query or the body has for a parameter."""
    schema, read, read_text = (_typed_time if parameter.type is TypedTime else _plain_value)(parameter)
    if parameter.default is not None:
        schema = {**schema, "default": parameter.default}
    about = parameter.option.help
    return Field(parameter.name, about, schema, read, read_text, parameter.is_required, parameter.default)


def _typed_time(parameter: Parameter) -> tuple[Mapping[str, Any], Reader, Reader]:
    ahead = parameter.option.ahead
    examples = ["2h", "tomorrow 9:00"] if ahead else ["1d", "yesterday 9:00"]

    def read(value: Any) -> TypedTime:
        if not isinstance(value, str) or not value:
            raise ValueError("must be text, and not empty.")
        try:
            is_naive = time_of(value.strip()).tzinfo is None
        except ValueError:  # words
            is_naive = False
        if is_naive:
            raise ValueError(
                "must have an offset, as 2030-12-24T18:00:00Z or 2030-12-24T18:00:00+01:00 has it."
            )
        return TypedTime(value, ahead)

    def read_text(text: str) -> str:
        # a plus that wasn't encoded is a space
        return re.sub(r"(:\d\d(?:\.\d+)?) (\d\d:?\d\d)$", r"\1+\2", text)

    schema = {"type": "string", "minLength": 1, "examples": [*examples, "2030-12-24T18:00:00Z"]}
    return schema, read, read_text


def _plain_value(parameter: Parameter) -> tuple[Mapping[str, Any], Reader, Reader]:
    hint, expected = _hint_of(parameter), _expectation(parameter)

    def read(value: Any, *, strict: bool = True) -> Any:
        is_pattern = parameter.option.is_pattern and isinstance(value, str)
        if is_pattern and (problem := pattern_problem(value)):
            raise ValueError(problem)
        try:
            return msgspec.convert(value, hint, strict=strict)
        except msgspec.ValidationError:
            raise ValueError(expected) from None

    def read_text(text: str) -> Any:
        is_list = get_origin(parameter.type) is list
        return read([part.strip() for part in text.split(",")] if is_list else text, strict=False)

    return msgspec.json.schema(hint), read, read_text


def _hint_of(parameter: Parameter) -> Any:
    """Return the type of a parameter's values with its bounds."""
    kind, option = parameter.type, parameter.option
    if kind is str and option.choices:
        return Literal[tuple(option.choices)]
    if kind is str:
        least = 0 if option.may_be_empty else 1
        return Annotated[str, Meta(min_length=least, max_length=MAX_PATTERN if option.is_pattern else None)]
    if kind in (int, float):
        return Annotated[kind, Meta(ge=option.least, le=option.most)]
    if kind in (list[Any], dict[str, Any]):
        return get_origin(kind)
    if get_origin(kind) is list:
        item: Any = Literal[tuple(option.choices)] if option.choices else Annotated[str, Meta(min_length=1)]
        return Annotated[list[item], Meta(min_length=1, max_length=int(option.most or MAX_TEXTS))]
    return kind


def _expectation(parameter: Parameter) -> str:
    """Return the sentence for a value of another type, or beyond the bounds."""
    kind, option = parameter.type, parameter.option
    if kind in (int, float):
        what = "a whole number" if kind is int else "a number"
        least = "" if option.least is None else f" from {option.least:g}"
        most = "" if option.most is None else f" to {option.most:g}"
        return f"must be {what}{least}{most}."
    kind = get_origin(kind) if kind in (list[Any], dict[str, Any]) else kind
    if get_origin(kind) is list:
        texts = f"texts of {', '.join(option.choices)}" if option.choices else "texts"
        return f"must be an array of 1 to {option.most or MAX_TEXTS:g} {texts}."
    words = {
        str: "text, and not empty",
        bool: "true or false",
        date: "a date: 2030-12-24",
        list: "an array",
        dict: "an object",
        dict[str, str | None]: "an object with texts, or null for one to remove",
    }
    if kind is str and option.choices:
        return f"must be one of {', '.join(option.choices)}."
    return f"must be {words[kind]}." if kind in words else f"must be one of {', '.join(get_args(kind))}."
