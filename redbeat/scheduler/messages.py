"""The stored messages of one beat: fetched, sent and recorded as entries are, from a zset of their own.

Invariant: no round trip more while none is due, as each fetch of the schedule says when the first one is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from redbeat.scheduler.batch import Batch
from redbeat.scheduler.source import Fetcher
from redbeat.scheduler.suspects import Suspects
from redbeat.store.later import LaterStore
from redbeat.store.records import Fence, Fetched

#: how soon to go on where the broker can't take all; seconds
SOON_SECONDS = 1.0


class StoredMessages:
    """What is due of them.

    Arguments:
        store: has them.
        begin: returns the batch of what was fetched.
        deliver: delivers a batch.

    Attributes:
        head_score: when the first one is to be sent, UNIX seconds; None: there is none.
    """

    def __init__(
        self,
        store: LaterStore,
        suspects: Suspects,
        begin: Callable[[Fetched], Batch],
        deliver: Callable[[Sequence[Batch]], None],
    ) -> None:
        self._begin, self._deliver = begin, deliver
        self._fetcher = Fetcher(store, suspects)
        self.head_score: float | None = None
        self._noted_at = (0.0, 0.0)  # the server's clock, and the local one at that time, monotonic
        self._not_before = 0.0  # monotonic

    def note(self, fetched: Fetched, fetched_at: float) -> None:
        """Note what a fetch of the schedule says of them.

        Arguments:
            fetched_at: when it was made, monotonic.
        """
        self.head_score, self._noted_at = fetched.other_score, (fetched.now, fetched_at)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the first one is to be sent, 0 when it is late; None: there is none."""
        if self.head_score is None:
            return None
        now, noted_at = self._noted_at
        elapsed = time.monotonic() - noted_at
        return max(self.head_score - now - elapsed, self._not_before - time.monotonic(), 0.0)

    def send(self, fence: Fence, lease_ms: int) -> Batch:
        """Send one batch of those that are due.

        Arguments:
            lease_ms: how long they are hidden from other beats; 0: they aren't.

        Raises what the dispatcher raises.
        """
        fetched = self._fetcher.fetch(fence, lease_ms)
        batch = self._begin(fetched)
        self._deliver([batch])
        self._fetcher.note_batch(batch)
        left = [*batch.next_scores().values()]
        if fetched.next_score is not None:
            left.append(fetched.next_score)
        if fetched.has_more or batch.is_cut or batch.behind:
            left.append(fetched.now)
        self.head_score, self._noted_at = min(left, default=None), (fetched.now, self._fetcher.fetched_at)
        self._not_before = time.monotonic()
        left_seconds = self._fetcher.seconds_to_left_behind()
        if left_seconds is not None and not fetched.has_more and not batch.is_cut:
            self._not_before += left_seconds
        if batch.is_in_doubt:
            self._not_before += SOON_SECONDS
        return batch
