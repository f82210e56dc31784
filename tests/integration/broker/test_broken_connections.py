"""Messages and their record are one step, and the connection to the one server breaks amid it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat.errors import StoreUnavailable
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    SELDOM,
    counts_of,
    due_count,
    expected_id,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server


@pytest.fixture
def way(server: Server) -> Iterator[Proxy]:
    """The way to the one server that has both schedule and broker."""
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


@pytest.fixture
def urls(server: Server, way: Proxy) -> dict[str, str]:
    """Both by that way."""
    return {"broker_url": way.url(server.url(0)), "redbeat_redis_url": way.url(server.url(1))}


def write_backlog(client: redis.Redis, urls: dict[str, str], directory: Path, **settings: Any) -> list[str]:
    """Write an app whose beat goes that way, and 6000 entries that are due; return their names."""
    write_app(directory, "module", redbeat_batch_size=50, **urls, **settings)
    return write_burst(client, 6000)


@pytest.mark.parametrize("retry_period", [None, 10])
@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("position", [5, 250, 990])
def test_a_commit_that_is_cut_neither_loses_nor_doubles(
    urls: dict[str, str],
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    way: Proxy,
    loss: Any,
    retry_period: float | None,
    position: int,
) -> None:
    options = {} if retry_period is None else {"retry_period": retry_period}
    settings = {**urls, "redbeat_redis_options": options, "redbeat_batch_size": 100}
    names = write_burst(client, 1000)
    write_raw(client, "before", score=0.5, schedule=SELDOM)
    scheduler = make_scheduler(**settings)
    cut = way.cut_on(expected_id(f"entry-{position}", 1 + position).encode(), loss)
    ends = 0
    while True:
        try:
            delay_seconds = scheduler.tick()
            if delay_seconds > 1:
                break
            if retry_period is None:
                way.refuse()  # new connections: what is cut stays so
        except StoreUnavailable:  # this beat ends, and another one follows
            ends += 1
            way.heal()
            scheduler.close()
            client.delete(LOCK)
            scheduler = make_scheduler(**settings)
    assert cut.is_set()
    print(f"{ends} beats ended by it")
    if retry_period is not None:
        assert ends == 0
    assert sent_names(broker) == ["before", *names]
    assert counts_of(client, names) == {1: 1000}


@pytest.mark.parametrize("retry_period", [None, 10])
@pytest.mark.parametrize("enabled", [True, False], ids=["with-message", "without"])
def test_a_lone_commit_that_is_cut_twice_is_not_blamed_for_it(
    urls: dict[str, str],
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    way: Proxy,
    caplog: pytest.LogCaptureFixture,
    retry_period: float | None,
    enabled: bool,
) -> None:
    """A network that hiccups may do that, and so may a server that starts again."""
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}  # newer clients try again by themselves
    if retry_period is not None:
        options["retry_period"] = retry_period
    scheduler = make_scheduler(redbeat_redis_options=options, **urls)
    write_raw(client, "alone", score=1.5, enabled=enabled)
    cut = way.cut_on(b"redbeat:alone", "request", times=2)
    scheduler.tick()
    assert cut.is_set()
    assert sent_names(broker) == ["alone"] * enabled
    assert (score_of(client, "alone") or 0) > server_now(client)
    assert client.hget("redbeat:alone", "error") is None
    assert errors_in(caplog) == []


def test_a_lone_message_that_is_cut_twice_on_its_way_to_another_broker_is_not_blamed_for_it(
    make_scheduler: MakeScheduler, second: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy((second.host, second.port)) as way, second.client() as broker:
        scheduler = make_scheduler(broker_url=way.url(second.url(0)))
        write_raw(client, "alone", score=1.5, schedule=SELDOM)
        cut = way.cut_on(expected_id("alone", 1.5).encode(), "request", times=2)
        scheduler.tick()
        assert cut.is_set()
        assert sent_names(broker) == ["alone"]
    assert client.hget("redbeat:alone", "error") is None
    assert errors_in(caplog) == []


def test_a_beat_whose_server_freezes_and_breaks_off_neither_loses_nor_doubles(
    urls: dict[str, str], client: redis.Redis, broker: redis.Redis, way: Proxy, tmp_path: Path
) -> None:
    options = {"retry_period": 60, "socket_timeout": 0.5}
    names = write_backlog(client, urls, tmp_path, redbeat_redis_options=options, redbeat_publish_timeout=1)
    faults = 0
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: broker.llen("celery"), interval=0.001)
        while due_count(client):
            before = broker.llen("celery")
            way.freeze()
            if faults % 3 == 0:
                held = broker.llen("celery")
                until = server_now(client) + 0.75  # longer than socket_timeout
                eventually(lambda until=until: server_now(client) > until)
                assert broker.llen("celery") - held <= 50
            if faults % 2:
                way.drop()
            way.thaw()
            faults += 1
            eventually(
                lambda n=before: broker.llen("celery") > n + 400 or not due_count(client), interval=0.001
            )
        assert beat.is_running, beat.output()
        assert not has_traceback(beat.output())
        assert beat.stop() == 0
    sent = Counter(sent_names(broker))
    print(f"{faults} times, {sum(sent.values())} messages; {beat.output().count(chr(10))} lines of log")
    assert len(sent) == 6000
    assert sent.most_common(1)[0][1] == 1
    assert counts_of(client, names) == {1: 6000}
    assert faults > 3


def test_sigterm_ends_a_beat_whose_server_freezes_amid_a_backlog(
    urls: dict[str, str], client: redis.Redis, broker: redis.Redis, way: Proxy, tmp_path: Path
) -> None:
    names = write_backlog(client, urls, tmp_path, redbeat_redis_options={"retry_period": -1})
    frozen = way.freeze_on(expected_id("entry-720", 721).encode())  # in a message, with its commit
    with celery_beat(tmp_path, "module") as beat:
        eventually(frozen.is_set, interval=0.001)
        took = beat.seconds_to_end()
        assert beat.returncode == 0, beat.output()
    print(f"it ended in {took:.2f} s")
    assert took < patience(8)
    way.thaw()
    client.delete(LOCK)
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: not due_count(client))
    assert sent_names(broker) == names
    assert counts_of(client, names) == {1: 6000}
