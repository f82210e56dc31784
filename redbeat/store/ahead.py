"""What is read before its time: the batch after this one, and entries that fall due soon. Nothing is written.

Invariant: what was fetched ahead could be fetched now; what it has missed, an ordinary fetch finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redbeat.errors import LockLost
from redbeat.store.executor import Executor, Request
from redbeat.store.records import Fence, Fetched, Stored, entries_of, text_of
from redbeat.store.schedule import Fetch, fetch_all
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

#: how many entries are fetched ahead at most: the call blocks the server
MAX_ENTRIES = 500

#: larger entries are not read before they are due, as many are read at once; bytes
UPCOMING_BYTES = 16_384

_READ_UPCOMING = Script("read_upcoming")


@dataclass
class FetchAhead:
    """A fetch that is on its way while the batch before it is planned and sent.

    Nothing is lost if it is dropped, as a fetch without a lease changes nothing.

    Attributes:
        asked_at: when it was asked for, monotonic.
    """

    request: Request[Fetched]
    executor: Executor
    asked_at: float

    def read(self) -> Fetched | None:
        """Return what was fetched; None: fetch in the ordinary way.

        Raises:
            LockLost: another beat holds the lock.
        """
        is_read, outcome = self.executor.exchange(0), self.request.outcome
        self.executor.close()
        if isinstance(outcome, LockLost):
            raise outcome
        return replace(outcome, is_ahead=True) if is_read and isinstance(outcome, Fetched) else None

    def close(self) -> None:
        """Give the connection back; an answer that was not read is waited for, and dropped."""
        self.executor.close()


def fetch_ahead(store: Store, fence: Fence, limit: int, pending: Sequence[Stored]) -> FetchAhead | None:
    """Ask for the entries that are due after those ``pending``, and do not wait for the answer.

    Returns None where that is not possible.

    Arguments:
        pending: the rows of the fetch before, none of which has been committed yet.
    """
    if store.config.is_cluster:
        return None
    still = [row for row in pending if not row.is_asked]  # the others, due at 0, come last now, at one score
    wanted = Fetch(
        store,
        fence,
        min(limit, MAX_ENTRIES),
        pending=len(still),
        last_pending=still[-1].key if still else None,
        before=pending[0].current_score if len(still) < len(pending) else None,
    )
    [request] = fetch_all([wanted])
    executor = Executor(store, is_spare=True)
    executor.submit(request)
    is_asked = executor.exchange(request.rows)
    return FetchAhead(request, executor, time.monotonic()) if is_asked else None


class Cursor(NamedTuple):
    """How far was read of what falls due soon.

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
    """Entries that fall due soon.

    Attributes:
        now: the server's clock, UNIX seconds.
        is_last: nothing more falls due in that time.
        rows: usual entries; large ones are left out, and those that something special has happened to.
        cursor: where to read on.
    """

    now: float
    is_last: bool
    rows: list[Stored]
    cursor: Cursor


def read_upcoming(
    store: Store, cursor: Cursor, limit: int, *, seconds: float, again: Sequence[str] = ()
) -> Request[Slice]:
    """Read the next entries that fall due within ``seconds``, the earliest first.

    Arguments:
        limit: how many members of the schedule are looked at from ``cursor`` on.
        again: keys of entries that are read besides, if they fall due in that time; they come first.
    """
    call = _READ_UPCOMING.call(
        store.keys,
        again=again,
        seconds=seconds,
        after=cursor.score,
        offset=cursor.offset,
        limit=limit,
        entry_bytes=min(store.config.max_entry_bytes, UPCOMING_BYTES),
    )

    def read(reply: Sequence[Any]) -> Slice:
        now, scores, others, texts = reply
        scores = [text_of(score) for score in scores]
        return Slice(float(now), len(scores) < limit, entries_of(others, texts), cursor.after(scores))

    return Request(store, call.reading(read))
