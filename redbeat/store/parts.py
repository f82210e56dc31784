"""The parts of a schedule, and the one loop over them: the one part that has all entries, or its shards.

Invariant: everything about many entries is read, or split, by this loop. It is an iterator; how far it has
read is known to it alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from redbeat.keys import Keys
from redbeat.layout import Layout, ShardedKeys
from redbeat.store.chunks import in_chunks

Item = TypeVar("Item")
Result = TypeVar("Result")

#: how many items are sorted by their parts at a time
SLICE = 10_000


class Part(NamedTuple):
    """One part of a schedule. An entry is in one part, with everything that is kept for it.

    Attributes:
        keys: the names of its keys in Redis.
    """

    keys: Keys


class Parts(tuple[Part, ...]):
    """All parts of a schedule."""

    _names: Keys

    @classmethod
    def of_layout(cls, layout: Layout) -> Parts:
        """Return the parts of a schedule with this layout."""
        parts = cls(map(Part, layout.parts))
        parts._names = layout.keys
        return parts

    @classmethod
    def of_one(cls, keys: Keys) -> Parts:
        """Return the one part with these names."""
        parts = cls([Part(keys)])
        parts._names = keys
        return parts

    def of(self, key: str) -> Part:
        """Return the part of an entry, by its key, its bare name or its member of the schedule."""
        names = self._names
        return Part(names.at(key)) if isinstance(names, ShardedKeys) else self[0]

    def home(self, name: str) -> Part:
        """Return the part that the entry called ``name`` belongs to."""
        names = self._names
        return Part(names.home(name)) if isinstance(names, ShardedKeys) else self[0]

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
        """Yield items, at most 500 of one part at a time, with that part; those of a part in their order.

        Whoever needs what becomes of them in the order of ``items`` calls :meth:`results`.

        Arguments:
            key_of: returns the key or the name of an item's entry; None: the item itself is it.
        """
        if len(self) == 1 and not isinstance(self._names, ShardedKeys):
            for chunk in in_chunks(items):
                yield self[0], chunk
            return
        remaining = iter(items)
        while some := list(islice(remaining, SLICE)):
            by_part: dict[Part, list[Item]] = {}
            for item in some:
                part = self.of(key_of(item) if key_of is not None else item)  # type: ignore[arg-type]
                by_part.setdefault(part, []).append(item)
            for part, those in by_part.items():
                for chunk in in_chunks(those):
                    yield part, chunk

    def results(
        self,
        items: Sequence[Item],
        call: Callable[[Part, list[Item]], Sequence[Result]],
        key_of: Callable[[Item], str] | None = None,
    ) -> list[Result]:
        """Return what ``call`` returns for each item, in the order of ``items``.

        Arguments:
            call: takes at most 500 items of one part, and returns something for each.
            key_of: as :meth:`chunks` takes it.
        """
        places = range(len(items))
        found: dict[int, Result] = {}
        key_at = (lambda place: items[place]) if key_of is None else (lambda place: key_of(items[place]))
        for part, chunk in self.chunks(places, key_at):
            found |= zip(chunk, call(part, [items[place] for place in chunk]), strict=True)
        return [found[place] for place in places]
