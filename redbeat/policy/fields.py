"""Rows of the table of an entry's fields: what a value may be, and what people are told of it. Pure.

The table itself is :class:`redbeat.policy.policy.Policy`. The attributes of an entry, their checks, the
options of commands, the dashboard's form, the JSON Schemas and the documentation follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, overload

from redbeat.config.ping_urls import parse_ping_url
from redbeat.log.text import quoted
from redbeat.schedules.times import read_seconds
from redbeat.schedules.timezones import find_time_problem, time_of, zone_called, zone_name

Value = TypeVar("Value")
Given = TypeVar("Given")

#: the longest length of time in a policy, in seconds
MAX_SECONDS = 10**10
#: files in the time zone database that aren't usable zones; those in right/ count leap seconds
_NO_ZONE = re.compile(r"localtime|posixrules|Factory|right/.*", re.IGNORECASE)


# -- the checks


def _zone(value: Any, _row: Row) -> str:
    if isinstance(value, tzinfo):
        value = zone_name(value) or ("UTC" if value is timezone.utc else value)
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a time zone, such as 'Europe/Berlin', not {quoted(value)}.")
    if _NO_ZONE.fullmatch(value):
        raise ValueError(
            f"{value!r} can't be used as a zone: it differs between machines, or counts leap seconds."
        )
    zone_called(value)
    return value


def _time(value: Any, _row: Row) -> datetime:
    if isinstance(value, str):
        try:
            value = time_of(value)
        except ValueError as exc:
            raise ValueError(f"{value!r} is not a time; write it as '2026-12-24T18:00'.") from exc
    problem = find_time_problem(value, first_year=1970)
    if problem:
        raise ValueError(problem)
    moment: datetime = value
    return moment


def _count(value: Any, row: Row) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= (row.most or value):
        upto = "" if row.most is None else f" to {row.most}"
        raise ValueError(f"must be a whole number from 1{upto}, not {quoted(value)}.")
    return value


def _seconds(value: Any, row: Row) -> float:
    seconds = read_seconds(value) if isinstance(value, str) else value  # as in files: '1h30m'
    seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    least = "from 0 to" if row.kind is Kind.DELAY else "above 0 and up to"
    if not is_number or not 0 <= seconds <= MAX_SECONDS or (row.kind is Kind.LENGTH and not seconds):
        raise ValueError(f"must be a number of seconds {least} {MAX_SECONDS}, not {quoted(value)}.")
    return seconds


def _typed(value: Any, row: Row) -> Any:
    is_typed = isinstance(value, bool if row.kind is Kind.FLAG else str)
    if not is_typed or (row.kind is Kind.NAME and not value):
        raise ValueError(f"must be {row.kind.words}, not {quoted(value)}.")
    if row.most is not None and len(value) > row.most:
        raise ValueError(f"must have at most {row.most} characters, got {len(value)}.")
    return value


def _url(value: Any, _row: Row) -> str:
    parse_ping_url(value)
    return str(value)


def _choice(value: Any, row: Row) -> str:
    if value not in row.values:
        raise ValueError(f"must be one of {', '.join(map(repr, row.values))}, not {quoted(value)}.")
    return str(value)


class Kind(Enum):
    """A kind of fields.

    Attributes:
        words: the values that are allowed, for people.
        given: the types that users may give, as Python writes them.
        check: returns a value as a policy has it; it raises ValueError with the end of a sentence.
        metavar: stands for a value in the help of a command; None: click says it.
    """

    ZONE = ("the IANA name of a time zone", "str | tzinfo", _zone, "ZONE")
    TIME = ("a time in ISO 8601, in the entry's zone where it has no offset", "datetime | str", _time)
    COUNT = ("a whole number from 1", "int", _count)
    FLAG = ("true or false", "bool", _typed)
    CHOICE = ("one of a few words", "str", _choice)
    DELAY = ("seconds", "float | timedelta", _seconds)
    LENGTH = ("seconds, above 0", "float | timedelta", _seconds)
    TEXT = ("text", "str", _typed)
    NAME = ("the name of a calendar", "str", _typed, "CALENDAR")
    URL = ("a URL, https or http", "str", _url, "URL")

    def __init__(
        self, words: str, given: str, check: Callable[[Any, Row], Any], metavar: str | None = None
    ) -> None:
        self.words = words
        self.given = given
        self.check = check
        self.metavar = metavar


class Choice(NamedTuple):
    """A value of a field that has a few.

    Attributes:
        about: what it means; '': its name says it.
        phrase: the same in the description of an entry; '': it isn't described.
    """

    value: str
    about: str = ""
    phrase: str = ""


@dataclass(frozen=True)
class Row:
    """A field of an entry.

    Attributes:
        group: the title of the part of a form in which it stands.
        about: a sentence that says what it does.
        default: the value that changes nothing.
        label: its name in a form, unless the sentence is short enough.
        otherwise: what counts instead of the default None.
        example: a value as it is typed.
        phrase: how the description of an entry has it, with '{}' for the value; '': not at all.
        choices: the values of a choice.
        most: the largest number; of a text the most characters.
    """

    kind: Kind
    group: str
    about: str
    default: Any
    label: str
    otherwise: str = ""
    example: str = ""
    phrase: str = ""
    choices: tuple[Choice, ...] = ()
    most: int | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """The values of a choice."""
        return tuple(one.value for one in self.choices)

    @property
    def help(self) -> str:
        """What it does, what each value means, and the default."""
        meanings = "; ".join(f"{one.value}: {one.about}" for one in self.choices if one.about)
        default = self.otherwise or (self.default if self.choices else "")
        sentences = (self.about, meanings and f"{meanings}.", default and f"Default: {default}.")
        return " ".join(filter(None, sentences))

    def phrase_of(self, value: Any, shown: str) -> str:
        """Return how the description of an entry has a value; '': not at all.

        Arguments:
            shown: the value for people.
        """
        if value == self.default:
            return ""
        chosen = (one.phrase for one in self.choices if one.value == value)
        return next(chosen, self.phrase.format(shown))


class DefinitionRow(NamedTuple):
    """A field of an entry's definition, which goes to the task or says which one: it has no default.

    Attributes:
        types: of its values in Python, and ``words`` what these are called in JSON; '{}': the known kinds of
            schedules.
        label, about, example: as of a :class:`Row`.
    """

    types: type | tuple[type, ...]
    words: str
    label: str
    about: str
    example: str = ""


def row(kind: Kind, group: str, about: str, *, default: Any = None, **more: Any) -> Any:
    """Return a field of the dataclass that is the table; see :class:`Row`."""
    made = Row(kind, group, about, default, **{"label": about.rstrip("."), **more})
    return field(default=default, repr=kind is not Kind.URL, metadata={"row": made})


class PolicyField(Generic[Value, Given]):
    """An attribute of an entry that is a field of its policy; a value is checked when it is set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, entry: None, owner: type) -> PolicyField[Value, Given]: ...

    @overload
    def __get__(self, entry: object, owner: type) -> Value: ...

    def __get__(self, entry: Any, owner: type) -> PolicyField[Value, Given] | Value:
        if entry is None:
            return self
        own = entry.__dict__.get(self._name, self)
        return getattr(entry.policy, self._name) if own is self else own  # type: ignore[no-any-return]

    def __set__(self, entry: Any, value: Given) -> None:
        entry.set_field(self._name, value)
