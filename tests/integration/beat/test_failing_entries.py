"""A failure is one entry's: it is tried again with pauses, and the others go on. So is a missing hash."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from itertools import product
from typing import Any

import pytest
import redis
from celery import Task
from celery.schedules import schedule
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.pace import BATCH_SECONDS
from redbeat.errors import StoreRefused
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    counts_of,
    field,
    messages,
    meta_json,
    retry_now,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.ticks import take_messages

#: options of an entry whose messages the broker refuses while that key holds a text
REFUSED = {"queue": "spoilt"}


@EVERY_KIND_OF_LOCK
def test_one_that_cannot_be_sent_backs_off_alone(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
) -> None:
    scheduler = make_scheduler(**settings)
    broker.set("spoilt", "a text")
    due = server_now(client) - 1
    write_raw(client, "bad", score=due, options=REFUSED, meta=meta_json(datetime(2024, 1, 1), 5))
    for round_number, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
        write_raw(client, f"good-{round_number}", score=due)
        began = server_now(client)
        scheduler.tick()
        score = score_of(client, "bad") or 0
        assert began + pause <= score <= server_now(client) + 1.25 * pause
        retry_now(client, "bad")
    assert sent_names(broker) == [f"good-{number}" for number in range(9)]
    error = field(client, "bad", "error")
    assert error["attempts"] == 9
    assert "WRONGTYPE" in error["reason"]
    assert field(client, "bad", "meta")["total_run_count"] == 5
    assert len(errors_in(caplog)) == 1
    assert "bad" in errors_in(caplog)[0]

    broker.delete("spoilt")
    scheduler.tick()
    [message] = messages(broker, "spoilt")
    sent_due = datetime.fromisoformat(message["headers"]["redbeat_due"])
    assert sent_due.timestamp() == pytest.approx(due, abs=1e-5)
    assert client.hget("redbeat:bad", "error") is None
    assert score_of(client, "bad") == pytest.approx(due + 3600, abs=1e-4)


def test_merged_runs_of_one_that_fails_are_logged_when_they_are_recorded_not_at_each_try(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    scheduler = make_scheduler(redbeat_history=1000)
    broker.set("spoilt", "a text")
    start = server_now(client) - 5
    meta = meta_json(datetime.fromtimestamp(start - 0.05, timezone.utc), 1)
    often = {"__type__": "interval", "every": 0.05}
    write_raw(client, "bad", score=start, schedule=often, options=REFUSED, meta=meta)

    def merged() -> list[str]:
        return [one for one in caplog.messages if "Merged" in one]

    for attempts in range(1, 6):
        scheduler.tick()
        assert field(client, "bad", "error")["attempts"] == attempts
        assert len(merged()) == 1, merged()  # those before the first try
        more_due = server_now(client) + 0.1
        eventually(lambda more_due=more_due: server_now(client) > more_due)
        retry_now(client, "bad")
    broker.delete("spoilt")
    scheduler.tick()
    assert len(messages(broker, "spoilt")) == 1
    assert len(merged()) == 2, merged()
    records = [json.loads(one) for one in client.lrange("redbeat::history:bad", 0, -1)]
    dropped = [one for one in records if one.get("outcome") == "merged"]
    assert len(dropped) == 2, records
    # each run is in the history once: merged, or sent
    count = sum(one.get("count", 1) for one in dropped) + 1
    assert (score_of(client, "bad") or 0) == pytest.approx(start + count * 0.05, abs=1e-3)


def test_after_a_restart_it_goes_on_backing_off_and_is_not_logged_again(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.set("spoilt", "a text")
    write_raw(client, "bad", options=REFUSED)
    for _ in range(3):
        scheduler = make_scheduler()
        scheduler.tick()
        retry_now(client, "bad")
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
    began = server_now(client)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    for name in UNSENDABLE:
        assert field(client, name, "error")["reason"], name
        assert (score_of(client, name) or 0) > began, name
    eventually(lambda: scheduler.tick() > 0)
    assert len(errors_in(caplog)) == len(UNSENDABLE)


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
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    broker.set("spoilt", "a text")
    write_raw(client, "bad", options=REFUSED, meta=meta_json(datetime(2024, 1, 1), 5))
    began = server_now(client)
    scheduler.tick()
    assert (score_of(client, "bad") or 0) > began
    Entry("bad", "echo", schedule(3600), args=["fixed"], app=scheduler.app).save()
    scheduler.tick()
    assert sent_names(broker) == ["bad"]
    assert client.hget("redbeat:bad", "error") is None


def test_a_missing_hash_gets_a_second_and_then_an_error_that_names_eviction(
    scheduler: RedBeatScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    now = server_now(client)
    client.zadd(SCHEDULE, {"redbeat:gone": now - 1, "redbeat:other": 4e9})
    waits, due = scheduler.tick(), score_of(client, "gone") or 0
    assert now <= due - 1 <= server_now(client)
    assert due - server_now(client) <= waits <= 1
    assert errors_in(caplog) == []
    client.zadd(SCHEDULE, {"redbeat:gone": 1})  # the second has passed
    scheduler.tick()
    assert score_of(client, "gone") is None
    (error,) = errors_in(caplog)
    assert error.startswith("beat: Failed to load gone, removing")
    assert "evicted" in error
    assert "deleted the hash alone" in error


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


def test_an_exchange_that_no_queue_is_bound_to_is_that_entrys_failure(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    options = {"exchange": "nobody", "routing_key": "x"}
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


@pytest.mark.few_cases(2)
@pytest.mark.parametrize(("broker_is", "kind"), [*product(["server", "redis", "rabbitmq"], KINDS)])
def test_five_hundred_that_fail_hold_up_nobody(
    request: pytest.FixtureRequest,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    broker_is: str,
    kind: str,
) -> None:
    url = request.getfixturevalue(broker_is).url()
    scheduler = make_scheduler(broker_url=url, redbeat_batch_size=1001, redbeat_publish_timeout=60)

    @scheduler.app.task(name="failing", base=Failing, shared=False)
    def failing() -> None:
        pass

    @before_task_publish.connect
    def spoil(headers: Any = None, body: Any = None, **_: Any) -> None:
        if kind == "unpicklable" and headers["redbeat_entry"].startswith("bad"):
            body[1]["thing"] = object()

    more = {"serializer": {"options": {"serializer": "nonexistent"}}, "unpicklable": {}}
    fields = more.get(kind, {"task": "failing", "args": [kind]})
    names = [f"{('bad', 'good')[number % 2]}-{number}" for number in range(1000)]
    with client.pipeline(transaction=False) as pipeline:
        for number, name in enumerate(names):
            own = fields if name.startswith("bad") else {}
            write_raw(pipeline, name, score=1 + number, schedule=SELDOM, **own)
        pipeline.execute()
    good, bad = names[1::2], names[0::2]
    sent: list[str] = []
    spent: list[float] = []  # processor time of each tick, seconds

    def have_all_gone() -> bool:
        began = time.thread_time()
        scheduler.tick()
        spent.append(time.thread_time() - began)
        sent.extend(message.entry for message in take_messages(scheduler.app))
        return len(sent) >= len(good)

    eventually(have_all_gone)
    print(f"{broker_is}, {kind}: ticks of {', '.join(f'{seconds:.2f} s' for seconds in spent)}")
    before_task_publish.disconnect(spoil)
    assert sent == good
    # what ends a batch early is its time; but messages of one task that can't be made share a quarter of it
    assert kind == "unpicklable" or all(seconds > BATCH_SECONDS for seconds in spent[:-1]), spent
    assert counts_of(client, good) == {1: 500}
    outcome = "skipped" if kind in FAILURES else "unsent"
    with client.pipeline(transaction=False) as pipeline:
        for name in bad:
            pipeline.lindex(f"redbeat::history:{name}", 0)
        tried = [record for record in pipeline.execute() if record]
    assert len(tried) > 10
    assert all(f'"outcome":"{outcome}"' in record for record in tried)
    scheduler.close()
    assert len(errors_in(caplog)) < 10  # three have lines of their own
    assert re.search(r" \d+ more runs? by the same kind of error", errors_in(caplog)[-1])


# -- a task or a handler with connection errors of its own costs its run, and no connection to the broker


ERRORS = [
    ConnectionError("the CRM is away"),
    ConnectionRefusedError(111, "the CRM is away"),
    BrokenPipeError(32, "the CRM is away"),
    OSError(101, "the CRM is away"),
    redis.ConnectionError("the CRM is away"),
]
NAMES = ["first", "own", "last"]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def raising(request: pytest.FixtureRequest) -> type[RedBeatScheduler]:
    """Stands for a task whose `apply_async` raises: each try of the entry `own` does."""

    class Raising(RedBeatScheduler):
        tries = 0

        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if entry.name == "own":
                self.tries += 1
                raise request.param
            return super().apply_async(entry, *args, **kwargs)

    return Raising


def burst(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    write_burst(client, ["before"])
    scheduler.tick()
    for number, name in enumerate(NAMES):
        write_raw(client, name, schedule=SELDOM, score=10 + number)


def test_a_redis_broker_is_asked_and_not_connected_to_anew(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    raising: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler: Any = make_scheduler(scheduler=raising)
    burst(scheduler, client)
    before = client.info("stats")["total_connections_received"]
    scheduler.tick()
    assert client.info("stats")["total_connections_received"] == before
    assert sent_names(broker) == ["before", "first", "last"]
    assert scheduler.tries == 1
    assert "can't be reached" not in caplog.text


def test_a_rabbitmq_broker_is_not_connected_to_anew(
    rabbitmq: RabbitMQ,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    raising: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler: Any = make_scheduler(broker_url=rabbitmq.url(), scheduler=raising)
    burst(scheduler, client)
    connection = scheduler.producer.connection
    scheduler.tick()
    assert scheduler.producer.connection is connection
    assert [message.entry for message in take_messages(scheduler.app)] == ["before", "first", "last"]
    assert scheduler.tries == 1
    assert "can't be reached" not in caplog.text


@pytest.mark.parametrize("broker_is", ["server", "rabbitmq"])
def test_a_connection_that_has_gone_stale_still_costs_no_run(
    make_scheduler: MakeScheduler, client: redis.Redis, request: pytest.FixtureRequest, broker_is: str
) -> None:
    broker = request.getfixturevalue(broker_is)
    with Proxy((broker.host, broker.port)) as proxy:
        scheduler = make_scheduler(broker_url=proxy.url(broker.url()))
        write_burst(client, ["before"])
        scheduler.tick()
        proxy.drop()
        write_burst(client, NAMES)
        while scheduler.tick() < 2:
            pass
        assert [message.entry for message in take_messages(scheduler.app)] == ["before", *NAMES]
        assert all(field(client, name, "error") is None for name in NAMES)
