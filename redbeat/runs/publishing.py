"""What a run's task publishes: its own next attempt, and the other tasks of its workflow.

Owns the receivers of Celery's signals about publishing, which are connected in workers only, and knows which
run the present thread or greenlet is about. Invariant: a message that belongs to no run, or that is sent
where no run's task is at work, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from celery.signals import after_task_publish, before_task_publish

from redbeat.log.text import printable
from redbeat.runs.boundary import Harmless
from redbeat.runs.caller import UnansweredError, caller_of
from redbeat.runs.deliveries import FOLLOWS, Ticket, shared_headers
from redbeat.runs.outcomes import expiry_of_successor, seconds_until

#: how long a run's task is kept waiting for Redis at most, each time
PATIENCE_SECONDS = 0.05


class Present:
    """The run whose task is at work here.

    Attributes:
        successor_seconds: the task has sent a message with its own id, which may be begun in so many seconds;
            None: it hasn't.
        has_begun: Redis has said that the run's lease is this delivery's.
        unanswered: the question whether the run may begin, if the answer didn't come in time.
    """

    def __init__(self, app: Any, ticket: Ticket) -> None:
        self.app = app
        self.ticket = ticket
        self.successor_seconds: float | None = None
        self.has_begun = False
        self.unanswered: UnansweredError | None = None

    def before(self, headers: dict[str, Any], properties: Any) -> None:
        """Add to the ``headers`` of a message that is about to be published what belongs to the run."""
        task_id = headers.get("id")
        if task_id == self.ticket.delivery.task_id:
            for name, value in self.ticket.headers.items():  # which replace() loses
                if headers.get(name) is None:
                    headers[name] = value
            headers[FOLLOWS] = self.ticket.delivery.token
            self._set_expiry(headers, properties)
        elif self.ticket.is_workflow and task_id and headers.get("redbeat_entry") is None:
            delivery = self.ticket.delivery
            headers.update(shared_headers(self.ticket))
            task = printable(str(headers.get("task") or ""))
            with suppress(UnansweredError):  # the task notes itself when it is begun
                caller_of(self.app).inquire(
                    lambda runs: runs.note_child(delivery, task_id, task), PATIENCE_SECONDS
                )

    def after(self, headers: dict[str, Any]) -> None:
        """Note that a message has been published."""
        if headers.get("id") == self.ticket.delivery.task_id:
            self.successor_seconds = seconds_until(headers.get("eta"))

    def _set_expiry(self, headers: dict[str, Any], properties: Any) -> None:
        now = datetime.now(timezone.utc)
        delivery, was = self.ticket.delivery, self.ticket.expires
        expires = expiry_of_successor(headers, was, float(delivery.due), now)
        if expires is None:
            return
        headers["expires"] = expires.isoformat()
        if isinstance(properties, dict) and properties.get("expiration") is not None:
            properties["expiration"] = max((expires - now).total_seconds(), 0.0)


_PRESENT: ContextVar[Present | None] = ContextVar("redbeat_present_run", default=None)


def present() -> Present | None:
    """Return the run whose task is at work in this thread or greenlet."""
    return _PRESENT.get()


@contextmanager
def at_work(run: Present | None) -> Iterator[None]:
    """Let ``run`` be the present one within the context."""
    token = _PRESENT.set(run)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def _before(headers: Any = None, properties: Any = None, **_: Any) -> None:
    run = _PRESENT.get()
    if run is not None and isinstance(headers, dict):
        with Harmless("telling that a message is a run's"):
            run.before(headers, properties)


def _after(headers: Any = None, **_: Any) -> None:
    run = _PRESENT.get()
    if run is not None and isinstance(headers, dict):
        with Harmless("noting a run's next attempt"):
            run.after(headers)


def listen() -> None:
    """Connect the receivers in this process, once."""
    before_task_publish.connect(_before, weak=False, dispatch_uid="redbeat.runs.before")
    after_task_publish.connect(_after, weak=False, dispatch_uid="redbeat.runs.after")
