"""The layout as the parts of the schedule know it, for when ``redbeat::layout`` is lost or says otherwise.

Each part's generation key says how many shards there are, while entries move also from how many. Invariant:
the layout is written before any part learns of it, and no entry moves before all parts have learned of it. So
what all of them know counts, if the layout in Redis is an earlier one; and what only some know doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from redbeat.keys import Keys, shard_prefix
from redbeat.layout import MAX_SHARDS, Layout, ShardedKeys
from redbeat.store.generations import LayoutRecord
from redbeat.store.nodes import ask_on_nodes

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: what a generation key holds: Layout.guard, or Layout.closed_guard
_GUARD = re.compile(r"([1-9][0-9]{0,14}) (?:(closed)|(0|[1-9][0-9]{0,3})(?: from (0|[1-9][0-9]{0,3}))?)")


class Known(NamedTuple):
    """What one part knows of the layout.

    Attributes:
        generation: of that layout.
        shards, former: how many there are, and were; 0: none.
        is_moving: entries are on their way.
        is_closed: the part isn't one of the schedule any more.
    """

    generation: int
    shards: int
    former: int
    is_moving: bool
    is_closed: bool


def known_of(text: str) -> Known | None:
    """Return what a generation key says; None: nothing that a layout is."""
    found = _GUARD.fullmatch(text)
    if found is None or max(int(found[3] or 0), int(found[4] or 0)) > MAX_SHARDS:
        return None
    number, closed, shards, former = found.groups()
    return Known(int(number), int(shards or 0), int(former or 0), former is not None, closed is not None)


@dataclass(frozen=True)
class Knowledge:
    """What all parts know that there are, or ever could be.

    Attributes:
        base: the names without shards.
        texts: prefix of each part whose generation key holds something, to that.
        moving: the prefixes of those parts of which somebody moves entries, or has.
    """

    base: Keys
    texts: Mapping[str, str]
    moving: frozenset[str] = frozenset()

    @property
    def latest(self) -> int:
        """The latest generation that any part knows of; 0: none does."""
        return max((known.generation for known in self._known.values()), default=0)

    def layout(self) -> LayoutRecord | None:
        """Return the latest layout that the parts know; None: they know none, or contradict each other."""
        latest = self.latest
        knowing = {prefix: one for prefix, one in self._known.items() if one.generation == latest}
        said = {one for one in knowing.values() if not one.is_closed}
        if len(said) != 1:
            return None
        [one] = said
        if one.is_moving:
            return LayoutRecord(one.shards or None, latest, one.former or None, "moving")
        closed = [prefix for prefix, other in knowing.items() if other.is_closed]
        before = [
            other.former
            for other in self._known.values()
            if other[:2] == (latest - 1, one.shards) and other.is_moving
        ]
        former = before[0] if before else max(map(self._shard_of, closed), default=one.shards)
        state = "settling" if before or self.moving & knowing.keys() else ""
        return LayoutRecord(one.shards or None, latest, former or None, state)

    def agreed(self) -> LayoutRecord | None:
        """Return the latest layout that the parts know if all parts of it do that know of any; else None."""
        record = self.layout()
        if record is None:
            return None
        layout = Layout(self.base, record.shards, record.generation, record.former, record.state == "moving")
        told = [self._known.get(part.prefix) for part in layout.parts]
        return record if all(one is None or one.generation == record.generation for one in told) else None

    def found(self, record: LayoutRecord) -> LayoutRecord | None:
        """Return the layout as the parts know it, if Redis says ``record``; None: they know too little."""
        return self.agreed() if record.generation else self.layout()

    def right(self, record: LayoutRecord) -> LayoutRecord:
        """Return the layout as it should be by what the parts know, if Redis says ``record``.

        Raises:
            LookupError: the parts don't know enough.
        """
        if record.generation and record.generation >= self.latest:
            return record
        found = self.found(record)
        if found is not None:
            return found
        if not record.generation:
            why = "the parts contradict each other" if self.latest else "no part of the schedule knows it"
            raise LookupError(why)
        return replace(record, generation=self.latest + 1)

    @property
    def _known(self) -> dict[str, Known]:
        return {prefix: known for prefix, text in self.texts.items() if (known := known_of(text))}

    def _shard_of(self, prefix: str) -> int:
        """Return how many shards there were at least if this part was one; 0: it is the one without."""
        shards = ShardedKeys(self.base.prefix)
        number = shards.shard_at(prefix)
        return 0 if number is None else number + 1


def read_knowledge(store: Store) -> Knowledge:
    """Return what the parts know; all that there could be are asked, in one round trip a node."""
    base = store.config.base_keys
    prefixes = [base.prefix, *(shard_prefix(base.prefix, shard) for shard in range(MAX_SHARDS))]
    texts = dict(_texts(store, prefixes, "GET", [Keys(prefix).generation for prefix in prefixes]))
    busy = [
        prefix
        for name in ("mover", "moving")
        for prefix, rest_ms in _texts(store, texts, "PTTL", [getattr(Keys(one), name) for one in texts])
        if rest_ms == "-1"  # a sweeper's token ends by itself
    ]
    return Knowledge(base, texts, frozenset(busy))


def _texts(store: Store, prefixes: Iterable[str], command: str, keys: list[str]) -> Iterable[tuple[str, str]]:
    """Yield the prefixes of those parts whose key there is, each with the reply; another type is none."""
    with store.translating():
        replies = ask_on_nodes(store.client, [[command, key] for key in keys]) if keys else []
        for reply in replies:
            if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise reply
    for prefix, reply in zip(prefixes, replies, strict=True):
        if reply is not None and not isinstance(reply, Exception):
            yield prefix, reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
