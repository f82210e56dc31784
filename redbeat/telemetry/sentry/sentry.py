"""What RedBeat knows of Sentry's SDK: its integration for Celery, and how a check-in is sent.

Invariant: where the SDK isn't imported, or isn't started, nothing is asked of it; RedBeat never imports it
first. Its functions are only called, not replaced.
"""

from __future__ import annotations

import math
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import urlsplit

from redbeat.delivery.tracers import EVERY_NAME
from redbeat.delivery.tracers import find_integration as find_integration
from redbeat.log.events import TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.telemetry.sentry.monitors import Monitor

Status = Literal["in_progress", "ok", "error"]

#: so many check-ins are sent before their delivery is waited for; or one, where the last was waited for
#: longer ago than this
PIECE, PIECE_SECONDS = 25, 0.5
#: how long it is waited for, and after how long anew if that was in vain
PATIENCE_SECONDS, RETRY_SECONDS = 4.0, 60.0
#: how long the last ones are waited for, when beat ends
STOP_SECONDS = 2.0

_NAMESPACE = uuid.UUID("b1f1d0a8-1f0f-4a3e-9d43-5c1d3c3e2f77")


class _TakenOver(list[str]):
    """In the place of ``exclude_beat_tasks``: no entry has a monitor by Sentry's own doing.

    Attributes:
        given: what was there before.
    """

    def __init__(self, given: Sequence[str] | None) -> None:
        super().__init__([EVERY_NAME])
        self.given = given


def is_taken_over(integration: Any) -> bool:
    """Tell whether ``integration`` monitors no entry, as RedBeat does."""
    return isinstance(integration.exclude_beat_tasks, _TakenOver)


def excluded_by(integration: Any) -> Sequence[str]:
    """Return the patterns of the entries that are to have no monitor."""
    excluded = integration.exclude_beat_tasks
    return (excluded.given if isinstance(excluded, _TakenOver) else excluded) or ()


def take_over(integration: Any) -> None:
    """Let ``integration`` monitor no entry in this process."""
    if not is_taken_over(integration):
        integration.exclude_beat_tasks = _TakenOver(integration.exclude_beat_tasks)


def give_back(integration: Any) -> None:
    """Let ``integration`` do again what it did before it was taken over."""
    excluded = integration.exclude_beat_tasks
    if isinstance(excluded, _TakenOver):
        integration.exclude_beat_tasks = excluded.given


def send_check_in(
    name: str, due: datetime, status: Status, monitor: Monitor, seconds: float | None = None
) -> None:
    """Tell Sentry of a run, in the background.

    Arguments:
        name: the entry's.
        due: when the run was due.
        monitor: of the entry. Sentry makes it, or changes it, if need be.
        seconds: how long the run took.
    """
    import sentry_sdk.crons

    config: Any = dict(monitor)  # Sentry's code may add to it
    sentry_sdk.crons.capture_checkin(
        monitor_slug=name,
        check_in_id=_id_of(name, due),
        status=status,
        duration=seconds,
        monitor_config=config,
    )


class Outlet:
    """Sends check-ins, and waits for their delivery: Sentry's code keeps a hundred, and drops the others.

    While Sentry doesn't take them in time, they aren't waited for, so that some may be dropped.

    Arguments:
        clock: a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting = 0
        self._flushed_at = self._retry_at = -math.inf
        self._is_away = False

    def send(self, name: str, due: datetime, status: Status, monitor: Monitor, seconds: float | None) -> None:
        """Send a check-in, as :func:`send_check_in`; a burst of them is waited for in pieces."""
        send_check_in(name, due, status, monitor, seconds)
        self._waiting += 1
        now = self._clock()
        if now < self._retry_at or (self._waiting < PIECE and now < self._flushed_at + PIECE_SECONDS):
            return
        sys.modules["sentry_sdk"].flush(timeout=PATIENCE_SECONDS)
        self._waiting, self._flushed_at = 0, self._clock()
        was_away, self._is_away = self._is_away, self._flushed_at >= now + PATIENCE_SECONDS
        if self._is_away:
            self._retry_at = self._flushed_at + RETRY_SECONDS
        if self._is_away and not was_away:
            reason = f"it hasn't taken what it was sent within {PATIENCE_SECONDS:g} s"
            extra = TELEMETRY_FAILED.of(part="Sentry", reason=reason)
            logger.error("beat: Sentry may miss check-ins: %s.", reason, extra=extra)

    def stop(self) -> None:
        """Wait for those that weren't waited for: not every process lets Sentry's code do so at its end."""
        if self._waiting and self._clock() >= self._retry_at:
            sys.modules["sentry_sdk"].flush(timeout=STOP_SECONDS)
            self._waiting = 0


def _id_of(name: str, due: datetime) -> str:
    """Return the id of a run's check-in: the same in beat and in all workers, and no other project's.

    For Sentry an id is one check-in only, whatever the project and the environment.
    """
    options = sys.modules["sentry_sdk"].get_client().options
    place = urlsplit(str(options.get("dsn")))
    where = f"{place.hostname}{place.path}\n{options.get('environment')}"
    at = due.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return uuid.uuid5(_NAMESPACE, f"{where}\n{name}\n{at}").hex
