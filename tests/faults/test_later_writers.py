"""Those who store messages are killed, and store and cancel what beats send just then.

Invariant under test: a message is there wholly or not at all, and whoever is told that it is stored, or taken
away, is told the truth.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.later import batch, install
from redbeat.scheduler.shard import Shard
from redbeat.schedulers import RedBeatScheduler
from tests.conftest import MakeApp
from tests.faults.bursts import LATER
from tests.faults.children import Fuse, on_the_wire, run_child, run_children
from tests.faults.rounds import IS_LONG
from tests.support.polling import eventually
from tests.support.schedule import messages
from tests.support.servers import Server

MESSAGES = 40
WRITERS = 8
LEASE_SECONDS = 0.1


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=0) as connected:
        yield connected


def store(app: Celery, names: list[str], **options: Any) -> None:
    for name in names:
        app.send_task("echo", [name], task_id=name, **{"countdown": 3600, **options})


def left_of_messages(client: redis.Redis) -> list[str]:
    return [
        key for key in client.scan_iter("redbeat::*") if key.startswith(("redbeat::later:", "redbeat::body:"))
    ]


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_writer_killed_on_the_wire_leaves_whole_messages_and_whole_batches(
    make_app: MakeApp,
    client: redis.Redis,
    is_batch: bool,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"message-{number}" for number in range(MESSAGES if is_batch else 3)]
    kills = 0

    def write(fuse: Fuse) -> None:
        app = make_app()
        install(app)
        with fuse.armed(), batch() if is_batch else nullcontext():
            store(app, names, serializer="pickle")

    write(Fuse(0))  # what it imports the children need not
    for step in itertools.count(1 if IS_LONG else chance.randint(1, 2), 1 if IS_LONG else 2):
        client.flushdb()
        with monkeypatch.context() as patched:
            fuse = Fuse(step)
            on_the_wire(fuse, patched)
            code = run_child(partial(write, fuse))
        stored = {key.removeprefix("redbeat::later:") for key in client.zrange(LATER, 0, -1)}
        whole = [client.hexists(f"redbeat::later:{name}", "message") for name in stored]
        assert all(whole)
        assert len(left_of_messages(client)) == 2 * len(stored)  # each has an entry and a body
        assert not is_batch or len(stored) in (0, MESSAGES)
        if code != -signal.SIGKILL:
            assert code == 0
            assert len(stored) == len(names)
            break
        kills += 1
    assert kills > 3


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("lock_key", ["redbeat:lock", None])
def test_many_writers_and_beats_at_once_send_each_message_once(
    make_app: MakeApp,
    client: redis.Redis,
    broker: redis.Redis,
    lock_key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Shard, "LEASE_MS", LEASE_SECONDS * 1000)
    each = 60
    settings = {"redbeat_durable_after": 0, "redbeat_batch_size": 7, "redbeat_lock_key": lock_key}

    def write(writer: int) -> None:
        app = make_app(**settings)
        install(app)
        names = [f"message-{writer}-{number}" for number in range(each)]
        with batch():
            store(app, names[::2], countdown=0.3)
        store(app, names[1::2], countdown=0.01)

    def send() -> None:
        app = make_app(**settings)
        install(app)
        scheduler = RedBeatScheduler(app)
        if lock_key:
            eventually(scheduler.stand_for_leader)
        seen = False
        while not seen or client.zcard(LATER) or broker.llen("celery") < WRITERS * each:
            seen = seen or bool(client.zcard(LATER) or broker.llen("celery"))
            time.sleep(min(scheduler.tick(), 0.01))  # only until something falls due
        scheduler.close()

    beats = [send] if lock_key else [send, send, send]
    codes = run_children([*(partial(write, number) for number in range(WRITERS)), *beats])
    assert set(codes) == {0}
    sent = Counter(message["headers"]["id"] for message in messages(broker))
    assert len(sent) == WRITERS * each
    assert set(sent.values()) == {1}
    assert left_of_messages(client) == []
