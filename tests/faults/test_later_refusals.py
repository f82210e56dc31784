"""Messages that can not be stored, or not at once: whoever sends them is told, or they are stored.

What is refused leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.control import Control
from kombu.exceptions import OperationalError

from redbeat import schedulers
from redbeat.errors import MessageNotStored
from redbeat.later import batch, install
from redbeat.schedulers import RedBeatScheduler
from tests.conftest import MakeApp
from tests.faults.layouts import Layout
from tests.faults.stored import LATER
from tests.support.proxy import Proxy
from tests.support.servers import Server

WRITES = {
    "alone": lambda app: send(app, "refused"),
    "in a batch": lambda app: send_together(app, "refused", "refused, too"),
    "pickled": lambda app: send(app, "refused", serializer="pickle"),
}


class OwnControl(Control):  # type: ignore[misc]
    """A class of remote controls of an app."""


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app()
    install(app)
    return app


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


def send(app: Celery, name: str, **options: Any) -> None:
    app.send_task("echo", [name], task_id=name, **{"countdown": 3600, **options})


def send_together(app: Celery, *names: str) -> None:
    with batch():
        for name in names:
            send(app, name)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_server_without_memory_is_told_of_and_nothing_is_left(
    app: Celery, client: redis.Redis, write: Callable[[Celery], None]
) -> None:
    write(app)
    client.flushdb()
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(MessageNotStored, match="maxmemory"):
            write(app)
    finally:
        client.config_set("maxmemory", 0)
    assert client.dbsize() == 0


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_key_of_another_type_is_told_of_and_nothing_is_left(
    app: Celery, client: redis.Redis, write: Callable[[Celery], None]
) -> None:
    client.set(LATER, "x")
    with pytest.raises(MessageNotStored, match="redbeat::later holds something that is no sorted set"):
        write(app)
    assert client.keys() == [LATER]


def test_a_replica_that_does_not_write_is_told_of(server: Server, make_app: MakeApp) -> None:
    with Server(server.kind, replicaof=(server.host, str(server.port))) as replica:
        app = make_app(redbeat_redis_url=replica.url(1))
        install(app)
        with pytest.raises(OperationalError, match="read only"):
            send(app, "refused")


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_connection_that_ends_amid_storing_leaves_one_message(
    server: Server, make_app: MakeApp, client: redis.Redis, proxy: Proxy, lost: Any
) -> None:
    app = make_app(redbeat_redis_url=proxy.url(server.url(1)))
    install(app)
    send(app, "first")
    proxy.cut_on(b"second", lost)
    send(app, "second")
    assert client.zcard(LATER) == 2
    proxy.refuse()
    proxy.drop()
    with pytest.raises(OperationalError, match="refused"):
        send(app, "third")
    assert client.zcard(LATER) == 2


def test_a_task_that_outlives_the_batch_it_began_in_stores_its_message(
    app: Celery, client: redis.Redis
) -> None:
    async def outlive() -> None:
        has_ended = asyncio.Event()

        async def send_then() -> None:
            await has_ended.wait()
            send(app, "of a task")
            send_together(app, "of a batch of its own", "of that, too")

        with batch():
            task = asyncio.create_task(send_then())
            send(app, "of the batch")
        has_ended.set()
        await task

    asyncio.run(outlive())
    assert client.zcard(LATER) == 4


def test_a_thread_that_outlives_the_batch_it_began_in_stores_its_message(
    app: Celery, client: redis.Redis
) -> None:
    has_ended = threading.Event()

    def send_then() -> None:
        has_ended.wait(60)
        send(app, "of a thread")

    with batch():
        thread = threading.Thread(target=contextvars.copy_context().run, args=[send_then])
        thread.start()
        send(app, "of the batch")
    has_ended.set()
    thread.join()
    assert client.zcard(LATER) == 2


@pytest.mark.parametrize("control", [Control, OwnControl])
def test_an_app_with_durable_tasks_can_be_pickled(control: type[Control]) -> None:
    app = Celery("test", broker="memory://", control=control, set_as_current=False)
    install(app)
    copied = pickle.loads(pickle.dumps(app))
    assert isinstance(copied.control, control)
    assert type(copied.control) is not control


@pytest.mark.parametrize("layout", ["one db", "two servers", "rabbitmq"], indirect=True)
def test_a_message_stored_again_while_it_is_published_stays_stored(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.clear()
    app = layout.make_app()
    install(app)
    send(app, "message")
    layout.client.zadd(LATER, {"redbeat::later:message": 1})
    scheduler = RedBeatScheduler(app)
    scheduler.stand_for_leader()
    publish = schedulers.publish

    def publish_and_store(*args: Any) -> None:
        publish(*args)
        send(app, "message", countdown=7200)

    monkeypatch.setattr(schedulers, "publish", publish_and_store)
    scheduler.tick()
    assert layout.client.zcard(LATER) == 1
    assert layout.client.hexists("redbeat::later:message", "message")
    scheduler.tick()
    assert len(layout.queue.messages()) == (0 if layout.is_exactly_once else 1)
    scheduler.close()
