"""Compiled messages to RabbitMQ: byte by byte those of `apply_async`, declared, confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import kombu
import pytest
import redis
from celery import Celery

from redbeat.beat.dispatcher import Dispatcher
from redbeat.beat.planner import CompiledRun
from redbeat.broker import compiler
from redbeat.broker.compiler import Call, Message, Values
from redbeat.broker.connection import reason_of
from redbeat.broker.drafts import message_of
from redbeat.broker.frames import publish_frames
from redbeat.broker.rehearsal import Rehearsed, rehearse
from tests.conftest import SEED, MakeApp
from tests.integration.broker.test_compiled_messages import Chance, add_random_tasks, change_something
from tests.integration.conftest import MakeScheduler
from tests.support.compiling import Compiling, call_of, values_of
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, counts_of, expected_id, field, write_burst, write_raw
from tests.support.servers import Server
from tests.support.ticks import names_of, take_messages

COUNT = 100


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries whose runs were published without `apply_async`."""
    names: list[str] = []
    publish = vars(Dispatcher)["_publish"]

    def note(self: Any, run: Any, *args: Any, **options: Any) -> Any:
        if isinstance(run, CompiledRun):
            names.append(run.name)
        return publish(self, run, *args, **options)

    monkeypatch.setattr(Dispatcher, "_publish", note)
    return names


def frames_of_apply_async(compiling: Compiling, call: Call, values: Values) -> list[bytes]:
    """What the ordinary way would write to RabbitMQ."""
    confirms, producer = compiling.broker.confirms, compiling.broker.producer
    assert confirms is not None
    written: list[bytes] = []
    confirms.rehearsed = lambda *args: written.append(publish_frames(producer.channel, *args))
    try:
        with producer.rehearsing(values.expiration_seconds):
            compiling.send(call, values)
    finally:
        confirms.rehearsed = None
    return written


def frames_of_draft(compiling: Compiling, draft: str) -> list[bytes]:
    """What the draft's message is written as."""
    message, info = message_of(draft)
    return [publish_frames(compiling.broker.producer.channel, message, **info)]


def outcome(make: Callable[..., list[bytes]], *args: Any) -> list[bytes] | str:
    """What is made, or the error, such as that of a header's name that is too long."""
    try:
        return make(*args)
    except Exception as exc:  # noqa: BLE001 - whatever is raised is compared
        return reason_of(exc)


@pytest.mark.long_form
def test_random_messages_to_rabbitmq_are_those_of_apply_async_byte_by_byte(
    make_app: MakeApp, server: Server, rabbitmq: RabbitMQ
) -> None:
    print(f"REDBEAT_SEED={SEED}")
    chance = Chance(f"{SEED} compiled for rabbitmq")
    reasons: Counter[str] = Counter()
    for _ in range(25):
        settings = {**chance.settings(server), "broker_transport_options": {}}
        app = make_app(**settings, broker_url=rabbitmq.url())
        add_random_tasks(app, chance)
        compiling = Compiling(app)
        compiling.begin_batch()
        calls = [chance.call(f"entry {number} {chance.text()}") for number in range(20)]
        for _ in range(2):
            for call in calls:
                message = compiling.compile(call)
                if isinstance(message, Message) and not is_current(compiling, message):
                    message = "not current"
                if isinstance(message, str):
                    reasons[message[:60]] += 1
                    continue
                now = chance.moment()
                values = values_of(call, now)
                app.now = lambda now=now, app=app: now.astimezone(app.timezone)
                try:
                    [push] = message.pushes(values, "any")
                    compared = outcome(frames_of_draft, compiling, str(push.value))
                    assert compared == outcome(frames_of_apply_async, compiling, call, values)
                finally:
                    del app.now
                reasons[""] += 1
            change_something(app, chance)
            compiling.begin_batch()
        compiling.broker.close()
    print(reasons.most_common(40))
    assert reasons[""] > 80  # of 1,000; settings change, and many are such that nothing is compiled
    assert not [reason for reason in reasons if "Celery" in reason or "kombu" in reason]


def is_current(compiling: Compiling, message: Message) -> bool:
    try:
        return compiling.compiler.is_current(message)
    except Exception:  # noqa: BLE001 - two of these apps declare a queue in two ways; a new channel helps
        compiling.broker.close()
        compiling.begin_batch()
        return False


