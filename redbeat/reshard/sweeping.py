"""What is found where it doesn't belong, moved home: writers in other languages may not know the layout yet.

Such a write is newer than what stands where the entry belongs: its definition, policy and due time count, and
what beat has recorded of the entry stays. Invariant: it is moved as a reshard moves entries, and only by one
process at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.store.generations import Generations
from redbeat.store.mover import Mover, Stray
from redbeat.store.store import Store
from redbeat.store.strays import Strays, names_of

#: how many entries of a former part are swept at a time
SWEPT_AT_ONCE = 100


def move_home(store: Store, strays: Sequence[Stray]) -> list[str]:
    """Move strays that somebody has written where they are by mistake; return the names of those moved.

    Those of parts whose entries another process moves stay for now.

    Raises what the store's methods do, and ReshardRefused: the layout was changed meanwhile.
    """
    mover = Mover(store)
    parts = list(dict.fromkeys(part for one in strays for part in (one.source, one.target)))
    mine = mover.borrow(parts)
    try:
        mover.finish_hidden(mine)
        ready = [one for one in strays if one.source in mine and one.target in mine]
        mover.move(ready, None, is_foreign=True)
        return names_of(ready)
    finally:
        mover.give_back(mine)


def misplaced(store: Store, part: Keys, names: Iterable[str]) -> list[Stray]:
    """Return those of ``names``, of entries that were found in ``part``, that belong to another part.

    While entries move there are none: they are on their way.
    """
    layout = store.config.layout
    if layout.is_moving:
        return []
    strays = Strays(store, layout)
    return [one for name in names for one in strays.of_name(part, name)]


def sweep(store: Store) -> list[str]:
    """Move home what was written to parts that aren't any more, in two round trips a node where there is
    nothing; return the names.

    It does nothing when the time is over for which former parts are swept, or while entries move.
    """
    record = Generations(store).read()
    if record.is_under_way or record.swept_until is None:
        return []
    with store.translating():
        now = int(store.client.time()[0])
    if now > record.swept_until:
        return []
    layout = record.layout(store)
    ending = ending_parts(layout, record.former)
    swept: list[str] = []
    while ending and (found := Strays(store, layout).first_members(ending, SWEPT_AT_ONCE)):
        moved = move_home(store, found)
        swept += moved
        if not moved:
            break
    return list(dict.fromkeys(swept))


def ending_parts(layout: Layout, former: int | None) -> list[Keys]:
    """Return the parts of ``former`` shards that aren't parts of ``layout``, as they are when it is settled.

    Arguments:
        former: how many shards there were; None: there were none.
    """
    here = {part.generation for part in replace(layout, is_moving=False).parts}
    before = replace(layout, shards=former, former=None, is_moving=False).parts
    return [replace(part, guard=layout.closed_guard) for part in before if part.generation not in here]
