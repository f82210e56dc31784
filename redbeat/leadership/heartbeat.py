"""The heartbeat: a thread that renews the leader's lock, whatever the scheduler is busy with.

Owns one connection and one acquisition of the lock. Invariant: it renews the lock only while the scheduler
makes progress. A scheduler that doesn't, as a publish or a signal handler never returns, must not keep the
other beats waiting for ever, so the lock is released. If the scheduler goes on later, its next step takes the
lock again, or finds that another beat leads.
"""

from __future__ import annotations

import time
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError
from redbeat.log.events import HEARTBEAT_FAILED, LEADER_STUCK
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.process.budget import what_is_computed
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: how long ``stop`` waits for a renewal that is on its way
STOP_SECONDS = 2.0

#: if the thread wakes later than this, the whole process was paused, and so was the scheduler
LATE_SECONDS = 1.0


class Heartbeat:
    """Renews one lock until it is stopped, or the lock is another beat's.

    Arguments:
        app: the Celery app.
        fence: the lock and its token.
        timing: how often the lock is renewed, and when the scheduler counts as stuck.

    Attributes:
        lost: the error when another beat holds the lock, after which nothing is renewed; None: none does.
        confirmed_at: when the lock was last known to be held, monotonic.
        excused_at: when the scheduler last had a reason to do nothing, monotonic: Redis couldn't be reached,
            or the process was paused.
        has_given_up: the scheduler is stuck, and the lock was released.
    """

    def __init__(self, app: Any, fence: Fence, timing: Timing) -> None:
        self.lost: LockLost | None = None
        self._app = app
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._fence = fence
        self._timing = timing
        self._progressed_at = self.confirmed_at = time.monotonic()
        self.excused_at = time.monotonic()
        self.has_given_up = False
        self._thread = BackgroundThread("redbeat-heartbeat", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread: when this returns, no command is on its way that could take the lock back."""
        self._thread.stop(STOP_SECONDS)
        if self._store is not None:
            self._store.close()

    def note_progress(self) -> None:
        """Note that the scheduler has done something."""
        self._progressed_at = time.monotonic()

    def seconds_unconfirmed(self) -> float:
        """Return how long ago the lock was last known to be held."""
        return time.monotonic() - self.confirmed_at

    def note_confirmed(self, at: float) -> None:
        """Note that a step of the scheduler, begun ``at`` (monotonic), has found the lock held."""
        self.confirmed_at = max(at, self.confirmed_at)

    def take_retaken(self) -> bool:
        """Return whether the lock was gone, perhaps with all data, and was taken back since the last call."""
        store = self._store
        if store is None or not store.has_retaken_lock:
            return False
        # read first and unset then: if the thread sets it in between, this call tells of it; after that, the
        # next
        store.has_retaken_lock = False
        return True

    def _run(self) -> None:
        while not self._has_stopped():
            try:
                self._beat()
            except LockLost as exc:
                self.lost = exc
                return
            except RedBeatError as exc:
                # the scheduler may be waiting for Redis as well, so it doesn't count as stuck
                self.excused_at = time.monotonic()
                logger.debug("beat: The heartbeat can't reach Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, the lock would end as well
                self.excused_at = time.monotonic()
                self._thread.report("The heartbeat failed, and goes on", exc, HEARTBEAT_FAILED)

    def _has_stopped(self) -> bool:
        """Wait for the next renewal; return whether there is none."""
        waited_since, renewal_seconds = time.monotonic(), self._timing.renewal_seconds
        has_stopped = self._thread.wait(renewal_seconds)
        if time.monotonic() - waited_since > renewal_seconds + LATE_SECONDS:
            self.excused_at = time.monotonic()  # the process was paused, which doesn't count as stuck
        return has_stopped

    def _beat(self) -> None:
        store = self._connect()
        if store is None:
            return
        started_at = time.monotonic()
        idle_seconds = started_at - self._progressed_at
        stuck_seconds = started_at - max(self._progressed_at, self.excused_at)
        if stuck_seconds >= self._timing.stuck_seconds:
            self._give_up(store, idle_seconds)
            return
        store.renew_lock(self._fence, idle_seconds)
        self.has_given_up = False
        self.confirmed_at = started_at

    def _connect(self) -> Store | None:
        """Return the store with the thread's own client; None if the heartbeat was stopped meanwhile."""
        if self._store is None:
            # with an injected client, if there is one: those are for all threads
            self._store = Store.hasty(self._app, self._timing.renewal_seconds)
            if self._thread.is_over:  # connecting may have taken longer than stop() waits
                self._store.close()
                return None
        return self._store

    def _give_up(self, store: Store, idle_seconds: float) -> None:
        if self.has_given_up:
            return
        LockKey(store, self._fence.lock_key or "").release(self._fence.token)
        self.has_given_up = True
        what = what_hangs()
        logger.critical(
            "beat: The scheduler has done nothing for %.0f s: %s hangs. It gives up the lock %s, so that "
            "another beat can go on.",
            idle_seconds,
            what,
            self._fence.lock_key,
            extra=LEADER_STUCK.of(
                lock=self._fence.lock_key, seconds=round(idle_seconds, 3), reason=f"{what} hangs"
            ),
        )


def what_hangs() -> str:
    """Return what a scheduler that does nothing is busy with, as far as that is known."""
    key = what_is_computed()
    return "a publish or a signal handler" if key is None else f"the schedule of {printable(key)}"
