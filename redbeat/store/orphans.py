"""What is left in Redis of entries that are gone: everything that is kept for any entry, and its removal.

Invariant: what belongs to an entry that is there by the time of the removal is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redbeat.store.members import Members
from redbeat.store.owners import Owners
from redbeat.store.parts import Part
from redbeat.store.scripts.orphans import Remains as Remains
from redbeat.store.scripts.orphans import remove_orphans
from redbeat.store.server import Server
from redbeat.store.store import Store


class Orphans:
    """What is kept in ``store`` for entries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def candidates(self) -> Iterator[tuple[str, str, str]]:
        """Yield all that is kept for any entry: what it is, the entry's name, and the text in Redis.

        It is a 'member' of the schedule, a name among the statics ('static'), a key that is 'downgraded', or
        the key of a 'history' or of what was 'backfilled'. Every key under the prefix is looked at.
        """
        keys = self._store.keys
        for page in Members(self._store).scan():
            for member, _ in page:
                yield "member", keys.name(member), member
        statics = Owners(self._store).statics()
        for name in sorted(statics.names | statics.owners.keys()):
            yield "static", name, name
        for key in self._store.read_downgraded():
            yield "downgraded", keys.name(key), key
        yield from self._store.parts.read(self._kept)

    def _kept(self, part: Part) -> Iterator[tuple[str, str, str]]:
        for start, type_ in part.keys.beside_types.items():
            for found in Server(self._store).scan(start, type_):
                for key in found:
                    yield part.keys.name(start).strip(":"), key.removeprefix(start), key

    def remove(self, remains: Sequence[Remains]) -> int:
        """Remove all of it, unless the entries are there by now; return how many texts and keys it was."""
        removed = 0
        for part, chunk in self._store.parts.chunks(remains, lambda one: one.key):
            with self._store.translating():
                removed += remove_orphans(self._store.client, part.keys, chunk)
        return removed
