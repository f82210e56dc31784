"""Reading due entries in portions, after a large answer has ended the connection: a proxy may have a limit.

Beats without a lock hide what they have claimed for a while. If the answer doesn't arrive, those entries
wait, and the next claim takes others. Invariant: once an answer was lost, entries are claimed by their names,
which is a small answer, and then read in portions, again and again. An entry that ends the connection by
itself isn't read, but known by its name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from redbeat.connection.retry import RequestBroken
from redbeat.errors import StoreRefused
from redbeat.store.records import Claimed, Stored

#: how long after a lost answer entries are claimed by their names, which costs one more round trip for a
#: batch
CAREFUL_SECONDS = 3600.0

#: how many entries one answer has at most
MAX_ENTRIES = 500
#: how many bytes one answer has at most, until fewer are found to fit
MAX_BYTES = 8 * 1024 * 1024

#: by what the next answer may be larger than one that has fitted
GROWTH = 1.1


class Portions:
    """What one beat knows about how large an answer may be."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._bytes = MAX_BYTES

    @property
    def are_wanted(self) -> bool:
        """Whether an answer was lost within the last hour."""
        return time.monotonic() < self._until

    def note_lost(self) -> None:
        """Note that an answer has ended its connection."""
        self._until = time.monotonic() + CAREFUL_SECONDS

    def fill(self, rows: Sequence[Claimed], read: Callable[[list[str], bool], list[Stored]]) -> None:
        """Read the entries of ``rows``, of which only names and sizes are known, and put their fields into
        the rows.

        Arguments:
            read: returns the entries under some keys; its second argument says that it is only one, which is
                at fault if the connection ends.
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
                row.is_meta_foreign, row.revision = stored.is_meta_foreign, stored.revision

    def _take(self, waiting: list[Claimed]) -> list[Claimed]:
        """Take as many rows from the end of ``waiting`` as fit into one answer, one at least."""
        portion = [waiting.pop()]
        left = self._bytes - _size_of(portion[0])
        while waiting and len(portion) < MAX_ENTRIES and _size_of(waiting[-1]) <= left:
            left -= _size_of(waiting[-1])
            portion.append(waiting.pop())
        return portion


def is_broken(exc: StoreRefused) -> bool:
    """Tell whether the refused request has ended its connection each time."""
    return isinstance(exc.__cause__, RequestBroken)


def _size_of(row: Claimed) -> int:
    return len(row.key) + row.unread_bytes
