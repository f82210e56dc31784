"""The messages of a batch: signals, messages of user code among them, round trips, task-sent events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery, Task
from celery.signals import after_task_publish, before_task_publish
from kombu import Producer

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import counting_round_trips
from tests.support.logs import warnings_in
from tests.support.polling import eventually
from tests.support.schedule import (
    SELDOM,
    messages,
    retry_now,
    sent_names,
    write_burst,
    write_raw,
)
from tests.support.servers import Server


class Plain(RedBeatScheduler):
    """Celery makes its messages, as it overrides `apply_async`."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


@contextmanager
def connected(signal: Any, receiver: Any) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.mark.parametrize(
    ("signal", "sender"),
    [(before_task_publish, "app"), (before_task_publish, "connection"), (after_task_publish, "pool")],
    ids=["app", "connection", "pool"],
)
def test_message_sent_by_a_signal_handler_leaves_once_and_at_once(
    make_scheduler: MakeScheduler, broker: redis.Redis, signal: Any, sender: str
) -> None:
    scheduler = make_scheduler(scheduler=Plain)
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

    for name in ("a", "b", "c"):
        write_raw(app.redbeat_redis, name, schedule=SELDOM)
    with connected(signal, send_note):
        scheduler.tick()
    assert seen == [(1, 0), (2, 0), (3, 0)]
    assert sorted(sent_names(broker)) == ["a", "b", "c"]


