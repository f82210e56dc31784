"""Whose entries are: those of a file that was applied, and those of an app's ``beat_schedule``.

An entry's own field ``owner`` says from whose file it comes, so that it goes with the entry; the set of an
owner's names only helps to find them, and may hold names that aren't the owner's any more. The entries of
``beat_schedule`` stand in a set of plain names, which celery-redbeat 2.x reads and writes, too, and beside it
in a set of owners with names: several apps may have the same one.

A calendar may be several owners', too; a set has the pairs of all.

Invariant: nobody's entries are removed for somebody else's sake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from redbeat.log.text import is_utf8
from redbeat.store import scripts as lua
from redbeat.store.chunks import in_chunks
from redbeat.store.records import Fence, text_of
from redbeat.store.scripts import owners as scripts
from redbeat.store.store import Store

__all__ = [
    "StaticNames",
    "StaticsPlan",
    "note_statics",
    "plan_statics",
    "read_calendar_owners",
    "read_names_of",
    "read_owners",
    "read_statics",
]


@dataclass(frozen=True)
class StaticNames:
    """Which entries come from ``beat_schedule``.

    Attributes:
        names: of these entries.
        owners: name to those whose it is. celery-redbeat 2.x notes none.
    """

    names: frozenset[str]
    owners: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def pairs_of(self, name: str) -> list[str]:
        """Return what stands in Redis of the owners of ``name``."""
        return [f"{owner}\t{name}" for owner in sorted(self.owners.get(name, ()))]


@dataclass(frozen=True)
class StaticsPlan:
    """What a start of beat changes of it, names of entries each.

    Attributes:
        added: they become the owner's.
        removed: nobody has them any more.
        released: name of an owner to what isn't that one's any more, and somebody else's still.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    released: Mapping[str, tuple[str, ...]]


def read_statics(store: Store) -> StaticNames:
    """Return which entries were stored from ``beat_schedule``."""
    keys = store.keys
    # one by one, as redis-py 4 doesn't send a pipeline again whose connection has gone stale
    with store.translating(keys.statics, "set"):
        names = store.client.smembers(keys.statics)
    with store.translating(keys.static_owners, "set"):
        pairs = store.client.smembers(keys.static_owners)
    owners: dict[str, set[str]] = {}
    for pair in pairs:
        owner, _, name = str(text_of(pair)).partition("\t")
        owners.setdefault(name, set()).add(owner)
    return StaticNames(
        frozenset(text_of(name) for name in names),
        {name: frozenset(found) for name, found in owners.items()},
    )


def plan_statics(
    found: StaticNames,
    configured: Collection[str],
    owners: Sequence[str],
    is_removable: Callable[[str], bool],
) -> StaticsPlan:
    """Decide what to change for the first of ``owners``; the others are its former names. Pure.

    Arguments:
        configured: the names of its ``beat_schedule``.
        is_removable: tells of a name whether it may be an entry's.
    """
    owner, former = owners[0], set(owners[1:]) - {owners[0]}
    mine = {name for name, those in found.owners.items() if not those.isdisjoint(owners)}
    unowned = {name for name in found.names if name not in found.owners}
    left = (mine | unowned) - set(configured)
    removed = {
        name
        for name in left & found.names  # others may have been removed, and made anew, by anybody
        if found.owners.get(name, frozenset()) <= set(owners) and is_removable(name)
    }
    released = {one: {name for name, those in found.owners.items() if one in those} for one in former}
    released[owner] = {name for name in left - removed if owner in found.owners.get(name, ())}
    added = [
        name for name in configured if name not in found.names or owner not in found.owners.get(name, ())
    ]
    return StaticsPlan(
        tuple(added),
        tuple(sorted(removed)),
        {one: tuple(sorted(names)) for one, names in released.items() if names},
    )


def note_statics(store: Store, fence: Fence, owner: str, plan: StaticsPlan) -> None:
    """Change what ``read_statics`` returns as ``plan`` says.

    Raises:
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    _change(store, fence, "remove", owner, plan.removed)
    # a name that is no text can't be sent
    texts = [name for name in plan.added if isinstance(name, str) and is_utf8(name)]
    _change(store, fence, "add", owner, texts)
    for former, names in plan.released.items():
        _change(store, fence, "release", former, names)


def _change(store: Store, fence: Fence, change: str, owner: str, names: Sequence[str]) -> None:
    statics, static_owners = store.keys.statics, store.keys.static_owners
    for chunk in in_chunks(names):
        with store.translating(statics, "set", sets=[static_owners]):
            status = lua.change_statics(store.client, statics, static_owners, fence, change, owner, chunk)
        store.check_lock(status, fence)


def read_owners(store: Store, keys: Sequence[str]) -> list[str]:
    """Return of each entry from whose file it comes, '' for nobody's."""
    owners: list[str] = []
    for chunk in in_chunks(keys):
        with store.translating():
            owners += scripts.read_owners(store.client, chunk)
    return owners


def read_names_of(store: Store, owner: str) -> set[str]:
    """Return the names that ``owner`` has applied; some may be another's by now."""
    key = store.keys.owner(owner)
    with store.translating(key, "set"):
        found: Iterable[str] = store.client.smembers(key)
    return {text_of(name) for name in found}


def read_calendar_owners(store: Store) -> dict[str, set[str]]:
    """Return who has applied calendars: their names to the owners, of which there may be several."""
    key = store.keys.calendar_owners
    with store.translating(key, "set"):
        pairs: Iterable[str] = store.client.smembers(key)
    owners: dict[str, set[str]] = {}
    for pair in pairs:
        owner, _, name = str(text_of(pair)).partition("\t")
        owners.setdefault(name, set()).add(owner)
    return owners
