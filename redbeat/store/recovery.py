"""The layout as the parts of the schedule know it, for when ``redbeat::layout`` is lost or says otherwise.

Each part's generation key says how many shards there are, while entries move also from how many. Invariant:
the layout is written before any part learns of it, and no entry moves before all parts have learned of it. So
what all of them know counts, if the layout in Redis is an earlier one; and what only some know doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import TYPE_CHECKING

from redbeat.keys import Keys, shard_prefix
from redbeat.layout import MAX_SHARDS, Layout, LayoutState, ShardedKeys
from redbeat.store.records import text_of

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: what a generation key holds: ``Layout.guard``, or the last guard of a part that has ended
_GUARD = re.compile(r"([1-9][0-9]{0,14}) (?:closed|(0|[1-9][0-9]{0,3})(?: from (0|[1-9][0-9]{0,3}))?)")


@dataclass(frozen=True)
class Knowledge:
    """What all parts know that there are, or ever could be.

    Attributes:
        base: the names without shards.
        guards: the prefix of each part with a valid generation key, to the generation and the layout there;
            None in the place of the layout: the part has ended.
        busy: the prefixes of those parts whose entries a mover moves, or has begun to.
    """

    base: Keys
    guards: Mapping[str, tuple[int, Layout | None]]
    busy: frozenset[str]

    @property
    def latest(self) -> int:
        """The latest generation that any part knows of; 0: none does."""
        return max((generation for generation, _ in self.guards.values()), default=0)

    def layout(self) -> Layout | None:
        """Return the latest layout that the parts know; None: they know none, or contradict each other."""
        latest = self.latest
        knowing = {prefix: known for prefix, (number, known) in self.guards.items() if number == latest}
        layouts = {known for known in knowing.values() if known is not None}
        if len(layouts) != 1:
            return None
        [layout] = layouts
        if layout.is_moving:
            return layout
        before = [
            known.former
            for number, known in self.guards.values()
            if number == latest - 1
            and known is not None
            and known.is_moving
            and known.shards == layout.shards
        ]
        ended = [self._shards_with(prefix) for prefix, known in knowing.items() if known is None]
        former = before[0] if before else max(ended, default=layout.shards)
        state = LayoutState.SETTLING if before or self.busy & knowing.keys() else LayoutState.SETTLED
        return replace(layout, former=former or None, state=state)

    def found(self, in_redis: Layout) -> Layout | None:
        """Return the layout as the parts know it; None: they know too little.

        An earlier one ``in_redis`` gives way only to one that all its parts know which know any.
        """
        layout = self.layout()
        if layout is None or not in_redis.generation:
            return layout
        known = [self.guards[part.prefix][0] for part in layout.parts if part.prefix in self.guards]
        return layout if all(generation == layout.generation for generation in known) else None

    def right(self, in_redis: Layout) -> Layout:
        """Return the layout as it should be by what the parts know.

        Raises:
            LookupError: the parts don't know enough.
        """
        if in_redis.generation and in_redis.generation >= self.latest:
            return in_redis
        found = self.found(in_redis)
        if found is not None:
            return found
        if not in_redis.generation:
            why = "the parts contradict each other" if self.latest else "no part of the schedule knows it"
            raise LookupError(why)
        return replace(in_redis, generation=self.latest + 1)

    def _shards_with(self, prefix: str) -> int:
        """Return the least number of shards with a part under this prefix; 0: the part without shards."""
        number = ShardedKeys(self.base.prefix).shard_at(prefix)
        return 0 if number is None else number + 1


def read_knowledge(store: Store) -> Knowledge:
    """Return what the parts know; all that there could be are asked, in one round trip a node."""
    base = store.config.base_keys
    prefixes = [base.prefix, *(shard_prefix(base.prefix, shard) for shard in range(MAX_SHARDS))]
    texts = dict(_replies(store, "get", "generation", prefixes))
    guards = {prefix: found for prefix, text in texts.items() if (found := _parsed(base, text))}
    busy = [
        prefix
        for name in ("mover", "moving")
        for prefix, rest_ms in _replies(store, "pttl", name, texts)
        if rest_ms == "-1"  # a sweeper's token ends by itself
    ]
    return Knowledge(base, guards, frozenset(busy))


def _parsed(base: Keys, text: str) -> tuple[int, Layout | None] | None:
    """Return what a generation key says; None: it isn't valid."""
    found = _GUARD.fullmatch(text)
    if found is None:
        return None
    generation, shards, former = int(found[1]), int(found[2] or 0), int(found[3] or 0)
    if max(shards, former) > MAX_SHARDS:
        return None
    if found[2] is None:
        return generation, None
    state = LayoutState.SETTLED if found[3] is None else LayoutState.MOVING
    return generation, Layout(base, shards or None, generation, former or None, state)


def _replies(store: Store, command: str, name: str, prefixes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the prefixes of those parts whose own key ``name`` exists, each with the reply.

    A key of another type counts as missing.
    """
    parts = [*map(Keys, prefixes)]
    if not parts:
        return
    replies = store.ask_each([methodcaller(command, getattr(part, name)) for part in parts], is_tolerant=True)
    for part, reply in zip(parts, replies, strict=True):
        if reply is not None and not isinstance(reply, Exception):
            yield part.prefix, str(text_of(reply))
