"""A Redis broker, on a server of its own, that fails in every way it can."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.integration.conftest import MakeScheduler
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    counts_of,
    due_count,
    expected_id,
    messages,
    sent_names,
    write_burst,
)
from tests.support.servers import Server

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

AWAY = "can't be reached, due runs wait for it"
TIMEOUT_SECONDS = 1.0


@pytest.fixture(scope="module")
def second_session() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def second(second_session: Server) -> Server:
    """The broker's server."""
    if not second_session.is_running:
        second_session.restart()
    second_session.flush()
    return second_session


@pytest.fixture
def proxy(second: Server) -> Iterator[Proxy]:
    """The way to it."""
    with Proxy((second.host, second.port)) as proxy:
        yield proxy


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@contextmanager
def full(second: Server, _proxy: Proxy) -> Iterator[None]:
    with second.client() as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def read_only(second: Server, _proxy: Proxy) -> Iterator[None]:
    with second.client() as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def killed(second: Server, _proxy: Proxy) -> Iterator[None]:
    second.kill()
    yield
    second.restart()


@contextmanager
def refused(_second: Server, proxy: Proxy) -> Iterator[None]:
    proxy.refuse()
    proxy.drop()
    yield
    proxy.heal()


@contextmanager
def frozen(_second: Server, proxy: Proxy) -> Iterator[None]:
    proxy.freeze()
    yield
    proxy.drop()  # what was on its way is lost
    proxy.heal()


@contextmanager
def frozen_and_thawed(_second: Server, proxy: Proxy) -> Iterator[None]:
    proxy.freeze()
    yield
    proxy.heal()


Trouble = Callable[[Server, Proxy], Any]
TROUBLES: list[Trouble] = [full, read_only, killed, refused, frozen, frozen_and_thawed]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_runs_wait_for_a_second_server_in_trouble(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    trouble: Trouble,
) -> None:
    caplog.set_level(logging.INFO)
    scheduler = make_scheduler(
        broker_url=proxy.url(second.url()), redbeat_publish_timeout=TIMEOUT_SECONDS, redbeat_lock_timeout=5
    )
    write_burst(client, ["before"])
    scheduler.tick()
    second.flush()
    token = client.get(LOCK)
    names = [f"entry-{number}" for number in range(100)]
    slowest = 0.0
    with trouble(second, proxy):
        write_burst(client, names)
        for _ in range(4):
            began = time.monotonic()
            assert scheduler.tick() == 1.0
            slowest = max(slowest, time.monotonic() - began)
            assert client.pttl(LOCK) > 2500
        assert client.get(LOCK) == token
        assert due_count(client) == 100
    print(f"redbeat_publish_timeout is {TIMEOUT_SECONDS} s, the longest tick took {slowest:.2f} s")
    assert slowest < TIMEOUT_SECONDS + 1
    eventually(lambda: scheduler.tick() > 1)
    with second.client() as broker:
        sent = messages(broker)
    by_id = Counter(message["headers"]["id"] for message in sent)
    assert len(by_id) == 100
    order = [message["headers"]["redbeat_entry"] for message in sent]
    assert list(dict.fromkeys(order)) == names
    print(f"{len(sent) - 100} doubled")
    assert trouble is frozen_and_thawed or len(sent) == len(by_id)
    assert counts_of(client, names) == {1: 100}
    [error] = errors_in(caplog)
    assert AWAY in error
    assert caplog.text.count("The broker is back.") == 1


def test_a_connection_dropped_while_idle_costs_nothing(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(broker_url=proxy.url(second.url()))
    names = [f"entry-{number}" for number in range(20)]
    for _ in range(2):
        write_burst(client, names)
        assert scheduler.tick() > 1
        proxy.drop()
    with second.client() as broker:
        assert sent_names(broker) == names * 2
    assert errors_in(caplog) == []


def test_a_slow_broker_is_not_one_that_is_away(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(
        broker_url=proxy.url(second.url()), redbeat_publish_timeout=2, redbeat_batch_size=20
    )
    proxy.delay_seconds = 0.1
    names = [f"entry-{number}" for number in range(60)]
    write_burst(client, names)
    ticks = 1
    while scheduler.tick() == 0:
        ticks += 1
    with second.client() as broker:
        assert sent_names(broker) == names
    assert ticks <= 4  # the last one finds nothing
    assert errors_in(caplog) == []


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_connection_cut_amid_the_messages_loses_nothing(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    loss: Any,
) -> None:
    scheduler = make_scheduler(broker_url=proxy.url(second.url()))
    names = [f"entry-{number}" for number in range(20)]
    write_burst(client, names)
    cut = proxy.cut_on(expected_id("entry-7", 8).encode(), loss)
    eventually(lambda: scheduler.tick() > 1)
    assert cut.is_set()
    with second.client() as broker:
        sent = sent_names(broker)
    print(f"{loss} lost: {len(sent) - 20} doubled")
    assert list(dict.fromkeys(sent)) == names
    assert len(errors_in(caplog)) <= 1


def test_at_most_once_a_silent_broker_costs_few_runs_and_little_time(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(
        broker_url=proxy.url(second.url()), redbeat_publish_timeout=1, redbeat_delivery="at_most_once"
    )
    write_burst(client, ["before"])
    scheduler.tick()
    names = [f"entry-{number}" for number in range(100)]
    write_burst(client, names)
    with frozen(second, proxy):
        began = time.monotonic()
        scheduler.tick()
        print(f"redbeat_publish_timeout is 1 s, a tick took {time.monotonic() - began:.2f} s")
        assert time.monotonic() - began < 3
        assert due_count(client) == 80
    lost = sum("Lost a run" in error for error in errors_in(caplog))
    eventually(lambda: scheduler.tick() > 1)
    with second.client() as broker:
        sent = sent_names(broker)
    assert sent == ["before", *names[20:]]
    assert lost == 20
