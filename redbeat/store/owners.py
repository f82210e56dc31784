"""The owners of entries and calendars in Redis, and the step that changes entries and calendars with their
owners.

An entry's own field ``owner`` names the owner of the file from which it was applied. The set of an owner's
names only helps to find them, and may have names that aren't the owner's any more. The names of
``beat_schedule``'s entries are in a set that celery-redbeat 2.x reads and writes, too. Beside it is a set of
pairs, the owner, a tab and the name, as several apps may own the same name. A calendar may have several
owners, too, and one set has the pairs of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redbeat.keys import Keys
from redbeat.log.text import as_stored
from redbeat.store.parts import Part
from redbeat.store.records import Fence, text_of
from redbeat.store.rights import REMAINS
from redbeat.store.scripts import change_statics
from redbeat.store.scripts.owners import CalendarChange as CalendarChange
from redbeat.store.scripts.owners import Change as Change
from redbeat.store.scripts.owners import apply_entries, read_owners
from redbeat.store.store import Store


@dataclass(frozen=True)
class StaticNames:
    """Which entries come from ``beat_schedule``.

    Attributes:
        names: the names of these entries.
        owners: the name of an entry to its owners; celery-redbeat 2.x stores none.
    """

    names: frozenset[str]
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def pairs_of(self, name: str) -> list[str]:
        """Return the pairs in Redis for the owners of ``name``."""
        return [f"{owner}\t{name}" for owner in sorted(self.owners.get(name, ()))]


class Owners:
    """The owners of the entries and the calendars of ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[str]:
        """Return the owner of each entry; '': it wasn't applied from a file."""
        owners: list[str] = []
        for _, chunk in self._store.parts.chunks(keys):
            with self._store.translating():
                owners += read_owners(self._store.client, chunk)
        return owners

    def names_of(self, owner: str) -> set[str]:
        """Return the names that ``owner`` has applied; some may belong to another owner by now."""
        return set(self._members(lambda keys: keys.owner(owner)))

    def count_candidates(self, owner: str) -> int:
        """Return how many names ``candidates`` looks through."""

        def read(part: Part) -> Iterator[int]:
            for key in (part.keys.owner(owner), part.keys.static_owners):
                yield int(self._store.ask(partial(_size, key), key, "set"))

        return sum(self._store.parts.read(read))

    def candidates(self, owner: str) -> set[str]:
        """Return the names of entries that may be ``owner``'s, from a file or from ``beat_schedule``."""
        pairs = self._members(lambda keys: keys.static_owners)
        beginning = f"{owner}\t"
        return self.names_of(owner) | {
            pair.removeprefix(beginning) for pair in pairs if pair.startswith(beginning)
        }

    def are_of(self, owner: str, names: Sequence[str]) -> list[bool]:
        """Tell of each entry, by its name, whether it is ``owner``'s, by a file or ``beat_schedule``."""
        found: list[bool] = []
        for part, chunk in self._store.parts.chunks(names):
            key, pairs = part.keys.static_owners, [as_stored(f"{owner}\t{name}") for name in chunk]
            are_static = self._store.ask(partial(_have, key, pairs), key, "set")
            owners = self.read([part.keys.entry(name) for name in chunk])
            found += [
                bool(is_static) or one == owner for is_static, one in zip(are_static, owners, strict=True)
            ]
        return found

    def calendars(self) -> dict[str, set[str]]:
        """Return the names of applied calendars, each to its owners."""
        return _by_name(self._members(lambda keys: keys.calendar_owners))

    def statics(self) -> StaticNames:
        """Return the names of entries that were stored from ``beat_schedule``, and their owners."""
        # not in a pipeline, which redis-py 4 doesn't send again if its connection has gone stale
        names = frozenset(self._members(lambda keys: keys.statics))
        owners = _by_name(self._members(lambda keys: keys.static_owners))
        return StaticNames(names, {name: frozenset(found) for name, found in owners.items()})

    def static_among(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose entries were stored from ``beat_schedule``."""
        found: list[str] = []
        for part, chunk in self._store.parts.chunks(names):
            key, members = part.keys.statics, [as_stored(name) for name in chunk]
            are_static = self._store.ask(partial(_have, key, members), key, "set")
            found += [name for name, is_static in zip(chunk, are_static, strict=True) if is_static]
        return found

    def change_statics(self, fence: Fence, change: str, owner: str, names: Sequence[str]) -> None:
        """Make a ``change`` of what ``statics`` returns: 'add', 'release' or 'remove'.

        Raises:
            LockLost: ``fence`` has a token that isn't the lock's value.
        """
        client = self._store.client
        for part, chunk in self._store.parts.chunks(names):
            statics, owners = part.keys.statics, part.keys.static_owners
            with self._store.translating(statics, "set", besides={owners: "set"}):
                status = change_statics(client, part.keys, fence, change, owner, chunk)
            self._store.check_lock(status, fence)

    def apply(self, changes: Sequence[Change], calendars: Sequence[CalendarChange]) -> str | None:
        """Make all changes or none of them, in one step.

        Returns None, or the key of an entry or a calendar that has changed since it was read.
        """
        keys = self._store.keys
        owned = {keys.owner(change.noted_for) for change in changes if change.noted_for}
        sets = [*owned, *([keys.calendar_owners] if calendars else [])]

        def make(beside: Callable[[str], Sequence[str]]) -> str | None:
            with self._store.translating(besides=dict.fromkeys(sets, "set")):
                return apply_entries(self._store.client, keys, changes, calendars, beside)

        # what the rules of 3.0 allow is done in any case
        return self._store.rights.ask(
            REMAINS, lambda: make(keys.beside), lambda: make(lambda key: keys.beside(key)[:-1])
        )

    def _members(self, key_in: Callable[[Keys], str]) -> Iterator[str]:
        def read(part: Part) -> Iterator[Any]:
            key = key_in(part.keys)
            yield from self._store.ask(lambda client: client.smembers(key), key, "set")

        return map(text_of, self._store.parts.read(read))


def _size(key: str, client: Any) -> Any:
    return client.scard(key)


def _have(key: str, members: Sequence[bytes], client: Any) -> Any:
    return client.smismember(key, members)


def _by_name(pairs: Iterable[str]) -> dict[str, set[str]]:
    """Return names to their owners."""
    owners: dict[str, set[str]] = {}
    for pair in pairs:
        owner, _, name = pair.partition("\t")
        owners.setdefault(name, set()).add(owner)
    return owners
