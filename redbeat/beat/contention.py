"""Entries that change between being claimed and being recorded, again and again: those are sent with pauses.

One such change is somebody's save, and the run is decided anew at once. When it happens at each try, it is
mostly the sending itself that writes: a signal handler, or the task's own ``apply_async``. Invariant: an
entry is tried a few times in a row at the most, and then pauses.
"""

from __future__ import annotations

__all__ = ["Contention"]

#: so often an entry is tried in a row
MAX_TRIES = 3

#: of how many entries this is remembered; then all is forgotten, and counted anew
MAX_REMEMBERED = 10_000


class Contention:
    """One beat's count of the runs that it couldn't record."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[int, int]] = {}

    def note_lost(self, key: str) -> None:
        """Count a try at which the entry under ``key`` changed before its run was recorded."""
        if len(self._lost) >= MAX_REMEMBERED and key not in self._lost:
            self._lost.clear()
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
