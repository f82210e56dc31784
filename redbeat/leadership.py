"""Leading and not leading: one beat's way to the lock, its time as the holder, and its way out.

Owns the lock, the heartbeat and what is logged about them. Invariant: whoever asks for the fence gets that of
a lock which this beat has held a moment ago; the scripts check whether it still does.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from redbeat.errors import RedBeatError
from redbeat.heartbeat import Heartbeat
from redbeat.lock import LeaderLock
from redbeat.lua import Fence
from redbeat.store import Store

__all__ = ["Leadership"]

logger = get_logger("celery.beat")

#: a standby that is about to take over looks no more often than this, seconds
MIN_LOOK_SECONDS = 0.1

#: a message that can't be called back leaves only when the lock was known to be held so long ago, seconds
FRESH_SECONDS = 4.0


class Leadership:
    """One beat's part in who leads.

    Arguments:
        store: the schedule; its writes are fenced with ``fence``.
        lock_key: None: no lock is configured, and every beat leads.
        timeout_seconds: the lock's time to live.

    Attributes:
        lock: the lock that this beat holds, None while it holds none.
        candidacy: the lock that this beat waits for, None while it doesn't.
    """

    def __init__(self, store: Store, lock_key: str | None, timeout_seconds: float) -> None:
        self.lock: LeaderLock | None = None
        self.candidacy: LeaderLock | None = None
        self._store = store
        self._lock_key = lock_key
        self._timeout_seconds = timeout_seconds
        self._heartbeat: Heartbeat | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this beat may send."""
        return self._lock_key is None or self.lock is not None

    @property
    def fence(self) -> Fence:
        """What every write of the scheduler is checked against."""
        return self.lock.fence if self.lock else Fence()

    def stand(self) -> bool:
        """Take the lock if it can be had; return whether this beat leads now."""
        if self.is_leader or self._lock_key is None:
            return True
        if self.candidacy is None:
            logger.info("beat: Acquiring lock...")
            takeover_seconds = self._store.config.takeover_after
            self.candidacy = LeaderLock(self._store, self._lock_key, self._timeout_seconds, takeover_seconds)
        if not self.candidacy.acquire():
            return False
        self.lock, self.candidacy = self.candidacy, None
        if self.lock.replaced:
            logger.warning(
                "beat: Took the lock over from %s, which hasn't renewed it for %s s.",
                self.lock.replaced,
                self._store.config.takeover_after,
            )
        logger.info("beat: Acquired lock")
        return True

    def keep_alive(self) -> None:
        """Renew the lock from now on by a thread of its own: for a scheduler that a running beat ticks."""
        if self.lock is not None and self._heartbeat is None:
            self._heartbeat = Heartbeat(self._store.config.app, self.lock.fence)
            self._store.on_progress = self.note_progress
            self._heartbeat.start()

    def note_progress(self) -> None:
        """The scheduler isn't stuck."""
        if self._heartbeat is not None:
            self._heartbeat.note_progress()

    def check(self) -> bool:
        """Return whether the lock was gone, perhaps with all data, and was taken back since the last look.

        Raises:
            LockLost: another beat leads.
        """
        was_retaken = False
        if self._heartbeat is not None:
            self._heartbeat.note_progress()
            if self._heartbeat.lost is not None:
                raise self._heartbeat.lost
            was_retaken = self._heartbeat.take_retaken()
        if self._store.has_retaken_lock:
            self._store.has_retaken_lock = False
            was_retaken = True
        if was_retaken:
            logger.warning("beat: The lock %s was gone and is taken back.", self._lock_key)
        return was_retaken

    def confirm(self) -> None:
        """Before something leaves that can't be called back: make sure that the lock is still held.

        Costs a round trip only where that hasn't been known for some seconds, as after a pause.

        Raises:
            LockLost: another beat leads.
        """
        if self._heartbeat is None:
            return
        self._heartbeat.note_progress()
        if self._heartbeat.seconds_unconfirmed() > FRESH_SECONDS:
            self._store.renew_lock(self.fence)
            self._heartbeat.note_confirmed()

    def seconds_to_look(self, usual_seconds: float) -> float:
        """Return how long a standby waits until its next look: less when it is about to take over."""
        left = self.candidacy.seconds_to_takeover() if self.candidacy is not None else None
        return usual_seconds if left is None else min(max(left, MIN_LOOK_SECONDS), usual_seconds)

    def forget(self) -> None:
        """Take notice that another beat holds the lock; a later ``stand`` waits for it."""
        self._stop_heartbeat()
        self.lock = self.candidacy = None

    def resign(self) -> None:
        """Give up the lock, or what may have become one: Redis isn't waited for long."""
        self._stop_heartbeat()
        lock, self.lock, self.candidacy = self.lock or self.candidacy, None, None
        if lock is None or not lock.token:
            return
        logger.info("beat: Releasing lock")
        try:
            lock.release()
        except RedBeatError as exc:
            logger.warning("beat: The lock couldn't be released, it ends by itself: %s", exc)

    def _stop_heartbeat(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
