"""How one beat becomes leader, stays it, and ends; what happens when the lock is lost.

Owns the lock, the heartbeat and what is logged about them. A leader that finds another beat's token in the
lock raises LockLost (``check``, ``confirm``, and every script that writes); the scheduler's ``tick`` then
ends beat, or lets it stand by. Invariant: the fence is that of a lock which this beat held a moment ago; the
scripts check whether it still does.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import COUNTS, ClientError
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.heartbeat import Heartbeat, Pulse, Renewal, Role
from redbeat.leadership.lock import LeaderLock, fence_of
from redbeat.leadership.peers import NOTE_SECONDS, Presence
from redbeat.log.events import (
    LEADER_ACQUIRED,
    LEADER_NOT_RELEASED,
    LEADER_RELEASED,
    LEADER_STANDS,
    LEADER_TAKEN_OVER,
    REDIS_SLOW,
)
from redbeat.log.logger import logger
from redbeat.store.lock_tokens import holder_in_words
from redbeat.store.locks import NO_KEY, LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: the shortest time between two looks of a standby that is about to take over; seconds
MIN_LOOK_SECONDS = 0.1

#: a key that is missing this long before its end hasn't expired; seconds
SLACK_SECONDS = 1.0

#: an answer of Redis that takes longer is told of; seconds
SLOW_SECONDS = 4.0


class Leadership:
    """One beat's part in who leads.

    Arguments:
        store: the schedule; its writes are fenced with ``fence``.
        lock_key: the lock's key; None: no lock is configured, and every beat leads.
        timing: how long the lock lives, and what follows from that.
        heartbeat: renews the lock, with those of other parts; None: it has one of its own.
        beat: the id of this beat, which the lock's tokens say; '': they say a new one each.

    Attributes:
        store: the schedule, or the one part of it that this is about.
        is_leader: this beat may send.
        fence: the lock and the token that every write of the scheduler is checked against.
        is_retaken: the lock was gone, perhaps with all data, and was taken back; the caller resets it.
        retaken_at: when the lock was gone last, and taken back; monotonic.
        silent: the error of the lock's node, if the heartbeat reaches others, but not that one; else None.
        renewed_at: when the lock was last known to be held, monotonic; None: no heartbeat renews it. This
            and ``silent`` are as of the last ``check``.
        is_data_missing: a look found neither the lock nor its ``tick``, before these would have expired.
        candidacy: the lock that this beat waits for; None: it waits for none.
    """

    def __init__(
        self,
        store: Store,
        lock_key: str | None,
        timing: Timing,
        heartbeat: Heartbeat | None = None,
        beat: str = "",
    ) -> None:
        self._lock: LeaderLock | Any = None
        self.candidacy: LeaderLock | None = None
        self.lock_key = lock_key
        self.timing = timing
        self.store = store
        self._beat = beat
        self._heartbeat = heartbeat or Heartbeat(store.config.app, timing)
        self._renewal: Renewal | None = None
        self._presence = Presence(store)
        self.is_retaken, self.retaken_at = False, -math.inf
        self.silent: StoreUnavailable | None = None
        self.renewed_at: float | None = None
        self.is_data_missing = self._has_seen_tick = False
        self._read_tick_at = -math.inf  # not before, monotonic
        self._retries = COUNTS.retries
        store.on_progress = self._note_answer
        self._follow_lock()

    @property
    def keys(self) -> Keys:
        """The names in that part."""
        return self.store.keys

    def move_to(self, store: Store) -> None:
        """Go on with this store of the same part, as the layout of the schedule has changed."""
        if store is self.store:
            return
        self.store, self._presence = store, Presence(store)
        store.on_progress = self._note_answer
        for lock in (self.lock, self.candidacy):
            if isinstance(lock, LeaderLock):
                lock.move_to(store)
        if self._renewal is not None:
            self._renewal.move_to(store.keys)
        self._follow_lock()

    @property
    def lock(self) -> LeaderLock | Any:
        """The lock that this beat holds; None: it holds none.

        A program may set it to a LeaderLock, a lock of redis-py, or any object with ``extend`` and
        ``release``.
        """
        return self._lock

    @lock.setter
    def lock(self, lock: LeaderLock | Any) -> None:
        self._lock = lock
        self._follow_lock()

    def set_lock_key(self, lock_key: str | None) -> None:
        """Use another lock from now on; None: none is needed."""
        self.lock_key = lock_key
        self._follow_lock()

    def set_lock_seconds(self, seconds: float) -> None:
        """Set how long the lock lives, from its next renewal on."""
        self.timing = replace(self.timing, lock_seconds=seconds)
        if isinstance(self._lock, LeaderLock):
            self._lock.set_timeout(seconds)
        self._follow_lock()

    def _follow_lock(self) -> None:
        """Update what follows from the lock: whether this beat leads, and the fence of its writes."""
        lock = self._lock
        is_held = lock is not None and not (isinstance(lock, LeaderLock) and lock.is_released)
        self.is_leader = self.lock_key is None or is_held
        self.fence = Fence() if lock is None else fence_of(lock, self.timing)

    @property
    def is_certain(self) -> bool:
        """Whether this beat leads, and no other one can lead by now, as far as the lock's times say."""
        if not self.is_leader or self.lock_key is None:
            return False
        renewal = self._renewal
        if renewal is None:
            return False
        return not renewal.has_given_up and renewal.seconds_unconfirmed() < self.timing.replaced_after_seconds

    def stand(self) -> bool:
        """Take the lock if it can be had; return whether this beat leads now."""
        if self.is_leader or self.lock_key is None:
            return True
        if self.candidacy is None:
            logger.info("beat: Acquiring lock...", extra=LEADER_STANDS.of(lock=self.lock_key))
        candidacy = self.stand_by()
        try:
            if not candidacy.acquire():
                self._presence.note()
                return False
        except LockLost as exc:  # it was taken, and ended before it was renewed; nothing was done meanwhile
            logger.debug("beat: The lock was held for a moment only: %s", exc)
            candidacy.forget()
            return False
        self.lead()
        if candidacy.replaced:
            logger.warning(
                "beat: Took the lock over from %s, which has not renewed it for %s s.",
                holder_in_words(candidacy.replaced),
                self.store.config.takeover_after,
                extra=LEADER_TAKEN_OVER.of(lock=self.lock_key, holder=candidacy.replaced),
            )
        logger.info("beat: Acquired lock", extra=LEADER_ACQUIRED.of(lock=self.lock_key))
        self._presence.leave()
        return True

    # -- the steps of ``stand``, for whoever stands for several locks at once

    def stand_by(self) -> LeaderLock:
        """Return the lock that this beat waits for from now on."""
        if self.candidacy is None:
            self.candidacy = self._new_candidacy(self.lock_key or "")
        return self.candidacy

    def lead(self) -> None:
        """Note that the lock is taken, and was renewed."""
        lock, self.candidacy = self.stand_by(), None
        lock.is_released = False
        lock.on_release = self._note_release
        self.lock = lock

    def _note_release(self) -> None:
        self._stop_heartbeat()
        self._follow_lock()

    def _new_candidacy(self, lock_key: str) -> LeaderLock:
        if isinstance(self.lock, LeaderLock) and self.lock.key == lock_key:
            return self.lock  # released, and perhaps taken back by a late write, with this token
        timing = self.timing
        lock = LeaderLock(self.store, lock_key, timing.lock_seconds, timing.takeover_seconds, self._beat)
        lock.on_look = self._look_for_data
        return lock

    def _look_for_data(self, rest_ms: int) -> None:
        if self.wants_tick(rest_ms):
            try:
                tick: Any = LockKey(self.store, self.keys.tick).token()
            except RedBeatError as exc:
                tick = exc
            self.note_tick(rest_ms, tick)

    def wants_tick(self, rest_ms: int) -> bool:
        """Return True if a look that found the lock with this time to live is to read ``keys.tick``, too.

        Every renewal lets both live equally long, and a leader that ends leaves the tick. So if both are gone
        before their time, Redis has lost its data.
        """
        now = time.monotonic()
        if rest_ms == NO_KEY:
            return self._has_seen_tick and now < self.stand_by().seen_until - SLACK_SECONDS
        self.is_data_missing = False
        if self._has_seen_tick or now < self._read_tick_at:
            return False
        self._read_tick_at = now + NOTE_SECONDS  # celery-redbeat 2.x never writes it
        return True

    def note_tick(self, rest_ms: int, tick: object) -> None:
        """Record what ``keys.tick`` held at that look; None: the key is missing. An error says nothing."""
        if rest_ms == NO_KEY:
            self.is_data_missing = tick is None
        else:
            self._has_seen_tick = isinstance(tick, str)

    def keep_alive(self) -> None:
        """Start the heartbeat, which renews the lock: for a scheduler that is ticked by a running beat."""
        renewal = self.begin_renewal()
        self._heartbeat.timing = self.timing
        self._heartbeat.add(*filter(None, [renewal]))

    def begin_renewal(self) -> Renewal | None:
        """Return what the heartbeat is to renew from now on; None: nothing, or it does so already."""
        if not isinstance(self.lock, LeaderLock) or self._renewal is not None:
            return None
        self._renewal = Renewal(self.lock.fence, self.store.keys)
        return self._renewal

    def end_renewal(self) -> Renewal | None:
        """Return what the heartbeat isn't to renew any more; None: it renews nothing."""
        renewal, self._renewal = self._renewal, None
        return renewal

    def _note_answer(self) -> None:
        """Note that Redis has answered the scheduler; log how long it took if that was long.

        Where the client tries again, it has said so itself.
        """
        now = self._heartbeat.progressed_at = time.monotonic()
        asks_since, before = self.store.asks_since, self._retries
        self._retries = COUNTS.retries
        seconds = 0.0 if asks_since is None else now - asks_since
        if seconds > SLOW_SECONDS and self._retries == before:
            logger.warning(
                "beat: Redis has answered only after %.1f s; this beat has done nothing else meanwhile.",
                seconds,
                extra=REDIS_SLOW.of(seconds=round(seconds, 3)),
            )

    def pulse(self) -> Pulse:
        """Return this beat's signs of life; for any thread."""
        lock, renewal, asks_since = self.lock, self._renewal, self.store.asks_since
        progressed_at = self._heartbeat.progressed_at
        if renewal is not None:
            # the heartbeat is an excuse only where it waits for Redis, too
            progressed_at = max(progressed_at, self._heartbeat.excused_at)
            is_replaceable = renewal.has_given_up or renewal.lost is not None
            role = Role.STANDBY if is_replaceable else Role.LEADER
            return Pulse(role, progressed_at, renewal.confirmed_at)
        now = time.monotonic()
        if asks_since is not None:
            progressed_at = now
        if self.lock_key is not None and (lock is None or getattr(lock, "is_released", False)):
            candidacy = self.candidacy
            return Pulse(Role.STANDBY, progressed_at, None if candidacy is None else candidacy.looked_at)
        role = Role.SHARING if self.lock_key is None else Role.LEADER
        return Pulse(role, progressed_at, now if asks_since is None else asks_since)

    def check(self) -> LockLost | None:
        """Find out what has become of the lock since the last call; return the error if it is lost."""
        self._heartbeat.progressed_at = time.monotonic()
        lock, renewal, store = self._lock, self._renewal, self.store
        if lock is not None and not isinstance(lock, LeaderLock):
            self._follow_lock()
            if not self.fence.token:
                lock.extend(int(self.timing.lock_seconds))  # no script can renew one without a token
        if store.has_retaken_lock:
            store.has_retaken_lock = False
            self.is_retaken, self.retaken_at = True, store.retaken_lock_at
        if renewal is None:
            self.silent = self.renewed_at = None
            return None
        self.silent, self.renewed_at = renewal.silent, renewal.confirmed_at
        if renewal.lost is None and renewal.take_retaken():
            self.is_retaken, self.retaken_at = True, max(self.retaken_at, renewal.retaken_at)
        return renewal.lost

    def confirm(self) -> None:
        """Make sure that the lock is still held, before a message is sent that no script checks.

        Costs a round trip only if the lock wasn't known to be held within the last 4 seconds, as after a
        pause.

        Raises:
            LockLost: another beat leads.
        """
        self._heartbeat.progressed_at = time.monotonic()
        if self._renewal is None:
            return
        if self._renewal.seconds_unconfirmed() > self.timing.fresh_seconds:
            asked_at = time.monotonic()
            self.store.renew_lock(self.fence, obstacle=self._heartbeat.find_obstacle())
            self._renewal.note_confirmed(asked_at)

    def seconds_to_look(self) -> float:
        """Return the seconds until a standby's next look at the lock: fewer when it is about to take over."""
        left = self.candidacy.seconds_to_takeover() if self.candidacy is not None else None
        usual_seconds = self.timing.look_seconds
        return usual_seconds if left is None else min(max(left, MIN_LOOK_SECONDS), usual_seconds)

    def forget(self) -> None:
        """Note that this beat doesn't hold the lock any more; ``stand`` then waits for it again."""
        self._stop_heartbeat()
        self.lock = self.candidacy = None

    def resign(self) -> None:
        """Release the lock, or one that was asked for without an answer; Redis isn't waited for long."""
        self._stop_heartbeat()
        self._presence.leave()
        lock, self.lock, self.candidacy = self.lock or self.candidacy, None, None
        if lock is None or (isinstance(lock, LeaderLock) and not lock.token):
            return
        logger.info("beat: Releasing lock", extra=LEADER_RELEASED.of(lock=self.lock_key))
        try:
            if isinstance(lock, LeaderLock):
                lock.give_up(self.store.keys.released)
            else:
                lock.release()
        except (RedBeatError, ClientError) as exc:
            logger.warning(
                "beat: The lock couldn't be released, it ends by itself: %s",
                exc,
                extra=LEADER_NOT_RELEASED.of(lock=self.lock_key, reason=str(exc)),
            )

    def _stop_heartbeat(self) -> None:
        renewal = self.end_renewal()
        if renewal is not None:
            self._heartbeat.remove(renewal)
