"""What is found where it doesn't belong, moved home: written by mistake, or left by a mover that was killed.

Writers in other languages may not know the layout yet. Such a write is newer than what stands where the entry
belongs: its definition, policy and due time count, and what beat has recorded of the entry stays. Invariant:
it is moved as a reshard moves entries, and only by one process at a time.

No beat runs what a mover has left hidden. Others move that on when its time as the mover is over. Invariant:
a mover that works, also one that has just begun after another was killed, is left alone; one that was paused
for so long is refused when it goes on with what it had hidden.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.store.layouts import raise_generations, read_layout
from redbeat.store.mover import Mover, Stray
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.strays import Strays, hiding_in

#: how many entries of a former part are swept at a time
SWEPT_AT_ONCE = 100
#: how often a beat looks for them, and for what was left hidden
SWEEP_SECONDS = 2.0
#: how often it is looked whether another mover has ended
LOOK_SECONDS = 0.5


def free_hidden(store: Store, parts: Sequence[Keys], *, wait_seconds: float = 0.0) -> list[Keys]:
    """Move on what a mover that has ended has left hidden; return the parts where another one works now.

    One round trip a node, as long as nothing is hidden.

    Arguments:
        parts: those from which, and to which, it may be on its way.
        wait_seconds: for how long it is waited for the other one's end.

    Raises:
        StoreCorrupt: something else stands there.
        ReshardRefused: another process moves it by now.
    """
    ends_at = time.monotonic() + wait_seconds
    while hiding := hiding_in(store, parts):
        mover = Mover(store)
        try:
            if len(mover.borrow(parts)) == len(parts):
                raise_generations(store, parts)
                mover.finish_hidden(hiding, parts)
                return []
        finally:
            mover.give_back()
        if time.monotonic() >= ends_at:
            return hiding
        time.sleep(LOOK_SECONDS)
    return []


def move_home(store: Store, strays: Sequence[Stray], *, layout: Layout | None = None) -> list[str]:
    """Move strays that another program has written there by mistake; return the names of those moved.

    Those of parts whose entries another process moves stay for now.

    Arguments:
        layout: where entries belong; None: as this process knows it.

    Raises what the store's methods do, and ReshardRefused: the layout was changed meanwhile, or some can't
    be moved.
    """
    layout = layout or store.config.layout
    parts = {part.prefix: part for part in (*layout.with_ending, *(one.source for one in strays))}
    free_hidden(store, [*parts.values()])
    mover = Mover(store)
    try:
        mine = mover.borrow(list(dict.fromkeys(part for one in strays for part in (one.source, one.target))))
        ready = [one for one in strays if one.source in mine and one.target in mine]
        mover.move_all(ready, None, is_foreign=True)
        for name, why in mover.tally.unmoved.items():
            raise ReshardRefused(f"{name}: can't be moved to where it belongs: {why}")
        return list(dict.fromkeys(one.name for one in ready))
    finally:
        mover.give_back()


def misplaced(store: Store, part: Keys, names: Iterable[str]) -> list[Stray]:
    """Return those of ``names``, of entries that were found in ``part``, that belong to another part.

    While entries move there are none: they are on their way.
    """
    layout = store.config.layout
    if layout.is_moving:
        return []
    return Strays(store, layout).among(part, names)


def seconds_left(store: Store, layout: Layout) -> float:
    """Return for how long former parts are swept; 0: they aren't, or aren't yet, as entries move."""
    if layout.is_under_way or layout.swept_until is None:
        return 0.0
    return max(layout.swept_until - Server(store).now().timestamp(), 0.0)


def sweep(store: Store) -> list[str]:
    """Move home what was written to parts that aren't any more; return the names.

    It does nothing when the time is over for which former parts are swept, or while entries move.
    """
    layout = read_layout(store)
    if not seconds_left(store, layout):
        return []
    free_hidden(store, layout.with_ending)
    return _sweep(store, layout)


def _sweep(store: Store, layout: Layout) -> list[str]:
    ending, swept = layout.ending, list[str]()
    while ending and (found := Strays(store, layout).first_members(ending, SWEPT_AT_ONCE)):
        moved = move_home(store, found, layout=layout)
        swept += moved
        if not moved:
            break
    return list(dict.fromkeys(swept))


class Sweeper:
    """Sweeps former parts for a beat, for as long as that is to be done after the layout has changed, and
    moves on what a mover that was killed has left hidden, while it changes, too.

    A look costs nothing when the time is over, and a round trip a node or two before that.

    Arguments:
        store: the whole schedule.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._layout = Layout(store.config.base_keys)  # as it was read last
        self._ends_at = self._looks_at = 0.0  # monotonic

    def look(self) -> list[str]:
        """Sweep if it is time to; return the names of what was moved."""
        generation, now = self._store.config.layout.generation, time.monotonic()
        if not generation or now < self._looks_at:
            return []
        layout = self._layout
        is_known = layout.generation == generation and not layout.is_under_way
        if is_known and now >= self._ends_at:
            return []
        self._looks_at = now + SWEEP_SECONDS
        if not is_known:
            layout = self._layout = read_layout(self._store)
            self._ends_at = now + seconds_left(self._store, layout)
        if not layout.generation:
            return []
        free_hidden(self._store, layout.with_ending)
        return _sweep(self._store, layout) if now < self._ends_at else []
