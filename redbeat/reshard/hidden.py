"""What a mover that was killed has left hidden, moved on: nobody runs it where it is.

Whoever moves entries lets none stand hidden for long. So what is still on its way by the same move after some
seconds, in a part whose mover hasn't changed meanwhile, is nobody's any more. Invariant: a mover that works,
also one that has just begun after another was killed, is left alone; of one that was paused for so long the
parts are taken away at once, so it moves nothing there when it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import chain

from redbeat.keys import Keys
from redbeat.reshard.places import parts_of
from redbeat.store.generations import LayoutRecord
from redbeat.store.layouts import Layouts
from redbeat.store.mover import Mover, OnItsWay
from redbeat.store.store import Store
from redbeat.store.strays import Strays

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
        self._moves: dict[
            tuple[str, str], float
        ] = {}  # generation key of a part, and id: seen since, monotonic
        self._movers: dict[str, tuple[str, float]] = {}  # generation key: token, and since when it is that

    def look(self, record: LayoutRecord) -> int:
        """Move on what was left hidden; return how many entries, and other things, that were.

        One round trip a node, as long as nothing is hidden.

        Raises:
            StoreCorrupt: something else stands there.
            ReshardRefused: somebody else moves it by now.
        """
        layout = record.layout(self._store)
        parts = parts_of(layout, record.former)
        strays = Strays(self._store, layout)
        hidden = strays.hidden_in(parts)
        self.hiding = [part for part, those in hidden.items() if those]  # else somebody has written it there
        self._note_moves(hidden)
        if not self.hiding:
            self._movers.clear()
            return 0
        by_beginning = {part.entry(""): part for part in parts}
        targets = {
            source: {by_beginning[one.target] for one in hidden[source] if one.target in by_beginning}
            for source in self.hiding
        }
        concerned = list(dict.fromkeys([*self.hiding, *chain.from_iterable(targets.values())]))
        self._note_movers(concerned, strays.movers_of(concerned))
        left = [
            source
            for source in self.hiding
            if self._is_stale(source, hidden[source]) and all(map(self._has_stale_mover, targets[source]))
        ]
        return self._move_on(left, list(dict.fromkeys(chain(left, *(targets[one] for one in left)))))

    def finish(self, record: LayoutRecord, seconds: float = 3 * HIDDEN_SECONDS) -> int:
        """Look until nothing is hidden, or so long; return how much was moved on."""
        ends_at, count = time.monotonic() + seconds, self.look(record)
        while self.hiding and time.monotonic() < ends_at:
            time.sleep(min(LOOK_SECONDS, HIDDEN_SECONDS / 4))
            count += self.look(record)
        return count

    def _note_moves(self, hidden: dict[Keys, list[OnItsWay]]) -> None:
        now = time.monotonic()
        found = {(part.generation, one.move) for part, those in hidden.items() for one in those}
        self._moves = {one: self._moves.get(one, now) for one in found}

    def _note_movers(self, parts: Sequence[Keys], tokens: Iterable[str]) -> None:
        before, now = self._movers, time.monotonic()
        self._movers = {}
        for part, token in zip(parts, tokens, strict=True):
            known, since = before.get(part.generation, (token, now))
            self._movers[part.generation] = token, since if known == token else now

    def _is_stale(self, source: Keys, hidden: Iterable[OnItsWay]) -> bool:
        if not self._has_stale_mover(source):
            return False
        is_free = not self._movers[source.generation][0]
        began = min(self._moves[source.generation, one.move] for one in hidden)
        return is_free or time.monotonic() - began >= HIDDEN_SECONDS

    def _has_stale_mover(self, part: Keys) -> bool:
        """Whether nobody moves entries of a part, or it has been the same one for some time."""
        token, since = self._movers[part.generation]
        return not token or time.monotonic() - since >= HIDDEN_SECONDS

    def _move_on(self, sources: Sequence[Keys], parts: Sequence[Keys]) -> int:
        if not sources:
            return 0
        mover = Mover(self._store)
        before = {part.generation: self._movers[part.generation][0] for part in parts}
        mine = mover.borrow(parts, before)
        try:
            if len(mine) < len(parts):  # somebody has begun to move entries at this moment
                return 0
            Layouts(self._store).raise_generations(parts)
            mover.finish_hidden(sources, parts)
            self.hiding = [part for part in self.hiding if part not in sources]
        finally:
            mover.give_back(mine)
        return mover.tally.moved
