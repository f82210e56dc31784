"""The parts of a schedule, and the one loop over them; today there is one part, which has all entries.

Invariant: everything about many entries is read, or split, by this loop. It is an iterator; how far it has
read is known to it alone.
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
    """One part of a schedule. An entry is in one part, with everything that is kept for it.

    Attributes:
        keys: the names of its keys in Redis.
    """

    keys: Keys


class Parts(tuple[Part, ...]):
    """All parts of a schedule."""

    __slots__ = ()

    def of(self, _key: str) -> Part:
        """Return the part of an entry, by its key, its bare name or its member of the schedule."""
        return self[0]

    def read(
        self, read: Callable[[Part], Iterable[Item]], order: Callable[[Item], Any] | None = None
    ) -> Iterator[Item]:
        """Yield what ``read`` yields for each part.

        Arguments:
            order: the key by which each part's items are ordered, and then all of them; None: part by part.
        """
        found = map(read, self)
        return chain.from_iterable(found) if order is None else heapq.merge(*found, key=order)

    def chunks(
        self, items: Iterable[Item], key_of: Callable[[Item], str] | None = None
    ) -> Iterator[tuple[Part, list[Item]]]:
        """Yield items in their order, at most 500 of one part at a time, with that part.

        Arguments:
            key_of: returns the key or the name of an item's entry; None: the item itself is it.
        """
        part_of: Any = self.of if key_of is None else lambda item: self.of(key_of(item))
        for part, those in groupby(items, part_of):
            for chunk in in_chunks(those):
                yield part, chunk
