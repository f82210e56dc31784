"""One beat's fetches: the next batch is asked for while the one before it is still planned and sent.

Runs that are likely to fail may be left behind (``suspects.py``): they stay due, and the next fetch is larger
by their number, so that the others are among its entries. Invariant: what was fetched ahead could be fetched
now; what it has missed, an ordinary fetch finds.
"""

from __future__ import annotations

import time

from redbeat.scheduler.batch import Batch
from redbeat.scheduler.suspects import Suspects
from redbeat.store.fetching import FetchAhead
from redbeat.store.records import Fence, Fetched
from redbeat.store.rounds import FetchAsked
from redbeat.store.store import Store

#: an answer that is read later than this is asked for again, seconds
FRESH_SECONDS = 1.0

#: how many entries are fetched at most while some are left behind, as all of them are held in memory
MAX_ENLARGED = 5_000


class Fetcher:
    """Fetches due entries.

    Attributes:
        fetched_at: when the last fetch was made, at the latest; monotonic.
        may_ask_ahead: all messages of the last batch were made from templates, so it pays; and the recording
            script has pushed them. Another sink would publish what has changed since it was asked for.
    """

    def __init__(self, store: Store, suspects: Suspects) -> None:
        self._store = store
        self._suspects = suspects
        self._ahead: FetchAhead | None = None
        self._left_behind = 0
        self.fetched_at = 0.0
        self.may_ask_ahead = False

    def fetch(self, fence: Fence, lease_ms: int) -> Fetched:
        """Fetch entries that are due, and ask for those after them if it pays.

        Arguments:
            lease_ms: how long they are hidden from other beats; 0: they aren't.
        """
        fetched = self._read_ahead(fence)
        if fetched is None:
            asked = self.asked(fence, lease_ms)
            fetched = asked.fetch()
            self.note(fetched, asked)
        else:
            self._ask_ahead(fence, fetched)
        return fetched

    def asked(self, fence: Fence, lease_ms: int, max_entries: int = MAX_ENLARGED) -> FetchAsked:
        """Return what an ordinary fetch asks for.

        Arguments:
            max_entries: how many entries at most, not counting what was left behind.
        """
        limit = min(self._store.config.batch_size, max_entries) + self._left_behind
        return FetchAsked(self._store, fence, min(limit, MAX_ENLARGED), lease_ms)

    def note(self, fetched: Fetched, asked: FetchAsked) -> None:
        """Note an ordinary fetch, which has just been made, and ask for the entries after it if it pays."""
        self.fetched_at = time.monotonic()
        if not asked.lease_ms:
            self._ask_ahead(asked.fence, fetched)

    @property
    def is_alone(self) -> bool:
        """Whether the next fetch isn't asked for together with others: it is on its way."""
        return self._ahead is not None

    def note_batch(self, batch: Batch) -> None:
        """Note how many entries were left behind of the last fetch, whose batch has been sent."""
        self._left_behind = len(batch.behind)

    def seconds_to_left_behind(self) -> float | None:
        """Return the seconds until what was left behind may be tried; None: nothing was."""
        return self._suspects.seconds_left() if self._left_behind else None

    def _ask_ahead(self, fence: Fence, fetched: Fetched) -> None:
        if self.may_ask_ahead and fetched.has_more and fetched.rows and not self._left_behind:
            self._ahead = self._store.fetch_ahead(fence, self._store.config.batch_size, fetched.rows)

    def _read_ahead(self, fence: Fence) -> Fetched | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        is_old = time.monotonic() > ahead.asked_at + FRESH_SECONDS  # its clock would be wrong
        if is_old or ahead.fence != fence:
            ahead.close()
            return None
        fetched = ahead.read()
        if fetched is not None:
            self.fetched_at = ahead.asked_at
        return fetched

    def close(self) -> None:
        """Drop a fetch that was asked for."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
