"""Entries that change between being claimed and being recorded, again and again: those are sent with pauses.

One such change is somebody's save, and the run is decided anew at once. When it happens at each try, it is
mostly the sending itself that writes: a signal handler, or the task's own ``apply_async``. Invariant: an
entry is tried a few times in a row at the most, and then pauses.
"""

from __future__ import annotations

from redbeat.process.memory import Memory

#: so often an entry is tried in a row
MAX_TRIES = 3


class Contention:
    """One beat's count of the runs that it couldn't record."""

    def __init__(self) -> None:
        self._lost = Memory[str, tuple[int, int]]()  # tries in a row, and pauses

    def note_lost(self, key: str) -> None:
        """Count a try at which the entry under ``key`` changed before its run was recorded."""
        tries, pauses = self._lost.get(key, (0, 0))
        self._lost[key] = (tries + 1, pauses)

    def note_recorded(self, key: str) -> None:
        """Forget what was counted: a run of the entry was recorded."""
        self._lost.pop(key, None)

    def take_pause(self, key: str) -> int:
        """Return whether the entry is to pause now, and for which time in a row; 0: it may be tried."""
        tries, pauses = self._lost.get(key, (0, 0))
        if tries < MAX_TRIES:
            return 0
        self._lost[key] = (0, pauses + 1)
        return pauses + 1
