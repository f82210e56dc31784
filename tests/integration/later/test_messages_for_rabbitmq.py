"""Stored messages whose broker is RabbitMQ: as Celery would publish them, confirmed, and to their queue."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

import redbeat.later
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.integration.later.conftest import add_tasks, make_due, send_due, stored_ids
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import field


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def app(make_app: MakeApp, rabbitmq: RabbitMQ, settings: dict[str, Any]) -> Celery:
    made = make_app(broker_url=rabbitmq.url(), redbeat_durable_after=1, **settings)
    redbeat.later.install(made)
    add_tasks(made)
    return made


def received(app: Celery, queue: str = "celery") -> list[Any]:
    """The messages on a queue, which are gone from it then."""
    found = []
    with app.connection_for_read() as connection:
        bound = app.amqp.queues[queue](connection.default_channel)
        while (message := bound.get(no_ack=True)) is not None:
            found.append(message)
    return found


def test_it_has_the_properties_that_celery_gave_it(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.tasks["add"].apply_async(
        (1,), task_id="id", countdown=600, expires=10_000, priority=4, reply_to="me", queue="slow"
    )
    send_due(client, make_scheduler(app))
    [message] = received(app, "slow")
    properties = message.properties
    assert (properties["correlation_id"], properties["reply_to"], properties["priority"]) == ("id", "me", 4)
    assert 9_000_000 < int(properties["expiration"]) <= 10_000_000
    assert message.headers["id"] == "id"
    assert json.loads(message.body)[0] == [1]


def test_one_that_has_expired_is_left_to_the_worker(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.tasks["add"].apply_async((1,), task_id="id", countdown=600, expires=700)
    text = json.loads(client.hget("redbeat::later:id", "message") or "")
    text["expires_at"] = 5
    client.hset("redbeat::later:id", "message", json.dumps(text))
    send_due(client, make_scheduler(app))
    [message] = received(app)
    assert "expiration" not in message.properties


def test_one_that_no_queue_takes_is_tried_again_and_not_lost(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    exchange = Exchange("nowhere", type="direct")
    with app.connection_for_write() as connection:
        exchange(connection.default_channel).declare()
    queue = Queue("declared by nobody", exchange, routing_key="there", no_declare=True)
    app.tasks["add"].apply_async(
        (1,), task_id="id", countdown=600, queue=queue, exchange="nowhere", routing_key="there"
    )
    make_due(client)
    scheduler = make_scheduler(app)
    scheduler.tick()
    assert stored_ids(app) == ["id"]
    assert "no queue" in field(client, ":later:id", "error")["reason"].lower()


@pytest.mark.parametrize(
    "settings",
    [
        {
            "task_default_queue_type": "quorum",
            "task_default_exchange_type": "topic",
            "task_default_exchange": "quorum",
            "task_default_queue": "quorum",
            "task_default_routing_key": "quorum",
            "broker_transport_options": {"confirm_publish": True},
        }
    ],
    ids=["quorum"],
)
def test_a_message_for_a_quorum_queue_is_delayed_here_and_not_by_rabbitmq(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    if not hasattr(app.conf, "task_default_queue_type"):
        pytest.skip("this Celery has no quorum queues")
    app.tasks["add"].apply_async((1,), task_id="id", countdown=600)
    stored = json.loads(client.hget("redbeat::later:id", "message") or "")
    assert (stored["exchange"], stored["routing_key"]) == ("quorum", "quorum")
    assert stored["headers"]["eta"]
    send_due(client, make_scheduler(app))
    [message] = received(app, "quorum")
    assert message.headers["id"] == "id"
