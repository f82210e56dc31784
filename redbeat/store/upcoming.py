"""Reading what falls due soon, piece by piece; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.store import scripts as lua
from redbeat.store.records import DueEntry
from redbeat.store.scripts.script import Call
from redbeat.store.store import Store

#: larger entries are left out, as a slice has many entries, and is one answer; bytes
MAX_BYTES = 16_384


class Cursor(NamedTuple):
    """How far was read.

    Attributes:
        score: of the last member that was looked at, as the server writes it; '': begin at the time now.
        offset: how many members with that score were looked at; it doesn't count when that time is over.
    """

    score: str = ""
    offset: int = 0

    def after(self, scores: list[str]) -> Cursor:
        """Return the cursor after members with these scores were looked at."""
        if not scores:
            return self
        same = len(scores) - scores.index(scores[-1])
        return Cursor(scores[-1], same + (self.offset if scores[-1] == self.score else 0))


class Slice(NamedTuple):
    """What was read.

    Attributes:
        now: the server's clock, UNIX seconds.
        is_last: nothing more falls due in that time.
        rows: usual entries; large ones are left out, and those that something special has happened to.
        cursor: where to read on.
    """

    now: float
    is_last: bool
    rows: list[DueEntry]
    cursor: Cursor


class Upcoming:
    """Entries that fall due within ``seconds`` from now."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.store = store
        self.seconds = seconds

    def read(self, cursor: Cursor, limit: int, again: Sequence[str] = ()) -> Slice:
        """Return the next entries, the earliest first.

        Arguments:
            limit: how many members of the schedule are looked at from ``cursor`` on.
            again: keys of entries that are read besides, if they fall due in that time.
        """
        with self.store.translating():
            return self.call(cursor, limit, again).run(self.store.client)

    def call(self, cursor: Cursor, limit: int, again: Sequence[str]) -> Call[Slice]:
        """Return what ``read`` calls, for whoever reads of several parts at once."""
        config, keys = self.store.config, self.store.keys
        call = lua.upcoming_call(
            keys,
            again,
            seconds=self.seconds,
            after=cursor.score,
            offset=cursor.offset,
            limit=limit,
            entry_bytes=min(config.max_entry_bytes, MAX_BYTES),
        )
        read = call.read

        def slice_of(reply: Any) -> Slice:
            found = read(reply)
            return Slice(found.now, len(found.scores) < limit, found.rows, cursor.after(found.scores))

        return call.reading(slice_of)
