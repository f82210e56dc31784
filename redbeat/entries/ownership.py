"""Whose the entries of an app's ``beat_schedule`` are, and what a start of beat changes of that.

Several apps may have an entry of the same name. celery-redbeat 2.x notes names only, and no apps.

Invariant: nobody's entries are removed for somebody else's sake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from redbeat.log.text import is_utf8
from redbeat.store.owners import Owners, StaticNames
from redbeat.store.records import Fence
from redbeat.store.store import Store


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
    """Change whose the entries of ``beat_schedule`` are as ``plan`` says.

    Raises:
        LockLost: ``fence`` has a token that isn't the lock's value.
    """
    owners = Owners(store)
    owners.change_statics(fence, "remove", owner, plan.removed)
    # a name that is no text can't be sent
    texts = [name for name in plan.added if isinstance(name, str) and is_utf8(name)]
    owners.change_statics(fence, "add", owner, texts)
    for former, names in plan.released.items():
        owners.change_statics(fence, "release", former, names)
