"""How much of a batch is planned before what is planned is sent, and in which order.

Invariant: one entry at least is planned of each batch. While there are slow ones, those that can't be slow go
first; what is known to be slow, or was left over for lack of time, waits for the others, the oldest first.
The oldest that waits is planned with each batch all the same, so that it doesn't wait for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from redbeat.lua import Claimed

__all__ = ["Pace"]

#: after so much processor time a batch sends what is planned, and leaves the rest due
BATCH_SECONDS = 0.25

#: a plan that took so much processor time makes an entry a slow one
SLOW_SECONDS = 0.005

#: so many slow entries are remembered; then all are forgotten
MAX_REMEMBERED = 10_000

#: while there are slow entries, a batch is so many times the usual: the others must be among it
ENLARGED = 10
#: but no more than so many by that, all of which are held at once
MAX_ENLARGED = 5_000

#: kinds of schedule that are never slow
_IS_QUICK = re.compile(r'"__type__":\s*"(interval|crontab|clocked)"')

#: the place of those that wait for the others
_WAITS = 2


class Pace:
    """One beat's memory of what is slow to plan, and its watch on the batch at hand."""

    def __init__(self) -> None:
        self._slow: dict[str, int] = {}  # how often in a row
        self._left: set[str] = set()
        self._left_rows: Sequence[Claimed] = ()
        self._has_met_slow = False
        self._began_at = self._entry_began_at = self._began_cpu = 0.0
        self._asked_at = self._asked_cpu = 0.0  # the two clocks, when the second was asked last

    def enlarge(self, batch_size: int) -> int:
        """Return how many entries to claim: slow ones take nobody's place."""
        if not self._has_met_slow:
            return batch_size
        return max(batch_size, min(ENLARGED * batch_size, MAX_ENLARGED))

    def until_spent(self, rows: Sequence[Claimed]) -> Iterator[Claimed]:
        """Yield the entries of a batch in the order to plan them in, until it has had its time."""
        self._began_at, self._began_cpu = time.monotonic(), time.thread_time()
        self._asked_at, self._asked_cpu = self._began_at, self._began_cpu
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
        slow_seconds = SLOW_SECONDS + read_seconds
        if time.monotonic() - self._entry_began_at > slow_seconds and self._was_busy(slow_seconds):
            if len(self._slow) >= MAX_REMEMBERED:
                self._slow.clear()
            self._slow[key] = self._slow.get(key, 0) + 1
            self._has_met_slow = True
        elif self._slow:
            self._slow.pop(key, None)

    def _was_busy(self, slow_seconds: float) -> bool:
        """Tell whether it was the entry that took its time, and not the machine, which has others."""
        used, before = time.thread_time() - self._asked_cpu, self._entry_began_at - self._asked_at
        self._asked_at, self._asked_cpu = time.monotonic(), time.thread_time()
        return used - before > slow_seconds  # those before it had no more than the time that passed

    def _end(self, left: Sequence[Claimed]) -> None:
        self._left_rows = left
        # many that can't be slow are no reason to claim more, nor to plan them in another order
        self._left = {claimed.key for claimed in left if not _is_quick(claimed)}
        self._has_met_slow = self._has_met_slow or bool(self._left)


def _is_quick(claimed: Claimed) -> bool:
    return _IS_QUICK.search(claimed.definition or "") is not None
