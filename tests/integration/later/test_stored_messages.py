"""What is stored of a message that is far ahead, and what beat sends of it at its time: that very message."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
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
from redbeat.store.later import LaterStore
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.integration.later.conftest import (
    LATER,
    add_tasks,
    body_of,
    install,
    make_due,
    queued,
    send_due,
    stored_ids,
)
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SCHEDULE, field, monitoring
from tests.support.servers import Server

ETA = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
AHEAD = timedelta(hours=2)

#: what differs from one publish to the next
_FLEETING = ("delivery_tag", "expiration")


def add_of(app: Celery) -> Any:
    return app.tasks["add"]


def applied(*args: Any, **options: Any) -> Callable[[Celery], Any]:
    """Send the task ``add`` with a task id and an ETA."""
    return lambda app: add_of(app).apply_async(args, **{"task_id": "id", "eta": ETA, **options})


HEADERS: dict[str, Any] = {
    "headers": {"tenant": "ann", "at": [1, None]}, "time_limit": 5, "soft_time_limit": 4, "shadow": "other",
    "retries": 3, "root_id": "root", "parent_id": "parent", "reply_to": "me", "delivery_mode": 1,
}  # fmt: skip


SENDS: dict[str, Callable[[Celery], Any]] = {
    "keyword arguments": applied(kwargs={"x": "ü\0'\"\\"}),
    "priority and expiry": applied(1, priority=7, expires=datetime(2032, 1, 1, tzinfo=timezone.utc)),
    "another queue": applied(1, queue="slow"),
    "links": lambda app: applied(1, link=add_of(app).s(2).set(task_id="l"), link_error=add_of(app).si(3))(
        app
    ),
    "headers and times": applied(1, **HEADERS),
    "group and chord": lambda app: applied(
        1, group_id="g", group_index=4, chord=add_of(app).s(1).set(task_id="body")
    )(app),
    "a chain": lambda app: chain(
        add_of(app).s(1).set(task_id="id", eta=ETA), add_of(app).s(2).set(task_id="2")
    )(),
    "send_task": lambda app: app.send_task("elsewhere", (1,), {"y": 2}, None, ETA, "id", queue="slow"),
    "an eta in text": applied(1, eta="2031-05-06T09:08:09+02:00"),
    "compressed": applied("x" * 999, compression="zlib"),
    "pickled": applied({1, 2}, serializer="pickle"),
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


def test_the_entry_of_a_message_is_a_clocked_one_that_runs_once_and_is_not_in_the_schedule(
    app: Celery, client: redis.Redis
) -> None:
    add_of(app).apply_async((1,), task_id="id", eta=ETA)
    definition = field(client, ":later:id", "definition")
    assert (definition["name"], definition["task"]) == (":later:id", "add")
    assert definition["schedule"]["__type__"] == "clocked"
    assert field(client, ":later:id", "policy") == {"one_off": True, "after_finish": "delete"}
    assert client.zrange(LATER, 0, -1, withscores=True) == [("redbeat::later:id", ETA.timestamp())]
    entry = Entry.get(":later:id", app)
    assert (entry.task, entry.schedule.clocked_time) == ("add", ETA)
    assert entry.next_due_at == ETA
    assert (list(Entry.list(app)), Entry.count(app), client.exists(SCHEDULE)) == ([], 0, 0)
    assert redbeat.later.count(app) == 1


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


class Raising(RedBeatScheduler):
    """A subclass whose code fails for any task."""

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> Any:
        raise LookupError("no tenant")


@pytest.mark.parametrize(
    ("kind", "reason"), [(RedBeatScheduler, "WRONGTYPE"), (Raising, "LookupError: no tenant")]
)
def test_message_that_could_not_be_sent_is_kept_and_retried(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    kind: type[RedBeatScheduler],
    reason: str,
) -> None:
    add_of(app).apply_async((1,), task_id="id", eta=ETA)
    broker.set("celery", "a text")
    make_due(client)
    scheduler = make_scheduler(app, scheduler=kind)
    scheduler.tick()
    assert stored_ids(app) == ["id"]
    assert reason in field(client, ":later:id", "error")["reason"]
    scheduler.close()
    broker.delete("celery")
    send_due(client, make_scheduler(app))
    assert [message["headers"]["id"] for message in queued(broker)] == ["id"]


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
        {"body": '{"method": "shutdown", "task": "add", "id": "id"}'},
        {"body": "anything", "headers": {"id": "id", "task": "add", "compression": "application/x-gzip"}},
    ],
    ids=["exchange", "order", "compressed"],
)
def test_a_forged_message_gives_workers_no_orders(
    changes: dict[str, Any],
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
    assert field(client, ":later:id", "error")["reason"]


@pytest.fixture
def rabbit_app(make_app: MakeApp, rabbitmq: RabbitMQ, request: pytest.FixtureRequest) -> Celery:
    settings = getattr(request, "param", {})
    return install(make_app(broker_url=rabbitmq.url(), redbeat_durable_after=1, **settings))


def received(app: Celery, queue: str = "celery") -> list[Any]:
    """The messages on a queue, which are gone from it then."""
    found = []
    with app.connection_for_read() as connection:
        bound = app.amqp.queues[queue](connection.default_channel)
        while (message := bound.get(no_ack=True)) is not None:
            found.append(message)
    return found


def test_it_has_the_properties_that_celery_gave_it(
    rabbit_app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    rabbit_app.tasks["add"].apply_async(
        (1,), task_id="id", countdown=600, expires=10_000, priority=4, reply_to="me", queue="slow"
    )
    send_due(client, make_scheduler(rabbit_app))
    [message] = received(rabbit_app, "slow")
    properties = message.properties
    assert (properties["correlation_id"], properties["reply_to"], properties["priority"]) == ("id", "me", 4)
    assert 9_000_000 < int(properties["expiration"]) <= 10_000_000
    assert message.headers["id"] == "id"
    assert json.loads(message.body)[0] == [1]


def test_one_that_no_queue_takes_is_tried_again_and_not_lost(
    rabbit_app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    exchange = Exchange("nowhere", type="direct")
    with rabbit_app.connection_for_write() as connection:
        exchange(connection.default_channel).declare()
    queue = Queue("declared by nobody", exchange, routing_key="there", no_declare=True)
    rabbit_app.tasks["add"].apply_async(
        (1,), task_id="id", countdown=600, queue=queue, exchange="nowhere", routing_key="there"
    )
    make_due(client)
    scheduler = make_scheduler(rabbit_app)
    scheduler.tick()
    assert stored_ids(rabbit_app) == ["id"]
    assert "no queue" in field(client, ":later:id", "error")["reason"].lower()


@pytest.mark.parametrize(
    "rabbit_app",
    [
        {
            "task_default_queue_type": "quorum",
            "task_default_exchange_type": "topic",
            "task_default_exchange": "quorum",
            "task_default_queue": "quorum",
            "task_default_routing_key": "quorum",
            "broker_transport_options": {"confirm_publish": True},
        }
    ],
    ids=["quorum"],
    indirect=True,
)
def test_a_message_for_a_quorum_queue_is_delayed_here_and_not_by_rabbitmq(
    rabbit_app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    if not hasattr(rabbit_app.conf, "task_default_queue_type"):
        pytest.skip("this Celery has no quorum queues")
    rabbit_app.tasks["add"].apply_async((1,), task_id="id", countdown=600)
    stored = json.loads(client.hget("redbeat::later:id", "message") or "")
    assert (stored["exchange"], stored["routing_key"]) == ("quorum", "quorum")
    assert stored["headers"]["eta"]
    send_due(client, make_scheduler(rabbit_app))
    [message] = received(rabbit_app, "quorum")
    assert message.headers["id"] == "id"


TASKS = """
from celery import chain, chord, group
import redbeat.later

