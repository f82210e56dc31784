"""How much of a batch is planned before what is planned is sent, and in which order.

Invariant: one entry at least is planned of each batch. While there are slow ones, those that can't be slow go
first; what is known to be slow, or was left over for lack of time, waits for the others, the oldest first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

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

#: kinds of schedule that are never slow
_IS_QUICK = re.compile(r'"__type__":\s*"(interval|crontab|clocked)"')


class Pace:
    """One beat's memory of what is slow to plan, and its watch on the batch at hand."""

    def __init__(self) -> None:
        self._slow: dict[str, None] = {}
        self._left: set[str] = set()
        self._has_met_slow = False
        self._began_at = self._entry_began_at = self._began_cpu = 0.0
        self._asked_at = self._asked_cpu = 0.0  # the two clocks, when the second was asked last

    def enlarge(self, batch_size: int) -> int:
        """Return how many entries to claim: slow ones take nobody's place."""
        return ENLARGED * batch_size if self._has_met_slow else batch_size

    def begin(self, rows: Sequence[Claimed]) -> Sequence[Claimed]:
        """Return the entries of a batch in the order to plan them in."""
        self._began_at, self._began_cpu = time.monotonic(), time.thread_time()
        self._asked_at, self._asked_cpu = self._began_at, self._began_cpu
        rows = sorted(rows, key=self._place) if self._has_met_slow else rows
        self._has_met_slow = False
        return rows

    def _place(self, claimed: Claimed) -> int:
        if claimed.key in self._slow:
            return 2
        if _IS_QUICK.search(claimed.definition or ""):
            return 0
        return 2 if claimed.key in self._left else 1

    def is_spent(self) -> bool:
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
            self._slow[key] = None
            self._has_met_slow = True
        elif self._slow:
            self._slow.pop(key, None)

    def _was_busy(self, slow_seconds: float) -> bool:
        """Tell whether it was the entry that took its time, and not the machine, which has others."""
        used, before = time.thread_time() - self._asked_cpu, self._entry_began_at - self._asked_at
        self._asked_at, self._asked_cpu = time.monotonic(), time.thread_time()
        return used - before > slow_seconds  # those before it had no more than the time that passed

    def end(self, left: Sequence[Claimed]) -> None:
        """Remember the entries that weren't planned."""
        self._left = {claimed.key for claimed in left}
        self._has_met_slow = self._has_met_slow or bool(left)
