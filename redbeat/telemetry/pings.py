"""The dead man's switch: a service that the leader calls each minute while all is well, and that raises the
alarm when it isn't called.

All is well: this beat leads by Redis' own word, makes progress, can reach the broker as far as it knows, and
no entry has been due for too long. Invariant: nothing but that makes it call; no tick waits for it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import parse_ping_url
from redbeat.errors import RedBeatError
from redbeat.leadership.status import ask_status, judge
from redbeat.log.events import PING_RESUMED, PING_WITHHELD
from redbeat.log.logger import logger
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store
from redbeat.telemetry.health import Health
from redbeat.telemetry.ping_calls import CallFailed, Service, call

#: how often the service is called
PERIOD_SECONDS = 60.0

#: how soon it is called again if it couldn't be, and how soon it is looked again whether all is well
RETRY_SECONDS, LOOK_AGAIN_SECONDS = 15.0, 5.0

#: how often the thread looks at the clock; more often than a beat may be idle
STEP_SECONDS = 1.0

#: for how long no other beat calls, where there is no lock
CLAIM_SECONDS = 55.0


class Pings:
    """Calls ``redbeat_ping_url``, in one beat.

    Arguments:
        app: the Celery app.
        health: that of this beat.
        find_fence: returns what says that this beat leads; None: it doesn't.
    """

    def __init__(self, app: Any, health: Health, find_fence: Callable[[], Fence | None]) -> None:
        config = ensure_conf(app)
        self._app = app
        self._url = parse_ping_url(config.ping_url)
        self._late_after_seconds = config.ping_late_after
        self._health = health
        self._find_fence = find_fence
        self._caller = secrets.token_hex(8)
        self._service = Service(self._url.service)
        self._said = Memory[str, str]()
        self._thread = BackgroundThread("redbeat-ping", self._run)

    def look(self) -> None:
        """Start the thread if it doesn't run."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a call that is on its way isn't waited for."""
        self._thread.stop()

    # -- in the thread

    def _run(self) -> None:
        next_at = time.monotonic()
        while not self._thread.wait(STEP_SECONDS):
            self._health.look()
            if time.monotonic() < next_at:
                continue
            try:
                seconds = self.step()
            except Exception as exc:  # noqa: BLE001 - if this thread ended, there would be a false alarm
                self._withhold(f"{type(exc).__name__}: {exc}")
                seconds = LOOK_AGAIN_SECONDS
            next_at = time.monotonic() + seconds

    def step(self) -> float:
        """Call the service if all is well; return the seconds to the next step."""
        fence = self._find_fence()
        if fence is None:
            self._said.clear()
            return STEP_SECONDS
        if self._health.is_idle:
            return STEP_SECONDS
        obstacle = self._health.find_obstacle() or self._find_fault(fence)
        if obstacle:
            self._withhold(obstacle)
            return LOOK_AGAIN_SECONDS
        if self._said:
            self._said.clear()
            extra = PING_RESUMED.of(service=self._service.name)
            logger.warning("beat: Heartbeat ping to %s resumed.", self._service.name, extra=extra)
        return self._call(has_lock=fence.lock_key is not None)

    def _call(self, *, has_lock: bool) -> float:
        """Call the service; without a lock one of several beats does. Return the seconds to the next step."""
        with Store.hasty(self._app) as store:
            turn = LockKey(store.apart(), store.keys.pinged)
            if not has_lock and not turn.take(self._caller, int(CLAIM_SECONDS * 1000)):
                return LOOK_AGAIN_SECONDS
            try:
                call(self._url)
            except CallFailed as exc:
                self._service.note_failed(exc)
                if not has_lock:
                    turn.release(self._caller)
                return RETRY_SECONDS
        self._service.note_well()
        return PERIOD_SECONDS

    def _find_fault(self, fence: Fence) -> str:
        """Return why Redis' answer speaks against calling; '': it doesn't."""
        try:
            status = ask_status(self._app)
        except RedBeatError as exc:
            return str(exc)
        _, problem = judge(status, self._late_after_seconds)
        is_led_by_another = status.leader is not None and status.leader.token != fence.token
        if not problem and fence.token and fence.lock_key == status.lock_key and is_led_by_another:
            return "Another beat holds the lock."
        return problem

    def _withhold(self, reason: str) -> None:
        """Log why the service isn't called: once, until that changes or all is well."""
        kind = "".join(char for char in reason if not char.isdigit())  # seconds go on
        if self._said.is_news(kind, ""):
            logger.warning(
                "beat: Heartbeat ping to %s withheld: %s",
                self._service.name,
                reason,
                extra=PING_WITHHELD.of(service=self._service.name, reason=reason),
            )
