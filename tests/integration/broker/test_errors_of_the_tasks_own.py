"""A task or a handler with connection errors of its own costs its run, and no connection to the broker."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, field, sent_names, write_burst, write_raw
from tests.support.servers import Server
from tests.support.ticks import take_messages

pytestmark = ONE_SERVER

ERRORS = [
    ConnectionError("the CRM is away"),
    ConnectionRefusedError(111, "the CRM is away"),
    BrokenPipeError(32, "the CRM is away"),
    OSError(101, "the CRM is away"),
    redis.ConnectionError("the CRM is away"),
]
NAMES = ["first", "own", "last"]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def raising(request: pytest.FixtureRequest) -> type[RedBeatScheduler]:
    """Stands for a task whose `apply_async` raises: each try of the entry `own` does."""

    class Raising(RedBeatScheduler):
        tries = 0

        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if entry.name == "own":
                self.tries += 1
                raise request.param
            return super().apply_async(entry, *args, **kwargs)

    return Raising


def burst(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    write_burst(client, ["before"])
    scheduler.tick()
    for number, name in enumerate(NAMES):
        write_raw(client, name, schedule=SELDOM, score=10 + number)


def test_a_redis_broker_is_asked_and_not_connected_to_anew(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    raising: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler: Any = make_scheduler(scheduler=raising)
    burst(scheduler, client)
    before = client.info("stats")["total_connections_received"]
    scheduler.tick()
    assert client.info("stats")["total_connections_received"] == before
    assert sent_names(broker) == ["before", "first", "last"]
    assert "the CRM is away" in field(client, "own", "error")["reason"]
    assert scheduler.tries == 2
    assert "can't be reached" not in caplog.text


@pytest.fixture
def rabbitmq_app(make_app: MakeApp, rabbitmq: RabbitMQ) -> Celery:
    return make_app(broker_url=rabbitmq.url())


def test_a_rabbitmq_broker_is_not_connected_to_anew(
    rabbitmq_app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    raising: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler: Any = make_scheduler(rabbitmq_app, scheduler=raising)
    burst(scheduler, client)
    connection = scheduler.producer.connection
    scheduler.tick()
    assert scheduler.producer.connection is connection
    assert [message.entry for message in take_messages(rabbitmq_app)] == ["before", "first", "last"]
    assert "the CRM is away" in field(client, "own", "error")["reason"]
    assert scheduler.tries == 1
    assert "can't be reached" not in caplog.text


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_connection_that_has_gone_stale_still_costs_no_run(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    url, target = server.url(0), (server.host, server.port)
    if kind == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        url, target = rabbitmq.url(), (rabbitmq.host, rabbitmq.port)
    with Proxy(target) as proxy:
        app = make_app(broker_url=proxy.url(url))
        scheduler = make_scheduler(app)
        write_burst(client, ["before"])
        scheduler.tick()
        proxy.drop()
        write_burst(client, NAMES)
        while scheduler.tick() < 2:
            pass
        assert [message.entry for message in take_messages(app)] == ["before", *NAMES]
        assert all(field(client, name, "error") is None for name in NAMES)
