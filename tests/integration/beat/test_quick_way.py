"""Runs that go the quick way leave in Redis what those that go the ordinary way leave."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import kombu
import kombu.messaging
import pytest
import redis
from celery import Celery, Task
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat.broker.originals import Originals
from tests.integration.conftest import MakeApp, MakeScheduler
from tests.support.schedule import SCHEDULE, field, messages, meta_json, sent_names, server_now, write_raw

#: far apart, so that what is left doesn't depend on when the test runs
INTERVALS = (3600, 7200.5, 10**7)
CRONTAB = {"__type__": "crontab", "minute": "7", "hour": "3"}


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
        interval = {"__type__": "interval", "every": chance.choice(INTERVALS)}
        write_raw(
            client,
            f"entry-{number}",
            task=chance.choice(["echo", "add", "nobody.knows"]),
            schedule=chance.choice([interval, interval, CRONTAB]),
            args=chance.choice([[], [number], ["é\u2028", None, 1.5, True]]),
            kwargs=chance.choice([{}, {"n": number}, {"deep": [{"a": [number]}]}]),
            options=chance.choice(
                [{}, {}, {"queue": "other"}, {"priority": 3}, {"headers": {"mine": number}}, {"expires": 60}]
            ),
            score=due + number / 1000,
        )
        policy = chance.choice(
            [
                *(None, None, {"expires_after": 10**6}, {"timezone": "Asia/Tokyo"}, {"jitter": 3}),
                *({"queue_timeout": 90}, {"queue_timeout": 30, "expires_after": 10**6}),
            ]
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


def test_an_entry_whose_next_run_is_after_the_year_9999_stops_no_other(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    last_run = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
    write_raw(client, "last", score=1, meta=meta_json(last_run, 1))
    write_raw(client, "other", score=2)
    scheduler.tick()
    assert sent_names(broker) == ["other"]
    assert "outside the years 1 to 9999" in field(client, "last", "error")["reason"]


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


def test_a_beat_that_becomes_slower_while_it_runs_says_so_once_as_a_warning(
    scheduler: RedBeatScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    for name in ("one", "two", "three"):
        write_raw(client, f"{name} before")
        scheduler.tick()
        with somebody_listening():
            write_raw(client, name)
            scheduler.tick()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    said = [(level, text) for level, text in said if text.startswith("beat: Messages: ")]
    assert [level for level, _ in said] == ["INFO", "WARNING", "INFO", "INFO", "INFO", "INFO"]
    assert ["one by one" in text for _, text in said] == [False, True] * 3


def test_a_beat_that_starts_slowly_gives_no_warning(
    scheduler: RedBeatScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    write_raw(client, "one")
    with somebody_listening():
        scheduler.tick()
    assert [record.levelname for record in caplog.records if "beat: Messages: " in record.getMessage()] == [
        "INFO"
    ]


def test_an_error_that_is_not_the_brokers_is_told_of(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> str:
        raise ValueError("something strange")

    caplog.set_level("INFO", logger="celery.beat")
    monkeypatch.setattr(Originals, "find_obstacle", fail)
    write_raw(client, "entry")
    scheduler.tick()
    assert "beat: Messages: one by one: ValueError: something strange." in caplog.messages
    assert len(messages(broker)) == 1


def route_badly(name: str, *args: Any, **kwargs: Any) -> None:
    if name == "bad":
        raise RuntimeError("a router's error")


@pytest.mark.parametrize(
    ("routes", "way", "reason"),
    [
        (
            "nosuch.module.Router",
            "task_routes has a function: nosuch.module.Router",
            "task_routes, nosuch.module.Router: ModuleNotFoundError: No module named 'nosuch'",
        ),
        (
            [{"other": "queue"}, route_badly],
            f"task_routes has a function: {__name__}.route_badly",
            f"task_routes, {__name__}.route_badly: RuntimeError: a router's error",
        ),
        ([("bad",)], "task_routes can't be used: ValueError: ", "task_routes: ValueError: "),
        ({"bad": 5}, "", "task_routes: TypeError: "),
    ],
    ids=["no such module", "a function that raises", "half a pair", "a number for a queue"],
)
def test_routes_that_cannot_be_used_are_named_with_their_setting(
    routes: Any,
    way: str,
    reason: str,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="celery.beat")
    scheduler = make_scheduler(task_routes=routes)
    for name in ("good", "bad"):
        write_raw(client, name, task=name)
    scheduler.tick()
    log = "\n".join(caplog.messages)
    assert (f"beat: Messages: one by one: {way}" if way else "beat: Messages: compiled.") in log
    if "RuntimeError" in reason:  # the application's own code has raised it
        assert f"beat: Skipped a run of bad (bad), its own code raised an error: {reason}" in log
    else:
        assert f"beat: Couldn't send bad (bad), trying again: {reason}" in log
        assert json.loads(client.hget("redbeat:bad", "error"))["reason"].startswith(reason)
    can_go_on = callable(routes[-1]) if isinstance(routes, list) else isinstance(routes, dict)
    assert len(messages(broker)) == can_go_on
    assert ("Couldn't send good" in log) is not can_go_on


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
