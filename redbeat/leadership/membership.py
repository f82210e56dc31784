"""The membership of one beat: how it announces itself to the other beats, and knows of them.

A beat that leads any shard announces itself by its heartbeat, in the step that renews its locks; another one
does when it looks at them. While that fails, the beats that were last listed count. Invariant: nothing
depends on the list for safety.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import call_briefly
from redbeat.process.background import surviving
from redbeat.store.beats import leave_beats, note_beat
from redbeat.store.lock_tokens import new_beat, new_token
from redbeat.store.nodes import Sendable
from redbeat.store.store import Store

#: Redis is waited for no longer when a beat leaves its list
LEAVE_SECONDS = 1.0


class Membership:
    """One beat among those of a schedule. For any thread.

    Arguments:
        app: the Celery app.
        timing: of the locks.

    Attributes:
        beat: this beat's id, for its life.
        live: the ids of the beats that are there, this one included.
        generation: how often the layout was changed, as Redis had it last.
    """

    def __init__(self, app: Any, timing: Timing) -> None:
        self.beat = new_beat()
        self.timing = timing
        self.live: frozenset[str] = frozenset((self.beat,))
        self.generation = 0
        self._store = Store(app)  # the scheduler's own would take an answer for progress
        self._token = new_token(self.beat)
        self._is_listed = False

    def call(self, *, is_silent: bool = False) -> Sendable[Any]:
        """Return the call that announces this beat, and finds out who else is there; it is sent with others.

        Arguments:
            is_silent: it only asks.
        """
        self._is_listed = self._is_listed or not is_silent
        token = "" if is_silent else self._token
        return note_beat(self._store, token, self.timing.replaced_after_seconds, self._note)

    def _note(self, beats: frozenset[str], generation: int) -> None:
        self.live, self.generation = beats | {self.beat}, generation

    def leave(self, wake: Iterable[str]) -> None:
        """Take this beat off the list, if it is on it; Redis isn't waited for long.

        Arguments:
            wake: the channels on which the others listen.
        """
        if self._is_listed:
            with surviving("Leaving the list of beats"):  # the entry expires by itself
                call_briefly(lambda: leave_beats(self._store, self._token, wake), LEAVE_SECONDS)
        self._is_listed = False
