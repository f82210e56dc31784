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
from itertools import islice

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.store.layouts import read_contents
from redbeat.store.mover import Mover, Stray
from redbeat.store.store import Store
from redbeat.store.strays import Strays, hiding_in

#: for how long what is written to former parts is moved to where it belongs
SWEPT_SECONDS = 600
#: how many entries of a former part are swept at a time
SWEPT_AT_ONCE = 100
#: how often a beat looks for them, and for what was left hidden
SWEEP_SECONDS = 2.0


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
    hiding = hiding_in(store, parts)
    if hiding:
        with Mover(store) as mover:
            if not mover.take(parts, wait_seconds):
                return hiding
            mover.finish_hidden(parts)
    return []


def move_home(store: Store, strays: Sequence[Stray]) -> list[str]:
    """Move strays that another program has written there by mistake; return the names of those moved.

    None is while another process moves entries in any of their parts.

    Raises what the store's methods do, and ReshardRefused: the layout was changed meanwhile, or some can't
    be moved.
    """
    with Mover(store) as mover:
        if not strays or not mover.take(part for one in strays for part in (one.source, one.target)):
            return []
        mover.move_all(strays, None, is_foreign=True)
        for name, why in mover.tally.unmoved.items():
            raise ReshardRefused(f"{name}: can't be moved to where it belongs: {why}")
    return list(dict.fromkeys(one.name for one in strays))


def misplaced(store: Store, part: Keys, names: Iterable[str]) -> list[Stray]:
    """Return those of ``names``, of entries that were found in ``part``, that belong to another part.

    While entries move there are none: they are on their way.
    """
    layout = store.config.layout
    return [] if layout.is_moving else Strays(store, layout).among(part, names)


class Sweeper:
    """Sweeps former parts for a beat, for a while after it has started or the layout has changed.

    Then, and while entries move, it also moves on what a mover that was killed has left hidden.

    A look costs nothing when the time is over, and a round trip a node or two before that.

    Arguments:
        store: the whole schedule.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._generation = 0  # of the layout that is known
        self._ends_at = self._looks_at = 0.0  # monotonic

    def look(self) -> list[str]:
        """Sweep if it is time to; return the names of what was moved."""
        store, layout, now = self._store, self._store.config.layout, time.monotonic()
        if layout.generation != self._generation:
            self._generation, self._ends_at = layout.generation, now + SWEPT_SECONDS
        is_over = now >= self._ends_at and not layout.is_moving
        # of the first layout there are no former parts
        if layout.generation < 2 or is_over or now < self._looks_at:
            return []
        self._looks_at = now + SWEEP_SECONDS
        free_hidden(store, layout.with_ending)
        ending = () if layout.is_moving else layout.ending
        found = zip(ending, read_contents(store, ending), strict=True)
        foreign = Strays(store, layout).found_in(part for part, contents in found if contents.entries)
        return move_home(store, [*islice(foreign, SWEPT_AT_ONCE)])
