"""The parts of a schedule, and the one loop over them: the one part that has all entries, or its shards.

Invariant: everything about many entries is read, or split, by this loop. It is an iterator; how far it has
read is known to it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import TypeVar

from redbeat.keys import Keys
from redbeat.layout import Layout, ShardedKeys

Item = TypeVar("Item")
Result = TypeVar("Result")


#: how many entries one script reads, stores or deletes
CHUNK_SIZE = 500


def in_chunks(items: Iterable[Item], size: int = CHUNK_SIZE) -> Iterator[list[Item]]:
    """Yield the items in lists of ``size``, the last one perhaps shorter; items are read when needed."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


class Parts(tuple[Keys, ...]):
    """All parts of a schedule, as the names of each; an entry is in one, with all that is kept for it."""

    def __new__(cls, parts: Iterable[Keys], names: Keys, *, is_of_messages: bool = False) -> Parts:
        """Return these parts; ``names`` tells by an entry's key or name in which it is."""
        self = super().__new__(cls, parts)
        self._names, self._is_of_messages = names, is_of_messages
        return self

    _names: Keys
    _is_of_messages: bool

    @staticmethod
    @lru_cache(maxsize=64)
    def of_layout(layout: Layout) -> Parts:
        """Return the parts of a schedule with this layout."""
        return Parts(layout.parts, layout.keys)

    def without(self, prefixes: Collection[str]) -> Parts:
        """Return the others of these parts; by their names entries are looked for in all of them."""
        others = [part for part in self if part.prefix not in prefixes]
        return Parts(others, self._names, is_of_messages=self._is_of_messages)

    @cached_property
    def of_messages(self) -> Parts:
        """The same parts for stored messages: what is the schedule in their names are the messages'."""
        return Parts(map(keys_of_messages, self), self._names, is_of_messages=True)

    @property
    def is_divided(self) -> bool:
        """Whether they are shards, or are about to be, or were, and not all of the schedule in one part."""
        return isinstance(self._names, ShardedKeys)

    def of(self, key: str) -> Keys:
        """Return the part of an entry, by its key, its bare name or its member of the schedule."""
        names = self._names
        if not isinstance(names, ShardedKeys):
            return self[0]
        return keys_of_messages(names.at(key)) if self._is_of_messages else names.at(key)

    def home(self, name: str) -> Keys:
        """Return the part that the entry called ``name`` belongs to."""
        names = self._names
        return names.home(name) if isinstance(names, ShardedKeys) else self[0]

    def by_part(
        self, items: Iterable[Item], key_of: Callable[[Item], str] | None = None
    ) -> list[tuple[Keys, list[Item]]]:
        """Return all items by their parts; those of a part keep their order.

        Arguments:
            key_of: returns the key or the name of an item's entry; None: the item itself is it.
        """
        by_part: dict[Keys, list[Item]] = {}
        for item in items:
            part = self.of(key_of(item) if key_of is not None else item)  # type: ignore[arg-type]
            by_part.setdefault(part, []).append(item)
        return [*by_part.items()]

    def chunks(
        self, items: Iterable[Item], key_of: Callable[[Item], str] | None = None
    ) -> Iterator[tuple[Keys, list[Item]]]:
        """Yield items, at most 500 of one part at a time, with that part, as :meth:`by_part` returns them."""
        for chunk in in_chunks(items):
            yield from self.by_part(chunk, key_of)

    def in_order(
        self,
        items: Sequence[Item],
        ask: Callable[[list[tuple[Keys, list[Item]]]], Iterable[Sequence[Result]]],
        key_of: Callable[[Item], str] | None = None,
    ) -> list[Result]:
        """Return what is found out about each item, in the order of ``items``.

        Arguments:
            ask: takes at most 500 items by their parts, which are meant to be asked together, and returns for
                each part what was found out about its items.
            key_of: as :meth:`by_part` takes it.
        """
        found: list[Result | None] = [None] * len(items)

        def key_at(place: int) -> str:
            return key_of(items[place]) if key_of is not None else items[place]  # type: ignore[return-value]

        for chunk in in_chunks(range(len(items))):
            places = self.by_part(chunk, key_at)
            groups = [(part, [items[place] for place in those]) for part, those in places]
            for (_, those), results in zip(places, ask(groups), strict=True):
                for place, result in zip(those, results, strict=True):
                    found[place] = result
        return found  # type: ignore[return-value]  # each place has one


@lru_cache(maxsize=1024)
def keys_of_messages(keys: Keys) -> Keys:
    """Return the same names; that of the schedule is the stored messages'."""
    return replace(keys, schedule_key=keys.later)
