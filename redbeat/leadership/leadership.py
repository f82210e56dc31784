"""One shard as one beat knows it: whether this beat leads it, and the fence of its writes.

An unsharded schedule is one shard. Invariant: the fence is that of a lock which this beat held a moment ago;
the scripts check whether it still does.
"""

from __future__ import annotations

import time
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.heartbeat import Heartbeat
from redbeat.leadership.lock import LeaderLock, fence_of
from redbeat.log.logger import logger
from redbeat.store.locks import NO_KEY
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: a key that is missing this long before its expiry hasn't expired; seconds
SLACK_SECONDS = 1.0


class Leadership:
    """One shard, and this beat's lock for it.

    Arguments:
        store: the shard; its writes are fenced with ``fence``.
        lock_key: the lock's key; None: no lock is configured, and every beat leads.
        timing: how long the lock lives, and what follows from that; it may change.
        heartbeat: renews the lock.
        beat: the id of this beat, which the lock's tokens contain.

    Attributes:
        is_leader: this beat may send.
        fence: the lock and the token that every write of the scheduler is checked against.
        own: the lock that this beat waits for, or holds.
        is_foreign: the lock is an object that a program has set, and no LeaderLock.
        is_data_missing: a look found neither the lock nor its ``tick``, before these would have expired.
        confirmed_at: when the lock was last known to be held, monotonic; -infinity: the heartbeat has
            released it, as the scheduler is stuck.
        lost: the error if the heartbeat found another beat's token; else None.
        unreachable: the error of the lock's node, if that hasn't answered the heartbeat lately; else None.
    """

    def __init__(
        self, store: Store, lock_key: str | None, timing: Timing, heartbeat: Heartbeat, beat: str
    ) -> None:
        self.store = store
        self.timing = timing
        self._heartbeat, self._beat = heartbeat, beat
        self.is_data_missing = self._has_seen_tick = False
        self.lock_key = lock_key
        self.forget()

    @property
    def keys(self) -> Keys:
        """The names in the shard."""
        return self.store.keys

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
        self.confirmed_at = time.monotonic()
        self.lost: LockLost | None = None
        self.unreachable: StoreUnavailable | None = None
        self.follow_lock()

    def follow_lock(self) -> None:
        """Update what follows from the lock: whether this beat leads, and the fence of its writes."""
        lock = self._lock
        is_released = isinstance(lock, LeaderLock) and not lock.is_held
        self.is_foreign = lock is not None and not isinstance(lock, LeaderLock)
        self.is_leader = lock is not None and not is_released
        if not is_released:  # else the fence refuses what is on its way
            self.fence = Fence() if lock is None else fence_of(lock, self.timing)

    @property
    def is_certain(self) -> bool:
        """Whether this beat leads, and no other one can lead by now, as far as the lock's times say."""
        return self.is_leader and time.monotonic() - self.confirmed_at < self.timing.replaced_after_seconds

    # -- standing by for the lock, taking and losing it

    def set_lock_key(self, lock_key: str | None) -> None:
        """Use another lock, once this beat holds none."""
        self.lock_key = lock_key
        if self._lock is None:
            self.forget()
        self.follow_lock()

    def lead(self) -> None:
        """Record that this beat leads: its own lock is held, or no lock is configured."""
        if self.lock_key is not None:
            self.own.on_release = self.follow_lock
            self.lock = self.own
        self.is_leader = True

    def forget(self) -> None:
        """Record that this beat doesn't hold the lock any more, and stands by for it."""
        self.own = LeaderLock(self.store, self.lock_key or "", self.timing, self._beat)
        self.lock = None

    def note_look(self, tick: Any) -> None:
        """Find out whether Redis has lost its data together with the lock, as a look has found it.

        Every renewal lets both live equally long, and a leader that ends leaves the tick. So if both are gone
        before their time, the data is. celery-redbeat 2.x writes no tick.

        Arguments:
            tick: what ``keys.tick`` held then, or the error, which says nothing.
        """
        if self.own.error is not None or isinstance(tick, RedBeatError):
            return
        if self.own.seen.rest_ms != NO_KEY:
            self._has_seen_tick, self.is_data_missing = tick is not None, False
        elif self._has_seen_tick and tick is None:
            self.is_data_missing = time.monotonic() < self.own.expires_at - SLACK_SECONDS

    # -- while this beat leads

    def note_renewal(self, fence: Fence, began_at: float, store: Store, error: RedBeatError | None) -> None:
        """Record how a renewal by the heartbeat has ended, which began then; called by its thread.

        Arguments:
            store: the one that has renewed it: it knows whether the lock was gone.
        """
        if not self.is_leader or fence.token != self.fence.token:
            return  # it was released meanwhile
        if isinstance(error, LockLost):
            self.lost = error
        elif error is not None:
            self.unreachable = error if isinstance(error, StoreUnavailable) else None
            logger.debug("beat: The heartbeat couldn't renew %s: %s", fence.lock_key, error)
        else:
            self.unreachable, self.confirmed_at = None, began_at
            if store.has_retaken_lock:
                self.store.retaken_lock_at, self.store.has_retaken_lock = store.retaken_lock_at, True

    def check(self) -> bool:
        """Follow what the heartbeat, the store or a program has found or changed; return True if the lock was
        gone, perhaps with all data, and is taken back.

        Raises:
            LockLost: another beat holds it.
        """
        if self.is_foreign:
            self.follow_lock()  # it may have another token
            if not self.fence.token:
                self._lock.extend(int(self.timing.lock_seconds))  # no script can renew one without a token
        was_gone, self.store.has_retaken_lock = self.store.has_retaken_lock, False
        if self.lost is not None:
            raise self.lost
        return was_gone

    def confirm(self) -> None:
        """Make sure that the lock is still held, before a message is sent that no script checks.

        Costs a round trip only if the lock wasn't known to be held within the last 4 seconds, as after a
        pause.

        Raises:
            LockLost: another beat leads.
        """
        now = self._heartbeat.progressed_at = time.monotonic()
        if self.fence.token and now - self.confirmed_at > self.timing.fresh_seconds:
            self.store.renew_lock(self.fence, obstacle=self._heartbeat.find_obstacle())
            self.confirmed_at = max(now, self.confirmed_at)
