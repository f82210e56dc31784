"""The parts that a schedule is in, and the one loop over them; today there is one, which has all entries.

Invariant: whatever covers many entries is read, or split, by this loop, and comes as an iterator, which alone
knows how far it has read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

from redbeat.keys import Keys
from redbeat.store.chunks import in_chunks

Item = TypeVar("Item")


class Part(NamedTuple):
    """One part of a schedule: an entry is in one of them, with all that is kept for it.

    Attributes:
        keys: the names of what it has in Redis.
    """

    keys: Keys


class Parts(tuple[Part, ...]):
    """All parts of a schedule."""

    __slots__ = ()

    def of(self, _key: str) -> Part:
        """Return the part of the entry that a key, a bare name or a member of the schedule means."""
        return self[0]

    def read(
        self, read: Callable[[Part], Iterable[Item]], order: Callable[[Item], Any] | None = None
    ) -> Iterator[Item]:
        """Yield what ``read`` finds in each part, as it is asked for.

        Arguments:
            order: each part's items come in this order, and so do all; None: one part comes after the other.
        """
        found = map(read, self)
        return chain.from_iterable(found) if order is None else heapq.merge(*found, key=order)

    def chunks(
        self, items: Iterable[Item], key_of: Callable[[Item], str] | None = None
    ) -> Iterator[tuple[Part, list[Item]]]:
        """Yield items in their order, at most 500 of one part at a time, and which part it is.

        Arguments:
            key_of: returns the key or the name of an item's entry; None: the item is that.
        """
        part_of: Any = self.of if key_of is None else lambda item: self.of(key_of(item))
        for part, those in groupby(items, part_of):
            for chunk in in_chunks(those):
                yield part, chunk
