"""A beat without its loop, for tests: it sends what is due when it is told to, and says what that was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from celery.utils.imports import symbol_by_name

from redbeat.schedulers import RedBeatScheduler
from redbeat.schedules.timezones import in_utc, time_of

#: a tick sends one batch, so more of them than this means that something goes round in circles
MOST_TICKS = 10_000


class SentRun(NamedTuple):
    """A run that beat has sent.

    Attributes:
        name: the entry's name.
        due: its nominal time, UTC.
        task: the task's name.
        args: what it is called with.
        kwargs: likewise.
        task_id: of the message.
        headers: of the message.
    """

    name: str
    due: datetime
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    task_id: str
    headers: dict[str, Any]


class TestBeat:
    """A beat of ``app`` that only does something when ``tick`` is called.

    Attributes:
        sent: all runs that it has sent, the first one first.
    """

    __test__ = False  # it is no test, whatever its name is

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._scheduler: RedBeatScheduler | None = None
        self.sent: list[SentRun] = []

    @property
    def scheduler(self) -> RedBeatScheduler:
        """Its scheduler. When it is made, at the first look at it, ``beat_schedule`` is stored.

        Its class is that of the setting ``beat_scheduler`` if it is RedBeat's or derived from it.
        """
        if self._scheduler is None:
            kind = symbol_by_name(self._app.conf.beat_scheduler)
            is_ours = isinstance(kind, type) and issubclass(kind, RedBeatScheduler)
            self._scheduler = (kind if is_ours else RedBeatScheduler)(self._app)
            self._scheduler.config.templates = False  # Celery's signal tells what is sent
        return self._scheduler

    def tick(self) -> list[SentRun]:
        """Send all that is due now; return what was sent."""
        scheduler, first = self.scheduler, len(self.sent)
        with self._noting():
            for _ in range(MOST_TICKS):
                if scheduler.tick():
                    return self.sent[first:]
        raise AssertionError(f"beat has still more to send after {MOST_TICKS} ticks.")

    @contextmanager
    def _noting(self) -> Iterator[None]:
        def note(sender: str, body: Any, headers: dict[str, Any], **_: Any) -> None:
            if "redbeat_entry" in headers:
                self.sent.append(_sent(sender, body, headers))

        before_task_publish.connect(note, weak=False)
        try:
            yield
        finally:
            before_task_publish.disconnect(note)

    def close(self) -> None:
        """Close its connections."""
        if self._scheduler is not None:
            self._scheduler.close()


def _sent(task: str, body: Any, headers: dict[str, Any]) -> SentRun:
    if isinstance(body, dict):  # task_protocol 1
        args, kwargs, task_id = body["args"], body["kwargs"], body["id"]
    else:
        args, kwargs, task_id = body[0], body[1], headers["id"]
    name, due = str(headers["redbeat_entry"]), in_utc(time_of(headers["redbeat_due"]))
    return SentRun(name, due, task, list(args or ()), dict(kwargs or {}), str(task_id), dict(headers))
