"""Which entries an operation is about, and how it goes through many of them.

Invariants: one entry that fails doesn't stop the others; a cursor is made of what was seen last, so nothing
is kept between two calls.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, isfinite
from typing import Annotated, Any, NamedTuple, TypeVar

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.search import ByNextRun, Place, Row, entries_called, look_through
from redbeat.errors import (
    AccessDenied,
    ArgumentInvalid,
    BrokerUnavailable,
    EntryError,
    LockNotAcquired,
    RunNotSent,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.log.text import as_stored
from redbeat.operations.actor import Actor
from redbeat.operations.operation import Option

#: for how long one call looks through entries, seconds
BUDGET_SECONDS = 0.5
#: how many entries a server changes in one call, and for how long it goes on one by one, seconds
MAX_SELECTED, MAX_SECONDS = 1000, 5.0

Result = TypeVar("Result")
Wanted = Callable[[RedBeatSchedulerEntry], bool]
NameOfEntry = Annotated[str, Option("The name of the entry.")]
Match = Annotated[
    str | None,
    Option("Only entries whose name matches; * and ? are wildcards, case-sensitive.", is_pattern=True),
]
Cursor = Annotated[str | None, Option("Where to go on: from `next` of the previous answer.")]


class Found(NamedTuple):
    """An entry, and the cursor with which a look goes on behind it."""

    entry: RedBeatSchedulerEntry
    cursor: str


@dataclass(frozen=True)
class Selected:
    """The entries of a selection.

    Attributes:
        names: theirs.
        cursors: where a look goes on behind each; none where they were given by their names.
        next: where it goes on behind all of them; None: there are no more.
        max_seconds: for how long one call goes on with them one by one.
    """

    names: Sequence[str]
    cursors: Sequence[str] = ()
    next: str | None = None
    max_seconds: float = MAX_SECONDS


@dataclass(frozen=True)
class Selection:
    """Entries by their names, or by a pattern.

    Attributes:
        is_whole: look through all entries, however long it takes, as the command line does; with names, which
            it has confirmed, the pattern is for the audit record. False: at most ``MAX_SELECTED``, within
            ``BUDGET_SECONDS``.
    """

    names: Annotated[list[str] | None, Option("The names of the entries.", most=MAX_SELECTED)] = None
    match: Annotated[
        str | None, Option("Instead of names: a pattern; * and ? are wildcards.", is_pattern=True)
    ] = None
    cursor: Annotated[
        str | None, Option("With `match`: where to go on, from `next` of the previous answer.")
    ] = None
    is_whole: bool = False

    def find(
        self, actor: Actor, is_wanted: Wanted = lambda _entry: True, default: str | None = None
    ) -> Selected:
        """Return the entries.

        Arguments:
            is_wanted: leaves out others that match; names that are given count as they are.
            default: the pattern, where neither names nor a pattern is given.

        Raises:
            ArgumentInvalid: both or neither of names and a pattern are given, or the cursor is invalid.
        """
        match = default if self.names is None and self.match is None else self.match
        if (self.names is None) == (match is None) and not self.is_whole:
            raise ArgumentInvalid("names", "give either names or match.")
        max_seconds = inf if self.is_whole else MAX_SECONDS
        if self.names is not None:
            return Selected([*dict.fromkeys(self.names)], max_seconds=max_seconds)
        if self.is_whole:
            entries = RedBeatSchedulerEntry.list(actor.app, match=match)
            names = [str(entry.name) for entry in entries if is_wanted(entry)]
            return Selected(names, max_seconds=max_seconds)
        found, following = look_at_each(actor.app, match, is_wanted, self.cursor, MAX_SELECTED)
        return Selected([str(one.entry.name) for one in found], [one.cursor for one in found], following)


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What an operation over many entries has left undone.

    Attributes:
        failed: why entries weren't changed, by their names.
        left: names that were given and weren't tried: send the same with these.
        next: the cursor to go on with; null: that was all.
        reason: why not all were tried; '': there was no time left.
    """

    failed: dict[str, str]
    left: Sequence[str]
    next: str | None
    reason: str = ""


class Enough(Exception):
    """Raised by what is called for each entry: this one and the following are left to the next call."""


def for_each(
    selected: Selected, act: Callable[[str], Result], progress: Callable[[int], object] = lambda _done: None
) -> tuple[dict[str, Result], Rest]:
    """Call ``act`` with one name after the other; return what it has returned by the names, and the rest.

    Raises:
        StoreUnavailable, StoreRefused, BrokerUnavailable: the first entry failed so; later ones end the call.
    """
    ends_at = time.monotonic() + selected.max_seconds
    done, failed = dict[str, Result](), dict[str, str]()
    for place, name in enumerate(selected.names):
        try:
            if place and time.monotonic() >= ends_at:
                raise Enough
            done[name] = act(name)
        except (StoreUnavailable, StoreRefused, BrokerUnavailable, Enough) as exc:
            if not place:
                raise
            if selected.cursors:
                return done, Rest(failed=failed, left=(), next=selected.cursors[place - 1], reason=str(exc))
            left = selected.names[place:]
            return done, Rest(failed=failed, left=left, next=selected.next, reason=str(exc))
        except (AccessDenied, EntryError, LockNotAcquired, RunNotSent) as exc:
            failed[name] = str(exc)
        progress(place + 1)
    return done, Rest(failed=failed, left=(), next=selected.next)


def look_at_each(
    app: Any, match: str | None, is_wanted: Wanted, cursor: str | None, limit: int
) -> tuple[list[Found], str | None]:
    """Return entries in the order of their next runs, and where to go on; None: these were the last ones.

    It ends when there are ``limit`` of them, or after ``BUDGET_SECONDS``.
    """

    def read(names: Sequence[str]) -> Iterator[RedBeatSchedulerEntry | None]:
        entries = entries_called(app, names)
        return (entry if entry is not None and is_wanted(entry) else None for entry in entries)

    def is_named(name: str) -> bool:
        return match is None or fnmatchcase(name, match)

    found, following = list[Found](), None
    for entry, behind in look_through(ByNextRun(app), _place_at(cursor), BUDGET_SECONDS, read, is_named):
        following = None if behind is None else _cursor_at(behind)
        if entry is not None and following is not None:
            found.append(Found(entry, following))
        if len(found) == limit:
            break
    return found, following


# -- cursors


def encode_cursor(values: Sequence[Any]) -> str:
    """Return the cursor that has these values."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> list[Any]:
    """Return the values in a cursor.

    Raises:
        ArgumentInvalid: it wasn't made by ``encode_cursor``.
    """
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list):
            raise ValueError
    except (ValueError, RecursionError):
        raise invalid_cursor() from None
    return values


def invalid_cursor() -> ArgumentInvalid:
    """Return the error of a cursor that no answer has had."""
    return ArgumentInvalid("cursor", "must be `next` of an earlier answer.")


def _cursor_at(place: Place) -> str:
    return encode_cursor([*(place.after or ("", "", None)), place.offset])


def _place_at(cursor: str | None) -> Place:
    if cursor is None:
        return Place()
    try:
        name, member, score, offset = decode_cursor(cursor)
        if not isinstance(name, str) or not isinstance(member, str) or type(offset) is not int:
            raise ValueError
        score = None if score is None else float(score)
        if not isfinite(score or 0.0) or not 0 <= offset < 2**48:
            raise ValueError
        as_stored(member)
        return Place(Row(name, member, score), offset)
    except (ValueError, TypeError, OverflowError) as exc:
        raise (exc if isinstance(exc, ArgumentInvalid) else invalid_cursor()) from None
