"""The heartbeat: a thread that renews the locks of a beat, whatever its scheduler is busy with.

Owns one connection, and the state of each lock's renewal. Invariant: it renews locks only while the scheduler
makes progress. A scheduler that doesn't, as a publish or a signal handler never returns, must not keep the
other beats waiting for ever, so its locks are released. If the scheduler goes on later, its next step takes a
lock again, or finds that another beat leads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.membership import Membership
from redbeat.log.events import HEARTBEAT_FAILED, LEADER_STUCK
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread, surviving
from redbeat.store.locks import Held, Locks
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: how long is waited for a renewal that is on its way
STOP_SECONDS = 2.0

#: if the thread wakes later than this, the whole process was paused, and so was the scheduler
LATE_SECONDS = 1.0


class Role(Enum):
    """The role of one beat."""

    LEADER = "leader"
    STANDBY = "standby"
    #: there is no lock, and all beats send
    SHARING = "sharing"


@dataclass(frozen=True)
class Pulse:
    """The signs of life of one beat. Times are monotonic.

    Attributes:
        role: its role.
        progressed_at: when the scheduler last did something. While it waits for Redis, that is now.
        answered_at: when Redis last answered what the role needs: the leader, that it holds the lock; a
            standby, how long the lock lives; None: it hasn't been asked yet.
    """

    role: Role
    progressed_at: float
    answered_at: float | None


@dataclass(eq=False)
class Renewal:
    """One lock that the heartbeat renews. Times are monotonic.

    Attributes:
        fence: the lock and its token.
        part: the names in its shard; they change with the layout.
        lost: the error when another beat holds the lock, after which it isn't renewed; None: none does.
        unreachable: the error of the lock's node, if that hasn't answered lately, and others have; else None.
        confirmed_at: when the lock was last known to be held.
        retaken_at: when the lock was last gone, perhaps with all data, and was taken back.
        has_news: ``lost`` or ``retaken_at`` has changed; the scheduler sets it to False.
        has_given_up: the scheduler is stuck, and the lock was released.
    """

    fence: Fence
    part: Keys
    lost: LockLost | None = None
    unreachable: StoreUnavailable | None = None
    confirmed_at: float = field(default_factory=time.monotonic)
    retaken_at: float = -math.inf
    has_news: bool = False
    has_given_up: bool = False

    def note(self, began_at: float, store: Store, error: RedBeatError | None) -> None:
        """Record how a renewal in ``store`` that began then has ended."""
        if isinstance(error, LockLost):
            self.lost, self.has_news = error, True
        elif error is not None:
            self.unreachable = error if isinstance(error, StoreUnavailable) else None
            logger.debug("beat: The heartbeat couldn't renew %s: %s", self.fence.lock_key, error)
        else:
            self.has_given_up, self.unreachable, self.confirmed_at = False, None, began_at
            if store.has_retaken_lock:
                self.retaken_at, self.has_news = store.retaken_lock_at, True


class _Beating(BackgroundThread):
    """The thread.

    Attributes:
        store: the schedule, with the thread's own client, which it makes: that of a cluster connects at once.
        is_renewing: held while commands are on their way.
        busy_seconds: how long the last renewal took.
        has_failed: the last one has renewed no lock, so the next one comes sooner.
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
        membership: announces this beat at each renewal to those that share the schedule; None: it isn't
            shared. It may be set.
        find_obstacle: returns why this beat cannot send, for ``status``; '': it can. It may be set.
        progressed_at: when the scheduler last did something, monotonic.
        excused_at: when the scheduler last had a reason to do nothing, monotonic: Redis couldn't be reached,
            or the process was paused.
    """

    def __init__(self, app: Any, timing: Timing) -> None:
        self.timing = timing
        self.membership: Membership | None = None
        self.find_obstacle: Callable[[], str] = lambda: ""
        self.progressed_at = self.excused_at = time.monotonic()
        self._app = app
        self._renewals: tuple[Renewal, ...] = ()
        self._thread: _Beating | None = None

    @property
    def is_running(self) -> bool:
        """Whether there are locks that it renews."""
        return self._thread is not None

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
        """Stop renewing these: when this returns, no command is on its way that could take one back."""
        self._renewals = tuple(one for one in self._renewals if one not in renewals)
        if not self._renewals:
            self.stop()
        elif self._thread is not None and self._thread.is_renewing.acquire(timeout=STOP_SECONDS):
            self._thread.is_renewing.release()

    def stop(self) -> None:
        """Stop renewing: when this returns, no command is on its way that could take a lock back."""
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
                    thread.has_failed = not self._beat(thread)
            except RedBeatError as exc:
                # the scheduler may be waiting for Redis as well, so it doesn't count as stuck
                self.excused_at = time.monotonic()
                logger.debug("beat: The heartbeat can't reach Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, the locks would end as well
                self.excused_at = time.monotonic()
                thread.report("The heartbeat failed, and goes on", exc, HEARTBEAT_FAILED)
            thread.busy_seconds = time.monotonic() - began_at

    def _has_stopped(self, thread: _Beating) -> bool:
        """Wait for the next renewal; return True if there is none."""
        waited_since, renewal_seconds = time.monotonic(), self.timing.renewal_seconds
        wait_seconds = renewal_seconds / 4
        if not thread.has_failed:  # a node that doesn't answer must not make the locks of others wait
            wait_seconds = max(renewal_seconds - thread.busy_seconds, wait_seconds)
        has_stopped = thread.wait(wait_seconds)
        if time.monotonic() - waited_since > wait_seconds + LATE_SECONDS:
            self.excused_at = time.monotonic()  # the process was paused, which doesn't count as stuck
        return has_stopped

    def _beat(self, thread: _Beating) -> bool:
        """Renew the locks; return False if no lock could be renewed."""
        store = self._connect(thread)
        if store is None:
            return True
        renewals = [renewal for renewal in self._renewals if renewal.lost is None]
        began_at = time.monotonic()
        idle_seconds = began_at - self.progressed_at
        if began_at - max(self.progressed_at, self.excused_at) >= self.timing.stuck_seconds:
            self._give_up(store, renewals, idle_seconds)
            return True
        held = [Held(store.of_part(renewal.part), renewal.fence) for renewal in renewals]
        members = self.membership
        besides = [] if members is None else [members.call()]
        errors, replies = Locks(store).renew(held, idle_seconds, self.find_obstacle(), besides)
        for reply in replies:
            if members is not None:
                members.note(reply)
        for renewal, (part, _), error in zip(renewals, held, errors, strict=True):
            renewal.note(began_at, part, error)
            if error is not None and renewal.lost is None:
                self.excused_at = time.monotonic()  # the scheduler may be waiting for the same node
        return None in errors or not errors

    def _connect(self, thread: _Beating) -> Store | None:
        """Return the store with the thread's own client; None if the heartbeat was stopped meanwhile."""
        if thread.store is None:
            # with an injected client, if there is one: those are for all threads. A node that doesn't answer
            # is waited for twice, and the locks on others are renewed in time all the same
            tries = 1 if self.membership is None else 2
            thread.store = Store.hasty(self._app, self.timing.renewal_seconds / tries)
            if thread.is_over:  # connecting may have taken longer than stop() waits
                thread.store.close()
                return None
        return thread.store

    def _give_up(self, store: Store, renewals: list[Renewal], idle_seconds: float) -> None:
        held = [renewal for renewal in renewals if not renewal.has_given_up]
        if not held:
            return
        members = self.membership
        besides = [] if members is None else [members.leave_call()]
        # without a mark, so that this beat may take them again
        locks = [Held(store.of_part(one.part), replace(one.fence, mark="")) for one in held]
        Locks(store).release(locks, besides=besides)
        for renewal in held:
            renewal.has_given_up = True
        keys, what = [renewal.fence.lock_key or "" for renewal in held], what_hangs()
        names = f"the lock {keys[0]}" if len(keys) == 1 else f"its {len(keys)} locks"
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
