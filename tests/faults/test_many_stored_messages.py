"""Whatever stands among the stored messages: beat lives, says why it can't send it, and sends the others.

It never decodes a body that isn't JSON, so nobody makes it run what a pickle says.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.control import Control

from redbeat import schedulers
from redbeat.later import batch, install
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.later import LaterStore
from redbeat.store.messages import read_bodies
from redbeat.store.records import Stored
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.bursts import LATER, Layout
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import messages
from tests.support.servers import Server

GOOD = "good"
#: allows messages larger than the default of 1 MiB
RAISED = {"redbeat_max_entry_bytes": 8 * 1024 * 1024}
TYPED = [{"__type__": kind, "__value__": value} for kind, value in
         (("datetime", "x"), ("decimal", "x"), ("uuid", 5), ("bytes", 5), ("nobody-knows", [1]))]  # fmt: skip
#: what each field of a message may be by mistake or on purpose
VALUES: list[Any] = [
    *(None, 5, -1, True, 1e400, "", "\ud800", "x" * 100_000, [], [1], [[1, 2]], {}, {"a": 1}, [{"name": 5}]),
    *TYPED,
]
#: arguments of kombu's publish, which no message brings
ARGUMENTS = {
    "serializer": "pickle", "compression": "bzip2", "headers": {}, "body": "x", "declare": ["x"], "self": 1,
    "retry": True, "retry_policy": {"max_retries": None}, "timeout": 1e9, "delivery_info": 5, "priority": [1],
    "delivery_mode": "x", "content_type": "application/x-python-serialize", "expiration": "x",
}  # fmt: skip
TEXTS = [
    *("", "{", "[1]", '"body"', "5", "null", "NaN", "1" * 10_000, "[" * 100_000, '{"a":' * 100_000, "\0"),
    *('{"body": "\\ud800"}', '{"body": 5, "body": "x"}', '{"task_id": "x"}'),
]


class Planted:
    """What a pickle makes of it: it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self._path}",))


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app()
    install(app)
    return app


def send(app: Celery, name: str, *args: Any, **options: Any) -> None:
    app.send_task("echo", args or [name], task_id=name, **{"countdown": 3600, **options})


def make_due(client: redis.Redis, *names: str) -> None:
    client.zadd(LATER, {f"redbeat::later:{name}": 1 for name in names})


def send_all_that_are_due(app: Celery, client: redis.Redis) -> None:
    scheduler = RedBeatScheduler(app)
    scheduler.stand_for_leader()
    eventually(lambda: scheduler.tick() >= 0 and not client.zcard(LATER))
    scheduler.close()


