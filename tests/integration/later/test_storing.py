"""On its way to Redis a message is stored, or the caller is told that it isn't."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kombu.exceptions
import pytest
import redis
from celery import Celery

import redbeat.later
from redbeat.errors import MessageNotStored, MessageRefused, StoreUnavailable
from redbeat.later import batch
from tests.conftest import MakeApp
from tests.integration.later.conftest import add_tasks, stored_ids
from tests.support.schedule import monitoring
from tests.support.servers import Server


def store(app: Celery, task_id: str = "id", **options: Any) -> Any:
    return app.tasks["add"].apply_async((1,), task_id=task_id, **{"countdown": 600, **options})


@pytest.mark.also_sharded
def test_a_message_is_stored_in_one_round_trip(app: Celery, server: Server) -> None:
    store(app, "first")  # now the server knows the script, and the client is connected
    with monitoring(server) as asked:
        store(app)
    assert [line.split()[0] for line in asked] == ["EVALSHA"]


def test_many_in_a_block_are_stored_in_one_round_trip_when_it_ends(app: Celery, server: Server) -> None:
    store(app, "first")
    with monitoring(server) as asked, batch():
        for number in range(1000):
            store(app, str(number))
        assert stored_ids(app) == ["first"]
    scripts = [line for line in asked if line.startswith("EVALSHA")]
    assert len(scripts) == 1
    assert len(stored_ids(app)) == 1001


def test_of_a_block_that_raises_nothing_is_stored(app: Celery) -> None:
    def fail() -> None:
        with batch():
            store(app)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stored_ids(app) == []
    store(app)
    assert stored_ids(app) == ["id"], "the block is over"


@pytest.mark.also_sharded
def test_a_block_in_a_block_is_part_of_it_and_each_app_has_its_own(app: Celery, make_app: MakeApp) -> None:
    other = make_app(redbeat_key_prefix="other:", redbeat_durable_after=1)
    redbeat.later.install(other)
    with batch():
        with batch():
            store(app, "inner")
        assert stored_ids(app) == []
        other.send_task("add", countdown=600, task_id="of the other")
    assert (stored_ids(app), stored_ids(other)) == (["inner"], ["of the other"])


def test_other_threads_and_tasks_are_not_in_the_block(app: Celery) -> None:
    async def both() -> None:
        async def other() -> None:
            store(app, "other task")

        before = asyncio.create_task(other())
        with batch():
            await before
            thread = threading.Thread(target=store, args=(app, "other thread"))
            thread.start()
            thread.join()
            store(app, "in it")
            assert set(stored_ids(app)) == {"other task", "other thread"}

    asyncio.run(both())
    assert set(stored_ids(app)) == {"other task", "other thread", "in it"}


def in_a_block(app: Celery) -> None:
    with batch():
        store(app)


@pytest.mark.parametrize("send", [store, in_a_block], ids=["at once", "in a block"])
def test_a_redis_that_is_away_fails_as_a_publish_does(
    send: Callable[[Celery], Any], make_app: MakeApp, second: Server
) -> None:
    app = make_app(redbeat_redis_url=second.url(1), redbeat_durable_after=1)
    redbeat.later.install(app)
    add_tasks(app)
    second.kill()
    with pytest.raises(
        kombu.exceptions.OperationalError, match="Not stored, so not sent later: id: "
    ) as raised:
        send(app)
    assert isinstance(raised.value, MessageNotStored)
    assert isinstance(raised.value.__cause__, StoreUnavailable)
    second.restart()
    send(app)
    assert stored_ids(app) == ["id"]


def test_a_redis_that_refuses_fails_as_a_publish_does(make_app: MakeApp, second: Server) -> None:
    app = make_app(redbeat_redis_url=second.url(1), redbeat_durable_after=1)
    redbeat.later.install(app)
    add_tasks(app)
    with second.client() as admin:
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(MessageNotStored, match="maxmemory"):
            store(app)
        admin.config_set("maxmemory", "0")
        admin.set("redbeat::later", "no zset")
    assert second.client(db=1).set("redbeat::later", "no zset")
    with pytest.raises(MessageNotStored, match="redbeat::later holds something that is no sorted set"):
        store(app)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"headers": {"odd": object()}}, "no form in JSON"),
        ({"task_id": "\udcff"}, "UTF-8"),
        ({"argsrepr": "x" * 9_000_000}, "redbeat_max_entry_bytes"),
    ],
    ids=["header", "id", "size"],
)
def test_what_can_not_be_stored_is_refused_in_a_sentence(
    options: dict[str, Any], why: str, app: Celery
) -> None:
    with pytest.raises(MessageRefused, match=why):
        store(app, **options)
    assert stored_ids(app) == []


def test_what_goes_to_another_broker_is_published_there(
    app: Celery, make_app: MakeApp, server: Server
) -> None:
    elsewhere = make_app(broker_url=server.url(5))
    with elsewhere.connection_for_write() as connection:
        store(app, "by connection", connection=connection)
        with elsewhere.amqp.Producer(connection) as producer:
            store(app, "by producer", producer=producer)
    with app.connection_for_write() as connection:
        store(app, "its own", connection=connection)
    with server.client(db=5) as client:
        assert client.llen("celery") == 2
    assert stored_ids(app) == ["its own"]


def test_a_task_that_runs_eagerly_is_not_stored(app: Celery) -> None:
    app.conf.task_always_eager = True
    assert store(app).get() == 1
    assert stored_ids(app) == []


def test_many_writers_at_once_lose_nothing(app: Celery, client: redis.Redis) -> None:
    def write(name: int) -> None:
        for number in range(50):
            store(app, f"{name}-{number % 40}")  # some take the place of others

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored_ids(app)) == 8 * 40
    assert len(client.keys("redbeat::later:*")) == 8 * 40
