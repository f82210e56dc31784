"""The heartbeat: a thread that renews the locks of a beat, whatever its scheduler is busy with.

Owns one connection, and what it finds about each lock. Invariant: it renews locks only while the scheduler
makes progress. A scheduler that doesn't, as a publish or a signal handler never returns, must not keep the
other beats waiting for ever, so its locks are released. If the scheduler goes on later, its next step takes a
lock again, or finds that another beat leads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.peers import Peers
from redbeat.log.events import HEARTBEAT_FAILED, LEADER_STUCK
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread, surviving
from redbeat.store.locks import Held, LockKey, Locks
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: how long is waited for a renewal that is on its way
STOP_SECONDS = 2.0

#: if the thread wakes later than this, the whole process was paused, and so was the scheduler
LATE_SECONDS = 1.0


class Role(Enum):
    """What a beat is among the others."""

    LEADER = "leader"
    STANDBY = "standby"
    #: there is no lock, and all beats send
    SHARING = "sharing"


@dataclass(frozen=True)
class Pulse:
    """The signs of life of one beat. Times are monotonic.

    Attributes:
        role: its part.
        progressed_at: when the scheduler last did something. While it waits for Redis, that is now.
        answered_at: when Redis last answered what the role needs: the leader, that it holds the lock; a
            standby, how long the lock lives; None: it hasn't been asked yet.
    """

    role: Role
    progressed_at: float
    answered_at: float | None


class Renewal:
    """One lock that the heartbeat renews.

    Attributes:
        fence: the lock and its token.
        part: the part of the schedule that it belongs to; None: that of the whole schedule.
        silent: the error of the lock's node, where that hasn't answered lately, and others have; else None.
        lost: the error when another beat holds the lock, after which it isn't renewed; None: none does.
        confirmed_at: when the lock was last known to be held, monotonic.
        has_given_up: the scheduler is stuck, and the lock was released.
    """

    def __init__(self, fence: Fence, part: Keys | None = None) -> None:
        self.fence = fence
        self.part = part
        self.lost: LockLost | None = None
        self.silent: StoreUnavailable | None = None
        self.confirmed_at = time.monotonic()
        self.has_given_up = False
        self._store: Store | None = None

    def store_beside(self, store: Store) -> Store:
        """Return the store of the part that the lock belongs to, with the client of the thread's."""
        if self._store is None:
            self._store = store if self.part is None else store.of_part(self.part)
        return self._store

    def move_to(self, part: Keys) -> None:
        """Go on with these names of the same part, as the layout of the schedule has changed."""
        self.part, self._store = part, None

    def seconds_unconfirmed(self) -> float:
        """Return how long ago the lock was last known to be held."""
        return time.monotonic() - self.confirmed_at

    def note_confirmed(self, at: float) -> None:
        """Note that a step of the scheduler, begun ``at`` (monotonic), has found the lock held."""
        self.confirmed_at = max(at, self.confirmed_at)

    def note_renewed(self, at: float) -> None:
        """Note that a renewal, begun ``at`` (monotonic), has found the lock held, or taken it back."""
        self.has_given_up, self.silent = False, None
        self.confirmed_at = at

    @property
    def retaken_at(self) -> float:
        """When a renewal has taken the lock back last, monotonic."""
        return -math.inf if self._store is None else self._store.retaken_lock_at

    def take_retaken(self) -> bool:
        """Return whether the lock was gone, perhaps with all data, and was taken back since the last call."""
        store = self._store
        if store is None or not store.has_retaken_lock:
            return False
        # read first and unset then: if the thread sets it in between, this call tells of it; after that, the
        # next
        store.has_retaken_lock = False
        return True


