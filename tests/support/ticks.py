"""Schedulers ticked by the test itself, and what they sent.

The broker is kombu's in-memory transport, with a queue of its own for each app, so that a test needs no more
servers than the one it is about.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import fakeredis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.connection.client import client_of
from redbeat.scheduler.prepared import LookAhead
from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock


@dataclass(frozen=True)
class Message:
    """One task on its queue: `entry` and `due` (ISO 8601, UTC) as RedBeat's headers have them."""

    task: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]

    @property
    def entry(self) -> str:
        return str(self.headers["redbeat_entry"])

    @property
    def due(self) -> str:
        return str(self.headers["redbeat_due"])


def memory_app(**settings: Any) -> Celery:
    """An app whose tasks go to a queue in this process, unless `settings` name another broker."""
    app = Celery("test", set_as_current=False)
    queue = f"queue-{uuid.uuid4()}"
    app.conf.update({"broker_url": "memory://localhost", "task_default_queue": queue, **settings})
    return app


def fake_redis_app(**settings: Any) -> Celery:
    """The same, and its `redbeat_redis` is injected: a fake that runs the scripts."""
    app = memory_app(**settings)
    app.redbeat_redis = fakeredis.FakeRedis(decode_responses=True)
    return app


@contextmanager
def leader(
    app: Celery, scheduler_class: type[RedBeatScheduler] = RedBeatScheduler
) -> Iterator[RedBeatScheduler]:
    """A scheduler that holds the lock, as in a program that calls `tick` itself."""
    scheduler = scheduler_class(app)
    try:
        acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
        yield scheduler
    finally:
        scheduler.close()


def look_ahead_of(scheduler: RedBeatScheduler) -> LookAhead:
    """The prepared runs of the first shard."""
    return scheduler._shards.first.look_ahead  # noqa: SLF001


def prepare(scheduler: RedBeatScheduler) -> int:
    """Prepare all that is due soon; return how many runs these are."""
    look_ahead = look_ahead_of(scheduler)
    while look_ahead.is_wanted(look_ahead.clock.now):
        look_ahead.prepare()
    return len(look_ahead)


def make_due(app: Celery, *names: str) -> None:
    """Let the entries be due since a second after the epoch."""
    keys = app.redbeat_conf.keys
    client_of(app).zadd(keys.schedule, {keys.about(name).entry: 1 for name in names})


def take_messages(app: Celery, queue: str = "") -> list[Message]:
    """All messages on the queue (default: the app's), oldest first; they are gone from it."""
    messages: list[Message] = []
    with app.connection_for_read() as connection:
        declared = app.amqp.queues[queue or app.conf.task_default_queue](connection.default_channel)
        declared.declare()
        while (message := declared.get(no_ack=True)) is not None:
            args, kwargs, _ = message.decode()
            headers = message.headers
            messages.append(Message(headers["task"], headers["id"], args, kwargs, headers))
    return messages


def names_of(messages: list[Message]) -> list[str]:
    """Which entries they came from."""
    return [message.entry for message in messages]


def assert_entry_runs(app: Celery, name: str = "report") -> None:
    """Save an entry, tick when it is due, and find its one run on the queue and in its meta."""
    RedBeatSchedulerEntry(name, "tasks.report", schedule(60), args=[1], app=app).save()
    make_due(app, name)
    with leader(app) as scheduler:
        scheduler.tick()
    assert [(message.entry, message.args) for message in take_messages(app)] == [(name, [1])]
    stored = RedBeatSchedulerEntry.from_key(app.redbeat_conf.keys.about(name).entry, app=app)
    assert stored.total_run_count == 1
    assert stored.rank is not None
