"""The membership of one beat: how it announces itself to the other beats, and knows of them.

Of a schedule in shards each beat is listed: one that leads any shard announces itself by its heartbeat, in
the step that renews its locks; another one does when it looks at them. While that fails, the beats that were
last listed count. Of an unsharded schedule only the standbys are listed, for ``celery redbeat status``.
Invariant: nothing depends on the lists for safety.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import call_briefly, without_retry
from redbeat.errors import StoreUnavailable
from redbeat.process.background import surviving
from redbeat.store.beats import Beats
from redbeat.store.lock_tokens import new_beat, new_token
from redbeat.store.nodes import Sendable, call_on_nodes
from redbeat.store.store import Store
from redbeat.store.vitals import STANDBY_SECONDS

#: Redis is waited for no longer when a beat leaves its list
LEAVE_SECONDS = 1.0

#: how often a standby announces itself; and how often it tries where its user of Redis may not
STANDBY_NOTE_SECONDS, RETRY_SECONDS = 5.0, 60.0


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
        self._beats = self._all = Beats(Store(app))  # the scheduler's own would take an answer for progress
        self._listed_as = ""
        self._note_at = -math.inf

    def follow(self, store: Store | None) -> None:
        """List this beat from now on while it stands by for the unsharded schedule in ``store``; None: all
        beats, as the schedule is in shards."""
        if self.are_all_listed != (store is None):
            self.leave()
        self._beats = self._all if store is None else Beats(store, are_standbys=True)

    @property
    def are_all_listed(self) -> bool:
        """Whether beats that lead are listed, too, as the schedule is in shards."""
        return self._beats is self._all

    def call(self, *, is_silent: bool = False) -> Sendable:
        """Return the call that announces this beat, and asks for the others; it is sent with others.

        Arguments:
            is_silent: it only asks.
        """
        if not is_silent:
            self._listed_as = self._listed_as or (self.beat if self.are_all_listed else new_token())
        life_seconds = self.timing.replaced_after_seconds if self.are_all_listed else STANDBY_SECONDS
        return self._beats.note_call("" if is_silent else self._listed_as, life_seconds)

    def stand_by(self) -> None:
        """Announce this standby of an unsharded schedule, if it has not done so lately."""
        now = time.monotonic()
        if now >= self._note_at:
            self._note_at = now + STANDBY_NOTE_SECONDS
            self.note(*call_on_nodes(without_retry(self._beats.store.client), [self.call()]))

    def leave_call(self) -> Sendable:
        """Return the call that takes this beat off its list."""
        return self._beats.remove_call(self.beat)

    def note(self, reply: Any) -> bool:
        """Record who is there, by the reply to the call or the client's error; return False if Redis could
        not be reached."""
        company = None
        with surviving("Listing this beat"):
            try:
                company = self._beats.noted(reply)
            except StoreUnavailable:
                return False
        if company is None:  # it was refused, or the list's key has the wrong type
            self._listed_as, self._note_at = "", time.monotonic() + RETRY_SECONDS
        elif self.are_all_listed:
            self.generation = company.generation
            self.live = frozenset((self.beat, *company.ages))
        return True

    def leave(self, wake: Iterable[str] = ()) -> None:
        """Take this beat off its list, if it is on it; Redis isn't waited for long.

        Arguments:
            wake: the channels on which the others listen.
        """
        who, self._listed_as, self._note_at = self._listed_as, "", -math.inf
        if who:
            with surviving("Leaving the list of beats"):  # the entry expires by itself
                call_briefly(lambda: self._beats.remove(who, wake), LEAVE_SECONDS)
        self.live = frozenset((self.beat,))
