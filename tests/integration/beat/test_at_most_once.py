"""With ``at_most_once`` no answer of a broker's, however late or lost, makes a run leave a second time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import expected_id, sent_names, write_burst
from tests.support.servers import Server
from tests.support.ticks import take_messages

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


@pytest.fixture(params=[{}, {"retry_on_timeout": True}], ids=["plain", "retry_on_timeout"])
def scheduler(
    make_scheduler: MakeScheduler, server: Server, proxy: Proxy, request: pytest.FixtureRequest
) -> RedBeatScheduler:
    """Its Redis broker is behind the proxy."""
    options = {"broker_transport_options": request.param, **SETTINGS}
    return make_scheduler(broker_url=proxy.url(server.url(0)), **options)


@pytest.fixture
def rabbitmq_scheduler(
    make_scheduler: MakeScheduler, rabbitmq: RabbitMQ, rabbitmq_proxy: Proxy
) -> RedBeatScheduler:
    return make_scheduler(broker_url=rabbitmq_proxy.url(rabbitmq.url()), **SETTINGS)


def test_a_redis_broker_whose_answer_comes_late_gets_a_run_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, proxy: Proxy
) -> None:
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


def test_a_redis_broker_whose_answer_is_lost_gets_a_run_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, proxy: Proxy
) -> None:
    write_burst(client, NAMES)
    cut = proxy.cut_on(expected_id("second", 2).encode(), "reply")
    scheduler.tick()
    assert cut.is_set()
    assert sent_names(broker) == NAMES


def test_rabbitmq_whose_confirm_is_lost_gets_a_run_once(
    rabbitmq_scheduler: RedBeatScheduler, client: redis.Redis, rabbitmq_proxy: Proxy
) -> None:
    write_burst(client, NAMES)
    cut = rabbitmq_proxy.cut_on(expected_id("second", 2).encode(), "reply")
    rabbitmq_scheduler.tick()
    assert cut.is_set()
    sent = [message.entry for message in take_messages(rabbitmq_scheduler.app)]
    assert sorted(set(sent)) == sorted(sent)
    assert {"first", "third"} <= set(sent)


def test_a_connection_to_rabbitmq_that_has_gone_stale_costs_no_run(
    rabbitmq_scheduler: RedBeatScheduler, client: redis.Redis, rabbitmq_proxy: Proxy
) -> None:
    write_burst(client, ["before"])
    rabbitmq_scheduler.tick()
    rabbitmq_proxy.drop()
    write_burst(client, NAMES)
    rabbitmq_scheduler.tick()
    assert [message.entry for message in take_messages(rabbitmq_scheduler.app)] == ["before", *NAMES]
