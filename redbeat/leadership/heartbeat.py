"""The heartbeat: a thread that renews the locks of a beat, whatever its scheduler is busy with.

Owns one connection. Invariant: it renews locks only while the scheduler makes progress. A scheduler that
doesn't, as a publish or a signal handler never returns, must not keep the other beats waiting for ever, so
its locks are released. If the scheduler goes on later, its next step takes a lock again, or finds that
another beat leads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from redbeat.config.config import ensure_conf
from redbeat.config.timing import Timing
from redbeat.errors import RedBeatError
from redbeat.leadership.membership import Membership
from redbeat.log.events import HEARTBEAT_FAILED, LEADER_STUCK
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.store.locks import release_locks, renew_locks
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.leadership.leadership import Leadership

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


class Heartbeat(BackgroundThread):
    """Renews each lock that this beat holds, until another beat has it.

    A lock that is released meanwhile isn't taken back by a renewal that is on its way: the mark that is left
    in Redis refuses it.

    Arguments:
        app: the Celery app.
        timing: how often locks are renewed, and when the scheduler counts as stuck; it may change.
        members: this beat is announced to them at each renewal.
        find_led: returns the shards that this beat leads.

    Attributes:
        find_obstacle: returns why this beat cannot send, for ``status``; '': it can. It may be set.
        progressed_at: when the scheduler last did something, monotonic.
        excused_at: when the scheduler last had a reason to do nothing, monotonic: Redis couldn't be reached,
            or the process was paused.
    """

    def __init__(
        self, app: Any, timing: Timing, members: Membership, find_led: Callable[[], Sequence[Leadership]]
    ) -> None:
        super().__init__("redbeat-heartbeat", self._run)
        self.timing = timing
        self._members = members
        self._find_led = find_led
        self.find_obstacle: Callable[[], str] = lambda: ""
        self.progressed_at = self.excused_at = time.monotonic()
        self._app = app
        self._store: Store | None = None  # with a client of its own: a cluster's client connects at once

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Stop renewing; return whether it doesn't run any more."""
        has_ended = super().stop(seconds)
        store, self._store = self._store, None
        if store is not None:
            store.close()
        return has_ended

    def _run(self) -> None:
        wait_seconds = self.timing.renewal_seconds
        while True:
            wakes_at = time.monotonic() + wait_seconds
            if self.wait(wait_seconds):
                return
            began_at, has_renewed = time.monotonic(), False
            if began_at > wakes_at + LATE_SECONDS:
                self.excused_at = began_at  # the process was paused, which doesn't count as stuck
            try:
                has_renewed = self.beat()
            except RedBeatError as exc:
                logger.debug("beat: The heartbeat can't reach Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, the locks would end as well
                self.report("The heartbeat failed, and goes on", exc, HEARTBEAT_FAILED)
            renewal_seconds = self.timing.renewal_seconds
            wait_seconds = renewal_seconds / 4
            if has_renewed:  # a node that doesn't answer must not make the locks of others wait
                wait_seconds = max(began_at + renewal_seconds - time.monotonic(), wait_seconds)
            else:  # the scheduler may be waiting for Redis as well, so it doesn't count as stuck
                self.excused_at = time.monotonic()

    def beat(self) -> bool:
        """Renew the locks; return False if no lock could be renewed."""
        if not self._find_led():
            return True
        if self._store is None:
            # with an injected client, if there is one: those are for all threads. A node of a cluster that
            # doesn't answer is waited for twice, and the locks on others are renewed in time all the same
            tries = 2 if ensure_conf(self._app).is_cluster else 1
            self._store = Store.hasty(self._app, self.timing.renewal_seconds / tries)
        store, began_at = self._store, time.monotonic()
        led = [one for one in self._find_led() if one.lost is None and one.fence.token]
        if not led:
            return True
        if began_at - max(self.progressed_at, self.excused_at) >= self.timing.stuck_seconds:
            self._give_up(store, [one for one in led if one.confirmed_at > -math.inf])
            return True
        held = [(store.of_part(one.keys), one.fence) for one in led]
        idle_seconds, besides = began_at - self.progressed_at, [self._members.call()]
        errors = renew_locks(store, held, idle_seconds, self.find_obstacle(), besides)
        for one, (part, fence), error in zip(led, held, errors, strict=True):
            one.note_renewal(fence, began_at, part, error)
            if error is not None and one.lost is None:
                self.excused_at = time.monotonic()  # the scheduler may be waiting for the same node
        return None in errors

    def _give_up(self, store: Store, led: Sequence[Leadership]) -> None:
        if not led:
            return
        # without a mark, so that this beat may take them again
        locks = [(store.of_part(one.keys), replace(one.fence, mark="")) for one in led]
        release_locks(store, locks)
        self._members.leave([one.keys.wake for one in led])
        for one in led:
            one.confirmed_at = -math.inf
        keys, what = [str(one.lock_key) for one in led], what_hangs()
        names = f"the lock {keys[0]}" if len(keys) == 1 else f"its {len(keys)} locks"
        seconds = time.monotonic() - self.progressed_at
        logger.critical(
            "beat: The scheduler has done nothing for %.0f s: %s hangs. It gives up %s, so that another beat "
            "can go on.",
            seconds,
            what,
            names,
            extra=LEADER_STUCK.of(lock=" ".join(keys), seconds=round(seconds, 3), reason=f"{what} hangs"),
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
