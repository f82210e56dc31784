"""One shard as one beat knows it: whether this beat leads it, and the fence of its writes.

An unsharded schedule is one shard. Invariant: the fence is that of a lock which this beat held a moment ago;
the scripts check whether it still does.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import COUNTS
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.heartbeat import Heartbeat, Renewal
from redbeat.leadership.lock import LeaderLock, fence_of
from redbeat.log.events import REDIS_SLOW
from redbeat.log.logger import logger
from redbeat.store.locks import NO_KEY
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: a key that is missing this long before its expiry hasn't expired; seconds
SLACK_SECONDS = 1.0

#: a slower reply of Redis is logged; seconds
SLOW_SECONDS = 4.0


class Leadership:
    """One shard, and this beat's lock for it.

    Arguments:
        store: the shard; its writes are fenced with ``fence``.
        lock_key: the lock's key; None: no lock is configured, and every beat leads.
        timing: how long the lock lives, and what follows from that.
        heartbeat: renews the lock.
        beat: the id of this beat, which the lock's tokens contain.

    Attributes:
        store: the shard.
        is_leader: this beat may send.
        fence: the lock and the token that every write of the scheduler is checked against.
        is_foreign: the lock is an object that a program has set, and no LeaderLock.
        is_retaken: the lock was gone, perhaps with all data, and was taken back; the caller resets it.
        retaken_at: when the lock was gone last, and taken back; monotonic.
        renewal: the heartbeat's record of this lock; None: the heartbeat doesn't renew it.
        candidacy: the lock that this beat waits for; None: it waits for none.
        is_data_missing: a look found neither the lock nor its ``tick``, before these would have expired.
    """

    def __init__(
        self, store: Store, lock_key: str | None, timing: Timing, heartbeat: Heartbeat, beat: str
    ) -> None:
        self._lock: LeaderLock | Any = None
        self.candidacy: LeaderLock | None = None
        self.renewal: Renewal | None = None
        self.lock_key = lock_key
        self.timing = timing
        self._heartbeat, self._beat = heartbeat, beat
        self.is_retaken, self.retaken_at = False, -math.inf
        self.is_data_missing = self._has_seen_tick = False
        self.move_to(store)

    @property
    def keys(self) -> Keys:
        """The names in the shard."""
        return self.store.keys

    def move_to(self, store: Store) -> None:
        """Use this store of the same shard from now on, as the layout of the schedule has changed."""
        self.store = store
        store.progress.on_answer = self._note_answer
        for lock in (self.lock, self.candidacy):
            if isinstance(lock, LeaderLock):
                lock.move_to(store)
        if self.renewal is not None:
            self.renewal.part = store.keys
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
        is_ours = isinstance(lock, LeaderLock)
        self.is_foreign = lock is not None and not is_ours
        self.is_leader = self.lock_key is None or self.is_foreign or (is_ours and not lock.is_released)
        self.fence = Fence() if lock is None else fence_of(lock, self.timing)

    @property
    def is_certain(self) -> bool:
        """Whether this beat leads, and no other one can lead by now, as far as the lock's times say."""
        renewal = self.renewal
        if not self.is_leader or renewal is None or renewal.has_given_up:
            return False
        return time.monotonic() - renewal.confirmed_at < self.timing.replaced_after_seconds

    @property
    def unreachable(self) -> StoreUnavailable | None:
        """The error of the lock's node, if the heartbeat reaches others, but not that one; else None."""
        return None if self.renewal is None else self.renewal.unreachable

    @property
    def renewed_at(self) -> float | None:
        """When the heartbeat last knew the lock to be held, monotonic; None: it doesn't renew it."""
        return None if self.renewal is None else self.renewal.confirmed_at

    # -- standing by for the lock, and losing it

    def stand_by(self) -> LeaderLock:
        """Return the lock that this beat waits for from now on."""
        if self.candidacy is None:
            lock, key = self._lock, self.lock_key or ""
            if not isinstance(lock, LeaderLock) or lock.key != key:
                timing = self.timing
                lock = LeaderLock(self.store, key, timing.lock_seconds, timing.takeover_seconds, self._beat)
            # else it was released, and perhaps taken back by a late write, with this token
            self.candidacy = lock
        return self.candidacy

    def lead(self) -> None:
        """Record that the lock is taken, and was renewed."""
        lock, self.candidacy = self.stand_by(), None
        lock.is_released = False
        lock.on_release = self._note_release
        self.lock = lock

    def _note_release(self) -> None:
        self._stop_renewal()
        self._follow_lock()

    def forget(self) -> None:
        """Record that this beat doesn't hold the lock any more, and stands by for it."""
        self._stop_renewal()
        self.lock = self.candidacy = None

    def _stop_renewal(self) -> None:
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            self._heartbeat.remove(renewal)

    def note_look(self, rest_ms: int | RedBeatError, tick: Any) -> None:
        """Find out whether Redis has lost its data together with the lock.

        Every renewal lets both live equally long, and a leader that ends leaves the tick. So if both are gone
        before their time, the data is. celery-redbeat 2.x writes no tick.

        Arguments:
            rest_ms: how long the lock lives, as a look has found it.
            tick: what ``keys.tick`` held then, or the client's error, which says nothing.
        """
        if isinstance(rest_ms, RedBeatError) or isinstance(tick, Exception):
            return
        if rest_ms != NO_KEY:
            self._has_seen_tick, self.is_data_missing = tick is not None, False
        elif self._has_seen_tick and tick is None:
            self.is_data_missing = time.monotonic() < self.stand_by().seen_until - SLACK_SECONDS

    # -- while this beat leads

    def _note_answer(self) -> None:
        """Record that Redis has answered the scheduler; log a slow answer, unless the client has logged its
        retries."""
        now = self._heartbeat.progressed_at = time.monotonic()
        asks_since = self.store.progress.asks_since
        if asks_since is None or now - asks_since <= SLOW_SECONDS or COUNTS.retried_at > asks_since:
            return
        seconds = now - asks_since
        logger.warning(
            "beat: Redis has answered only after %.1f s; this beat has done nothing else meanwhile.",
            seconds,
            extra=REDIS_SLOW.of(seconds=round(seconds, 3)),
        )

    def check(self) -> LockLost | None:
        """Follow what the heartbeat, the store or a program has found or changed; return the error if the
        lock is lost."""
        store, renewal = self.store, self.renewal
        if self.is_foreign:
            self._follow_lock()
            if not self.fence.token:
                self._lock.extend(int(self.timing.lock_seconds))  # no script can renew one without a token
        if store.has_retaken_lock:
            store.has_retaken_lock = False
            self.is_retaken, self.retaken_at = True, store.retaken_lock_at
        if renewal is None:
            return None
        renewal.has_news = renewal.lost is not None
        if renewal.lost is None and renewal.retaken_at > self.retaken_at:
            self.is_retaken, self.retaken_at = True, renewal.retaken_at
        return renewal.lost

    def confirm(self) -> None:
        """Make sure that the lock is still held, before a message is sent that no script checks.

        Costs a round trip only if the lock wasn't known to be held within the last 4 seconds, as after a
        pause.

        Raises:
            LockLost: another beat leads.
        """
        now = self._heartbeat.progressed_at = time.monotonic()
        renewal = self.renewal
        if renewal is not None and now - renewal.confirmed_at > self.timing.fresh_seconds:
            self.store.renew_lock(self.fence, obstacle=self._heartbeat.find_obstacle())
            renewal.confirmed_at = max(now, renewal.confirmed_at)
