"""With `task_send_sent_event` the events of a batch travel together, after its messages."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Producer

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import Recording, Row, counting_round_trips, listening, prepare, send_both_ways
from tests.support.logs import logged, warnings_in
from tests.support.polling import eventually
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    counts_of,
    messages,
    monitoring,
    sent_names,
    write_burst,
    write_raw,
)
from tests.support.servers import Server

EVENTS = {"task_send_sent_event": True}


@dataclass(frozen=True)
class Heard:
    """One event, and whether the message that it is about was on its queue by then."""

    event: dict[str, Any]
    is_queued: bool


@contextmanager
def receiving(app: Celery, broker: redis.Redis) -> Iterator[list[Heard]]:
    """Yield a list of the task-sent events that Celery's own receiver hears; all of them after the block."""
    heard: list[Heard] = []
    is_over = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        ids = [message["headers"]["id"] for message in messages(broker)]
        heard.append(Heard(event, event["uuid"] in ids))

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


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
@pytest.mark.parametrize("broker_is", ["same", "other"])
def test_a_receiver_hears_of_each_run_when_its_message_is_on_its_queue(
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
    assert [one.event["uuid"] for one in heard] == list(sent)
    assert all(one.is_queued for one in heard)
    for one in heard:
        headers = sent[one.event["uuid"]]
        told = {name: one.event[name] for name in ("name", "args", "kwargs", "retries", "root_id", "queue")}
        assert told == {
            "name": headers["task"],
            "args": headers["argsrepr"],
            "kwargs": headers["kwargsrepr"],
            "retries": 0,
            "root_id": headers["id"],
            "queue": "celery",
        }


@pytest.mark.parametrize(
    "transport_options",
    [{}, {"global_keyprefix": "pre:"}, {"fanout_prefix": False, "fanout_patterns": False}],
    ids=["as-it-is", "prefix", "no-patterns"],
)
def test_events_are_those_of_direct_calls_in_their_order(
    make_scheduler: MakeScheduler, broker: redis.Redis, transport_options: dict[str, Any]
) -> None:
    rows = {f"row-{number}": Row(args=[number], kwargs={}) for number in range(5)}
    settings = {"broker_transport_options": transport_options, "event_exchange": "told", **EVENTS}
    scheduler = make_scheduler(scheduler=Recording, **settings)
    prepare(scheduler.app, rows)
    by_tick, directly = send_both_ways(scheduler, rows, broker)
    assert by_tick == directly
    assert [message["body"]["args"] for _, message in by_tick.published] == [
        f"[{number}]" for number in range(5)
    ]


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("broker_is", ["same", "other"])
def test_the_events_of_a_batch_take_one_round_trip_whatever_its_size(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    server: Server,
    other: Server,
    monkeypatch: pytest.MonkeyPatch,
    broker_is: str,
) -> None:
    broker_server = server if broker_is == "same" else other
    taken: dict[tuple[bool, int], int] = {}
    for has_events in (False, True):
        scheduler = make_scheduler(
            broker_url=broker_server.url(0), task_send_sent_event=has_events, redbeat_lock_key=None
        )
        write_burst(client, 1)
        scheduler.tick()  # connects
        for count in (10, 500):
            write_burst(client, count)
            with monitoring(broker_server) as commands, counting_round_trips(monkeypatch) as sent:
                scheduler.tick()
                taken[has_events, count] = sent()
            published = [one for one in commands if one.upper().startswith("PUBLISH") and "celeryev" in one]
            assert len(published) == (count if has_events else 0)
    assert taken[True, 10] == taken[True, 500] == taken[False, 500] + 1
    assert taken[False, 10] == taken[False, 500]


class Deleting(RedBeatScheduler):
    """Somebody deletes the entry `deleted` while its message waits for the record."""

    client: redis.Redis

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        if entry.name == "deleted":
            self.client.delete("redbeat:deleted")
        if entry.name == "failing":
            raise ValueError("after its message was made")
        return result


def test_a_run_that_is_not_sent_has_no_event(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Deleting, **EVENTS)
    scheduler.client = client
    broker.set("spoilt", "a string")
    write_raw(client, "refused", schedule=SELDOM, options={"queue": "spoilt"}, kwargs={"is": "refused"})
    write_burst(client, ["first", "deleted", "failing", "last"])
    with receiving(scheduler.app, broker) as heard:
        scheduler.tick()
    assert sent_names(broker) == ["first", "last"]
    assert [one.event["uuid"] for one in heard] == [one["headers"]["id"] for one in messages(broker)]


class Ending(RedBeatScheduler):
    """Ends when it is about to send `last`, as by a signal."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.name == "last":
            raise KeyboardInterrupt
        return super().apply_async(entry, *args, **kwargs)


def test_a_beat_that_ends_amid_a_batch_has_sent_the_events_of_what_it_sent(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(scheduler=Ending, redbeat_delivery="at_most_once", **EVENTS)
    write_burst(client, ["first", "second", "last", "unreached"])
    with receiving(scheduler.app, broker) as heard, pytest.raises(KeyboardInterrupt):
        scheduler.tick()
    assert sent_names(broker) == ["first", "second"]
    assert len(heard) == 2


def test_events_that_cannot_be_sent_cost_no_run_and_are_said_once(
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
    names = write_burst(client, 5)
    for _ in range(3):
        make_due(client, names)
        scheduler.tick()
    [said] = [text for text in warnings_in(caplog) if "task-sent events" in text]
    assert "5 runs" in said
    assert "channel" in said
    allow("&*")
    make_due(client, names)
    with receiving(scheduler.app, broker) as heard:
        scheduler.tick()
    assert len(heard) == 5
    allow()
    make_due(client, names)
    scheduler.tick()
    assert counts_of(client, names) == Counter({5: 5})
    assert len(messages(broker)) == 25
    assert len([text for text in logged(caplog, 0) if "task-sent events" in text]) == 2


def make_due(client: redis.Redis, names: list[str]) -> None:
    client.zadd(SCHEDULE, {f"redbeat:{name}": time.time() - 5 for name in names})


def test_what_a_user_publishes_goes_at_once(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Telling(RedBeatScheduler):
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            producer: Producer = kwargs["producer"]
            dispatcher = self.app.events.Dispatcher(enabled=False)
            dispatcher.publish("custom-told", {"of": entry.name}, producer)
            return super().apply_async(entry, *args, **kwargs)

    scheduler = make_scheduler(scheduler=Telling, **EVENTS)
    write_burst(client, 3)
    with listening(broker) as published:
        scheduler.tick()
    kinds = [channel.rpartition("/")[2] for channel, _ in published]
    assert kinds == ["custom.told"] * 3 + ["task.sent"] * 3
