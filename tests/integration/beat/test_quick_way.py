"""Runs that go the quick way leave in Redis what those that go the ordinary way leave."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import kombu.messaging
import pytest
import redis
from celery import Celery, Task
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeApp, MakeScheduler
from tests.support.schedule import SCHEDULE, messages, server_now, write_raw

#: far apart, so that what is left doesn't depend on when the test runs
INTERVALS = (3600, 7200.5, 10**7)


@contextmanager
def somebody_listening() -> Iterator[None]:
    """A receiver of a signal, so that messages go one by one."""

    def listen(**_: Any) -> None:
        pass

    before_task_publish.connect(listen)
    try:
        yield
    finally:
        before_task_publish.disconnect(listen)


def write_entries(client: redis.Redis, chance: random.Random, count: int, due: float) -> None:
    for number in range(count):
        crontab = {"__type__": "crontab", "minute": "7", "hour": "3"}
        interval = {"__type__": "interval", "every": chance.choice(INTERVALS)}
        write_raw(
            client,
            f"entry-{number}",
            task=chance.choice(["echo", "add", "nobody.knows"]),
            schedule=chance.choice([interval, interval, crontab]),
            args=chance.choice([[], [number], ["é\u2028", None, 1.5, True]]),
            kwargs=chance.choice([{}, {"n": number}, {"deep": [{"a": [number]}]}]),
            options=chance.choice(
                [{}, {}, {"queue": "other"}, {"priority": 3}, {"headers": {"mine": number}}, {"expires": 60}]
            ),
            score=due + number / 1000,
        )
        policy = chance.choice(
            [None, None, {"expires_after": 10**6}, {"timezone": "Asia/Tokyo"}, {"jitter": 3}]
        )
        if policy:
            client.hset(f"redbeat:entry-{number}", "policy", json.dumps(policy))


def masked(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is random, or depends on when it was sent."""
    properties = {**message["properties"], "delivery_tag": "", "expiration": ""}
    headers = dict(message["headers"])
    headers["expires"] = headers["expires"] and headers["expires"] > headers["redbeat_due"]
    return {**message, "properties": properties, "headers": headers}


def left_behind(client: redis.Redis, broker: redis.Redis) -> Any:
    """What runs leave: messages in their order, scores, metas and histories, but not when it was."""
    names = sorted(name for name in broker.keys("*") if broker.type(name) == "list")
    queues = {name: [masked(one) for one in messages(broker, name)] for name in names}
    metas: dict[str, Any] = {}
    for key in sorted(client.keys("redbeat:entry-*")):
        metas[key] = json.loads(client.hget(key, "meta") or "{}")
        if "crontab" in (client.hget(key, "definition") or ""):
            metas[key].pop("last_run_at")
    histories = {
        key: [json.loads(record)["due"] for record in client.lrange(key, 0, -1)]
        for key in sorted(client.keys("redbeat::history:*"))
    }
    return queues, client.zrange(SCHEDULE, 0, -1, withscores=True), metas, histories


@pytest.mark.parametrize("_turn", range(3))
def test_the_quick_way_leaves_what_the_ordinary_way_leaves(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    chance: random.Random,
    _turn: int,
) -> None:
    app, due, seed = make_app(), server_now(client) - 30, chance.random()
    found = []
    for is_quick in (False, True):
        client.flushdb()
        broker.flushdb()
        scheduler = make_scheduler(app)
        write_entries(client, random.Random(seed), 200, due)
        if is_quick:
            while scheduler.tick() <= 0:
                pass
        else:
            with somebody_listening():
                while scheduler.tick() <= 0:
                    pass
        scheduler.close()
        found.append(left_behind(client, broker))
    assert sum(map(len, found[0][0].values())) >= 200
    for ordinary, quick in zip(*found, strict=True):
        assert quick == ordinary


def test_runs_go_the_quick_way_unless_somebody_takes_part(
    scheduler: RedBeatScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    write_raw(client, "one")
    scheduler.tick()
    assert "beat: Messages: compiled." in caplog.messages
    caplog.clear()
    with somebody_listening():
        write_raw(client, "two")
        scheduler.tick()
        write_raw(client, "three")
        scheduler.tick()
    said = [line for line in caplog.messages if line.startswith("beat: Messages")]
    assert len(said) == 1
    assert "one by one: a receiver of before_task_publish" in said[0]
    assert "somebody_listening" in said[0]


def test_with_task_sent_events_the_log_says_so_too(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    scheduler = make_scheduler(task_send_sent_event=True)
    write_raw(client, "entry")
    scheduler.tick()
    assert "beat: Messages: one by one: task_send_sent_event is set." in caplog.messages


#: what a tool may replace while beat runs
REPLACEABLE: dict[str, tuple[Any, str]] = {
    "Task.apply_async": (Task, "apply_async"),
    "Celery.send_task": (Celery, "send_task"),
    "Producer.publish": (kombu.Producer, "publish"),
    "RedBeatScheduler.apply_async": (RedBeatScheduler, "apply_async"),
    "kombu.messaging.dumps": (kombu.messaging, "dumps"),
}


@pytest.mark.parametrize("where", REPLACEABLE)
def test_a_function_that_is_replaced_while_beat_runs_is_called_from_the_next_batch_on(
    where: str,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    scheduler = make_scheduler()

    @scheduler.app.task(name="echo")
    def echo() -> None: ...

    for name in ("one", "two"):
        write_raw(client, name, task="echo")
    scheduler.tick()
    assert "beat: Messages: compiled." in caplog.messages
    owner, name = REPLACEABLE[where]
    original, called = getattr(owner, name), []

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        called.append(where)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, traced)
    for name in ("one", "two"):
        client.zadd(SCHEDULE, {f"redbeat:{name}": server_now(client) - 1})
        client.hdel(f"redbeat:{name}", "meta")
    scheduler.tick()
    assert called == [where] * 2
    assert f"beat: Messages: one by one: {__name__} replaces {where}." in caplog.messages
    assert len(messages(broker)) == 4
