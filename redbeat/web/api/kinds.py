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
