"""How much of a batch is planned before what is planned is sent, and in which order.

Invariant: one entry at least is planned of each batch. While there are slow ones, those that can't be slow go
first; what is known to be slow, or was left over for lack of time, waits for the others, the oldest first.
The oldest that waits is planned with each batch all the same, so that it doesn't wait for ever.

What is dear to read and to send can't be stopped amid it, and must run: it goes last and by itself. Dear is
an entry of more than ``LARGE_BYTES``, or one that took ``DEAR_SECONDS`` of processor time before. Batches are
the others' turn or the dear ones'. Theirs comes when the others that are due have been recorded (or three
batches of others, if there are always more), and takes half of the time at the most: as long as it took
nothing dear is begun after it. So an entry that falls due waits for one dear batch, however many there are:
for a quarter of a second's worth of them, or for one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

from redbeat.process.memory import Memory
from redbeat.store.records import Claimed, Sizes

#: processor time after which a batch sends what is planned, and leaves the rest due
BATCH_SECONDS = 0.25

#: processor time of a plan that makes an entry a slow one
SLOW_SECONDS = 0.005

#: a larger entry waits for the others, and is sent by itself
LARGE_BYTES = 256 * 1024

#: so does one whose plan and message together took this processor time, a small one twice
DEAR_SECONDS = 0.1

#: what a large entry may take for each character, as long as it isn't known
SECONDS_PER_CHARACTER = 1.5e-7

#: batches of others after which dear ones that are due have their turn even though others are due, too
OTHERS_TURNS = 3

#: a dear batch waits this many times as long as the one before took
REST_FACTOR = 1.0

#: how many slow entries are remembered, and how many dear ones; then all are forgotten
MAX_REMEMBERED = 10_000

#: while there are slow entries, a batch is this many times the usual: the others must be among it
ENLARGED = 10
#: but no more entries than this, all of which are held at once
MAX_ENLARGED = 5_000

#: kinds of schedule that are never slow
_QUICK_KINDS = frozenset({"interval", "crontab", "clocked"})
#: which kind one has isn't looked up in a definition of more characters: that would take a while itself
_MAX_LOOKED_UP = 16_384

#: the place of those that wait for the others
_WAITS = 2


class Pace:
    """One beat's memory of what is slow to plan, and its watch on the present batch."""

    def __init__(self) -> None:
        self._slow = Memory[str, int](MAX_REMEMBERED)  # how often in a row
        self._left: set[str] = set()
        self._left_rows: Sequence[Claimed] = ()
        self._has_met_slow = False
        self._dear: dict[str, float] = {}  # what they took, seconds of processor time
        self._small_dear: set[str] = set()  # those of them that aren't large
        self._suspected: set[str] = set()  # what isn't large, and was dear once
        self._held_rows: Sequence[Claimed] = ()
        self._turns_waited = 0  # batches of others while dear ones were due
        self._is_dear_turn = False
        self._rest_until = 0.0
        self._planned_cpu: dict[str, float] = {}
        self._entry_began_cpu = 0.0
        self._began_at = self._entry_began_at = self._began_cpu = 0.0
        self._asked_at = self._asked_cpu = 0.0  # the two clocks, when the second was asked last

    def enlarge(self, batch_size: int) -> int:
        """Return how many entries to claim: slow ones take nobody's place."""
        if not self._has_met_slow:
            return batch_size
        return max(batch_size, min(ENLARGED * batch_size, MAX_ENLARGED))

    # -- whose turn it is

    def begin_batch(self) -> Sizes:
        """Begin a batch; return which entries are to be claimed for it."""
        if self._turns_waited >= OTHERS_TURNS and not self.seconds_to_dear():
            return self.begin_dear_batch()
        self._is_dear_turn = False
        return Sizes(0, LARGE_BYTES)

    def begin_dear_batch(self) -> Sizes:
        """Begin a batch of dear ones, as no others are due; return which entries are to be claimed for it."""
        self._turn_began_at = time.monotonic()
        self._is_dear_turn, self._turns_waited = (
            True,
            0,
        )  # the others' next turn finds out whether there are more
        self._planned_cpu.clear()
        return Sizes(0 if self._small_dear else LARGE_BYTES + 1, 0)

    def note_held(self) -> None:
        """Take notice that large ones stay due, as it is the others' turn."""
        self._turns_waited += 1

    def end_batch(self) -> None:
        """End a batch, which has been recorded."""
        if self._is_dear_turn:
            now = time.monotonic()
            self._rest_until = now + REST_FACTOR * (now - self._turn_began_at)

    @property
    def has_dear(self) -> bool:
        """Whether dear ones are due and wait."""
        return self._turns_waited > 0

    def seconds_to_dear(self) -> float:
        """Return how long dear ones that are due have to wait yet."""
        return max(self._rest_until - time.monotonic(), 0.0)

    def take_held(self) -> Sequence[Claimed]:
        """Return, once, those of the batch that wait for the dear ones' turn."""
        held, self._held_rows = self._held_rows, ()
        return held

    def _until_dear(self, rows: Sequence[Claimed]) -> Iterator[Claimed]:
        """Yield dear ones for a batch's time by what they are known or thought to take."""
        left, seconds = [], 0.0
        is_full = False
        for claimed in rows:
            characters = sum(len(text) for text in (claimed.definition, claimed.meta, claimed.policy) if text)
            # by its bytes, as it was claimed, it may be a large one
            is_dear = claimed.key in self._dear or 4 * characters > LARGE_BYTES or claimed.unread_bytes > 0
            cost = self._dear.get(claimed.key, characters * SECONDS_PER_CHARACTER)
            if not is_dear or is_full or (seconds and seconds + cost > BATCH_SECONDS):
                is_full = is_full or is_dear
                left.append(claimed)
                continue
            seconds += cost
            self._entry_began_cpu = time.thread_time()
            yield claimed
        self._left_rows = left

    # -- planning

    def until_spent(self, rows: Sequence[Claimed]) -> Iterator[Claimed]:
        """Yield the entries of a batch in the order to plan them in, until it has had its time."""
        self._began_at, self._began_cpu = time.monotonic(), time.thread_time()
        self._asked_at, self._asked_cpu = self._began_at, self._began_cpu
        if self._is_dear_turn:
            yield from self._until_dear(rows)
            return
        if self._small_dear:
            self._held_rows = [claimed for claimed in rows if claimed.key in self._small_dear]
            rows = [claimed for claimed in rows if claimed.key not in self._small_dear]
            self._turns_waited += bool(self._held_rows)
        ordered, waiting = self._order(rows) if self._has_met_slow else (list(rows), len(rows))
        self._has_met_slow, left = False, ordered[len(ordered) :]
        for position, claimed in enumerate(ordered):
            if self._is_spent() and position:
                left = ordered[position:]
                if position <= waiting < len(ordered):
                    yield left.pop(waiting - position)
                break
            yield claimed
        self._end(left)

    def _order(self, rows: Sequence[Claimed]) -> tuple[list[Claimed], int]:
        """Return ``rows`` in the order to plan them in, and where those begin that wait for the others."""
        places = [self._place(claimed) for claimed in rows]
        positions = sorted(range(len(rows)), key=places.__getitem__)
        return [rows[position] for position in positions], sum(place < _WAITS for place in places)

    def _place(self, claimed: Claimed) -> int:
        times = self._slow.get(claimed.key, 0)
        if _is_quick(claimed):  # but for what its policy may take: once is a slow moment
            return _WAITS if times > 1 else 0
        return _WAITS if times or claimed.key in self._left else 1

    def take_left(self) -> Sequence[Claimed]:
        """Return, once, what of the batch wasn't planned."""
        left, self._left_rows = self._left_rows, ()
        return left

    def _is_spent(self) -> bool:
        """Begin an entry, and tell whether the batch has had its time before."""
        self._entry_began_at = time.monotonic()
        if self._entry_began_at - self._began_at <= BATCH_SECONDS:
            return False
        return time.thread_time() - self._began_cpu > BATCH_SECONDS  # to ask that takes longer

    def note_planned(self, key: str, read_seconds: float) -> None:
        """Remember the entry under ``key`` if it was slow to plan, besides what reading it may take."""
        if self._is_dear_turn:
            self._planned_cpu[key] = time.thread_time() - self._entry_began_cpu
            return
        slow_seconds = SLOW_SECONDS + read_seconds
        if time.monotonic() - self._entry_began_at > slow_seconds and self._busy_seconds() > slow_seconds:
            self._slow[key] = self._slow.get(key, 0) + 1
            self._has_met_slow = True
        elif self._slow:
            self._slow.pop(key, None)

    def note_sending(self) -> None:
        """Take notice that an entry's message is about to be made."""
        self._entry_began_at = time.monotonic()
        if self._is_dear_turn:
            self._entry_began_cpu = time.thread_time()

    def note_sent(self, key: str) -> float:
        """Return how much processor time the entry under ``key`` took if that is dear, else 0."""
        if self._is_dear_turn:
            seconds = self._planned_cpu.get(key, 0.0) + time.thread_time() - self._entry_began_cpu
        elif time.monotonic() - self._entry_began_at > DEAR_SECONDS:
            seconds = self._busy_seconds()
        else:
            return 0.0
        if seconds <= DEAR_SECONDS:
            self._dear.pop(key, None)
            self._small_dear.discard(key)
            self._suspected.discard(key)
            return 0.0
        if len(self._dear) + len(self._suspected) >= MAX_REMEMBERED:
            self._dear.clear()
            self._small_dear.clear()
            self._suspected.clear()
        if not self._is_dear_turn and key not in self._suspected:
            self._suspected.add(key)  # once is a slow moment: what its message needs was imported, say
            return 0.0
        self._dear[key] = seconds
        if not self._is_dear_turn:
            self._small_dear.add(key)
        return seconds

    def _busy_seconds(self) -> float:
        """Return how much processor time the entry took at least: the machine has others to work for."""
        used, before = time.thread_time() - self._asked_cpu, self._entry_began_at - self._asked_at
        self._asked_at, self._asked_cpu = time.monotonic(), time.thread_time()
        return used - before  # those before it had no more than the time that passed

    def _end(self, left: Sequence[Claimed]) -> None:
        self._left_rows = left
        # many that can't be slow are no reason to claim more, nor to plan them in another order
        self._left = {claimed.key for claimed in left if not _is_quick(claimed)}
        self._has_met_slow = self._has_met_slow or bool(self._left)


def _is_quick(claimed: Claimed) -> bool:
    """Tell whether its schedule is of a kind that can't be slow; what its task is given may look like one."""
    definition = claimed.definition or ""
    if len(definition) > _MAX_LOOKED_UP:
        return False
    try:
        return json.loads(definition)["schedule"]["__type__"] in _QUICK_KINDS
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