def test_task_that_fails_after_its_first_message_sends_none(
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


def write_many(client: redis.Redis, count: int) -> None:
    with client.pipeline() as pipeline:
        for number in range(count):
            write_raw(pipeline, f"entry-{number}", schedule=SELDOM)
        pipeline.execute()


@pytest.mark.parametrize("settings", [{}, {"task_send_sent_event": True}], ids=["messages", "events"])
@pytest.mark.parametrize("broker_is", ["same", "other"])
def test_batch_takes_the_same_number_of_round_trips_at_any_size(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    server: Server,
    other: Server,
    monkeypatch: pytest.MonkeyPatch,
    broker_is: str,
    settings: dict[str, Any],
) -> None:
    broker_server = server if broker_is == "same" else other
    scheduler = make_scheduler(broker_url=broker_server.url(0), **settings)
    write_many(client, 1)
    scheduler.tick()  # connects
    taken = []
    for count in (10, 200):
        write_many(client, count)
        with counting_round_trips(monkeypatch) as sent:
            scheduler.tick()
            taken.append(sent())
    with broker_server.client() as broker:
        assert broker.llen("celery") == 211
    assert taken[0] == taken[1] <= 4 + len(settings)


EVENTS = {"task_send_sent_event": True}


@contextmanager
def receiving(app: Celery, broker: redis.Redis) -> Iterator[list[dict[str, Any]]]:
    """Yield a list of the task-sent events that Celery's own receiver hears; all of them after the block.

    Each one comes after its message.
    """
    heard: list[dict[str, Any]] = []
    too_early: list[dict[str, Any]] = []
    is_over = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        heard.append(event)
        if event["uuid"] not in [message["headers"]["id"] for message in messages(broker)]:
            too_early.append(event)

    def listen() -> None:
        with app.connection_for_read() as connection:
            handlers = {"task-sent": hear, "the-end": lambda _event: is_over.set()}
            receiver = app.events.Receiver(connection, handlers=handlers)
            for _ in receiver.consume(limit=None, timeout=None, wakeup=False):
                if is_over.is_set():
                    return

    before = broker.pubsub_numpat()
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    eventually(lambda: broker.pubsub_numpat() > before)
    yield heard
    with app.events.default_dispatcher() as dispatcher:
        dispatcher.send("the-end")
    thread.join(30)
    assert not thread.is_alive()
    assert too_early == []


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
@pytest.mark.parametrize("broker_is", ["same", "other"])
def test_task_sent_event_follows_its_message(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    server: Server,
    other: Server,
    broker_is: str,
    delivery: str,
) -> None:
    broker_server = server if broker_is == "same" else other
    scheduler = make_scheduler(broker_url=broker_server.url(0), redbeat_delivery=delivery, **EVENTS)
    write_burst(client, 50)
    with broker_server.client() as broker:
        with receiving(scheduler.app, broker) as heard:
            scheduler.tick()
        sent = {message["headers"]["id"]: message["headers"] for message in messages(broker)}
    assert len(sent) == 50
    assert [event["uuid"] for event in heard] == list(sent)
    for event in heard:
        headers = sent[event["uuid"]]
        assert (event["name"], event["queue"], event["retries"]) == (headers["task"], "celery", 0)
        assert (event["args"], event["kwargs"]) == (headers["argsrepr"], headers["kwargsrepr"])
        assert event["root_id"] == headers["id"]


class Deleting(RedBeatScheduler):
    """A scheduler during whose batch a user deletes the entry `deleted`."""

    client: redis.Redis

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        if entry.name == "deleted":
            self.client.delete("redbeat:deleted")
        if entry.name == "failing":
            raise ValueError("after its message was made")
        return result


def test_run_that_is_not_sent_has_no_event(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Deleting, **EVENTS)
    scheduler.client = client
    broker.set("spoilt", "a string")
    write_raw(client, "refused", schedule=SELDOM, options={"queue": "spoilt"}, kwargs={"is": "refused"})
    write_burst(client, ["first", "deleted", "failing", "last"])
    with receiving(scheduler.app, broker) as heard:
        eventually(lambda: scheduler.tick() >= 0 and sent_names(broker) == ["first", "last"])
    assert [event["uuid"] for event in heard] == [one["headers"]["id"] for one in messages(broker)]


def test_events_that_redis_refuses_cost_no_run_and_are_logged_once(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def allow(*channels: str) -> None:
        client.execute_command(
            "ACL SETUSER", "silent", "reset", "on", ">secret", "~*", "+@all", "resetchannels", *channels
        )

    allow("&redbeat:*")
    scheduler = make_scheduler(broker_url=f"redis://silent:secret@127.0.0.1:{server.port}/0", **EVENTS)
    for _ in range(2):
        write_burst(client, 5)
        scheduler.tick()
    [said] = [text for text in warnings_in(caplog) if "task-sent events" in text]
    assert "5 runs" in said
    allow("&*")
    write_burst(client, 5)
    with receiving(scheduler.app, broker) as heard:
        scheduler.tick()
    assert len(heard) == 5
    assert len(messages(broker)) == 15


@pytest.mark.parametrize("signal", [before_task_publish, after_task_publish], ids=lambda signal: signal.name)
def test_receiver_that_comes_after_the_start_is_called_for_each_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, signal: Any
) -> None:
    called: list[Any] = []
    write_burst(client, 3)
    scheduler.tick()
    with connected(signal, lambda **said: called.append(said)):
        write_burst(client, 3)
        scheduler.tick()
    assert len(called) == 3
    assert broker.llen("celery") == 6


@pytest.mark.parametrize(("setting", "made_by_celery"), [("auto", 0), (False, 3)])
def test_setting_turns_templates_off(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    setting: Any,
    made_by_celery: int,
) -> None:
    scheduler = make_scheduler(redbeat_templates=setting)
    write_burst(client, 3)
    scheduler.tick()
    prepared, original = [], Producer._prepare  # noqa: SLF001 - each message of kombu's passes it

    def counting(self: Any, *args: Any) -> Any:
        prepared.append(args)
        return original(self, *args)

    monkeypatch.setattr(Producer, "_prepare", counting)
    write_burst(client, 3)
    scheduler.tick()
    assert len(prepared) == made_by_celery
    assert broker.llen("celery") == 6
    assert ("one by one: redbeat_templates is False" in scheduler.info) == (setting is False)


@pytest.mark.parametrize("part", [Task, Producer, "live channel"], ids=str)
def test_function_that_is_patched_after_the_start_is_called_for_each_run(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    part: Any,
) -> None:
    """As tracing and tenant libraries do it."""
    scheduler.app.task(name="echo", shared=False)(_run)
    write_burst(client, 3)
    scheduler.tick()
    owner = scheduler.producer.channel if part == "live channel" else part
    name = {Task: "apply_async", Producer: "publish"}.get(part, "_put")
    called, original = [], getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        called.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, patched)
    write_burst(client, 3)
    scheduler.tick()
    assert len(called) >= 3
    assert broker.llen("celery") == 6
