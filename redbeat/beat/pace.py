"""How much of a batch is planned before what is planned is sent, and in which order.

An entry is slow if planning its run took more than ``SLOW_SECONDS``. Invariant: at least one entry of each
batch is planned. While there are slow entries, those that can't be slow are planned first. Entries that are
known to be slow, or were left over for lack of time, wait for the others; the oldest of those that wait is
planned with each batch all the same, so that it doesn't wait for ever.

An entry is costly if it is larger than ``LARGE_BYTES``, or if reading and sending it took more than
``COSTLY_SECONDS``. That can't be interrupted, and it must run all the same, so it goes last, in batches of
its own. A costly batch has its turn when all other due entries are recorded, or after three batches of others
if there are always more. It takes a quarter of a second by what its entries are known or estimated to take,
and at least one entry. The next costly batch begins when as much time has passed as this one took. So the
costly entries have half of the time at most, and an entry that falls due waits for one costly batch at most,
however many there are.

All of these times are processor time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

from redbeat.process.memory import Memory
from redbeat.store.records import Claimed, Sizes

#: a batch that has taken this much processor time sends what is planned, and leaves the rest due; several
#: that follow each other, of several shards, share it
BATCH_SECONDS = 0.25

#: an entry whose plan took more processor time is slow
SLOW_SECONDS = 0.005

#: a larger entry is costly
LARGE_BYTES = 256 * 1024

#: an entry is costly if its plan and its message together took more processor time, a small one twice
COSTLY_SECONDS = 0.1

#: processor time that a large entry is estimated to take for each character before it is measured
SECONDS_PER_CHARACTER = 1.5e-7

#: the sizes of entries that aren't costly
OTHERS = Sizes(0, LARGE_BYTES)

#: how many batches of others costly entries wait for at most, if others are always due
OTHERS_TURNS = 3

#: the next costly batch begins this many times as long after the last as that one took
REST_FACTOR = 1.0

#: how many slow entries are remembered, and how many costly ones; when there are more, all are forgotten
MAX_REMEMBERED = 10_000

#: while there are slow entries, this many times as many are claimed, so that others are among them
ENLARGED = 10
#: how many entries are claimed then at most, as all of them are held in memory
MAX_ENLARGED = 5_000

#: types of schedule that are never slow
_QUICK_KINDS = frozenset({"interval", "crontab", "clocked"})
#: the type isn't looked up in a longer definition, as that would take long itself; characters
_MAX_LOOKED_UP = 16_384

#: entries with this place or a higher one wait for the others
_WAITS = 2


class Rest:
    """Until when no costly batch begins, as the last one has just ended; all shards of a beat share it.

    Attributes:
        until: monotonic.
    """

    until = 0.0


class Pace:
    """The memory of what is slow to plan of one part of the schedule, and the watch on its present batch.

    Arguments:
        rest: the pauses after costly batches; by default this one's alone.

    Attributes:
        batch_seconds: a batch that has taken this much processor time sends what is planned.
    """

    def __init__(self, rest: Rest | None = None) -> None:
        self.batch_seconds = BATCH_SECONDS
        self._rest = rest or Rest()
        self._slow = Memory[str, int](MAX_REMEMBERED)  # how often in a row
        self._left: set[str] = set()
        self._left_rows: Sequence[Claimed] = ()
        self._has_met_slow = False
        self._costly: dict[str, float] = {}  # processor time of each, seconds
        self._small_costly: set[str] = set()  # those of them that aren't large
        self._suspected: set[str] = set()  # entries that aren't large, and were costly once
        self._held_rows: Sequence[Claimed] = ()
        self._turns_waited = 0  # batches of others while costly entries were due
        self._is_costly_turn = False
        self._planned_cpu: dict[str, float] = {}
        self._entry_began_cpu = 0.0
        self._began_at = self._entry_began_at = self._began_cpu = 0.0
        self._asked_at = self._asked_cpu = 0.0  # wall and processor time when the latter was read last

    def enlarge(self, batch_size: int) -> int:
        """Return how many entries to claim: more than ``batch_size`` while there are slow ones."""
        if not self._has_met_slow:
            return batch_size
        return max(batch_size, min(ENLARGED * batch_size, MAX_ENLARGED))

    # -- whose turn it is

    def begin_others(self) -> Sizes:
        """Begin a batch of others than costly entries; return which entries are to be claimed for it."""
        self._is_costly_turn = False
        return OTHERS

    def begin_batch(self) -> Sizes:
        """Begin a batch; return which entries are to be claimed for it."""
        if self._turns_waited >= OTHERS_TURNS and not self.seconds_to_costly():
            return self.begin_costly_batch()
        return self.begin_others()

    def begin_costly_batch(self) -> Sizes:
        """Begin a batch of costly entries; return which entries are to be claimed for it."""
        self._turn_began_at = time.monotonic()
        self._is_costly_turn = True
        self._turns_waited = 0  # the next batch of others finds out whether there are more
        self._planned_cpu.clear()
        return Sizes(0 if self._small_costly else LARGE_BYTES + 1, 0)

    @property
    def is_costly_turn(self) -> bool:
        """Whether this batch is one of costly entries."""
        return self._is_costly_turn

    def note_held(self) -> None:
        """Note that large entries stay due, as it is the others' turn."""
        self._turns_waited += 1

    def end_batch(self) -> None:
        """End a batch, which has been recorded."""
        if self._is_costly_turn:
            now = time.monotonic()
            self._rest.until = now + REST_FACTOR * (now - self._turn_began_at)

    @property
    def has_costly(self) -> bool:
        """Whether costly entries are due and wait."""
        return self._turns_waited > 0

    def seconds_to_costly(self) -> float:
        """Return the seconds until the next costly batch may begin."""
        return max(self._rest.until - time.monotonic(), 0.0)

    def take_held(self) -> Sequence[Claimed]:
        """Return those of the batch that wait for a costly batch; the next call returns none."""
        held, self._held_rows = self._held_rows, ()
        return held

    def _until_costly(self, rows: Sequence[Claimed]) -> Iterator[Claimed]:
        """Yield costly entries that together are known or estimated to take a batch's time, one at least."""
        left, seconds = [], 0.0
        is_full = False
        for claimed in rows:
            characters = claimed.characters
            # a character is at most four bytes, so this one may have been claimed as a large one
            is_costly = (
                claimed.key in self._costly or 4 * characters > LARGE_BYTES or claimed.unread_bytes > 0
            )
            cost = self._costly.get(claimed.key, characters * SECONDS_PER_CHARACTER)
            if not is_costly or is_full or (seconds and seconds + cost > BATCH_SECONDS):
                is_full = is_full or is_costly
                left.append(claimed)
                continue
            seconds += cost
            self._entry_began_cpu = time.thread_time()
            yield claimed
        self._left_rows = left

    # -- planning

    def until_spent(self, rows: Sequence[Claimed]) -> Iterator[Claimed]:
        """Yield the entries of a batch in the order in which to plan them, until its time is spent."""
        self._began_at, self._began_cpu = time.monotonic(), time.thread_time()
        self._asked_at, self._asked_cpu = self._began_at, self._began_cpu
        if self._is_costly_turn:
            yield from self._until_costly(rows)
            return
        if self._small_costly:
            self._held_rows = [claimed for claimed in rows if claimed.key in self._small_costly]
            rows = [claimed for claimed in rows if claimed.key not in self._small_costly]
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
        """Return ``rows`` in the order in which to plan them, and the index of the first one that waits."""
        places = [self._place(claimed) for claimed in rows]
        positions = sorted(range(len(rows)), key=places.__getitem__)
        return [rows[position] for position in positions], sum(place < _WAITS for place in places)

    def _place(self, claimed: Claimed) -> int:
        times = self._slow.get(claimed.key, 0)
        if _is_quick(claimed):  # only its policy can make it slow: one slow plan was the machine's fault
            return _WAITS if times > 1 else 0
        return _WAITS if times or claimed.key in self._left else 1

    def take_left(self) -> Sequence[Claimed]:
        """Return what of the batch wasn't planned; the next call returns nothing."""
        left, self._left_rows = self._left_rows, ()
        return left

    def _is_spent(self) -> bool:
        """Begin an entry; tell whether the batch's time is spent."""
        self._entry_began_at = time.monotonic()
        if self._entry_began_at - self._began_at <= self.batch_seconds:
            return False
        return time.thread_time() - self._began_cpu > self.batch_seconds  # slower to read, so asked last

    def note_planned(self, key: str, read_seconds: float) -> None:
        """Remember the entry under ``key`` if it was slow to plan, not counting ``read_seconds``."""
        if self._is_costly_turn:
            self._planned_cpu[key] = time.thread_time() - self._entry_began_cpu
            return
        slow_seconds = SLOW_SECONDS + read_seconds
        if time.monotonic() - self._entry_began_at > slow_seconds and self._busy_seconds() > slow_seconds:
            self._slow[key] = self._slow.get(key, 0) + 1
            self._has_met_slow = True
        elif self._slow:
            self._slow.pop(key, None)

    def note_sending(self) -> None:
        """Note that an entry's message is about to be made."""
        self._entry_began_at = time.monotonic()
        if self._is_costly_turn:
            self._entry_began_cpu = time.thread_time()

    def note_sent(self, key: str) -> float:
        """Return the processor time that the entry under ``key`` took if it is costly, else 0."""
        if self._is_costly_turn:
            seconds = self._planned_cpu.get(key, 0.0) + time.thread_time() - self._entry_began_cpu
        elif time.monotonic() - self._entry_began_at > COSTLY_SECONDS:
            seconds = self._busy_seconds()
        else:
            return 0.0
        if seconds <= COSTLY_SECONDS:
            self._costly.pop(key, None)
            self._small_costly.discard(key)
            self._suspected.discard(key)
            return 0.0
        if len(self._costly) + len(self._suspected) >= MAX_REMEMBERED:
            self._costly.clear()
            self._small_costly.clear()
            self._suspected.clear()
        if not self._is_costly_turn and key not in self._suspected:
            self._suspected.add(key)  # once may be chance: a module that its message needs was imported, say
            return 0.0
        self._costly[key] = seconds
        if not self._is_costly_turn:
            self._small_costly.add(key)
        return seconds

    def _busy_seconds(self) -> float:
        """Return the processor time that the entry took at least.

        It is what was used since the last reading, less the time that the entries in between may have used.
        """
        used, before = time.thread_time() - self._asked_cpu, self._entry_began_at - self._asked_at
        self._asked_at, self._asked_cpu = time.monotonic(), time.thread_time()
        return used - before

    def _end(self, left: Sequence[Claimed]) -> None:
        self._left_rows = left
        # quick entries that were left over are no reason to claim more, or to plan in another order
        self._left = {claimed.key for claimed in left if not _is_quick(claimed)}
        self._has_met_slow = self._has_met_slow or bool(self._left)


def _is_quick(claimed: Claimed) -> bool:
    """Tell whether its schedule is of a type that can't be slow."""
    definition = claimed.definition or ""
    if len(definition) > _MAX_LOOKED_UP:
        return False
    try:
        return json.loads(definition)["schedule"]["__type__"] in _QUICK_KINDS
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
