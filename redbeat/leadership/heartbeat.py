"""The heartbeat: a thread that renews the leader's lock, whatever the scheduler is busy with.

Owns one connection and one acquisition of the lock. Invariant: it renews for a scheduler that makes progress.
One that doesn't (a publish or a signal handler that never returns) must not keep the other beats waiting for
ever, so the lock is given up; when the scheduler comes back to life, its own next step takes it again, or
finds that another beat leads.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.budget import what_is_computed
from redbeat.process.memory import Memory
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: how long who stops it waits for a renewal that is on its way, seconds
STOP_SECONDS = 2.0

#: a thread that wakes this many seconds too late didn't run, and neither did the scheduler: the whole process
#: stood still
LATE_SECONDS = 1.0


class Heartbeat:
    """Renews one lock until it is stopped, or the lock is another beat's.

    Arguments:
        app: the Celery app.
        fence: the lock and its token.
        timing: how often the lock is renewed, and when the scheduler counts as stuck.

    Attributes:
        lost: why there is nothing to renew any more: another beat holds the lock. None: it doesn't.
    """

    def __init__(self, app: Any, fence: Fence, timing: Timing) -> None:
        self.lost: LockLost | None = None
        self._app = app
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._fence = fence
        self._timing = timing
        self._stopped = threading.Event()
        self._progressed_at = self._confirmed_at = time.monotonic()
        self._reached_at = time.monotonic()
        self._has_given_up = False
        self._said = Memory[str, str]()  # of which kind of error what was logged last
        self._thread = threading.Thread(target=self._run, name="redbeat-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more: when this returns, no command is on its way that could take the lock back."""
        self._stopped.set()
        self._thread.join(timeout=STOP_SECONDS)
        if self._store is not None:
            self._store.close()

    def note_progress(self) -> None:
        """The scheduler has done something."""
        self._progressed_at = time.monotonic()

    def seconds_unconfirmed(self) -> float:
        """Return for how long it isn't known whether the lock is still held."""
        return time.monotonic() - self._confirmed_at

    def note_confirmed(self, at: float) -> None:
        """A step of the scheduler's own, begun ``at`` (monotonic), has found the lock held."""
        self._confirmed_at = max(at, self._confirmed_at)

    def take_retaken(self) -> bool:
        """Return, once, whether the lock was gone, perhaps with all data, and was taken back."""
        store = self._store
        if store is None or not store.has_retaken_lock:
            return False
        # seen first and unset then: what the thread finds in between is told just now, and what it finds
        # after it the next time
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
                # nothing can be said of a scheduler that waits for Redis, too
                self._reached_at = time.monotonic()
                logger.debug("beat: The heartbeat can't reach Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - nobody waits for this thread: without it the lock ends
                self._reached_at = time.monotonic()
                self._report(exc)

    def _has_stopped(self) -> bool:
        """Wait for the next renewal; return whether there is none."""
        waited_since, renewal_seconds = time.monotonic(), self._timing.renewal_seconds
        has_stopped = self._stopped.wait(renewal_seconds)
        if time.monotonic() - waited_since > renewal_seconds + LATE_SECONDS:
            self._reached_at = time.monotonic()  # of that time nothing can be said, either
        return has_stopped

    def _beat(self) -> None:
        store = self._connect()
        if store is None:
            return
        started_at = time.monotonic()
        idle_seconds = started_at - self._progressed_at
        stuck_seconds = started_at - max(self._progressed_at, self._reached_at)
        if stuck_seconds >= self._timing.stuck_seconds:
            self._give_up(store, idle_seconds)
            return
        store.renew_lock(self._fence, idle_seconds)
        self._has_given_up = False
        self._confirmed_at = started_at

    def _connect(self) -> Store | None:
        """Return the store with the thread's own client; None when this heartbeat was stopped meanwhile."""
        if self._store is None:
            # of its own, unless one was injected: those are for all threads
            self._store = Store.hasty(self._app, self._timing.renewal_seconds)
            if self._stopped.is_set():  # whoever stops it may have waited for less time than this took
                self._store.close()
                return None
        return self._store

    def _report(self, exc: Exception) -> None:
        """Log what nobody has thought of: once for each kind, until its words change."""
        kind, words = type(exc).__name__, str(exc)
        if self._said.is_news(kind, words):
            logger.error("beat: The heartbeat failed, and goes on: %s: %s", kind, words, exc_info=exc)

    def _give_up(self, store: Store, idle_seconds: float) -> None:
        if self._has_given_up:
            return
        LockKey(store, self._fence.lock_key or "").release(self._fence.token)
        self._has_given_up = True
        logger.critical(
            "beat: The scheduler has done nothing for %.0f s: %s hangs. It gives up the lock %s, so that "
            "another beat can go on.",
            idle_seconds,
            _what_hangs(),
            self._fence.lock_key,
        )


def _what_hangs() -> str:
    key = what_is_computed()
    return "a publish or a signal handler" if key is None else f"the schedule of {printable(key)}"
