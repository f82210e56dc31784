"""A failure is one entry's: it is tried again with pauses, and the others go on. So is a missing hash."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Task
from celery.schedules import schedule
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import StoreRefused
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, ONE_SERVER, MakeScheduler
from tests.support.logs import errors_in, warnings_in
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    counts_of,
    field,
    messages,
    meta_json,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import take_messages


class Flaky(RedBeatScheduler):
    """Can't send the entries in ``broken``."""

    broken: frozenset[str] = frozenset()

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.name in self.broken:
            raise ZeroDivisionError(f"no way to send {entry.name}")
        return super().apply_async(entry, *args, **kwargs)


@EVERY_KIND_OF_LOCK
def test_one_that_cannot_be_sent_backs_off_alone(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
) -> None:
    scheduler = make_scheduler(scheduler=Flaky, **settings)
    scheduler.broken = frozenset({"bad"})
    due = server_now(client) - 1
    write_raw(client, "bad", score=due, meta=meta_json(datetime(2024, 1, 1), 5))
    pauses = []
    for round_number in range(9):
        write_raw(client, f"good-{round_number}", score=due)
        scheduler.tick()
        now = server_now(client)
        pauses.append(round((score_of(client, "bad") or 0) - now))
        client.zadd(SCHEDULE, {"redbeat:bad": retry_now(client, now)})
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert sent_names(broker) == [f"good-{number}" for number in range(9)]
    error = field(client, "bad", "error")
    assert (error["attempts"], error["reason"]) == (9, "ZeroDivisionError: no way to send bad")
    assert field(client, "bad", "meta")["total_run_count"] == 5
    assert len(errors_in(caplog)) == 1
    assert "bad" in errors_in(caplog)[0]

    scheduler.broken = frozenset()
    scheduler.tick()
    header = messages(broker)[-1]["headers"]
    assert header["redbeat_entry"] == "bad"
    assert datetime.fromisoformat(header["redbeat_due"]).timestamp() == pytest.approx(due, abs=1e-5)
    assert client.hget("redbeat:bad", "error") is None
    assert score_of(client, "bad") == pytest.approx(due + 3600, abs=1e-4)


def retry_now(client: redis.Redis, now: float) -> float:
    """Make the retry of the entry `bad` due at `now`, as if its pause had passed."""
    error = field(client, "bad", "error")
    error["retry_at"] = f"{now:.6f}"
    client.hset("redbeat:bad", "error", json.dumps(error))
    return float(error["retry_at"])


