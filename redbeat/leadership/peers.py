"""The beats of a schedule, as one of them announces itself and knows the others.

``Peers`` are the beats that share a schedule in shards. A beat that leads any shard says that it is there by
its heartbeat, in the step that renews its locks; another one does when it looks at them. While that fails,
those count that were there last. ``Presence`` shows a standby of an unsharded schedule to ``celery redbeat
status``. Invariant: nothing depends on either for safety.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import call_briefly
from redbeat.errors import StoreUnavailable
from redbeat.process.background import surviving
from redbeat.store.beats import Beats
from redbeat.store.lock_tokens import new_beat, new_token
from redbeat.store.nodes import Sendable
from redbeat.store.store import Store
from redbeat.store.vitals import STANDBY_SECONDS, note_standby, remove_standby

#: Redis is waited for no longer when a beat says that it ends
LEAVE_SECONDS = 1.0

#: how often a standby says that it is there; and how often it tries where its user of Redis may not
NOTE_SECONDS, RETRY_SECONDS = 5.0, 60.0


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
