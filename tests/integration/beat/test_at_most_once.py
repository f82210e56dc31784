"""With ``at_most_once`` no answer of a broker's, however late or lost, makes a run leave a second time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import expected_id, sent_names, write_burst
from tests.support.servers import Server
from tests.support.ticks import take_messages

pytestmark = ONE_SERVER

SETTINGS = {"redbeat_delivery": "at_most_once", "redbeat_publish_timeout": 1}
NAMES = ["first", "second", "third"]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


@pytest.fixture
def rabbitmq_proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    with Proxy((rabbitmq.host, rabbitmq.port)) as proxy:
        yield proxy


@pytest.mark.parametrize("options", [{}, {"retry_on_timeout": True}], ids=["plain", "retry_on_timeout"])
def test_a_redis_broker_whose_answer_comes_late_gets_a_run_once(
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    proxy: Proxy,
    options: dict[str, Any],
) -> None:
    scheduler = make_scheduler(
        broker_url=proxy.url(server.url(0)), broker_transport_options=options, **SETTINGS
    )
    write_burst(client, ["before"])
    scheduler.tick()
    write_burst(client, ["late"])
    proxy.delay_seconds = 0.6  # each way: it arrives, and its answer does when nobody waits for it any more
    heal = threading.Timer(1.1, setattr, [proxy, "delay_seconds", 0])
    heal.start()
    scheduler.tick()
    heal.join()
    write_burst(client, ["after"])
    while scheduler.tick() < 2:
        pass
    assert sent_names(broker) == ["before", "late", "after"]


@pytest.mark.parametrize("options", [{}, {"retry_on_timeout": True}], ids=["plain", "retry_on_timeout"])
def test_a_redis_broker_whose_answer_is_lost_gets_a_run_once(
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    proxy: Proxy,
    options: dict[str, Any],
) -> None:
    scheduler = make_scheduler(
        broker_url=proxy.url(server.url(0)), broker_transport_options=options, **SETTINGS
    )
    write_burst(client, NAMES)
    cut = proxy.cut_on(expected_id("second", 2).encode(), "reply")
    scheduler.tick()
    assert cut.is_set()
    assert sent_names(broker) == NAMES


def test_rabbitmq_whose_confirm_is_lost_gets_a_run_once(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    rabbitmq_proxy: Proxy,
) -> None:
    app = make_app(broker_url=rabbitmq_proxy.url(rabbitmq.url()), **SETTINGS)
    scheduler = make_scheduler(app)
    write_burst(client, NAMES)
    cut = rabbitmq_proxy.cut_on(expected_id("second", 2).encode(), "reply")
    scheduler.tick()
    assert cut.is_set()
    sent = [message.entry for message in take_messages(app)]
    assert sorted(set(sent)) == sorted(sent)
    assert {"first", "third"} <= set(sent)


def test_a_connection_to_rabbitmq_that_has_gone_stale_costs_no_run(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    rabbitmq_proxy: Proxy,
) -> None:
    app = make_app(broker_url=rabbitmq_proxy.url(rabbitmq.url()), **SETTINGS)
    scheduler = make_scheduler(app)
    write_burst(client, ["before"])
    scheduler.tick()
    rabbitmq_proxy.drop()
    write_burst(client, NAMES)
    scheduler.tick()
    assert [message.entry for message in take_messages(app)] == ["before", *NAMES]
