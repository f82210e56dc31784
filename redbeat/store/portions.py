"""Reading what is due in portions, where a large answer has ended the connection: a proxy has a limit, say.

What beats that share the work have claimed is hidden for a while, so an answer that doesn't arrive keeps it
from being sent, and the next claim takes something else. Invariant: once an answer was lost, entries are
claimed by their names, in a small answer, and then read, as often as it takes. One that ends the connection
by itself stays unread, and so is known by its name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from redbeat.connection.retry import RequestBroken
from redbeat.errors import StoreRefused
from redbeat.store.records import Claimed, Stored

#: for so long after a lost answer entries are claimed by their names; it costs a round trip for a batch
CAREFUL_SECONDS = 3600.0

#: how many entries one answer has at the most,
MAX_ENTRIES = 500
#: and how many bytes, before it was found out that fewer fit
MAX_BYTES = 8 * 1024 * 1024

#: what fits may be a little more each time: the limit may be another one now
GROWTH = 1.1


class Portions:
    """One beat's knowledge of how large an answer may be."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._bytes = MAX_BYTES

    @property
    def are_wanted(self) -> bool:
        """Whether an answer was lost lately."""
        return time.monotonic() < self._until

    def note_lost(self) -> None:
        """Take notice that an answer has ended its connection."""
        self._until = time.monotonic() + CAREFUL_SECONDS

    def fill(self, rows: Sequence[Claimed], read: Callable[[list[str], bool], list[Stored]]) -> None:
        """Read what ``rows`` lack, of which only names and sizes are known.

        Arguments:
            read: returns what stands under keys; it is told whether it is one that will be blamed.
        """
        waiting = list(reversed(rows))
        while waiting:
            portion = self._take(waiting)
            try:
                found = read([row.key for row in portion], len(portion) == 1)
            except StoreRefused as exc:
                if not is_broken(exc):
                    raise
                if len(portion) > 1:
                    self._bytes = max(sum(map(_size_of, portion)) // 2, 1)
                    waiting += reversed(portion)
                continue
            self._bytes = min(int(self._bytes * GROWTH) + 1, MAX_BYTES)
            for row, stored in zip(portion, found, strict=True):
                row.definition, row.meta, row.policy = stored.definition, stored.meta, stored.policy
                row.error, row.type, row.unread_bytes = stored.error, stored.type, stored.unread_bytes

    def _take(self, waiting: list[Claimed]) -> list[Claimed]:
        """Take from the end of ``waiting`` what one answer may have: one row, or more."""
        portion = [waiting.pop()]
        left = self._bytes - _size_of(portion[0])
        while waiting and len(portion) < MAX_ENTRIES and _size_of(waiting[-1]) <= left:
            left -= _size_of(waiting[-1])
            portion.append(waiting.pop())
        return portion


def is_broken(exc: StoreRefused) -> bool:
    """Tell whether what was refused has ended its connection each time."""
    return isinstance(exc.__cause__, RequestBroken)


def _size_of(row: Claimed) -> int:
    return len(row.key) + row.unread_bytes
