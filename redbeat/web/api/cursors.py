"""Answers that have a part of what there is, and the cursors with which one goes on.

Invariant: a cursor is made of what was seen last, so that nothing has to be kept between two requests.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import urlencode

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.search import ByNextRun, Place, Row, read_rows
from redbeat.log.text import as_stored
from redbeat.web.api.kinds import TEXT, Field
from redbeat.web.api.operations import Call
from redbeat.web.api.problems import Refusal

#: for how long one request looks through entries, seconds, and how many it reads at a time; and at how many
#: names it looks, where only those that match are read
BUDGET_SECONDS, SLICE, SLICE_OF_NAMES = 0.5, 200, 2000

Wanted = Callable[[RedBeatSchedulerEntry], bool]

CURSOR = Field("cursor", TEXT, "Where to go on: from `next` of the answer before.")


def look_through(
    app: Any, match: str | None, is_wanted: Wanted, cursor: str | None, limit: int
) -> tuple[list[RedBeatSchedulerEntry], str | None]:
    """Return entries in the order of their next runs, and where to go on; None: these were the last ones.

    It ends when there are ``limit`` of them, or after ``BUDGET_SECONDS``.
    """
    found, following = look_at_each(app, match, is_wanted, cursor, limit)
    return [one.entry for one in found], following


class Found(NamedTuple):
    """An entry, and where a look goes on behind it."""

    entry: RedBeatSchedulerEntry
    cursor: str


def look_at_each(
    app: Any, match: str | None, is_wanted: Wanted, cursor: str | None, limit: int
) -> tuple[list[Found], str | None]:
    """Return the same, each entry with its cursor."""
    order, place = ByNextRun(app), _place_at(cursor)
    ends_at = time.perf_counter() + BUDGET_SECONDS
    found: list[Found] = []
    size = SLICE if match is None else SLICE_OF_NAMES
    while rows := order.slice(order.offset_of(place), size):
        named = [at for at, row in enumerate(rows) if match is None or fnmatchcase(row.name, match)]
        for some in (named[first : first + SLICE] for first in range(0, len(named), SLICE)):
            for at, entry in zip(some, read_rows(app, [rows[at] for at in some]), strict=True):
                if entry is None or not is_wanted(entry):
                    continue
                found.append(Found(entry, _cursor_at(rows[at], place.offset + at + 1)))
                if len(found) == limit:
                    return found, found[-1].cursor
            if time.perf_counter() >= ends_at:
                return found, _cursor_at(rows[some[-1]], place.offset + some[-1] + 1)
        place = Place(rows[-1], place.offset + len(rows))
        if len(rows) < size:
            break
        if time.perf_counter() >= ends_at:
            return found, _cursor_at(rows[-1], place.offset)
    return found, None


def _cursor_at(row: Row, offset: int) -> str:
    return encoded([row.name, row.member, row.score, offset])


def encoded(values: Sequence[Any]) -> str:
    """Return the cursor that has these values."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def decoded(cursor: str) -> list[Any]:
    """Return the values in a cursor; Refusal: it has none."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list):
            raise ValueError
    except (ValueError, RecursionError):
        raise bad_cursor() from None
    return values


def bad_cursor() -> Refusal:
    """Return the refusal of a cursor that no answer has had."""
    return Refusal(400, "cursor: is none that an answer has had.", field="cursor")


def _place_at(cursor: str | None) -> Place:
    if cursor is None:
        return Place()
    try:
        name, member, score, offset = decoded(cursor)
        if not isinstance(name, str) or not isinstance(member, str) or type(offset) is not int:
            raise ValueError
        score = None if score is None else float(score)
        if not isfinite(score or 0.0) or not 0 <= offset < 2**48:
            raise ValueError
        as_stored(member)
        return Place(Row(name, member, score), offset)
    except (ValueError, TypeError, OverflowError):
        raise bad_cursor() from None


def path_on(call: Call, path: str, cursor: str | None) -> str | None:
    """Return the path and query with which a look goes on at ``cursor``; None: it has ended."""
    return None if cursor is None else path_with(path, {**call.query, "cursor": cursor})


def path_with(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with a query, without what is None in it."""
    texts = {name: _written(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(texts)}"


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, bool) else str(value)
