"""Collected messages among those that users send themselves, at a real worker, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from celery import Task
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Producer, Queue
from kombu.transport.redis import Channel

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_worker, runs, write_app
from tests.support.fidelity import Recording, Row, counting_round_trips, prepare, send_both_ways
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, field, monitoring, retry_now, sent_names, write_burst, write_raw
from tests.support.servers import Server
from tests.support.ticks import take_messages

ROWS = {"first": Row(), "second": Row({"queue": "fast", "priority": 9}), "third": Row(task="elsewhere")}


@contextmanager
def connected(signal: Any, receiver: Any) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


# -- signals


def test_signal_handlers_hear_the_same_and_change_the_message_alike(
    make_scheduler: MakeScheduler, broker: redis.Redis
) -> None:
    heard: list[Any] = []

    def before(**said: Any) -> None:
        said["headers"]["trace"] = f"of {said['headers']['redbeat_entry']}"
        said["properties"]["priority"] = 6
        heard.append(("before", said))

    def after(**said: Any) -> None:
        heard.append(("after", said))

    scheduler = make_scheduler(scheduler=Recording)
    prepare(scheduler.app, ROWS)
    with connected(before_task_publish, before), connected(after_task_publish, after):
        by_tick, directly = send_both_ways(scheduler, ROWS, broker)
    assert by_tick == directly
    assert {message["headers"]["trace"] for message in by_tick.messages()} == {f"of {name}" for name in ROWS}
    assert {message["properties"]["priority"] for message in by_tick.messages()} == {6}
    assert [event for event, _ in heard] == ["before", "after"] * 6
    assert _comparable(heard[:6]) == _comparable(heard[6:])


def _comparable(heard: list[Any]) -> list[str]:
    return [repr({name: value for name, value in said.items() if name != "signal"}) for _, said in heard]


# -- messages of the user's own


@pytest.mark.parametrize("signal", [before_task_publish, after_task_publish], ids=["before", "after"])
@pytest.mark.parametrize("sender", ["app", "pool", "connection"])
def test_what_a_signal_handler_sends_goes_out_once_and_at_once(
    make_scheduler: MakeScheduler, broker: redis.Redis, signal: Any, sender: str
) -> None:
    scheduler = make_scheduler(scheduler=Recording)
    app, seen = scheduler.app, []

    def send_note(headers: Any, **_: Any) -> None:
        if headers["task"] == "note":
            return
        if sender == "app":
            app.send_task("note", queue="notes")
        elif sender == "pool":
            with app.producer_pool.acquire() as producer:
                app.send_task("note", queue="notes", producer=producer)
        else:
            with app.connection_for_write() as connection:
                Producer(connection, auto_declare=False).publish("", routing_key="notes")
        seen.append((broker.llen("notes"), broker.llen("celery")))

    scheduler.broker = broker
    for name in ("a", "b", "c"):
        write_raw(app.redbeat_redis, name, schedule=SELDOM)
    with connected(signal, send_note):
        scheduler.tick()
    assert seen == [(1, 0), (2, 0), (3, 0)]
    assert sorted(sent_names(broker)) == ["a", "b", "c"]


def test_a_task_that_sends_two_messages_has_both_recorded_with_its_run(
    make_scheduler: MakeScheduler, broker: redis.Redis, client: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Recording)
    scheduler.broker = broker

    class Twice(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            super().apply_async(["first"], kwargs, **options)
            return super().apply_async(["second"], kwargs, **{**options, "queue": "other"})

    scheduler.app.task(name="echo", base=Twice, shared=False)(_run)
    write_raw(client, "entry", schedule=SELDOM)
    scheduler.tick()
    assert scheduler.pushed_early == set()
    assert (broker.llen("celery"), broker.llen("other")) == (1, 1)


def test_a_task_that_fails_after_its_first_message_sends_none_of_that_try(
    scheduler: RedBeatScheduler, broker: redis.Redis, client: redis.Redis
) -> None:
    failures = [RuntimeError("between two messages")]

    class Twice(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            super().apply_async(["first"], kwargs, **options)
            if failures:
                raise failures.pop()
            return super().apply_async(["second"], kwargs, **options)

    scheduler.app.task(name="echo", base=Twice, shared=False)(_run)
    write_raw(client, "entry", schedule=SELDOM, one_off=True)
    scheduler.tick()
    assert broker.llen("celery") == 0
    retry_now(client, "entry")
    scheduler.tick()
    assert broker.llen("celery") == 2


def _run(*args: Any, **kwargs: Any) -> None:
    """Never runs here."""


# -- a worker


def test_a_worker_runs_what_was_collected_by_priority_and_behind_a_prefix(
    make_scheduler: MakeScheduler, valkey: Server, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "broker_url": valkey.url(4),
        "broker_transport_options": {
            "global_keyprefix": "pre:",
            "priority_steps": [0, 3, 6, 9],
            "queue_order_strategy": "priority",
        },
        "worker_prefetch_multiplier": 1,
    }
    rows = {
        "last": Row({"priority": 9}, args=["last"], kwargs={}),
        "middle": Row({"priority": 6}, args=["middle"], kwargs={}),
        "packed": Row({"priority": 4, "compression": "zlib"}, args=["packed"]),
        "first": Row({"priority": 0, "headers": {"redbeat_mine": "x"}}, args=["first"], kwargs={}),
        "elsewhere": Row({"queue": "elsewhere", "ignore_result": True}, args=["elsewhere"], kwargs={}),
        "stale": Row({"expires": datetime(2020, 1, 1, tzinfo=timezone.utc)}, args=["stale"], kwargs={}),
    }
    scheduler = make_scheduler(scheduler=Recording, **settings)
    prepare(scheduler.app, rows)
    with valkey.client(db=4) as broker, valkey.client(db=5) as noted:
        scheduler.broker = broker
        scheduler.tick()
        assert scheduler.pushed_early == set()
        assert {"pre:celery\x06\x163", "pre:celery\x06\x169"} <= set(broker.scan_iter(_type="list"))
        broker_url = settings.pop("broker_url")
        write_app(tmp_path, "module", broker_url, valkey.url(5), **settings)
        with celery_worker(tmp_path, "module", "-Q", "celery,elsewhere"):
            done = eventually(lambda: (found := runs(noted))[4:] and found)
        names = [run.args[0] for run in done]
        assert sorted(names) == sorted(rows.keys() - {"stale"})
        assert [name for name in names if name != "elsewhere"] == ["first", "packed", "middle", "last"]
        assert [run.id for run in done] == [scheduler.sent[name]["task_id"] for name in names]
        assert [run.headers["redbeat_entry"] for run in done] == names
        by_name = dict(zip(names, done, strict=True))
        assert by_name["first"].headers["redbeat_mine"] == "x"
        assert by_name["packed"].kwargs == rows["packed"].kwargs


# -- what it costs


OPTIONS = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"task_default_queue": "q", "task_default_exchange": "topics", "task_default_exchange_type": "topic"},
    ],
    ids=["direct", "topic"],
)


def _make_due(client: redis.Redis, count: int) -> None:
    with client.pipeline() as pipeline:
        for number in range(count):
            write_raw(pipeline, f"entry-{number}", schedule=SELDOM)
        pipeline.execute()


@OPTIONS
def test_a_batch_of_ten_and_one_of_five_hundred_take_the_same_round_trips(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    scheduler = make_scheduler(**settings)
    _make_due(client, 1)
    scheduler.tick()  # connects
    commands: list[list[str]] = []
    round_trips: list[int] = []
    for count in (10, 500):
        _make_due(client, count)
        with monitoring(server) as seen, counting_round_trips(monkeypatch) as sent:
            scheduler.tick()
            round_trips.append(sent())
        commands.append([command.split()[0] for command in seen])
    with server.client() as broker:
        assert broker.llen(scheduler.app.conf.task_default_queue) == 511
    assert round_trips[0] == round_trips[1] == len(commands[0])
    assert round_trips[0] <= 4
    # the commit of five hundred is five short scripts in one pipeline
    assert sorted(commands[1]) == sorted([*commands[0], *["EVALSHA"] * 4])


@OPTIONS
def test_a_batch_for_another_server_takes_one_round_trip_there_whatever_its_size(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    other: Server,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    scheduler = make_scheduler(broker_url=other.url(0), **settings)
    _make_due(client, 1)
    scheduler.tick()
    round_trips: list[int] = []
    for count in (10, 500):
        _make_due(client, count)
        with counting_round_trips(monkeypatch) as sent:
            scheduler.tick()
            round_trips.append(sent())
    with other.client() as broker:
        assert broker.llen(scheduler.app.conf.task_default_queue) == 511
    assert round_trips[0] == round_trips[1]
    assert round_trips[0] <= 4


# -- exchanges that kombu doesn't declare on Redis


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange("elsewhere", passive=True),
        Exchange("elsewhere", type="x-delayed-message"),
        Exchange("celery", type="topic"),
    ],
    ids=["passive", "type of a plugin", "another type than that of another queue"],
)
def test_a_queue_whose_exchange_there_is_not_fails_its_own_entries_alone(
    make_scheduler: MakeScheduler, broker: redis.Redis, client: redis.Redis, exchange: Exchange
) -> None:
    queues = [Queue("celery"), Queue("bound", exchange, routing_key="key")]
    write_burst(client, ["bad"], options={"queue": "bound"})
    write_burst(client, ["good", "fine"])
    make_scheduler(task_queues=queues).tick()
    assert sent_names(broker) == ["good", "fine"]
    assert client.hget("redbeat:good", "error") is None
    assert field(client, "bad", "error")["attempts"] == 1


# -- queues that go by themselves


QUEUES: dict[str, dict[str, Any]] = {
    "expiring": {"queue_arguments": {"x-expires": 60_000}},
    "fleeting": {"auto_delete": True},
    "going": {"exchange": kombu.Exchange("going", auto_delete=True), "routing_key": "going"},
}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_batch_declares_a_fleeting_queue_once(
    make_scheduler: MakeScheduler, server: Server, client: redis.Redis, broker: redis.Redis, queue: str
) -> None:
    scheduler = make_scheduler(task_queues=[kombu.Queue("celery"), kombu.Queue(queue, **QUEUES[queue])])
    commands = []
    for count in (1, 1, 50):  # the first also connects
        names = [f"{count}-{number}" for number in range(count)]
        write_burst(client, names, options={"queue": queue})
        with monitoring(server) as seen:
            scheduler.tick()
        commands.append(seen)
        assert sent_names(broker, queue) == names
        if queue == "expiring" and hasattr(Channel, "_get_queue_expire"):  # not in all versions of kombu
            assert 0 < broker.pttl(queue) <= 60_000
        broker.delete(queue)
    print(f"{queue}: {[len(seen) for seen in commands]} commands for 1, 1 and 50 messages")
    assert len(commands[2]) == len(commands[1])
    declared = [command for command in commands[1] if command.startswith("LLEN")]
    assert declared or queue == "going", "each batch declares it again"


def test_a_queue_of_rabbitmq_that_went_between_two_batches_is_there_again(
    make_scheduler: MakeScheduler, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    queue = kombu.Queue("short", queue_arguments={"x-expires": 60_000})
    scheduler = make_scheduler(broker_url=rabbitmq.url(), task_queues=[kombu.Queue("celery"), queue])
    app = scheduler.app
    for _ in range(2):
        write_burst(client, ["entry"], options={"queue": "short"})
        scheduler.tick()
        assert [message.entry for message in take_messages(app, "short")] == ["entry"]
        with app.connection_for_write() as connection:
            queue(connection.default_channel).delete()