def test_after_a_restart_it_goes_on_backing_off_and_is_not_logged_again(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw(client, "bad")
    for _ in range(3):
        scheduler = make_scheduler(scheduler=Flaky)
        scheduler.broken = frozenset({"bad"})
        scheduler.tick()
        client.zadd(SCHEDULE, {"redbeat:bad": retry_now(client, server_now(client))})
        scheduler.close()
    assert field(client, "bad", "error")["attempts"] == 3
    assert len(errors_in(caplog)) == 1


UNSENDABLE: dict[str, dict[str, Any]] = {
    "serializer": {"options": {"serializer": "no-such"}},
    "countdown": {"options": {"countdown": "five"}},
    "expires": {"options": {"expires": [1]}},
    "producer": {"options": {"producer": 1}},
    "surrogate": {"options": {"queue": "\ud800"}},
    "args-option": {"options": {"args": [1], "kwargs": 5}},
    "retry-policy": {"options": {"retry_policy": "never"}},
}


def test_options_that_celery_refuses_stop_nobody_else(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for name, fields in UNSENDABLE.items():
        write_raw(client, name, score=1, **fields)
    write_raw(client, "good", score=2, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    for name in UNSENDABLE:
        assert field(client, name, "error")["reason"], name
        assert (score_of(client, name) or 0) > server_now(client), name
    assert len(errors_in(caplog)) == len(UNSENDABLE)
    assert scheduler.tick() > 0


def test_a_signal_handler_that_fails_stops_nobody(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    def fail(headers: Any = None, **_: Any) -> None:
        if headers["redbeat_entry"] == "bad":
            raise SystemError("handler")

    for name in ("bad", "good"):
        write_raw(client, name)
    before_task_publish.connect(fail, weak=False)
    try:
        scheduler.tick()
    finally:
        before_task_publish.disconnect(fail)
    assert sorted(sent_names(broker)) == ["bad", "good"]  # Celery logs what handlers raise, and sends


def test_a_new_definition_is_tried_at_once_when_it_is_saved(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Flaky)
    write_raw(client, "bad", meta=meta_json(datetime(2024, 1, 1), 5))
    scheduler.broken = frozenset({"bad"})
    scheduler.tick()
    assert (score_of(client, "bad") or 0) > server_now(client)
    scheduler.broken = frozenset()
    Entry("bad", "echo", schedule(3600), args=["fixed"], app=scheduler.app).save()
    scheduler.tick()
    assert sent_names(broker) == ["bad"]
    assert client.hget("redbeat:bad", "error") is None


def test_a_missing_hash_gets_a_second_and_then_an_error_that_names_eviction(
    scheduler: RedBeatScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    now = server_now(client)
    client.zadd(SCHEDULE, {"redbeat:gone": now - 1, "redbeat:other": 4e9})
    assert scheduler.tick() == pytest.approx(1, abs=0.2)
    assert score_of(client, "gone") == pytest.approx(now + 1, abs=0.2)
    assert errors_in(caplog) == []
    client.zadd(SCHEDULE, {"redbeat:gone": 1})  # the second has passed
    scheduler.tick()
    assert score_of(client, "gone") is None
    (error,) = errors_in(caplog)
    assert error.startswith("beat: Failed to load redbeat:gone, removing")
    assert "evicted" in error


def test_a_hash_that_appears_within_that_second_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.zadd(SCHEDULE, {"redbeat:slow": 1})
    scheduler.tick()
    write_raw(client, "slow", score=None)
    client.zadd(SCHEDULE, {"redbeat:slow": 1})
    scheduler.tick()
    assert (sent_names(broker), errors_in(caplog)) == (["slow"], [])
    assert (score_of(client, "slow") or 0) > datetime.now(timezone.utc).timestamp()


class Cancelling(RedBeatScheduler):
    """Its task code raises what is no Exception."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.name == "bad":
            raise asyncio.CancelledError
        return super().apply_async(entry, *args, **kwargs)


def test_one_that_raises_what_is_no_exception_backs_off_alone(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Cancelling)
    for name in ("bad", "good"):
        write_raw(client, name, score=1, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert "CancelledError" in field(client, "bad", "error")["reason"]


@pytest.mark.parametrize("options", [{"exchange": "nobody", "routing_key": "x"}])
def test_an_exchange_that_no_queue_is_bound_to_is_that_entrys_failure(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, options: dict[str, Any]
) -> None:
    write_raw(client, "bad", score=1, schedule=SELDOM, options=options)
    write_raw(client, "good", score=2, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert "no queue is bound to the exchange 'nobody'" in field(client, "bad", "error")["reason"]
    assert client.hget("redbeat:bad", "meta") is None


def test_a_message_that_the_server_cannot_take_holds_up_no_other(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_runs = Store.commit_runs

    def refuse_big_ones(store: Store, fence: Any, commits: Any, *target: Any) -> Any:
        if any(len(str(push.value)) > 10_000 for commit in commits for push in commit.pushes):
            raise StoreRefused("Redis refused a command: Protocol error: invalid bulk length")
        return commit_runs(store, fence, commits, *target)

    monkeypatch.setattr(Store, "commit_runs", refuse_big_ones)
    write_raw(client, "big", score=1, schedule=SELDOM, args=["x" * 20_000])
    write_raw(client, "bad", "{oops", score=1)
    for number in range(3):
        write_raw(client, f"small-{number}", score=2 + number, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["small-0", "small-1", "small-2"]
    assert "invalid bulk length" in field(client, "big", "error")["reason"]
    assert "definition" in field(client, "bad", "error")["reason"]
    assert {field(client, f"small-{number}", "meta")["total_run_count"] for number in range(3)} == {1}


def test_a_server_that_lets_nobody_in_any_more_is_asked_once_and_blamed_on_no_entry(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A password that is changed while a batch is sent."""
    asked = []

    def refuse(store: Store, *args: Any) -> Any:
        asked.append(store)
        raise StoreRefused("Redis refused the connection: invalid password", is_login=True)

    for number in range(20):
        write_raw(client, f"entry-{number:02}", score=1 + number, schedule=SELDOM)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit_runs", refuse)
        with pytest.raises(StoreRefused, match="invalid password"):
            scheduler.tick()
    assert len(asked) == 1
    assert not [
        record for record in caplog.records if "entry-" in record.getMessage() and record.levelno > 20
    ]
    scheduler.tick()
    assert sent_names(broker) == [f"entry-{number:02}" for number in range(20)]


@pytest.mark.parametrize("task_id", [None, ""])
def test_an_empty_task_id_among_the_options_is_none(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, task_id: str | None
) -> None:
    write_raw(client, "entry", score=1, schedule=SELDOM, options={"task_id": task_id})
    scheduler.tick()
    [message] = messages(broker)
    assert message["headers"]["id"] == task_id_of("redbeat:entry", message["headers"]["redbeat_due"])


# -- hundreds at once: each fails alone, and the others go out


class Failing(Task):
    """A task whose apply_async raises."""

    abstract = True

    def apply_async(self, args: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        raise FAILURES[args[0]]


FAILURES: dict[str, Exception] = {
    "KeyError": KeyError("user"),
    "FileNotFoundError": FileNotFoundError(2, "No such file", "settings.ini"),
}
KINDS = ["serializer", "unpicklable", *FAILURES]


@ONE_SERVER
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broker_is", ["same", "second", "rabbitmq"])
def test_five_hundred_that_fail_hold_up_nobody(
    request: pytest.FixtureRequest,
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    broker_is: str,
    kind: str,
) -> None:
    urls = {"same": lambda: server.url(0), "second": lambda: request.getfixturevalue("redis").url(0)}
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
    assert counts_of(client, good) == {1: 500}
    with client.pipeline(transaction=False) as pipeline:
        for name in bad:
            pipeline.hexists(f"redbeat:{name}", "error")
        assert all(pipeline.execute())
    assert len(warnings_in(caplog)) == 500
    assert len(set(warnings_in(caplog))) == 500


def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    node: RabbitMQ = request.getfixturevalue("rabbitmq")
    return node.url()
