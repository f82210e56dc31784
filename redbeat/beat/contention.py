"""Entries that change each time between their claim and the record of their run: they are tried with pauses.

One such change is somebody's save, and the run is planned again at once. When it happens at each try, it is
mostly the sending itself that changes the entry: a signal handler, or the task's own ``apply_async``.
Invariant: an entry is tried at most ``MAX_TRIES`` times in a row, and then pauses.
"""

from __future__ import annotations

from redbeat.process.memory import Memory

#: how often an entry is tried before it pauses
MAX_TRIES = 3


class Contention:
    """One beat's count of the runs that it couldn't record."""

    def __init__(self) -> None:
        self._lost = Memory[str, tuple[int, int]]()  # tries in a row, and pauses

    def is_watching(self, key: str) -> bool:
        """Tell whether a run of the entry under ``key`` couldn't be recorded, and none was since."""
        return key in self._lost

    def note_lost(self, key: str) -> None:
        """Count a try: the entry under ``key`` changed before its run was recorded."""
        tries, pauses = self._lost.get(key, (0, 0))
        self._lost[key] = (tries + 1, pauses)

    def note_recorded(self, key: str) -> None:
        """Forget what was counted: a run of the entry was recorded."""
        self._lost.pop(key, None)

    def take_pause(self, key: str) -> int:
        """Return which pause of the entry begins now, counted from 1; 0: none, it may be tried."""
        tries, pauses = self._lost.get(key, (0, 0))
        if tries < MAX_TRIES:
            return 0
        self._lost[key] = (0, pauses + 1)
        return pauses + 1
