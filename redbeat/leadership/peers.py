"""The other beats that share a schedule, as one of them knows them.

Owns this beat's id, and what was last told of who is there. A beat that leads any part says so by its
heartbeat, in the step that renews its locks; another one does when it looks at them. Invariant: nothing
depends on it for safety. While it can't be told, those count that were there last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import call_briefly
from redbeat.errors import StoreUnavailable
from redbeat.process.background import surviving
from redbeat.store.beats import Beats
from redbeat.store.lock_tokens import new_beat
from redbeat.store.nodes import Sendable
from redbeat.store.store import Store

#: Redis is waited for no longer when a beat says that it ends
LEAVE_SECONDS = 1.0


class Peers:
    """One beat among those that share a schedule. For any thread.

    Arguments:
        app: the Celery app.
        timing: of the parts' locks.

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
        self._beats = Beats(Store(app))  # the scheduler's own would take an answer for progress
        self._said_at: dict[str, float] = {}  # monotonic
        self._is_noted = False

    @property
    def life_seconds(self) -> float:
        """A beat that hasn't said for so long that it is there is forgotten."""
        return self.timing.replaced_after_seconds

    def call(self, *, is_silent: bool = False) -> Sendable:
        """Return the call that says that this beat is there, and asks who else is; it is sent with others.

        Arguments:
            is_silent: it only asks.
        """
        self._is_noted = self._is_noted or not is_silent
        return self._beats.note_call("" if is_silent else self.beat, self.life_seconds)

    def leave_call(self) -> Sendable:
        """Return the call that says that it isn't there any more."""
        return self._beats.remove_call(self.beat)

    def note(self, reply: Any) -> bool:
        """Note who is there, by the reply to that call or the client's error; tell whether it is one."""
        company = None
        with surviving("Reading which beats are there"):
            try:
                company = self._beats.noted(reply)
            except StoreUnavailable:
                return False
        if company is None:  # this user has no right to it, or the key holds something else
            return True
        now = time.monotonic()
        self._said_at = {beat: now - age for beat, age in company.ages.items()}
        self.generation = company.generation
        self.live = frozenset((self.beat, *company.ages))
        return True

    def is_fresh(self, beat: str) -> bool:
        """Tell whether it has said lately that it is there: a part may be handed over to it."""
        said_at = self._said_at.get(beat)
        return said_at is not None and time.monotonic() - said_at < self.timing.renewal_seconds * 2

    def leave(self, wake: Iterable[str] = ()) -> None:
        """Say that this beat isn't there any more, if it has said that it is; Redis isn't waited for long.

        Arguments:
            wake: the channels on which the others listen.
        """
        if self._is_noted:
            self._is_noted = False
            with surviving("Leaving the list of beats"):  # it is forgotten by itself
                call_briefly(lambda: self._beats.remove(self.beat, wake), LEAVE_SECONDS)
        self.live = frozenset((self.beat,))
