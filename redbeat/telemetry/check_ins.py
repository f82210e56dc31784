"""Check-ins of runs at Sentry's cron monitors.

Beat sends them, from the signals of runs: a check-in begins when the run is sent, and ends with the run's
outcome, where runs are tracked. Where they aren't, the worker that has run the task ends it: Sentry's own
handlers do so only for messages with headers of Sentry's, and they take a retry for an error. Invariant: a
run has one check-in, however many signals and attempts it has; and whatever Sentry does, no run waits for it.

Never: imports Sentry's SDK in a process that hasn't.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import uuid
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from celery.signals import task_failure, task_prerun, task_success, worker_init, worker_process_init

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.delivery.tracers import EVERY_NAME, find_integration
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import RedBeatError
from redbeat.log.events import ENTRY_UNMONITORED, TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.policy.messages import CHECK_IN
from redbeat.process.memory import Memory
from redbeat.runs.boundary import Harmless
from redbeat.runs.run import Run
from redbeat.runs.tracking import is_tracked
from redbeat.task_ids import task_id_of
from redbeat.telemetry.monitors import EXCLUDED, Monitor, find_monitor
from redbeat.telemetry.telemetry import KnownEntries

Status = Literal["in_progress", "ok", "error"]

#: Sentry takes six check-ins of an entry in a minute: the beginnings and ends of so many runs, and one more
MINUTE, MAX_BEGUN = 60.0, 2
#: outcomes of runs that succeeded, or were ignored by their tasks
_WELL = ("succeeded", "ignored")

#: so many check-ins are sent before their delivery is waited for
PIECE = 25
#: how long it is waited for, and after how long anew if that was in vain
PATIENCE_SECONDS, RETRY_SECONDS = 4.0, 60.0
#: how long the last ones are waited for, when beat ends
STOP_SECONDS = 2.0

_NAMESPACE = uuid.UUID("b1f1d0a8-1f0f-4a3e-9d43-5c1d3c3e2f77")
#: of so many entries without a monitor a WARNING is logged; of others at DEBUG
MAX_SAID = 50

_UID = "redbeat.telemetry.check_ins"


class CheckIns:
    """The check-ins of one beat: a part of its telemetry.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._integration: Any = None
        self._excluded: Any = None  # Sentry's own setting
        self._unflushed = 0
        self._flush_at = -math.inf  # not before, monotonic
        self._entries = KnownEntries(app)
        #: an entry's name and a run's due time to when its last check-in was sent, monotonic
        self._told = Memory[tuple[str, datetime], float](100_000)
        #: name to when the last check-ins of the entry began, monotonic
        self._begun = Memory[str, tuple[float, ...]](100_000)
        self._said = Memory[str, str](100_000)
        self._receivers = {
            signals.run_sent: self._note_sent,
            signals.run_started: self._note_started,
            signals.run_ended: self._note_ended,
        }

    # -- in the thread of the tick

    def look(self) -> None:
        """Take over from Sentry's own integration, where it is asked to monitor entries."""
        integration = find_integration() if ensure_conf(self._app).sentry else None
        if integration is None:
            self.stop()
        elif integration is not self._integration or not _is_taken_over(integration):
            self.stop()
            self._begin(integration)

    def _begin(self, integration: Any) -> None:
        self._integration, self._excluded = integration, integration.exclude_beat_tasks
        integration.exclude_beat_tasks = [EVERY_NAME]
        vars(self._app)[EXCLUDED] = tuple(self._excluded or ())
        if not ensure_conf(self._app).history:
            logger.warning("beat: Sentry isn't told when runs are sent, as redbeat_history is 0.")
        for signal, receiver in self._receivers.items():
            signal.connect(receiver, sender=self._app, weak=False, dispatch_uid=_UID)
        logger.info("beat: Sentry's monitors are RedBeat's own: one check-in a run.")

    def stop(self) -> None:
        """Give the monitors back to Sentry's own integration."""
        if self._integration is None:
            return
        for signal in self._receivers:
            signal.disconnect(sender=self._app, dispatch_uid=_UID)
        vars(self._app)[EXCLUDED] = None
        if self._unflushed:
            self._flush(STOP_SECONDS)  # not every process lets Sentry's code do so at its end
        if _is_taken_over(self._integration):
            self._integration.exclude_beat_tasks = self._excluded
        self._integration = None
        self._entries.close()

    # -- in the thread of signals

    def _note_sent(self, entry: str, run: Run, **_: Any) -> None:
        if (entry, run.due) not in self._told:  # a worker may begin it before it is recorded as sent
            self._tell(entry, run, "in_progress")

    def _note_started(self, entry: str, run: Run, **_: Any) -> None:
        if time.monotonic() > self._told.get((entry, run.due), -math.inf) + MINUTE:
            self._tell(entry, run, "in_progress")

    def _note_ended(self, entry: str, run: Run, **_: Any) -> None:
        self._tell(entry, run, "ok" if run.outcome in _WELL else "error")

    def _tell(self, name: str, run: Run, status: Status) -> None:
        try:
            entry = self._entries.find([name])[name]
        except RedBeatError as exc:
            logger.debug("beat: Sentry isn't told of a run of %s: %s", printable(name), exc)
            return
        if entry is None:
            return
        monitor = find_monitor(self._app, name, entry.schedule, entry.policy)
        if not isinstance(monitor, dict):
            if monitor and self._said.is_news(name, monitor):
                logger.log(
                    logging.WARNING if len(self._said) <= MAX_SAID else logging.DEBUG,
                    "beat: %s has no monitor at Sentry: %s.",
                    printable(name),
                    monitor,
                    extra=ENTRY_UNMONITORED.of(entry=name, reason=monitor),
                )
            return
        if not _is_scheduled(entry, run):
            return
        now, key = time.monotonic(), (name, run.due)
        if key not in self._told:
            recent = [at for at in self._begun.get(name, ()) if at > now - MINUTE]
            if len(recent) >= MAX_BEGUN:  # Sentry might drop the end of one whose beginning it has taken
                return
            self._begun[name] = (*recent, now)
        self._told[key] = now
        send_check_in(name, run.due, status, monitor, run.run_seconds)
        self._unflushed += 1
        if self._unflushed >= PIECE:
            self._flush(PATIENCE_SECONDS)

    def _flush(self, seconds: float) -> None:
        """Wait until Sentry has what it was sent: its code keeps a hundred check-ins, and drops others.

        If that takes too long, nothing is waited for within the next minute, so that some may be dropped.
        """
        began_at = time.monotonic()
        if began_at < self._flush_at:
            return
        sys.modules["sentry_sdk"].flush(timeout=seconds)
        self._unflushed, now = 0, time.monotonic()
        if now >= began_at + seconds:
            self._flush_at = now + RETRY_SECONDS
            reason = f"it hasn't taken what it was sent within {seconds:g} s"
            extra = TELEMETRY_FAILED.of(part="Sentry", reason=reason)
            logger.error("beat: Sentry may miss check-ins: %s.", reason, extra=extra)


