"""A Redis broker that is full, silent, killed or cut off: no run is lost, and beat keeps its lock."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.errors import StoreUnavailable
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.logs import AWAY, BACK, warnings_in
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    counts_of,
    due_count,
    expected_id,
    field,
    messages,
    sent_names,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch

TIMEOUT_SECONDS = 0.5


@pytest.fixture
def proxy(second: Server) -> Iterator[Proxy]:
    """A proxy to the broker."""
    with Proxy((second.host, second.port)) as proxy:
        yield proxy


@pytest.fixture
def make_proxied(make_scheduler: MakeScheduler, second: Server, proxy: Proxy) -> MakeScheduler:
    """Schedulers that have their broker there."""
    return partial(make_scheduler, broker_url=proxy.url(second.url()))


@pytest.fixture
def second_broker(second: Server) -> Iterator[redis.Redis]:
    """A client of the broker that bypasses the proxy."""
    with second.client() as connected:
        yield connected


Step = Callable[[Server, Proxy], object]


def told(*command: str | int) -> Step:
    """The broker's server is given a command."""

    def tell(second: Server, _proxy: Proxy) -> None:
        with second.client() as client:
            client.execute_command(*command)

    return tell


#: what it begins with, and what ends it
TROUBLES: dict[str, tuple[Step, Step]] = {
    "full": (told("CONFIG SET", "maxmemory", 1), told("CONFIG SET", "maxmemory", 0)),
    "read only": (told("REPLICAOF", "127.0.0.1", 1), told("REPLICAOF", "NO", "ONE")),
    "killed": (lambda second, _: second.kill(), lambda second, _: second.restart()),
    "refused": (lambda _, proxy: (proxy.refuse(), proxy.drop()), lambda _, proxy: proxy.heal()),
    # what was on its way is lost
    "frozen": (lambda _, proxy: proxy.freeze(), lambda _, proxy: (proxy.drop(), proxy.heal())),
    "frozen and thawed": (lambda _, proxy: proxy.freeze(), lambda _, proxy: proxy.heal()),
}


