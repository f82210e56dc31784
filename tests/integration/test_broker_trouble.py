"""A Redis broker that fails in every way it can, and entries that fail in every way they can.

The broker is a second server, except where its messages and their record are one step: there the connection
breaks amid that step.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Task
from celery.signals import before_task_publish

from redbeat.errors import StoreUnavailable
from redbeat.runs import task_id_of
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import LOCK, SCHEDULE, SELDOM, messages, sent_names, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import take_messages

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


def write_burst(client: redis.Redis, names: list[str], **fields: Any) -> None:
    """Entries that are due since long ago, in this order, once."""
    with client.pipeline(transaction=False) as pipeline:
        for number, name in enumerate(names):
            write_raw(pipeline, name, score=1 + number, schedule=SELDOM, **fields)
        pipeline.execute()


def counts_of(client: redis.Redis, names: list[str]) -> Counter[str]:
    """How often runs have been counted, as JSON has it; '' for never."""
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hget(f"redbeat:{name}", "meta")
        return Counter((meta or "").rpartition(" ")[2] for meta in pipeline.execute())


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def due_count(client: redis.Redis) -> int:
    return int(client.zcount(SCHEDULE, 0, server_now(client)))


def expected_id(name: str, due: float) -> str:
    moment = datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="microseconds")
    return task_id_of(f"redbeat:{name}", moment)


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
    assert counts_of(client, names) == {"1}": 100}
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


# -- entries that can't be sent, many at once


class Failing(Task):
    """A task whose apply_async raises."""

    abstract = True

    def apply_async(self, args: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        raise FAILURES[args[0]]


FAILURES: dict[str, Exception] = {
    "KeyError": KeyError("user"),
    "FileNotFoundError": FileNotFoundError(2, "No such file", "settings.ini"),
    "ValueError": ValueError("no such customer"),
}
KINDS = ["serializer", "unpicklable", *FAILURES]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broker_is", ["same", "second", "rabbitmq"])
def test_five_hundred_that_fail_hold_up_nobody(
    request: pytest.FixtureRequest,
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    second: Server,
    caplog: pytest.LogCaptureFixture,
    broker_is: str,
    kind: str,
) -> None:
    urls = {"same": lambda: server.url(0), "second": lambda: second.url(0)}
    urls["rabbitmq"] = lambda: rabbitmq_url(request)
    app = make_app(broker_url=urls[broker_is](), redbeat_batch_size=1001, redbeat_publish_timeout=60)

    @app.task(name="failing", base=Failing, shared=False)
    def failing() -> None:
        pass

    @before_task_publish.connect
    def spoil(headers: Any = None, body: Any = None, **_: Any) -> None:
        if kind == "unpicklable" and headers["redbeat_entry"].startswith("bad"):
            body[1]["thing"] = object()

    fields: dict[str, Any] = {"task": "failing", "args": [kind]}
    if kind == "serializer":
        fields = {"options": {"serializer": "nonexistent"}}
    if kind == "unpicklable":
        fields = {}
    names = [f"{('bad', 'good')[number % 2]}-{number}" for number in range(1000)]
    with client.pipeline(transaction=False) as pipeline:
        for number, name in enumerate(names):
            more = fields if name.startswith("bad") else {}
            write_raw(pipeline, name, score=1 + number, schedule=SELDOM, **more)
        pipeline.execute()
    scheduler = make_scheduler(app)
    began = time.monotonic()
    scheduler.tick()
    print(f"{broker_is}, {kind}: one tick of {time.monotonic() - began:.2f} s")
    before_task_publish.disconnect(spoil)
    good, bad = names[1::2], names[0::2]
    assert [message.entry for message in take_messages(app)] == good
    assert counts_of(client, good) == {"1}": 500}
    with client.pipeline(transaction=False) as pipeline:
        for name in bad:
            pipeline.hexists(f"redbeat:{name}", "error")
        assert all(pipeline.execute())
    assert len(errors_in(caplog)) == 500
    assert len(set(errors_in(caplog))) == 500


def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    node: RabbitMQ = request.getfixturevalue("rabbitmq")
    return node.url()


# -- messages and record are one step, and the connection breaks amid it


@pytest.fixture
def way(server: Server) -> Iterator[Proxy]:
    """The way to the one server that has both schedule and broker."""
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


@pytest.mark.parametrize("retry_period", [None, 10])
@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("position", [5, 250, 990])
def test_a_commit_that_is_cut_neither_loses_nor_doubles(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    way: Proxy,
    loss: Any,
    retry_period: float | None,
    position: int,
) -> None:
    options = {} if retry_period is None else {"retry_period": retry_period}
    app = make_app(
        broker_url=way.url(server.url(0)),
        redbeat_redis_url=way.url(server.url(1)),
        redbeat_redis_options=options,
        redbeat_batch_size=100,
    )
    names = [f"entry-{number}" for number in range(1000)]
    write_burst(client, names)
    write_raw(client, "before", score=0.5, schedule=SELDOM)
    scheduler = make_scheduler(app)
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
            scheduler = make_scheduler(app)
    assert cut.is_set()
    print(f"{ends} beats ended by it")
    if retry_period is not None:
        assert ends == 0
    assert sent_names(broker) == ["before", *names]
    assert counts_of(client, names) == {"1}": 1000}


def test_a_beat_whose_server_freezes_and_breaks_off_neither_loses_nor_doubles(
    server: Server, client: redis.Redis, broker: redis.Redis, way: Proxy, tmp_path: Path
) -> None:
    write_app(
        tmp_path,
        "module",
        way.url(server.url(0)),
        redbeat_redis_url=way.url(server.url(1)),
        redbeat_redis_options={"retry_period": 60, "socket_timeout": 1},
        redbeat_publish_timeout=1,
        redbeat_batch_size=50,
    )
    names = [f"entry-{number}" for number in range(6000)]
    write_burst(client, names)
    faults = 0
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: broker.llen("celery"), 20, 0.001)
        while due_count(client):
            before = broker.llen("celery")
            way.freeze()
            if faults % 3 == 0:
                held = broker.llen("celery")
                until = server_now(client) + 1.5  # longer than socket_timeout
                eventually(lambda until=until: server_now(client) > until)
                assert broker.llen("celery") - held <= 50
            if faults % 2:
                way.drop()
            way.thaw()
            faults += 1
            eventually(lambda n=before: broker.llen("celery") > n + 400 or not due_count(client), 20, 0.001)
        assert beat.is_running, beat.output()
        assert "Traceback" not in beat.output()
        assert beat.stop() == 0
    sent = Counter(sent_names(broker))
    print(f"{faults} times, {sum(sent.values())} messages; {beat.output().count(chr(10))} lines of log")
    assert len(sent) == 6000
    assert sent.most_common(1)[0][1] == 1
    assert counts_of(client, names) == {"1}": 6000}
    assert faults > 3


def test_sigterm_ends_a_beat_whose_server_freezes_amid_a_backlog(
    server: Server, client: redis.Redis, broker: redis.Redis, way: Proxy, tmp_path: Path
) -> None:
    write_app(
        tmp_path,
        "module",
        way.url(server.url(0)),
        redbeat_redis_url=way.url(server.url(1)),
        redbeat_redis_options={"retry_period": -1},
        redbeat_batch_size=50,
    )
    names = [f"entry-{number}" for number in range(6000)]
    write_burst(client, names)
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: broker.llen("celery"), 20, 0.001)
        way.freeze()
        began = time.monotonic()
        beat.signal(signal.SIGTERM)
        assert beat.wait(timeout=20) == 0, beat.output()
        took = time.monotonic() - began
    print(f"it ended in {took:.2f} s")
    assert took < 8
    way.thaw()
    client.delete(LOCK)
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: not due_count(client), 20)
    assert sent_names(broker) == names
    assert counts_of(client, names) == {"1}": 6000}
