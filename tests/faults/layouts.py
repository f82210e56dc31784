"""Where a schedule and its broker are, and what may be expected of beats that are killed there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import redis
from celery import Celery

from tests.support.apps import write_app
from tests.support.schedule import LOCK
from tests.support.servers import Server

#: written to the schedule by whoever becomes leader, and due in no test
STATIC = {"static": {"task": "echo", "schedule": 1e10}}

#: how long claims of beats that share the work are hidden from the others; 30 seconds outside of tests
LEASE_SECONDS = 1.0


class Sent(NamedTuple):
    """One message on the queue: its entry, when that was due (ISO 8601, UTC), and its task id."""

    entry: str
    due: str
    id: str


class Queue(Protocol):
    """The queue `celery` of a broker, from outside."""

    url: str

    def clear(self) -> None:
        """Take away what is on it."""

    def count(self) -> int:
        """How many messages wait on it."""

    def messages(self) -> list[Sent]:
        """The messages that wait on it; they may be gone from it then."""


class RedisQueue:
    """The list `celery` in one database."""

    def __init__(self, server: Server, db: int) -> None:
        self.url = server.url(db)
        self._client: redis.Redis = server.client(db=db)

    def clear(self) -> None:
        self._client.flushdb()

    def count(self) -> int:
        return int(self._client.llen("celery"))

    def messages(self) -> list[Sent]:
        waiting: Any = self._client.lrange("celery", 0, -1)
        return [sent_of(json.loads(message)["headers"]) for message in reversed(waiting)]


class AmqpQueue:
    """The queue `celery` of a RabbitMQ."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._app = Celery("reader", broker=url, set_as_current=False)
        self._channel: Any = self._app.connection_for_read().channel()

    def clear(self) -> None:
        self._app.amqp.queues["celery"](self._channel).declare()
        self._channel.queue_purge("celery")

    def count(self) -> int:
        return int(self._channel.queue_declare("celery", passive=True).message_count)

    def messages(self) -> list[Sent]:
        waiting = iter(lambda: self._channel.basic_get("celery", no_ack=True), None)
        return [sent_of(message.headers) for message in waiting]

    def close(self) -> None:
        self._channel.connection.client.release()


def sent_of(headers: dict[str, Any]) -> Sent:
    """A stored message says of no entry, and is due at its eta."""
    task_id = headers["id"]
    return Sent(headers.get("redbeat_entry", task_id), headers.get("redbeat_due") or headers["eta"], task_id)


@dataclass
class Layout:
    """A schedule on database `db` of `server`, and a queue.

    Attributes:
        is_exactly_once: a killed beat may not even double a run.
        beats: how many work at the same time.
        settings: of the app, besides those that say where schedule and broker are.
    """

    name: str
    server: Server
    db: int
    queue: Queue
    is_exactly_once: bool
    beats: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client: redis.Redis = self.server.client(db=self.db)

    @property
    def has_lock(self) -> bool:
        return "redbeat_lock_key" not in self.settings

    def all_settings(self) -> dict[str, Any]:
        own = {"redbeat_redis_url": self.server.url(self.db), "beat_schedule": STATIC}
        return {**own, "redbeat_lock_timeout": 20, **self.settings}

    def write_app(self, directory: Path, extra: str = "", **settings: Any) -> None:
        """Write the app `module` for `celery beat`, with the source `extra` at its end."""
        extra = f"import redbeat.schedulers\nredbeat.schedulers.LEASE_SECONDS = {LEASE_SECONDS}\n{extra}"
        write_app(directory, "module", self.queue.url, extra=extra, **{**self.all_settings(), **settings})

    def make_app(self, **settings: Any) -> Celery:
        """The same app, in this process."""
        app = Celery("test", set_as_current=False)
        app.conf.update({"broker_url": self.queue.url, **self.all_settings(), **settings})
        return app

    def clear(self) -> None:
        """Empty schedule and queue."""
        self.client.flushdb()
        self.queue.clear()

    def drop_lock(self) -> None:
        """Delete the lock of a beat that was killed, as an operator would who doesn't want to wait."""
        self.client.delete(LOCK)
