"""Apps whose messages are stored when they are a second ahead, and what is stored and sent of them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat.later
from redbeat import RedBeatScheduler
from redbeat.store.later import LaterStore
from tests.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.schedule import LATER as LATER


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    """An app that stores what is more than a second ahead, with its tasks and its results in Redis."""
    return install(make_app(redbeat_durable_after=1))


def install(app: Celery) -> Celery:
    """Let an app store messages, and give it tasks."""
    redbeat.later.install(app)
    add_tasks(app)
    return app


def add_tasks(app: Celery) -> None:
    @app.task(name="add", shared=False)
    def add(x: int, y: int = 0) -> int:
        return x + y

    @app.task(name="note", bind=True, ignore_result=True, shared=False)
    def note(self: Any, *args: Any, **kwargs: Any) -> None:
        pass

    app.finalize()


def stored_ids(app: Celery) -> list[str]:
    """The task ids of what is stored, the next one first."""
    return [one.task_id for one in LaterStore(app).first(None)]


def make_due(client: redis.Redis, seconds_ago: float = 1) -> None:
    """Let everything that is stored be due."""
    at = time.time() - seconds_ago
    for member in client.zrange(LATER, 0, -1):
        client.zadd(LATER, {member: at})


def send_due(client: redis.Redis, scheduler: RedBeatScheduler) -> None:
    """Let everything that is stored be due, and tick until it is sent."""
    make_due(client)

    def is_sent() -> bool:
        scheduler.tick()
        return not client.exists(LATER)

    eventually(is_sent)


def queued(broker: redis.Redis, *queues: str) -> list[dict[str, Any]]:
    """The messages on lists of the broker, the oldest first, as they stand there."""
    return [json.loads(text) for queue in queues or ("celery",) for text in broker.lrange(queue, 0, -1)[::-1]]


def body_of(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))
