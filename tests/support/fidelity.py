"""Calls sent by a tick and directly, and the text of their messages in a Redis broker."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

import redis
from celery import Celery
from celery.schedules import schedule
from kombu import pools

from redbeat import RedBeatSchedulerEntry as Entry

from .deadlines import patience
from .schedule import SCHEDULE

#: what of a broker's database and channels belongs to the schedule, where both are on one server
OF_THE_SCHEDULE = "redbeat:"
#: headers of a run that a direct call lacks; the oldest Celery does not add the last one
OWN_HEADERS = ("redbeat_entry", "redbeat_due", "celery_beat_task")


@dataclass(frozen=True)
class Row:
    """One call, and the settings of the app that makes it."""

    options: dict[str, Any] = field(default_factory=dict)
    task: str = "echo"
    args: list[Any] = field(default_factory=lambda: [1, "two", None])
    kwargs: dict[str, Any] = field(default_factory=lambda: {"naïve": {"deep": [1.5, True]}})
    settings: dict[str, Any] = field(default_factory=dict)


@contextmanager
def writing(broker: redis.Redis) -> Iterator[dict[str, list[str]]]:
    """Yield a dictionary that holds, after the block, the messages of the broker; and empty the broker.

    Messages are without delivery tags: by key, the newest first, and by channel, in the order of publishing.
    """
    written, end = defaultdict[str, list[str]](list), uuid.uuid4().hex
    with broker.pubsub() as pubsub:
        pubsub.psubscribe("*")
        pubsub.get_message(timeout=patience())  # the confirmation
        yield written
        broker.publish(end, "")
        while (message := pubsub.get_message(timeout=patience()))["channel"] != end:
            if not message["channel"].startswith(OF_THE_SCHEDULE):
                written[message["channel"]].append(_without_tag(message["data"]))
    for key in broker.scan_iter(count=1000):
        if key.startswith(OF_THE_SCHEDULE):
            continue
        if broker.type(key) == "list":
            written[key] = [_without_tag(item) for item in broker.lrange(key, 0, -1)]
        broker.delete(key)


@contextmanager
def counting_round_trips(monkeypatch: Any) -> Iterator[Callable[[], int]]:
    """Yield a function that counts how often this process has sent something to a Redis server."""
    with noting_round_trips(monkeypatch) as sent:
        yield lambda: len(sent)


@contextmanager
def noting_round_trips(monkeypatch: Any) -> Iterator[list[str]]:
    """Yield a list of the first command each time this process sends something to a Redis server.

    Commands that are sent while replies are still to be read belong to the same round trip.
    """
    sent: list[str] = []
    base = redis.connection.AbstractConnection
    send_now = base.send_packed_command

    def send(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        packed = b"".join(command) if isinstance(command, list) else command
        if kwargs.get("check_health", True):
            sent.append(packed.split(b"\r\n", 3)[2].decode())
        return send_now(self, command, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(base, "send_packed_command", send)
        yield sent


def prepare(app: Celery, rows: dict[str, Row]) -> None:
    """Store an entry for each row, all of them due in the rows' order; let the app's clock stand still."""
    app.now = lambda: datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    for position, (name, row) in enumerate(rows.items()):
        entry = Entry(name, row.task, schedule(10**10), row.args, row.kwargs, options=row.options, app=app)
        entry.save()
        app.redbeat_redis.zadd(SCHEDULE, {entry.key: 1.5 + position})


def send_directly(app: Celery, row: Row, sent: dict[str, Any]) -> None:
    """Call the task of the row with the id and headers of a run that has been sent."""
    headers = {name: sent[name] for name in OWN_HEADERS if name in sent}
    options = {**row.options, "task_id": sent["id"], "headers": headers}
    task = app.tasks.get(row.task)
    send = partial(app.send_task, row.task) if task is None else task.apply_async
    send(row.args, row.kwargs, **options)


def forget_connections(app: Celery) -> None:
    """Let the app send by new connections: those of kombu's pools remember what they have declared."""
    app._pool = app.amqp._producer_pool = None  # noqa: SLF001 - Celery has no other name for it
    pools.reset()


def declare_exchanges(app: Celery) -> None:
    """Let the app's connection know its exchanges, as that of a worker does: nothing is written on Redis.

    A direct call by anybody else takes them for direct ones, and drops what is for others.
    """
    with app.producer_pool.acquire(block=True) as producer:
        for queue in app.amqp.queues.values():
            for bound in queue.bindings or [queue]:
                if bound.exchange is not None:
                    bound.exchange.bind(producer.channel).declare()


def _without_tag(item: str) -> str:
    return item.replace(json.loads(item)["properties"]["delivery_tag"], "", 1)
