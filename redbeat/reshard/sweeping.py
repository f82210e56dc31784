"""What is found where it doesn't belong, moved home: writers in other languages may not know the layout yet.

Such a write is newer than what stands where the entry belongs: its definition, policy and due time count, and
what beat has recorded of the entry stays. Invariant: it is moved as a reshard moves entries, and only by one
process at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.hidden import LOOK_SECONDS, HiddenWatch
from redbeat.reshard.places import ending_parts
from redbeat.store.generations import Generations, LayoutRecord
from redbeat.store.layouts import Layouts
from redbeat.store.mover import Mover, Stray
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.strays import Strays, names_of

#: how many entries of a former part are swept at a time
SWEPT_AT_ONCE = 100
#: how often a beat looks for them
SWEEP_SECONDS = 3.0


def move_home(store: Store, strays: Sequence[Stray], *, layout: Layout | None = None) -> list[str]:
    """Move strays that somebody has written where they are by mistake; return the names of those moved.

    Those of parts whose entries another process moves stay for now.

    Arguments:
        layout: where entries belong; None: as this process knows it.

    Raises what the store's methods do, and ReshardRefused: the layout was changed meanwhile, or some can't
    be moved.
    """
    mover = Mover(store)
    mine = mover.borrow(list(dict.fromkeys(part for one in strays for part in (one.source, one.target))))
    try:
        _finish_hidden(store, mover, mine, layout or store.config.layout)
        ready = [one for one in strays if one.source in mine and one.target in mine]
        mover.move_all(ready, None, is_foreign=True)
        for name, why in mover.tally.unmoved.items():
            raise ReshardRefused(f"{name}: can't be moved to where it belongs: {why}")
        return names_of(ready)
    finally:
        mover.give_back(mine)


def _finish_hidden(store: Store, mover: Mover, mine: Sequence[Keys], layout: Layout) -> None:
    """Move on what a mover that was killed has left hidden in parts that ``mover`` has borrowed."""
    hiding = Strays(store, layout).hiding(mine)
    if not hiding:
        return
    theirs = {part.generation for part in mine}
    others = mover.borrow([part for part in layout.parts if part.generation not in theirs])
    try:
        mover.finish_hidden(hiding, [*mine, *others], are_all_known=False)
    finally:
        mover.give_back(others)


def misplaced(store: Store, part: Keys, names: Iterable[str]) -> list[Stray]:
    """Return those of ``names``, of entries that were found in ``part``, that belong to another part.

    While entries move there are none: they are on their way.
    """
    layout = store.config.layout
    if layout.is_moving:
        return []
    strays = Strays(store, layout)
    return [one for name in names for one in strays.of_name(part, name)]


def seconds_left(store: Store, record: LayoutRecord) -> float:
    """Return for how long former parts are swept; 0: they aren't, or aren't yet, as entries move."""
    if record.is_under_way or record.swept_until is None:
        return 0.0
    return max(record.swept_until - Server(store).now().timestamp(), 0.0)


def sweep(store: Store) -> list[str]:
    """Move home what was written to parts that aren't any more; return the names.

    It does nothing when the time is over for which former parts are swept, or while entries move.
    """
    record = Generations(store).read()
    if not seconds_left(store, record):
        return []
    HiddenWatch(store).look(record)
    return _sweep(store, record)


def _sweep(store: Store, record: LayoutRecord) -> list[str]:
    layout = record.layout(store)
    ending = ending_parts(layout, record.former)
    swept: list[str] = []
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
        self._record: LayoutRecord | None = None
        self._hidden = HiddenWatch(store)
        self._ends_at = self._looks_at = 0.0  # monotonic

    def look(self) -> list[str]:
        """Sweep if it is time to; return the names of what was moved."""
        layout = self._store.config.layout
        now = time.monotonic()
        if not layout.generation or now < self._looks_at:
            return []
        record = self._record
        is_known = record is not None and record.generation == layout.generation and not record.is_under_way
        if is_known and now >= self._ends_at and not self._hidden.hiding:
            return []
        self._looks_at = now + SWEEP_SECONDS
        if record is None or not is_known:
            record = self._record = Generations(self._store).read()
            self._ends_at = now + seconds_left(self._store, record)
        if not record.generation:
            Layouts(self._store).recover()
            return []
        self._hidden.look(record)
        if self._hidden.hiding:
            self._looks_at = now + LOOK_SECONDS
        return _sweep(self._store, record) if now < self._ends_at else []
