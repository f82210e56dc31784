"""What is found where it doesn't belong, moved home: written by mistake, or left by a mover that was killed.

Writers in other languages may not know the layout yet. Such a write is newer than what stands where the entry
belongs: its definition, policy and due time count, and what beat has recorded of the entry stays. Invariant:
it is moved as a reshard moves entries, and only by one process at a time.

No beat runs what a mover has left hidden. A mover lets nothing stand hidden for long. So what is
still on its way by the same move after some seconds, in a part whose mover hasn't changed meanwhile, is
no mover's any more. Invariant: a mover that works, also one that has just begun after another was killed, is
left alone; of one that was paused for so long the parts are taken away at once, so it moves nothing there
when it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.store.layouts import raise_generations, read_layout
from redbeat.store.mover import Mover, Stray
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.strays import Strays

#: how many entries of a former part are swept at a time
SWEPT_AT_ONCE = 100
#: how often a beat looks for them
SWEEP_SECONDS = 3.0
#: a mover that works hides nothing for so long
HIDDEN_SECONDS = 5.0
#: how often it is looked while something is hidden
LOOK_SECONDS = 1.0


class HiddenWatch:
    """Looks now and then for what is hidden in the parts of a schedule, and moves on what was left so.

    Attributes:
        hiding: the parts where the last look has found something that stays hidden.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.hiding: list[Keys] = []
        #: key of a part, and the id of a move or the token of a mover there: seen since, monotonic
        self._seen: dict[tuple[str, str], float] = {}

    def look(self, layout: Layout) -> int:
        """Move on what was left hidden; return how many entries, and other things, that were.

        One round trip a node, as long as nothing is hidden.

        Raises:
            StoreCorrupt: something else stands there.
            ReshardRefused: another process moves it by now.
        """
        parts, strays = layout.with_ending, Strays(self._store, layout)
        # what isn't a move's was written by another program
        hidden = {part: those for part, those in strays.hidden_in(parts).items() if those}
        self.hiding = [*hidden]
        by_beginning = {part.entry(""): part for part in parts}
        concerned = {
            source: [source, *{by_beginning[one.target] for one in those if one.target in by_beginning}]
            for source, those in hidden.items()
        }
        every = list(dict.fromkeys(chain.from_iterable(concerned.values())))
        tokens = dict(zip(every, strays.movers_of(every), strict=True))
        now = time.monotonic()
        found = [(part.moving, one.move) for part, those in hidden.items() for one in those]
        found += [(part.mover, token) for part, token in tokens.items()]
        self._seen = {one: self._seen.get(one, now) for one in found}

        def is_old(key: str, id_: str) -> bool:
            return now - self._seen[key, id_] >= HIDDEN_SECONDS

        stale = {part for part, token in tokens.items() if not token or is_old(part.mover, token)}
        left = [
            source
            for source, those in hidden.items()
            if stale.issuperset(concerned[source])
            and (not tokens[source] or any(is_old(source.moving, one.move) for one in those))
        ]
        involved = list(dict.fromkeys(chain.from_iterable(concerned[source] for source in left)))
        return self._move_on(left, {part: tokens[part] for part in involved})

    def finish(self, layout: Layout) -> int:
        """Look until nothing is hidden, or for some seconds; return how much was moved on."""
        ends_at, count = time.monotonic() + 3 * HIDDEN_SECONDS, self.look(layout)
        while self.hiding and time.monotonic() < ends_at:
            time.sleep(min(LOOK_SECONDS, HIDDEN_SECONDS / 4))
            count += self.look(layout)
        return count

    def _move_on(self, sources: Sequence[Keys], tokens: Mapping[Keys, str]) -> int:
        """Move on what is hidden in ``sources``.

        Arguments:
            tokens: of the parts that are concerned, each with the token of its mover.
        """
        if not sources:
            return 0
        mover, parts = Mover(self._store), [*tokens]
        mine = mover.borrow(parts, {part.generation: token for part, token in tokens.items()})
        try:
            if len(mine) < len(parts):  # another process has begun to move entries at this moment
                return 0
            raise_generations(self._store, parts)
            mover.finish_hidden(sources, parts)
            self.hiding = [part for part in self.hiding if part not in sources]
        finally:
            mover.give_back(mine)
        return mover.tally.moved


def move_home(store: Store, strays: Sequence[Stray], *, layout: Layout | None = None) -> list[str]:
    """Move strays that another program has written there by mistake; return the names of those moved.

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
        return list(dict.fromkeys(one.name for one in ready))
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
    HiddenWatch(store).look(layout)
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
        self._hidden = HiddenWatch(store)
        self._ends_at = self._looks_at = 0.0  # monotonic

    def look(self) -> list[str]:
        """Sweep if it is time to; return the names of what was moved."""
        generation, now = self._store.config.layout.generation, time.monotonic()
        if not generation or now < self._looks_at:
            return []
        layout = self._layout
        is_known = layout.generation == generation and not layout.is_under_way
        if is_known and now >= self._ends_at and not self._hidden.hiding:
            return []
        self._looks_at = now + SWEEP_SECONDS
        if not is_known:
            layout = self._layout = read_layout(self._store)
            self._ends_at = now + seconds_left(self._store, layout)
        if not layout.generation:
            return []
        self._hidden.look(layout)
        if self._hidden.hiding:
            self._looks_at = now + LOOK_SECONDS
        return _sweep(self._store, layout) if now < self._ends_at else []
