"""What is stored of a message that is far ahead, and what beat sends of it at its time: that very message."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group, signature
from celery.signals import after_task_publish, before_task_publish
from kombu import Exchange, Queue

import redbeat.later
from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import EntryError
from redbeat.later import DurableTask
from redbeat.schedulers import get_redis
from redbeat.store.later import LaterStore
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.integration.later.conftest import (
    LATER,
    add_tasks,
    body_of,
    make_due,
    queued,
    send_due,
    stored_ids,
)
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, field, monitoring
from tests.support.servers import Server

ETA = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
AHEAD = timedelta(hours=2)

#: what differs from one publish to the next
_FLEETING = ("delivery_tag", "expiration")

Send = Callable[[Celery], Any]


def add_of(app: Celery) -> Any:
    return app.tasks["add"]


SENDS: dict[str, Send] = {
    "plain": lambda app: add_of(app).apply_async((1, 2), task_id="id", eta=ETA),
    "keyword arguments": lambda app: add_of(app).apply_async(kwargs={"x": "ü\0'\"\\"}, task_id="id", eta=ETA),
    "priority and expiry": lambda app: add_of(app).apply_async(
        (1,), task_id="id", eta=ETA, priority=7, expires=datetime(2032, 1, 1, tzinfo=timezone.utc)
    ),
    "another queue": lambda app: add_of(app).apply_async((1,), task_id="id", eta=ETA, queue="slow"),
    "links": lambda app: add_of(app).apply_async(
        (1,), task_id="id", eta=ETA, link=add_of(app).s(2).set(task_id="l"), link_error=add_of(app).si(3, 3)
    ),
    "headers and times": lambda app: add_of(app).apply_async(
        (1,),
        task_id="id",
        eta=ETA,
        headers={"tenant": "ann", "at": [1, None]},
        time_limit=5,
        soft_time_limit=4,
        shadow="other",
        retries=3,
        root_id="root",
        parent_id="parent",
        reply_to="me",
        delivery_mode=1,
    ),
    "group and chord": lambda app: add_of(app).apply_async(
        (1,),
        task_id="id",
        eta=ETA,
        group_id="g",
        group_index=4,
        chord=add_of(app).s(1).set(task_id="body"),
    ),
    "a chain": lambda app: chain(
        add_of(app).s(1).set(task_id="id", eta=ETA), add_of(app).s(2).set(task_id="2")
    )(),
    "a signature by name": lambda app: signature("elsewhere", (1,), app=app).apply_async(
        task_id="id", eta=ETA
    ),
    "send_task": lambda app: app.send_task("elsewhere", (1,), {"y": 2}, None, ETA, "id", queue="slow"),
    "an eta in text": lambda app: add_of(app).apply_async(
        (1,), task_id="id", eta="2031-05-06T09:08:09+02:00"
    ),
    "compressed": lambda app: add_of(app).apply_async(
        ("x" * 999,), task_id="id", eta=ETA, compression="zlib"
    ),
    "pickled": lambda app: add_of(app).apply_async(({1, 2},), task_id="id", eta=ETA, serializer="pickle"),
    "yaml": lambda app: add_of(app).apply_async((1,), task_id="id", eta=ETA, serializer="yaml"),
    "a date in JSON": lambda app: add_of(app).apply_async((ETA,), task_id="id", eta=ETA),
}


@pytest.mark.parametrize("name", SENDS)
def test_the_message_that_is_sent_is_the_one_that_would_have_been_published(
    name: str,
    app: Celery,
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
) -> None:
    send, lists = SENDS[name], ("celery", "celery\x06\x166", "slow")
    app.conf.accept_content = ["json", "pickle", "yaml"]
    plain = make_app()
    add_tasks(plain)
    plain.conf.accept_content = app.conf.accept_content
    send(plain)
    [published] = queued(broker, *lists)
    broker.flushdb()

    send(app)
    assert (stored_ids(app), queued(broker, *lists)) == (["id"], [])
    send_due(client, make_scheduler(app))

    [sent] = queued(broker, *lists)
    for message in (published, sent):
        for fleeting in _FLEETING:
            message["properties"].pop(fleeting, None)
        message["headers"].pop("origin")
        if name != "headers and times":
            reply_to = message["properties"].pop("reply_to")
            message["body"] = base64.b64decode(message["body"]).replace(reply_to.encode(), b"reply to")
    assert sent == published
    assert client.keys("redbeat*later*") == []


def test_a_message_that_is_not_far_ahead_is_published_at_once(app: Celery, broker: redis.Redis) -> None:
    ensure_conf(app).durable_after = 600
    for options in ({}, {"countdown": 599}, {"eta": datetime.now(timezone.utc) - AHEAD}, {"countdown": -5}):
        add_of(app).apply_async((1,), **options)
    assert len(queued(broker)) == 4
    assert stored_ids(app) == []
    add_of(app).apply_async((1,), task_id="far", countdown=601)
    assert stored_ids(app) == ["far"]


def test_only_tasks_of_the_class_are_durable_where_nothing_is_installed(
    make_app: MakeApp, broker: redis.Redis
) -> None:
    app = make_app(redbeat_durable_after=1)

    @app.task(name="durable", base=DurableTask)
    def durable() -> None: ...

    @app.task(name="usual")
    def usual() -> None: ...

    durable.apply_async(countdown=60, task_id="1")
    app.send_task("durable", countdown=60, task_id="2")
    signature("durable", app=app).apply_async(countdown=60, task_id="3")
    usual.apply_async(countdown=60, task_id="4")
    app.send_task("elsewhere", countdown=60, task_id="5")
    assert set(stored_ids(app)) == {"1", "2", "3"}
    assert [message["headers"]["id"] for message in queued(broker)] == ["4", "5"]
    redbeat.later.install(app)
    usual.apply_async(countdown=60, task_id="6")
    app.send_task("elsewhere", countdown=60, task_id="7")
    assert set(stored_ids(app)) == {"1", "2", "3", "6", "7"}


def test_all_tasks_of_an_app_with_that_class_are_durable(server: Any) -> None:
    app = Celery("test", task_cls="redbeat.later:DurableTask", set_as_current=False)
    app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1), redbeat_durable_after=1)

    @app.task(name="a task")
    def task() -> None: ...

    @app.task(name="another", bind=True)
    def bound(self: Any) -> None: ...

    with app:
        for one in (task, bound):
            one.apply_async(countdown=60)
        assert len(stored_ids(app)) == 2


@pytest.mark.also_sharded
def test_parts_of_a_canvas_are_stored_each_with_its_place_in_it(app: Celery, broker: redis.Redis) -> None:
    app.conf.result_backend = app.conf.redbeat_redis_url
    add = add_of(app)
    done = group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=60)
    assert sorted(stored_ids(app)) == sorted(result.id for result in done.results)
    assert queued(broker) == []
    chord([add.s(1, 1).set(countdown=60), add.s(2, 2).set(countdown=60)], add.si(0))()
    chords = [
        one.texts and json.loads(json.loads(one.texts.message)["body"])[2]["chord"]
        for one in LaterStore(app).first(None)
    ]
    assert [one["task"] for one in chords if one] == ["add", "add"]


def test_the_entry_of_a_message_is_a_clocked_one_that_runs_once(app: Celery, client: redis.Redis) -> None:
    add_of(app).apply_async((1,), task_id="id", eta=ETA)
    definition = field(client, ":later:id", "definition")
    assert (definition["name"], definition["task"]) == (":later:id", "add")
    assert definition["schedule"]["__type__"] == "clocked"
    assert field(client, ":later:id", "policy") == {"one_off": True, "after_finish": "delete"}
    assert client.zrange(LATER, 0, -1, withscores=True) == [("redbeat::later:id", ETA.timestamp())]
    entry = Entry.get(":later:id", app)
    assert (entry.task, entry.schedule.clocked_time) == ("add", ETA)
    assert entry.next_due_at == ETA


def test_the_schedule_knows_nothing_of_stored_messages(app: Celery, client: redis.Redis) -> None:
    Entry("report", "add", 60, app=app).save()
    for number in range(5):
        add_of(app).apply_async((number,), countdown=60)
    assert [entry.name for entry in Entry.list(app)] == ["report"]
    assert Entry.count(app) == 1
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:report"]
    assert redbeat.later.count(app) == 5


def test_an_entry_with_a_message_is_deleted_with_it_and_is_neither_saved_nor_run_by_hand(
    app: Celery, client: redis.Redis
) -> None:
    app.conf.accept_content = ["json", "pickle"]
    add_of(app).apply_async((1,), task_id="id", eta=ETA, serializer="pickle")
    entry = Entry.get(":later:id", app)
    for forbidden in (
        entry.save,
        entry.trigger,
        lambda: entry.update(enabled=False),
        Entry(":later:id", "add", 60, app=app).save,
    ):
        with pytest.raises(EntryError, match=r"celery redbeat later cancel id|RedBeat's own"):
            forbidden()
    assert client.exists("redbeat::later:id", "redbeat::body:id") == 2
    entry.delete()
    assert client.exists("redbeat::later:id", "redbeat::body:id", LATER) == 0


def test_signals_tell_of_a_message_once_when_it_is_stored(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    told = []

    def note(sender: str, headers: dict[str, Any], signal: Any, **_: Any) -> None:
        told.append((signal, sender, headers["id"]))
        headers["told"] = True

    for signal in (before_task_publish, after_task_publish):
        signal.connect(note)
    try:
        add_of(app).apply_async((1,), task_id="id", eta=ETA)
        assert told == [(before_task_publish, "add", "id"), (after_task_publish, "add", "id")]
        send_due(client, make_scheduler(app))
        assert len(told) == 2
    finally:
        for signal in (before_task_publish, after_task_publish):
            signal.disconnect(note)
    assert queued(broker)[0]["headers"]["told"] is True


def test_the_event_that_a_task_was_sent_is_published_when_it_is_stored(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    app.conf.task_send_sent_event = True
    with broker.pubsub() as listener:
        listener.psubscribe("*task.sent")
        add_of(app).apply_async((1,), task_id="id", eta=ETA)
        assert stored_ids(app) == ["id"]
        send_due(client, make_scheduler(app))
        told = list(iter(lambda: listener.get_message(timeout=1), None))
    events = [json.loads(one["data"]) for one in told if one["type"] == "pmessage"]
    assert [body_of(event)["uuid"] for event in events] == ["id"]


def test_whoever_hooks_in_at_apply_async_sees_the_entry_of_a_message(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    seen = []

    class Hooked(RedBeatScheduler):
        def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:
            seen.append((entry.name, entry.task, entry.args, entry.kwargs))
            result = super().apply_async(entry, producer=producer, advance=advance, **options)
            assert result.id == "id"
            return result

    add_of(app).apply_async((1,), {"y": 2}, task_id="id", eta=ETA)
    send_due(client, make_scheduler(app, scheduler=Hooked))
    assert seen == [(":later:id", "add", [1], {"y": 2})]
    assert [body_of(message)[:2] for message in queued(broker)] == [[[1], {"y": 2}]]


def test_a_message_with_a_known_id_takes_the_place_of_the_one_before(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    add_of(app).apply_async(({1},), task_id="id", eta=ETA, serializer="pickle")
    add_of(app).apply_async((2,), task_id="id", eta=ETA + AHEAD)
    assert stored_ids(app) == ["id"]
    send_due(client, make_scheduler(app))
    assert [body_of(message)[0] for message in queued(broker)] == [[2]]
    assert client.keys("redbeat*later*") == []


def test_an_entry_with_a_countdown_far_ahead_is_stored_too(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("report", "add", 60, args=[1], options={"countdown": 90}, app=app).save()
    scheduler = make_scheduler(app)
    client.zadd(SCHEDULE, {"redbeat:report": 1})
    scheduler.tick()
    assert queued(broker) == []
    [task_id] = stored_ids(app)
    assert Entry.get("report", app).total_run_count == 1
    send_due(client, scheduler)
    [message] = queued(broker)
    assert (message["headers"]["id"], message["headers"]["redbeat_entry"]) == (task_id, "report")


def test_messages_of_entries_are_compiled_as_before_where_it_is_installed(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    nobody_listens: None,
) -> None:
    caplog.set_level("INFO")
    Entry("report", "add", 60, args=[1], app=app).save()
    client.zadd(SCHEDULE, {"redbeat:report": 1})
    make_scheduler(app).tick()
    assert "beat: Messages: compiled." in caplog.text


def test_a_tick_with_stored_messages_is_one_round_trip_and_their_sending_two_more(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, server: Server
) -> None:
    for number in range(20):
        add_of(app).apply_async((number,), countdown=600)
    scheduler = make_scheduler(app)
    scheduler.tick()
    with monitoring(server) as idle:
        scheduler.tick()
    assert [line.split()[0] for line in idle] == ["EVALSHA"]
    make_due(client)
    scheduler.tick()  # what is remembered of the broker is asked for once
    add_of(app).apply_async((1,), countdown=600)
    make_due(client)
    with monitoring(server) as busy:
        scheduler.tick()
    asked = [line.split()[0] for line in busy]
    assert asked.count("EVALSHA") == 3, asked


def test_reading_the_schedule_through_another_app_needs_nothing_of_this_one(
    app: Celery, make_app: MakeApp
) -> None:
    add_of(app).apply_async((1,), task_id="id", eta=ETA)
    assert redbeat.later.count(make_app()) == 1
    assert get_redis(make_app()).zcard(LATER) == 1


def test_a_queue_of_the_caller_s_own_is_declared_as_it_was_given(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    queue = Queue("mine", Exchange("things", type="topic"), routing_key="a.#")
    add_of(app).apply_async((1,), task_id="id", eta=ETA, queue=queue, exchange="things", routing_key="a.b")
    send_due(client, make_scheduler(app))
    assert len(queued(broker, "mine")) == 1


def test_one_that_somebody_puts_into_the_schedule_is_sent_then(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for task_id in ("first", "second", "third"):
        add_of(app).apply_async((1,), task_id=task_id, eta=ETA)
    scheduler = make_scheduler(app)
    client.zadd(SCHEDULE, {"redbeat::later:first": 0, "redbeat::later:second": 5})
    eventually(lambda: scheduler.tick() is not None and len(queued(broker)) == 2)
    assert {message["headers"]["id"] for message in queued(broker)} == {"first", "second"}
    assert client.zrange(SCHEDULE, 0, -1) == []
    assert stored_ids(app) == ["third"]


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": "celery.pidbox"},
        {"body": '{"method": "shutdown", "arguments": {}}'},
        {"body": '{"method": "shutdown", "task": "add", "id": "id"}'},
        {"body": "[1, 2]"},
        {"body": "anything", "headers": {"id": "id", "task": "add", "compression": "application/x-gzip"}},
        {"body": '"text"'},
    ],
    ids=["exchange", "order", "order as a task", "list", "compressed", "text"],
)
def test_who_may_write_entries_gives_workers_no_orders(
    changes: dict[str, str],
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    server: Server,
) -> None:
    add_of(app).apply_async((1,), task_id="id", eta=ETA)
    message = json.loads(client.hget("redbeat::later:id", "message") or "")
    client.hset("redbeat::later:id", "message", json.dumps({**message, **changes}))
    make_due(client)
    with monitoring(server) as asked:
        make_scheduler(app).tick()
    assert not [one for one in asked if one.startswith(("PUBLISH /", "LPUSH"))]
    assert queued(broker) == []
    reason = field(client, ":later:id", "error")["reason"]
    assert "for orders to workers" in reason or "isn't that of a task" in reason