def test_a_burst_is_compiled_declares_its_queue_and_arrives_in_order(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, compiled: list[str]
) -> None:
    names = write_burst(client, COUNT)
    make_scheduler(app).tick()
    assert compiled == names
    assert names_of(take_messages(app)) == names
    assert counts_of(client, names) == {1: COUNT}


def test_a_queue_that_was_declared_otherwise_is_its_entrys_error(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    scheduler = make_scheduler(app)
    names = write_burst(client, 10)
    write_raw(client, "other", score=5.5, schedule=SELDOM, options={"queue": "other"})
    scheduler.tick()
    assert names_of(take_messages(app)) == names
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("other")
        kombu.Queue("other", durable=False, channel=connection.default_channel).declare()
    scheduler.producer.channel.connection.client.declared_entities.clear()
    scheduler.producer._declared.clear()  # noqa: SLF001 - as on a new connection
    write_burst(client, [*names, "other"])
    write_raw(client, "other", score=5.5, schedule=SELDOM, options={"queue": "other"})
    scheduler.tick()
    eventually(lambda: scheduler.tick() > 0)
    assert names_of(take_messages(app)) == names
    assert field(client, "other", "error")["reason"].startswith("PreconditionFailed")


def test_a_queue_that_was_deleted_is_declared_again_at_the_next_try(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, compiled: list[str]
) -> None:
    scheduler = make_scheduler(app)
    write_burst(client, ["one"])
    scheduler.tick()
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("celery")
    write_burst(client, ["one"])
    scheduler.tick()
    assert compiled == ["one", "one"]
    assert field(client, "one", "error")["reason"] == "LookupError: there is no queue 'celery'"
    client.hdel("redbeat:one", "error")
    write_burst(client, ["one"])
    scheduler.tick()
    assert names_of(take_messages(app)) == ["one"]


def test_a_connection_that_ends_amid_a_batch_lets_no_rehearsed_message_be_sent(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end is noticed when the shape's queue is declared; then its message is rehearsed again."""
    begun = 0

    def rehearse_and_close(*args: Any) -> Rehearsed:
        nonlocal begun
        begun += 1
        rehearsed = rehearse(*args)
        if begun == 1:
            rabbitmq.close_connections()
        return rehearsed

    monkeypatch.setattr(compiler, "rehearse", rehearse_and_close)
    scheduler = make_scheduler(app)
    names = write_burst(client, 3)
    eventually(lambda: scheduler.tick() > 1)
    assert begun > 2, "two rehearsals make a shape"
    ids = [message.id for message in take_messages(app)]
    assert ids == [expected_id(name, 1 + number) for number, name in enumerate(names)]
    assert counts_of(client, names) == {1: len(names)}


def test_a_queue_that_may_delete_itself_is_declared_for_each_message(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    compiled: list[str],
) -> None:
    app = make_app(broker_url=rabbitmq.url(), task_queues=[kombu.Queue("celery", auto_delete=True)])
    names = write_burst(client, 20)
    make_scheduler(app).tick()
    assert compiled == []
    assert names_of(take_messages(app)) == names


HEADERS: tuple[Any, ...] = (
    "text",
    "other",
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
    {"at": datetime(2026, 1, 2, tzinfo=timezone.utc)},
    [datetime(2026, 1, 2, tzinfo=timezone.utc)],
    10**25,
    -(2**63),
    float("nan"),
    float("inf"),
    -0.0,
    True,
    None,
    {"a": {"b": [1, 2.5, None, {"c": "\u00e4"}]}},
    "\ud800",
    "a\x00",
)


def test_headers_of_every_kind_are_those_of_apply_async(
    make_app: MakeApp, server: Server, rabbitmq: RabbitMQ
) -> None:
    compiling = Compiling(make_app(broker_url=rabbitmq.url()))
    compiling.begin_batch()
    for number, value in enumerate(HEADERS):
        call = call_of(f"entry-{number}", "echo", headers={"of_entry": value})
        message = compiling.compile(call)
        if isinstance(message, Message):
            values = values_of(call)
            [push] = message.pushes(values, "any")
            compared = outcome(frames_of_draft, compiling, str(push.value))
            assert compared == outcome(frames_of_apply_async, compiling, call, values), value
    compiling.broker.close()
