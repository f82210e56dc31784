"""A fetch that is asked for while the batch before it is still planned and sent.

Invariant: it only saves time. If it can't be had, or isn't asked for its answer, nothing is lost, as a fetch
without a lease changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError
from redbeat.store.records import DueEntry, Fence, Fetched
from redbeat.store.scripts import FETCH_BYTES
from redbeat.store.scripts.script import Call

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how many entries are asked for ahead at most
MAX_ENTRIES = 500

#: how many entries one call fetches at most: it blocks the server
CALL_ENTRIES = 125


class FetchAhead:
    """The answer that hasn't been read yet.

    Attributes:
        fence: with which it was asked.
        asked_at: when it was, monotonic.
    """

    def __init__(self, store: Store, stream: Stream, fence: Fence, calls: Sequence[Call[Fetched]]) -> None:
        self._store = store
        self._stream = stream
        self._calls = calls
        self.fence = fence
        self.asked_at = time.monotonic()

    @classmethod
    def ask(cls, store: Store, fence: Fence, limit: int, pending: Sequence[DueEntry]) -> FetchAhead | None:
        """Send the fetch; return None if that isn't possible."""
        firsts = range(0, min(limit, MAX_ENTRIES), CALL_ENTRIES)
        calls = [
            store.fetch_call(
                fence,
                min(CALL_ENTRIES, limit - first),
                pending=pending,
                offset=first,
                max_bytes=FETCH_BYTES // len(firsts),
            )
            for first in firsts
        ]
        stream = None
        try:
            with store.translating():
                stream = Stream.open(store.client, is_spare=True)
                if stream is None:
                    return None
                for call in calls:
                    stream.write(*call.words(store.client))
        except RedBeatError:
            if stream is not None:
                stream.close()
            return None
        return cls(store, stream, fence, calls)

    def read(self) -> Fetched | None:
        """Return what was fetched; None: fetch in the ordinary way.

        Raises:
            LockLost: another beat holds the lock.
        """
        found = []
        try:
            with self._store.translating():
                for call in self._calls:
                    reply = self._stream.read()
                    if isinstance(reply, ResponseError):
                        return None
                    found.append(call.read(reply))
        except RedBeatError:
            return None
        finally:
            self.close()
        rows: dict[str, DueEntry] = {}  # by key, as the schedule may have changed between the calls
        for fetched in found:
            self._store.check_lock(fetched.status, self.fence)
            rows |= {row.key: row for row in fetched.rows}
            if len(fetched.rows) < CALL_ENTRIES:  # the next call has left out what this one hasn't returned
                break
        return replace(found[0], rows=list(rows.values()), has_more=fetched.has_more, is_ahead=True)

    def close(self) -> None:
        """Give the connection back; an answer that wasn't read is waited for, and dropped."""
        self._stream.close()