def _is_taken_over(integration: Any) -> bool:
    return bool(integration.exclude_beat_tasks == [EVERY_NAME])


def _is_scheduled(entry: RedBeatSchedulerEntry, run: Run) -> bool:
    """Return True if the schedule has sent ``run``, and not a user."""
    due = run.due.isoformat(timespec="microseconds")
    return run.task_id in (task_id_of(entry.key, due), entry.options.get("task_id"))


# -- sending


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


def _id_of(name: str, due: datetime) -> str:
    """Return the id of a run's check-in: the same in beat and in all workers, and no other project's.

    For Sentry an id is one check-in only, whatever the project and the environment.
    """
    options = sys.modules["sentry_sdk"].get_client().options
    place = urlsplit(str(options.get("dsn")))
    where = f"{place.hostname}{place.path}\n{options.get('environment')}"
    at = due.astimezone(timezone.utc).isoformat(timespec="microseconds")
    return uuid.uuid5(_NAMESPACE, f"{where}\n{name}\n{at}").hex


# -- in a worker


_HEADERS = ("redbeat_entry", "redbeat_due", CHECK_IN)

#: where Sentry's code writes when it sends a message, UNIX seconds
SENT_AT = "sentry-task-enqueued-time"


def listen(**_: Any) -> None:
    """Connect the receivers in a worker's process, once."""
    task_prerun.connect(_complete_headers, weak=False, dispatch_uid=_UID)
    task_success.connect(partial(_end, status="ok"), weak=False, dispatch_uid=_UID)
    task_failure.connect(partial(_end, status="error"), weak=False, dispatch_uid=_UID)


def _complete_headers(task: Any = None, **_: Any) -> None:
    """Give a run's request the headers that Celery's and Sentry's code read there.

    A retry's message has RedBeat's headers again: Sentry adds some of its own, and Celery would take only
    those. And Sentry measures how long a message has waited: one that was compiled, and so sent in time, says
    nothing of when it was sent.
    """
    run = task.request
    if getattr(run, CHECK_IN, None):
        with Harmless("completing the headers of a run"):
            sent_at = datetime.fromisoformat(run.redbeat_due).timestamp()
            own = {name: vars(run)[name] for name in _HEADERS}
            run.headers = {SENT_AT: sent_at, **own, **(run.headers or {})}


def _end(sender: Any, status: Status, **_: Any) -> None:
    """End the check-in of a run; ``sender`` is its task."""
    run = sender.request
    monitor = getattr(run, CHECK_IN, None)
    if not isinstance(monitor, dict):
        return
    with Harmless("telling Sentry how a run has ended"):
        if find_integration() is not None and not is_tracked(sender.app):
            due = datetime.fromisoformat(run.redbeat_due)
            send_check_in(run.redbeat_entry, due, status, monitor)


# in any program that imports RedBeat before a worker begins; Sentry's integration does
worker_init.connect(listen, weak=False, dispatch_uid=_UID)
worker_process_init.connect(listen, weak=False, dispatch_uid=_UID)
