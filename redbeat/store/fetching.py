"""Fetching due entries, at once or ahead of time. A fetch without a lease changes nothing.

Invariant: what was fetched ahead could be fetched now; what it has missed, an ordinary fetch finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redbeat.errors import LockLost
from redbeat.store.executor import Executor, Request
from redbeat.store.records import (
    Deadline,
    DueEntry,
    Fence,
    Fetched,
    KeyType,
    LockStatus,
    text_of,
    unpack_rows,
)
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

#: about how many bytes of entries one fetch returns at most; one entry in any case
FETCH_BYTES = 8 * 1024 * 1024

#: how many entries are fetched ahead at most
MAX_ENTRIES = 500

#: how many entries one of these calls fetches at most: it blocks the server
CALL_ENTRIES = 125

_FETCH_DUE = Script("fetch_due")


def fetch_due(
    store: Store,
    fence: Fence,
    *,
    limit: int,
    lease_ms: int = 0,
    pending: Sequence[DueEntry] = (),
    offset: int = 0,
    max_bytes: int = FETCH_BYTES,
) -> Request[Fetched]:
    """Read the entries that are due, oldest first, the next due time, and which deadlines have passed.

    The outcome is LockLost if another beat holds the lock, and StoreRefused if the connection ends each time,
    as a proxy cuts large answers, say.

    Arguments:
        limit: how many entries at most.
        lease_ms: how long they are hidden from other beats; 0: they aren't. Those of an answer that was
            lost stay hidden for that time.
        pending: due entries that are left out, the first ones.
        offset: how many are left out after them.
        max_bytes: about how many bytes of entries at most.
    """
    keys = store.keys
    call = _FETCH_DUE.call(
        keys,
        fence=fence,
        other=store.schedule_key if store.holds_messages else keys.later,
        limit=limit,
        max_bytes=max_bytes,
        entry_bytes=store.config.max_entry_bytes,
        lease_ms=lease_ms,
        pending=len(pending),
        last_pending=pending[-1].key if pending else None,
        offset=offset,
        are_messages=store.holds_messages,
    )

    def read(reply: Sequence[Any]) -> Fetched:
        fetched = fetched_of(reply)
        if fetched.status is not LockStatus.HELD:
            store.check_lock(fetched.status, fence)
        if store.config.is_cluster:
            fetched = _without_moving(store, fetched)
        if store.holds_messages:
            store.read_bodies(fetched)
        return fetched

    call.read = read
    return Request(store, call)


def fetched_of(reply: Sequence[Any]) -> Fetched:
    """Return what a reply of fetch_due says."""
    status, now, upcoming, has_more, rows, texts, deadlines, next_deadline, other_head = reply
    return Fetched(
        status=LockStatus(status),
        now=float(now),
        next_score=float(upcoming) if upcoming else None,
        has_more=bool(has_more),
        rows=due_entries_of(rows, texts),
        deadlines=[Deadline(*map(text_of, row)) for row in deadlines] if deadlines else (),
        next_deadline=float(next_deadline) if next_deadline else None,
        other_score=float(other_head) if other_head else None,
    )


def due_entries_of(rows: str | bytes, texts: str | bytes) -> list[DueEntry]:
    """Return the entries of the rows of fetch_due."""
    found = unpack_rows(rows, texts)
    for row in found:
        row.setdefault("score", row["nominal"])
        if "type" in row:
            row["type"] = KeyType(row["type"])
    return [DueEntry(**row) for row in found]


def _without_moving(store: Store, fetched: Fetched) -> Fetched:
    """Leave out entries that only seem to be missing, as their slot is being moved to another node."""
    missing = [row.key for row in fetched.rows if row.type is KeyType.NONE]
    with store.translating():
        if not missing or not store.client.exists(*missing):  # there may be thousands
            return fetched
        moving = {key for key in missing if store.client.exists(key)}
    rows = [row for row in fetched.rows if row.key not in moving]
    return replace(fetched, rows=rows, is_partial=True)


@dataclass
class FetchAhead:
    """Fetches that are on their way while the batch before them is planned and sent.

    Nothing is lost if they are dropped, as a fetch without a lease changes nothing.

    Attributes:
        fence: with which they were asked for.
        asked_at: when they were, monotonic.
    """

    fence: Fence
    requests: Sequence[Request[Fetched]]
    executor: Executor
    asked_at: float

    def read(self) -> Fetched | None:
        """Return what was fetched; None: fetch in the ordinary way.

        Raises:
            LockLost: another beat holds the lock.
        """
        is_read = self.executor.exchange(0)
        self.close()
        rows: dict[str, DueEntry] = {}  # by key, as the schedule may have changed between the calls
        found: Fetched | None = None
        for request in self.requests:
            fetched = request.outcome
            if isinstance(fetched, LockLost):
                raise fetched
            if not is_read or not isinstance(fetched, Fetched):
                return None
            has_more = fetched.has_more
            found = found or fetched
            rows |= {row.key: row for row in fetched.rows}
            if len(fetched.rows) < CALL_ENTRIES:  # the next call has left out what this one hasn't returned
                break
        return found and replace(found, rows=list(rows.values()), has_more=has_more, is_ahead=True)

    def close(self) -> None:
        """Give the connection back; answers that weren't read are waited for, and dropped."""
        self.executor.close()


def fetch_ahead(store: Store, fence: Fence, limit: int, pending: Sequence[DueEntry]) -> FetchAhead | None:
    """Ask for the entries that are due after those ``pending``, and don't wait for the answer.

    Returns None where that isn't possible.

    Arguments:
        pending: the rows of the fetch before, none of which has been committed yet.
    """
    if store.config.is_cluster:
        return None
    firsts = range(0, min(limit, MAX_ENTRIES), CALL_ENTRIES)
    requests = [
        fetch_due(
            store,
            fence,
            limit=min(CALL_ENTRIES, limit - first),
            pending=pending,
            offset=first,
            max_bytes=FETCH_BYTES // len(firsts),
        )
        for first in firsts
    ]
    executor = Executor(store, is_spare=True)
    for request in requests:
        executor.submit(request)
    is_asked = executor.exchange(len(requests))
    return FetchAhead(fence, requests, executor, time.monotonic()) if is_asked else None
