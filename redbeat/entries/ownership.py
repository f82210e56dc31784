"""Which app owns which entries of ``beat_schedule``, and what a start of beat changes about that.

Several apps may have an entry of the same name, which then has several owners. celery-redbeat 2.x stores only
the names. Invariant: an entry is removed only when no other app owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from redbeat.log.text import is_utf8
from redbeat.store.owners import StaticNames, change_statics
from redbeat.store.records import Fence
from redbeat.store.store import Store


@dataclass(frozen=True)
class StaticsPlan:
    """What a start of beat changes; all are names of entries.

    Attributes:
        added: entries that the owner gets.
        removed: entries without any owner, which are removed.
        released: an owner's name to the entries that it has no more, but that aren't removed.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    released: Mapping[str, tuple[str, ...]]


def plan_statics(
    found: StaticNames,
    configured: Collection[str],
    owners: Sequence[str],
    is_removable: Callable[[str], bool],
) -> StaticsPlan:
    """Decide what to change for the first of ``owners``; the others are its former names. Pure.

    Arguments:
        configured: the names of the entries in its ``beat_schedule``.
        is_removable: tells whether a name may be that of an entry.
    """
    owner, former = owners[0], set(owners[1:]) - {owners[0]}
    mine = {name for name, those in found.owners.items() if not those.isdisjoint(owners)}
    unowned = {name for name in found.names if name not in found.owners}
    left = (mine | unowned) - set(configured)
    removed = {
        name
        for name in left & found.names  # any other may have been removed, and made again by somebody else
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
    """Store the owners of the entries of ``beat_schedule`` as ``plan`` says.

    Raises:
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    change_statics(store, fence, "remove", owner, plan.removed)
    # a name that isn't UTF-8 text can't be sent
    texts = [name for name in plan.added if isinstance(name, str) and is_utf8(name)]
    change_statics(store, fence, "add", owner, texts)
    for former, names in plan.released.items():
        change_statics(store, fence, "release", former, names)
