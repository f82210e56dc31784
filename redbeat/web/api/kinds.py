"""Kinds of values in queries and bodies: what each looks like in JSON Schema, and how it is read. Pure.

Invariant: a value that its schema doesn't allow is refused with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redbeat.config.suggestions import did_you_mean
from redbeat.entries.search import MAX_PATTERN, pattern_problem
from redbeat.log.text import shorten
from redbeat.schedules.times import TypedTime
from redbeat.schedules.timezones import time_of

Reader = Callable[[Any], Any]

#: as JSON writes numbers
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """A kind of values.

    Attributes:
        schema: as JSON Schema has it.
        read: makes the value of what JSON has; raises ValueError with a reason.
        read_text: makes of the text in a query what JSON would have.
    """

    schema: Mapping[str, Any]
    read: Reader
    read_text: Reader = str


@dataclass(frozen=True)
class Field:
    """A parameter of the query, or a member of the body.

    Attributes:
        about: a sentence or a part of one.
        is_needed: it can't be left out.
    """

    name: str
    kind: Kind
    about: str
    is_needed: bool = False
    default: Any = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its values."""
        default = {} if self.default is None else {"default": self.default}
        return {**self.kind.schema, **default}


class BadValue(ValueError):
    """A value that can't be used.

    Attributes:
        field: the name of its field; '': it isn't about one.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


def read_query(fields: Sequence[Field], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a query by the names of ``fields``, with None or the default for what is left out.

    Raises:
        BadValue: one can't be used, is unknown, comes twice, or is missing.
    """
    texts: dict[str, Any] = {}
    kinds = {field.name: field.kind for field in fields}
    for name, text in given:
        if name in texts:
            raise BadValue("must be given once.", name)
        texts[name] = text
        if name in kinds:
            try:
                texts[name] = kinds[name].read_text(text)
            except ValueError as exc:
                raise BadValue(str(exc), name) from None
    return read_members(fields, texts)


def read_members(fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object likewise; null is no value, unless a kind has it.

    Raises:
        BadValue: likewise.
    """
    known = [field.name for field in fields]
    for name in given:
        if name not in known:
            there = f" It takes {', '.join(known)}." if known else " It takes none."
            hint = did_you_mean(name, known) or there
            raise BadValue(f"There is no {shorten(name, 100)!r} here.{hint}", "")
    values: dict[str, Any] = {}
    for field in fields:
        if field.name not in given:
            if field.is_needed:
                raise BadValue("is missing.", field.name)
            values[field.name] = field.default
            continue
        try:
            values[field.name] = field.kind.read(given[field.name])
        except ValueError as exc:
            raise BadValue(str(exc), field.name) from None
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text, and not be empty.")
    return value


def _pattern(value: Any) -> str:
    text = _text(value)
    if problem := pattern_problem(text):
        raise ValueError(problem)
    return text


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false.")
    return value


def _flag_text(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false.")
    return text == "true"


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("must be an array.")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object.")
    return value


#: how a time is written
_WRITTEN = "as 2030-12-24T18:00:00Z or 2030-12-24T18:00:00+01:00 has it"


def _typed_time(value: Any, *, ahead: bool) -> TypedTime:
    text = _text(value)
    try:
        is_naive = time_of(text.strip()).tzinfo is None
    except ValueError:  # words
        is_naive = False
    if is_naive:
        raise ValueError(f"must have an offset, {_WRITTEN}.")
    return TypedTime(text, ahead)


def _time_text(text: str) -> str:
    # a plus that wasn't encoded is a space
    return re.sub(r"(:\d\d(?:\.\d+)?) (\d\d:?\d\d)$", r"\1+\2", text)


TEXT = Kind({"type": "string", "minLength": 1}, _text)
#: with * and ? as wildcards
PATTERN = Kind({"type": "string", "minLength": 1, "maxLength": MAX_PATTERN}, _pattern)
FLAG = Kind({"type": "boolean"}, _flag, _flag_text)
ARRAY = Kind({"type": "array"}, _list)
OBJECT = Kind({"type": "object"}, _object)
#: times, which the call reads by the server's clock and the app's time zone; see redbeat.schedules.times
AHEAD = Kind(
    {"type": "string", "minLength": 1, "examples": ["2h", "tomorrow 9:00", "2030-12-24T18:00:00Z"]},
    partial(_typed_time, ahead=True),
    _time_text,
)
BACK = Kind(
    {"type": "string", "minLength": 1, "examples": ["1d", "yesterday 9:00", "2030-12-24T18:00:00Z"]},
    partial(_typed_time, ahead=False),
    _time_text,
)


def one_of(values: Sequence[str]) -> Kind:
    """Return the kind of a text that is one of ``values``."""

    def read(value: Any) -> str:
        if value not in values:
            hint = did_you_mean(value, values) if isinstance(value, str) else ""
            raise ValueError(f"must be one of {', '.join(values)}.{hint}")
        return str(value)

    return Kind({"type": "string", "enum": [*values]}, read)


def texts(most: int, values: Sequence[str] = ()) -> Kind:
    """Return the kind of a list of texts; in a query with commas between them.

    Arguments:
        most: how many there may be.
        values: what they may be; none: anything.
    """
    items: Any = {"type": "string", "enum": [*values]} if values else {"type": "string", "minLength": 1}
    item = one_of(values).read if values else _text

    def read(value: Any) -> list[str]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise ValueError(f"must be an array of 1 to {most} texts.")
        return [item(one) for one in value]

    return Kind({"type": "array", "items": items, "minItems": 1, "maxItems": most}, read, _split)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def whole(least: int, most: int) -> Kind:
    """Return the kind of a whole number between these, both included."""

    def read(value: Any) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())  # 5.0 is
        if isinstance(value, bool) or not is_whole or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}.")
        return int(value)

    def read_text(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
            raise ValueError(f"must be a whole number from {least} to {most}.")
        return int(text)

    return Kind({"type": "integer", "minimum": least, "maximum": most}, read, read_text)


def number(least: float, most: float) -> Kind:
    """Return the kind of a number between these, both included."""

    def read(value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}.")
        return float(value)

    def read_text(text: str) -> float:
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"must be a number from {least:g} to {most:g}.")
        return float(text)

    return Kind({"type": "number", "minimum": least, "maximum": most}, read, read_text)