redbeat.later.install(app)


@app.task(name="again", bind=True, max_retries=3)
def again(self, word):
    note(self, word, self.request.retries)
    if self.request.retries < 1:
        raise self.retry(countdown=2)
    return word


@app.task(name="begin", bind=True)
def begin(self):
    note(self)
    add.apply_async((1, 1), countdown=2)
    (add.s(2, 2).set(countdown=2) | add.s(3).set(countdown=2)).apply_async()
    chord([add.s(1, 2), add.s(3, 4)])(echo.s("chord").set(countdown=2))
    again.delay("word")
    app.send_task("echo", ("by name",), countdown=2)
    add.apply_async((0, 0), countdown=600, task_id="revoked")
"""


def test_all_that_a_task_sends_for_later_runs_once_at_its_time(
    server: Server, make_app: MakeApp, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_durable_after": 1}
    write_app(tmp_path, "module", server.url(0), extra=TASKS, result_backend=server.url(0), **settings)
    app = make_app()  # it knows nothing of stored messages
    with celery_beat(tmp_path, "module") as beat, server.client(db=0) as client:
        with celery_worker(tmp_path, "module", "--pool=solo") as worker:
            app.send_task("begin")
            eventually(lambda: len(runs(client)) == 10, timeout=60)
            assert stored_ids(app) == ["revoked"]
            app.control.revoke("revoked")
            eventually(lambda: stored_ids(app) == [])
            found = runs(client)
        assert not has_traceback(worker.output())
    assert not has_traceback(beat.output())
    done = sorted(json.dumps([one.task, one.args]) for one in found)
    adds = [["add", pair] for pair in ([1, 1], [2, 2], [4, 3], [1, 2], [3, 4])]
    echoes = [["echo", [[3, 7], "chord"]], ["echo", ["by name"]]]
    retries = [["again", ["word", 0]], ["again", ["word", 1]]]
    assert done == sorted(json.dumps(one) for one in [["begin", []], *adds, *echoes, *retries])