class _Beating(BackgroundThread):
    """The thread.

    Attributes:
        store: the schedule, with the thread's own client, which it makes: that of a cluster connects at once.
        is_renewing: held while commands are on their way.
        busy_seconds: how long the last renewal took.
        has_failed: the last renewal has raised an error, so the next one comes sooner.
    """

    def __init__(self, work: Callable[[_Beating], None]) -> None:
        super().__init__("redbeat-heartbeat", lambda: work(self))
        self.store: Store | None = None
        self.is_renewing = threading.Lock()
        self.busy_seconds = 0.0
        self.has_failed = False


class Heartbeat:
    """Renews each lock until it is removed, or is another beat's. A thread runs as long as there are any.

    Arguments:
        app: the Celery app.
        timing: how often locks are renewed, and when the scheduler counts as stuck; it may be set later.

    Attributes:
        peers: the beats that share the schedule, who are told at each renewal that this one is there; None:
            it isn't shared. It may be set.
        progressed_at: when the scheduler last did something, monotonic.
        excused_at: when the scheduler last had a reason to do nothing, monotonic: Redis couldn't be reached,
            or the process was paused.
    """

    def __init__(self, app: Any, timing: Timing) -> None:
        self.timing = timing
        self.peers: Peers | None = None
        self.find_obstacle: Callable[[], str] = lambda: ""
        self.progressed_at = self.excused_at = time.monotonic()
        self._app = app
        self._renewals: tuple[Renewal, ...] = ()
        self._thread: _Beating | None = None

    @property
    def is_running(self) -> bool:
        """Whether there are locks that it renews."""
        return self._thread is not None

    @property
    def is_renewing(self) -> bool:
        """Whether renewals are on their way at this moment."""
        return self._thread is not None and self._thread.is_renewing.locked()

    def add(self, *renewals: Renewal) -> None:
        """Renew these locks from now on. Without any, start the thread again if it has died, or never began.

        Where the system has no thread to spare, the scheduler's own steps renew the locks.
        """
        self._renewals += renewals
        if not self._renewals:
            return
        if self._thread is None:
            self.progressed_at = self.excused_at = time.monotonic()
            self._thread = _Beating(self._run)
        with surviving("Starting the heartbeat"):
            self._thread.start()

    def remove(self, *renewals: Renewal) -> None:
        """Renew these no more: when this returns, no command is on its way that could take one back."""
        self._renewals = tuple(one for one in self._renewals if one not in renewals)
        if not self._renewals:
            self.stop()
        elif self._thread is not None and self._thread.is_renewing.acquire(timeout=STOP_SECONDS):
            self._thread.is_renewing.release()

    def stop(self) -> None:
        """Renew no lock any more: when this returns, no command is on its way that could take one back."""
        self._renewals = ()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(STOP_SECONDS)
            if thread.store is not None:
                thread.store.close()

    def _run(self, thread: _Beating) -> None:
        while not self._has_stopped(thread):
            began_at = time.monotonic()
            thread.has_failed = True
            try:
                with thread.is_renewing:
                    self._beat(thread)
                thread.has_failed = False
            except RedBeatError as exc:
                # the scheduler may be waiting for Redis as well, so it doesn't count as stuck
                self.excused_at = time.monotonic()
                logger.debug("beat: The heartbeat can't reach Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, the locks would end as well
                self.excused_at = time.monotonic()
                thread.report("The heartbeat failed, and goes on", exc, HEARTBEAT_FAILED)
            thread.busy_seconds = time.monotonic() - began_at

    def _has_stopped(self, thread: _Beating) -> bool:
        """Wait for the next renewal; return whether there is none."""
        waited_since, wait_seconds = time.monotonic(), self.timing.renewal_seconds
        if self.peers is not None:  # a node that doesn't answer mustn't make the locks of others wait
            wait_seconds = max(wait_seconds - thread.busy_seconds, wait_seconds / 4)
        elif thread.has_failed:
            wait_seconds /= 4
        has_stopped = thread.wait(wait_seconds)
        if time.monotonic() - waited_since > wait_seconds + LATE_SECONDS:
            self.excused_at = time.monotonic()  # the process was paused, which doesn't count as stuck
        return has_stopped

    def _beat(self, thread: _Beating) -> None:
        store = self._connect(thread)
        if store is None:
            return
        renewals = [renewal for renewal in self._renewals if renewal.lost is None]
        started_at = time.monotonic()
        idle_seconds = started_at - self.progressed_at
        stuck_seconds = started_at - max(self.progressed_at, self.excused_at)
        if stuck_seconds >= self.timing.stuck_seconds:
            self._give_up(store, renewals, idle_seconds)
        elif self.peers is not None:
            self._renew_together(store, renewals, self.peers, idle_seconds)
        else:
            for renewal in renewals:
                try:
                    renewal.store_beside(store).renew_lock(renewal.fence, idle_seconds, self.find_obstacle())
                except LockLost as exc:
                    renewal.lost = exc
                else:
                    renewal.note_renewed(started_at)

    def _renew_together(
        self, store: Store, renewals: list[Renewal], peers: Peers, idle_seconds: float
    ) -> None:
        started_at = time.monotonic()
        held = [Held(renewal.store_beside(store), renewal.fence) for renewal in renewals]
        found, [reply] = Locks(store).renew(held, idle_seconds, self.find_obstacle(), [peers.call()])
        peers.note(reply)
        for renewal, error in zip(renewals, found, strict=True):
            if error is None:
                renewal.note_renewed(started_at)
            elif isinstance(error, LockLost):
                renewal.lost = error
            else:  # the scheduler may be waiting for the same node
                self.excused_at = time.monotonic()
                renewal.silent = error if isinstance(error, StoreUnavailable) else None
                logger.debug("beat: The heartbeat can't renew %s: %s", renewal.fence.lock_key, error)

    def _connect(self, thread: _Beating) -> Store | None:
        """Return the store with the thread's own client; None if the heartbeat was stopped meanwhile."""
        if thread.store is None:
            # with an injected client, if there is one: those are for all threads. A node that doesn't answer
            # is waited for twice, and the locks on others are renewed in time all the same
            tries = 1 if self.peers is None else 2
            thread.store = Store.hasty(self._app, self.timing.renewal_seconds / tries)
            if thread.is_over:  # connecting may have taken longer than stop() waits
                thread.store.close()
                return None
        return thread.store

    def _give_up(self, store: Store, renewals: list[Renewal], idle_seconds: float) -> None:
        held = [renewal for renewal in renewals if not renewal.has_given_up]
        if not held:
            return
        if self.peers is None:
            for renewal in held:
                LockKey(store, renewal.fence.lock_key or "").release(renewal.fence.token)
        else:
            locks = [Held(renewal.store_beside(store), renewal.fence) for renewal in held]
            Locks(store).release(locks, is_marked=False, besides=[self.peers.leave_call()])
        for renewal in held:
            renewal.has_given_up = True
        keys, what = [renewal.fence.lock_key or "" for renewal in held], what_hangs()
        parts = [renewal.part for renewal in held if renewal.part is not None]
        if self.peers is None or not parts:
            names = f"the lock {keys[0]}"
        else:
            names = f"the lock{'s' if len(parts) > 1 else ''} of {store.config.layout.named(parts)}"
        logger.critical(
            "beat: The scheduler has done nothing for %.0f s: %s hangs. It gives up %s, so that another beat "
            "can go on.",
            idle_seconds,
            what,
            names,
            extra=LEADER_STUCK.of(
                lock=" ".join(keys), seconds=round(idle_seconds, 3), reason=f"{what} hangs"
            ),
        )


class Planning:
    """The run that the scheduler of this process is planning, for the log if that never returns.

    Attributes:
        key: of its entry; None: no run is planned now.
    """

    key: str | None = None


PLANNING = Planning()


def what_hangs() -> str:
    """Return what a scheduler that does nothing is busy with, as far as that is known."""
    key = PLANNING.key
    return "a publish or a signal handler" if key is None else f"the schedule of {printable(key)}"