def garbage(message: dict[str, Any], pickled: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield messages that can't be used, or that nobody has made so, and bodies beside them."""
    yield None, None
    for text in TEXTS:
        yield text, None
    for name in {**message, "exchange": "", "expires_at": None}:
        yield json.dumps({key: value for key, value in message.items() if key != name}), None
        for value in VALUES:
            yield json.dumps({**message, name: value}), None
    for name, value in ARGUMENTS.items():
        yield json.dumps({**message, "properties": {**message["properties"], name: value}}), None
    without_body = json.dumps({key: value for key, value in message.items() if key != "body"})
    of_type = {
        "content_type": "application/x-python-serialize",
        "content_encoding": "binary",
        "body": pickled,
    }
    bodies: list[Any] = [
        *(of_type, {**of_type, "content_type": None}, {**of_type, "content_type": "pickle"}),
        *({**of_type, "body": "***"}, {**of_type, "body": "é"}, {"body": pickled}, [], None, 5, "body"),
    ]
    for body in bodies:
        yield without_body, json.dumps(body)
    for text in TEXTS:
        yield without_body, text


def test_garbage_among_stored_messages_stops_neither_beat_nor_other_messages(
    app: Celery, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    send(app, GOOD)
    fields: dict[str, str] = client.hgetall(f"redbeat::later:{GOOD}")
    pickled = b64encode(pickle.dumps(Planted(tmp_path / "planted"))).decode()
    keys = []
    with client.pipeline(transaction=False) as pipeline:
        for number, (text, body) in enumerate(garbage(json.loads(fields["message"]), pickled)):
            keys.append(f"redbeat::later:{number}")
            known = {"definition": fields["definition"], "policy": fields["policy"]}
            pipeline.hset(keys[-1], mapping=known if text is None else {**known, "message": text})
            if body is not None:
                pipeline.set(f"redbeat::body:{number}", body)
        wrong = (("definition", "{"), ("policy", "["), ("meta", "x"), ("error", "x"), ("lease", "x"))
        for field, text in wrong:
            keys.append(f"redbeat::later:{field}")
            pipeline.hset(keys[-1], mapping={**fields, field: text})
        pipeline.set("redbeat::later:string", "x")
        keys += ["redbeat::later:string", "redbeat::later:gone", ":later:bare", "", "redbeat:", LATER]
        pipeline.zadd(LATER, dict.fromkeys(keys, 1))
        pipeline.zadd(LATER, {f"redbeat::later:{GOOD}": 2, "redbeat:never": "-inf", "redbeat:inf": "inf"})
        pipeline.execute()
    scheduler = RedBeatScheduler(app)
    scheduler.stand_for_leader()
    eventually(lambda: scheduler.tick() > 1)
    assert GOOD in {message["properties"].get("correlation_id") for message in messages(broker)}
    assert not (tmp_path / "planted").exists()
    left = list(LaterStore(app).first(None))
    unsaid = [one.task_id for one in left if one.texts is not None and not one.error]
    print(f"{len(keys)} pieces of garbage, {len(left)} of them are left")
    assert unsaid == []
    assert len([one for one in left if one.error]) > len(TEXTS) + len(VALUES)


@pytest.mark.parametrize("options", [{}, {"serializer": "pickle"}, {"compression": "gzip"}])
def test_messages_larger_than_others_are_sent_too(
    make_app: MakeApp, client: redis.Redis, broker: redis.Redis, options: dict[str, str]
) -> None:
    app = make_app(accept_content=["json", "pickle"], **RAISED)
    install(app)
    names = [GOOD, *(f"large-{number}" for number in range(6))]
    with batch():
        for name in names:
            send(app, name, os.urandom(400_000 if name != GOOD else 4).hex(), **options)
    make_due(client, *names)
    send_all_that_are_due(app, client)
    assert {message["headers"]["id"] for message in messages(broker)} == {*names}


@pytest.mark.slow
def test_many_large_bodies_are_not_read_at_once(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(accept_content=["json", "pickle"], **RAISED)
    install(app)
    names = [f"{number}" for number in range(60)]
    for name in names:
        send(app, name, os.urandom(1_000_000), {"eta": datetime.now(timezone.utc)}, serializer="pickle")
    make_due(client, *names)
    sizes = []

    def note_size(store: Store, rows: Sequence[Stored]) -> None:
        read_bodies(store, rows)
        sizes.append(sum(len(row.body or "") for row in rows))

    monkeypatch.setattr("redbeat.store.schedule.read_bodies", note_size)
    send_all_that_are_due(app, client)
    assert 0 < max(sizes) < sum(sizes) / 4, sizes


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_connection_that_ends_amid_storing_leaves_one_message(
    server: Server, make_app: MakeApp, client: redis.Redis, lost: Any
) -> None:
    with Proxy((server.host, server.port)) as proxy:
        app = make_app(redbeat_redis_url=proxy.url(server.url(1)))
        install(app)
        send(app, "first")
        proxy.cut_on(b"second", lost)
        send(app, "second")
    assert client.zcard(LATER) == 2


def test_a_task_that_outlives_the_batch_it_began_in_stores_its_message(
    app: Celery, client: redis.Redis
) -> None:
    async def outlive() -> None:
        has_ended = asyncio.Event()

        async def send_then() -> None:
            await has_ended.wait()
            send(app, "of a task")
            with batch():
                send(app, "of a batch of its own")

        with batch():
            task = asyncio.create_task(send_then())
            send(app, "of the batch")
        has_ended.set()
        await task

    asyncio.run(outlive())
    assert client.zcard(LATER) == 3


def test_an_app_with_durable_tasks_can_be_pickled() -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    install(app)
    assert isinstance(pickle.loads(pickle.dumps(app)).control, Control)


@pytest.mark.parametrize("layout", ["one db", "two servers", "rabbitmq"], indirect=True)
def test_a_message_stored_again_while_it_is_published_stays_stored(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.clear()
    app = layout.make_app()
    install(app)
    send(app, "message")
    make_due(layout.client, "message")
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
    assert len(layout.queue.take()) == (0 if layout.is_exactly_once else 1)
    scheduler.close()
