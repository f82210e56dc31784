"""A claim that is asked for while the batch before it is still planned and sent.

Invariant: it only saves time. If it can't be had, or isn't asked for its answer, nothing is lost, as a claim
without a lease changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError
from redbeat.store import scripts as lua
from redbeat.store.records import Claim, Claimed, Fence, Sizes

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how many entries are asked for ahead at most
MAX_ENTRIES = 500

#: how many entries one call claims at most: the server does nothing else meanwhile
CALL_ENTRIES = 125


class ClaimAhead:
    """The answer that hasn't been read yet.

    Attributes:
        fence, sizes: with which it was asked.
        asked_at: when it was, monotonic.
    """

    def __init__(self, store: Store, stream: Stream, fence: Fence, sizes: Sizes) -> None:
        self._store = store
        self._stream = stream
        self.fence, self.sizes = fence, sizes
        self.asked_at = time.monotonic()

    @classmethod
    def ask(cls, store: Store, fence: Fence, limits: lua.ClaimLimits) -> ClaimAhead | None:
        """Send the claim; return None if that isn't possible."""
        stream = None
        try:
            with store.translating():
                stream = Stream.open(store.client, is_spare=True)
                if stream is None:
                    return None
                firsts = range(0, min(limits.limit, MAX_ENTRIES), CALL_ENTRIES)
                for first in firsts:
                    call = limits._replace(
                        limit=min(CALL_ENTRIES, limits.limit - first),
                        max_bytes=limits.max_bytes // len(firsts),
                        beyond=first,
                    )
                    stream.write(*lua.claim_command(store.client, store.claim_keys, fence, call))
        except RedBeatError:
            if stream is not None:
                stream.close()
            return None
        return cls(store, stream, fence, limits.sizes)

    def read(self) -> Claim | None:
        """Return what was claimed; None: claim in the ordinary way.

        Raises:
            LockLost: another beat holds the lock.
        """
        claims = []
        try:
            with self._store.translating():
                while self._stream.unread:
                    reply = self._stream.read()
                    if isinstance(reply, ResponseError):
                        return None
                    claims.append(lua.claim_of(reply))
        except RedBeatError:
            return None
        finally:
            self.close()
        rows: dict[str, Claimed] = {}  # by key, as somebody may have changed the schedule between the calls
        for claim in claims:
            self._store.check_lock(claim.status, self.fence)
            rows |= {row.key: row for row in claim.rows}
            if len(claim.rows) < CALL_ENTRIES:  # the next call has left out what this one hasn't returned
                break
        first = claims[0]
        return Claim(
            first.status,
            first.now,
            first.next_score,
            claim.has_more,
            list(rows.values()),
            is_held=any(claim.is_held for claim in claims),
            is_ahead=True,
            deadlines=first.deadlines,
            next_deadline=first.next_deadline,
            other_score=first.other_score,
        )

    def close(self) -> None:
        """Give the connection back; an answer that wasn't read is waited for, and dropped."""
        self._stream.close()
