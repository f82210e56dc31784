"""A standby as others see it: it says every few seconds that it is there, and when it isn't any more.

Invariant: whatever becomes of that, standing by and leading go on.
"""

from __future__ import annotations

import math
import time

from redbeat.process.background import surviving
from redbeat.store.lock_tokens import new_token
from redbeat.store.store import Store
from redbeat.store.vitals import STANDBY_SECONDS, note_standby, remove_standby

#: how often a standby says that it is there; and how often it tries where its user of Redis may not
NOTE_SECONDS, RETRY_SECONDS = 5.0, 60.0


class Presence:
    """One beat among the standbys."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._who = ""
        self._noted_at = self._note_at = -math.inf

    def note(self) -> None:
        """Say that this beat stands by, if it hasn't for long; called after each look at the lock."""
        now = time.monotonic()
        if now < self._note_at:
            return
        self._note_at = now + NOTE_SECONDS
        self._who = self._who or new_token()
        before, self._noted_at = self._noted_at, now  # where a signal comes amid it, it may have been noted
        with surviving("Standing by visibly"):
            if not note_standby(self._store, self._who):
                self._noted_at, self._note_at = before, now + RETRY_SECONDS

    def leave(self) -> None:
        """Say that this beat doesn't stand by any more, if it has said so; Redis isn't waited for long."""
        who, self._who, self._note_at = self._who, "", -math.inf
        if who and time.monotonic() - self._noted_at < STANDBY_SECONDS:
            with surviving("Leaving the list of standbys"):  # it is forgotten by itself
                remove_standby(self._store, who)
