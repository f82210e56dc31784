"""The ends of check-ins in a worker that doesn't track runs: it tells Sentry itself how each has ended.

Sentry's own handlers do so only for messages with headers of Sentry's, which RedBeat's have not: they take a
retry for an error. Invariant: a process that is no worker's is left alone, and so is the task of any message
that has no monitor.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery.signals import task_failure, task_prerun, task_success, worker_init, worker_process_init

from redbeat.policy.headers import CHECK_IN
from redbeat.runs.boundary import Harmless
from redbeat.runs.tracking import is_tracked
from redbeat.telemetry.sentry.sentry import Status, find_integration, send_check_in

_HEADERS = ("redbeat_entry", "redbeat_due", CHECK_IN)

#: where Sentry's code writes when it sends a message, UNIX seconds
SENT_AT = "sentry-task-enqueued-time"

_UID = "redbeat.telemetry.sentry.worker_check_ins"


def listen(**_: Any) -> None:
    """Connect the receivers in a worker's process, once."""
    task_prerun.connect(_complete_headers, weak=False, dispatch_uid=_UID)
    task_success.connect(_note_success, weak=False, dispatch_uid=_UID)
    task_failure.connect(_note_failure, weak=False, dispatch_uid=_UID)


def _complete_headers(task: Any = None, **_: Any) -> None:
    """Give a run's request the headers that Celery's and Sentry's code read there.

    A retry's message has those of RedBeat again: Sentry adds some of its own, and Celery would take only
    those. And Sentry measures how long a message has waited: one that was compiled, and so sent in time, says
    nothing of when it was sent.
    """
    run = task.request
    if getattr(run, CHECK_IN, None):
        with Harmless("completing the headers of a run"):
            sent_at = datetime.fromisoformat(run.redbeat_due).timestamp()
            own = {name: vars(run)[name] for name in _HEADERS}
            run.headers = {SENT_AT: sent_at, **own, **(run.headers or {})}


def _note_success(sender: Any = None, **_: Any) -> None:
    _end(sender, "ok")


def _note_failure(sender: Any = None, **_: Any) -> None:
    _end(sender, "error")


def _end(task: Any, status: Status) -> None:
    run = task.request
    monitor = getattr(run, CHECK_IN, None)
    if not isinstance(monitor, dict):
        return
    with Harmless("telling Sentry how a run has ended"):
        if find_integration() is not None and not is_tracked(task.app):
            due = datetime.fromisoformat(run.redbeat_due)
            send_check_in(run.redbeat_entry, due, status, monitor)


# whoever imports RedBeat before a worker begins; Sentry's integration does
worker_init.connect(listen, weak=False, dispatch_uid=_UID)
worker_process_init.connect(listen, weak=False, dispatch_uid=_UID)