@contextmanager
def trouble_of(second: Server, proxy: Proxy, kind: str) -> Iterator[None]:
    begin, end = TROUBLES[kind]
    begin(second, proxy)
    try:
        yield
    finally:
        end(second, proxy)


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_runs_wait_for_a_broker_in_trouble_and_go_out_in_order(
    make_proxied: MakeScheduler,
    client: redis.Redis,
    second_broker: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    caplog.set_level(logging.INFO)
    scheduler = make_proxied(redbeat_publish_timeout=TIMEOUT_SECONDS, redbeat_lock_timeout=60)
    write_burst(client, ["before"])
    scheduler.tick()
    second.flush()
    token = client.get(LOCK)
    names = [f"entry-{number}" for number in range(100)]
    with trouble_of(second, proxy, trouble):
        write_burst(client, names)
        for _ in range(3):
            client.pexpire(LOCK, 30_000)
            with Stopwatch() as watch:
                assert scheduler.tick() == 1.0
            assert watch.asleep_seconds < TIMEOUT_SECONDS + 1
            assert client.pttl(LOCK) > 30_000, "it isn't renewed"
        assert client.get(LOCK) == token
        assert due_count(client) == 100
    eventually(lambda: scheduler.tick() > 1)
    sent = messages(second_broker)
    by_id = Counter(message["headers"]["id"] for message in sent)
    assert len(by_id) == 100
    order = [message["headers"]["redbeat_entry"] for message in sent]
    assert list(dict.fromkeys(order)) == names
    assert trouble == "frozen and thawed" or len(sent) == len(by_id)
    assert counts_of(client, names) == {1: 100}
    away, back = warnings_in(caplog)
    assert AWAY in away
    assert back.endswith(BACK)


def test_message_that_ends_its_connection_costs_its_own_entry(
    make_proxied: MakeScheduler, client: redis.Redis, second_broker: redis.Redis, proxy: Proxy
) -> None:
    scheduler = make_proxied()
    names = write_burst(client, 20)
    write_raw(client, "large", score=5.5, schedule=SELDOM, args=["x" * 900_000])
    proxy.cut_beyond(256 * 1024)
    scheduler.tick()
    assert set(sent_names(second_broker)) == set(names)
    assert "connection ends each time" in field(client, "large", "error")["reason"]


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_connection_cut_between_messages_loses_no_run(
    make_proxied: MakeScheduler,
    client: redis.Redis,
    second_broker: redis.Redis,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    loss: Any,
) -> None:
    scheduler = make_proxied()
    names = write_burst(client, 20)
    cut = proxy.cut_on(expected_id("entry-7", 8).encode(), loss)
    eventually(lambda: scheduler.tick() > 1)
    assert cut.is_set()
    sent = sent_names(second_broker)
    assert list(dict.fromkeys(sent)) == names
    assert len(warnings_in(caplog)) <= 1


@pytest.mark.parametrize(("retry_period", "loss"), [(None, "request"), (None, "reply"), (10, "reply")])
def test_cut_commit_of_the_messages_neither_loses_nor_doubles_a_run(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    server: Server,
    loss: Any,
    retry_period: float | None,
) -> None:
    names, ends = write_burst(client, 300), 0
    with Proxy((server.host, server.port)) as way:
        settings = {"broker_url": way.url(server.url(0)), "redbeat_redis_url": way.url(server.url(1))}
        settings |= {"redbeat_redis_options": {"retry_period": retry_period} if retry_period else {}}
        scheduler = make_scheduler(**settings, redbeat_batch_size=50)
        cut = way.cut_on(expected_id("entry-130", 131).encode(), loss)
        while due_count(client):
            try:
                scheduler.tick()
                if retry_period is None:
                    way.refuse()  # new connections: what is cut stays so
            except StoreUnavailable:  # this beat ends, and another one follows
                ends += 1
                way.heal()
                scheduler.close()
                client.delete(LOCK)
                scheduler = make_scheduler(**settings, redbeat_batch_size=50)
    assert cut.is_set()
    assert not (ends and retry_period)
    assert sent_names(broker) == names
    assert counts_of(client, names) == {1: 300}


@pytest.mark.parametrize("trouble", ["frozen", "killed"])
def test_at_most_once_broker_in_trouble_costs_one_small_batch(
    make_proxied: MakeScheduler,
    client: redis.Redis,
    second_broker: redis.Redis,
    second: Server,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    scheduler = make_proxied(redbeat_publish_timeout=TIMEOUT_SECONDS, redbeat_delivery="at_most_once")
    write_burst(client, ["before"])
    scheduler.tick()
    names = write_burst(client, 100)
    with trouble_of(second, proxy, trouble):
        with Stopwatch() as watch:
            scheduler.tick()
        assert watch.asleep_seconds < 3
        assert due_count(client) == 80
    lost = sum("Lost a run" in error for error in warnings_in(caplog))
    eventually(lambda: scheduler.tick() > 1)
    assert sent_names(second_broker) == [*["before"] * (trouble == "frozen"), *names[20:]]
    assert lost == 20


@pytest.mark.slow
def test_beat_process_started_without_its_broker_sends_later_and_ends_at_once(
    valkey: Server, second: Server, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", second.url(), redbeat_redis_url=valkey.url(1))
    with valkey.client(db=1) as client, second.client() as broker:
        for is_back in (False, True):
            second.kill()
            with celery_beat(tmp_path, "module") as beat:
                write_raw(client, "entry", score=1)
                beat.wait_for(AWAY)
                if is_back:
                    second.restart()
                    eventually(lambda: sent_names(broker) == ["entry"])
                else:
                    assert beat.stop() == 0
                    assert client.get(LOCK) is None
                    assert client.zscore(SCHEDULE, "redbeat:entry") == 1
