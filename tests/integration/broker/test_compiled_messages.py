"""Compiled messages are those of `apply_async`, whatever the entry, the settings and the transport.

The rows are those that a tick's messages are compared with direct calls by.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import string
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import SchedulingError
from celery.schedules import schedule
from kombu import Exchange, Queue

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.broker.compiler import Call, Message
from redbeat.broker.outbox import UnknownWriteError
from redbeat.broker.rehearsal import Rehearsed, rehearse
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.policy.headers import headers_of
from redbeat.policy.policy import Policy
from tests.conftest import SEED, MakeApp
from tests.faults.rounds import IS_LONG
from tests.integration.broker.test_message_fidelity import FORMATS, QUEUES, ROWS, add_tasks
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_worker, runs, write_app
from tests.support.compiling import DUE, Compiling, call_of, values_of
from tests.support.fidelity import (
    Row,
    counting_round_trips,
    declare_exchanges,
    forget_connections,
    listening,
    send_directly,
    writing,
)
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server
from tests.support.topologies import SentinelTopology

pytestmark = [
    # a task may say itself how it is sent, though Celery advises against some of it
    pytest.mark.filterwarnings(r"ignore:\s*The '\w+' task attribute is deprecated"),
]

#: rows that `apply_async` sends, and why
NOT_COMPILED = {
    "exchange-nobody-knows": "no queue is bound to the exchange 'nobody'",
    "fan-out": "its messages aren't written to a list",
    "broadcast": "its messages aren't written to a list",
    "expires-date": "the option 'expires' isn't a number",
    "expired-already": "'expires' isn't a number of seconds from now",
    "eta": "the option 'eta'",
    "countdown": "the option 'countdown'",
    "stamps": "the option 'stamped_headers'",
    "compression": "the option 'compression'",
    "bzip2": "the option 'compression'",
    "compression-setting": "task_compression is 'gzip'",
    "link": "the option 'link'",
    "links": "the option 'link'",
    "ids": "the option 'root_id'",
    "message-properties": "the option 'correlation_id'",
    "protocol-1": "task_protocol is 1",
    "task-with-defaults": "its messages are compressed with 'zlib'",
    "task-with-defaults-overridden": "the option 'compression'",
    "task-of-its-own": "overrides apply_async",
    "task-that-sends-twice": "overrides apply_async",
    "task-that-sends-another": "overrides apply_async",
    "task-that-is-bound": "overrides shadow_name",
    "routed-by-function": "task_routes has a function",
    "event": "task_send_sent_event is set",
    "event-prefix": "task_send_sent_event is set",
}


def make_compiling(app: Celery) -> Compiling:
    compiling = Compiling(app)
    compiling.begin_batch()
    return compiling


def assert_both_are_the_same(compiling: Compiling, call: Call, now: datetime = DUE) -> str:
    """Make a run's message both ways; return why it isn't compiled, '' if it is.

    As in beat, what isn't compiled is sent by `apply_async`, which may declare what is missing.
    """
    values = values_of(call, now)
    for _ in range(2):
        message = compiling.compile(call)
        if isinstance(message, Message) and compiling.compiler.is_current(message):
            break
        try:
            compiling.pushes_of_apply_async(call, values)
        except SchedulingError:
            has_failed = True
        else:
            has_failed = False
        compiling.begin_batch()
    else:
        assert isinstance(message, str), "what its messages rest on changes each time"
        if re.match(r"\w+: ", message):  # the name of an exception: only apply_async raises it
            assert has_failed, message
        return message
    compiling.app.now = lambda: now.astimezone(compiling.app.timezone)
    try:
        by_apply_async = compiling.pushes_of_apply_async(call, values)
        tag = json.loads(str(by_apply_async[0].value))["properties"]["delivery_tag"]
        assert message.pushes(values, tag) == by_apply_async
    finally:
        del compiling.app.now
    return ""


@pytest.mark.few_cases(24)
@pytest.mark.parametrize("name", ROWS)
def test_a_message_is_that_of_apply_async(make_app: MakeApp, name: str) -> None:
    if name == "yaml" and importlib.util.find_spec("yaml") is None:
        pytest.skip("PyYAML isn't installed")
    row = ROWS[name]
    app = make_app(**{"task_queues": QUEUES, **row.settings})
    add_tasks(app)
    compiling = make_compiling(app)
    for other in (name, f"{name}, the second", f"{name}, the third"):
        call = Call(other, *row_of(row))
        reason = assert_both_are_the_same(compiling, call)
        assert NOT_COMPILED.get(name, "") in reason
        assert bool(reason) == (name in NOT_COMPILED)
        compiling.begin_batch()


#: rows whose messages depend on when they are made
BY_THE_CLOCK = {"expires-seconds", "countdown"}


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"yaml"} - NOT_COMPILED.keys() - BY_THE_CLOCK))
def test_a_tick_leaves_on_the_broker_what_direct_calls_leave(
    make_scheduler: MakeScheduler, broker: redis.Redis, name: str
) -> None:
    row = ROWS[name]
    scheduler = make_scheduler(**{"task_queues": QUEUES, **row.settings})
    app = scheduler.app
    add_tasks(app)
    for number in range(3):
        entry = Entry(f"entry-{number}", row.task, schedule(10**10), row.args, row.kwargs, app=app)
        entry.options = row.options
        entry.save()
        app.redbeat_redis.zadd(SCHEDULE, {entry.key: 1.5 + number})
    forget_connections(app)
    with writing(broker) as by_tick:
        while not scheduler.tick():
            pass
    forget_connections(app)
    declare_exchanges(app)
    (key,) = by_tick.lists
    with writing(broker) as directly:
        for text in reversed(by_tick.lists[key]):
            headers = json.loads(text)["headers"]
            own = {name: headers[name] for name in ("redbeat_entry", "redbeat_due")}
            sent = {"task_id": headers["id"], "headers": {**(row.options.get("headers") or {}), **own}}
            send_directly(app, row, sent)
    assert by_tick == directly


# -- whatever the entry, the settings and the transport


class Chance:
    """Random apps, definitions and moments."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice

    def some(self, choices: dict[str, Callable[[], Any]], share: float) -> dict[str, Any]:
        return {name: make() for name, make in choices.items() if self.random.random() < share}

    def text(self) -> str:
        letters = string.printable + "äß€\u202e\x00\ud800😀%%%\"\"''\\\\{}"
        length = self.pick([0, 1, 3, 10, 40])
        text = "".join(self.random.choices(letters, k=length))
        return text * self.pick([1, 1, 1, 1, 100])

    def value(self, depth: int = 0) -> Any:
        kinds: list[Callable[[], Any]] = [
            self.text,
            lambda: self.random.randrange(-(10**6), 10**6),
            lambda: self.pick([0, 10**30, -1, 1.5, 1e300, 1e-7, float("inf"), True, False, None]),
            self.moment,
        ]
        if depth < 6:
            kinds.append(lambda: [self.value(depth + 1) for _ in range(self.random.randrange(4))])
            kinds.append(lambda: self.mapping(depth + 1))
        return self.pick(kinds)()

    def mapping(self, depth: int = 0) -> dict[str, Any]:
        keys = ["x", "y", "tenant", "a b", "%s", self.text()]
        return {self.pick(keys): self.value(depth) for _ in range(self.pick([0, 1, 3]))}

    def moment(self) -> datetime:
        change = datetime(2031, 3, 30, 1, tzinfo=timezone.utc)  # Europe changes to summer time
        near = self.pick([timedelta(hours=1), timedelta(days=300)])
        return change + near * self.random.uniform(-1, 1)

    def settings(self, server: Server) -> dict[str, Any]:
        pick = self.pick
        transport = pick([*FORMATS.values(), {"body_encoding": None}, {"body_encoding": "utf-8"}])
        routes = {
            "echo": {"queue": "routed", "priority": 8},
            "feed.*": "feeds",
            "typed": {"queue": "paid", "routing_key": "order.paid.eu"},
        }
        return {
            "broker_transport_options": transport,
            "task_queues": pick([None, QUEUES]),
            **self.some(
                {
                    "task_serializer": lambda: pick(["json", "yaml", "pickle"]),
                    "task_default_queue": lambda: pick(["mine", "paid", "expiring"]),
                    "task_default_exchange": lambda: pick(["tasks", ""]),
                    "task_default_exchange_type": lambda: pick(["direct", "topic"]),
                    "task_default_routing_key": lambda: pick(["tasks.default", "order.sent"]),
                    "task_default_delivery_mode": lambda: pick([1, 2, "transient"]),
                    "task_default_priority": lambda: pick([0, 5, 9]),
                    "task_queue_max_priority": lambda: pick([5, 10]),
                    "task_routes": lambda: pick([routes, [list(routes.items())], [routes, {"*": "other"}]]),
                    "task_create_missing_queues": lambda: pick([True, True, False]),
                    "task_repr_maxlevels": lambda: pick([1, 3, 10]),
                    "task_ignore_result": lambda: True,
                    "task_publish_retry": lambda: pick([True, False]),
                    "timezone": lambda: pick(["UTC", "Europe/Berlin", "America/Sao_Paulo"]),
                    "enable_utc": lambda: pick([True, False]),
                    "result_backend": lambda: pick(["rpc://", "cache+memory://", server.url(5)]),
                },
                0.25,
            ),
            **self.some(
                {
                    "task_protocol": lambda: 1,
                    "task_compression": lambda: "zlib",
                    "task_send_sent_event": lambda: True,
                },
                0.02,
            ),
        }

    def headers(self) -> Any:
        names = ["tenant", "traceparent", "lang", "origin", "a b", "%s", self.text()]
        if self.random.random() < 0.03:
            names.append(self.pick(["id", "expires", "redbeat_due", "argsrepr"]))
        return {self.pick(names): self.value() for _ in range(self.pick([0, 1, 1, 3]))}

    def options(self) -> dict[str, Any]:
        pick = self.pick
        usual = {
            "headers": self.headers,
            "queue": lambda: pick(["fast", "direct", "paid", "expiring", "urgent", "several", "celery"]),
            "priority": lambda: pick([0, 1, 5, 9, 200, None]),
            "expires": lambda: pick([0, 1, 90, 0.25, 86_400.5, 10**7, None]),
            "shadow": lambda: pick(["", "another name", self.text()]),
            "time_limit": lambda: pick([0, 60, 1.5]),
            "soft_time_limit": lambda: pick([0, 55, 1.25]),
        }
        rare = {
            "serializer": lambda: pick(["json", "yaml", "pickle"]),
            "routing_key": lambda: pick(["order.sent", "direct-key", "a.b"]),
            "exchange": lambda: pick(["orders", "direct-exchange", "nobody"]),
            "delivery_mode": lambda: pick([1, 2]),
            "ignore_result": lambda: pick([True, False]),
            "retry": lambda: pick([True, False]),
            "retry_policy": lambda: {"max_retries": pick([1, None]), "interval_start": 0.5},
            "task_id": lambda: pick(["mine", 'it\'s "%s" \\ €']),
            "reply_to": lambda: "answers",
            "app_id": self.text,
            "group_id": lambda: "g",
            "parent_id": lambda: pick(["p", None]),
            "retries": lambda: 2,
            "countdown": lambda: 3,
            "compression": lambda: "zlib",
            "link": list,
            "unheard_of": lambda: 1,
        }
        return {**self.some(usual, 0.2), **self.some(rare, 0.03)}

    def call(self, name: str) -> Call:
        args = [self.value() for _ in range(self.pick([0, 0, 1, 3]))]
        fields: dict[str, Any] = {
            "task": self.pick(["echo", "echo", "typed", "limited", "elsewhere.task", "feed.import"]),
            "args": args,
            "kwargs": self.pick([{}, {"y": 1}, self.mapping()]),
            "options": self.options(),
        }
        stored = json.dumps(fields, cls=RedBeatJSONEncoder)  # as in Redis
        fields = json.loads(stored, cls=RedBeatJSONDecoder)
        lifetime, queue = self.pick([None, None, 60, 0.5, 10**6]), self.pick([None, None, 30, 0.5, 3600.0])
        overlap, tracks = self.pick(["allow", "skip", "replace"]), self.pick(["task", "workflow"])
        policy = Policy(expires_after=lifetime, overlap=overlap, tracks=tracks)
        return Call(name, *fields.values(), lifetime, queue, headers_of(policy, queue))


def add_random_tasks(app: Celery, chance: Chance) -> None:
    def run(*args: Any, **kwargs: Any) -> None:
        """Never runs here."""

    def typed(x: Any, y: Any = 0) -> None:
        """Nor does this."""

    limits = {"queue": "slow", "priority": 7, "expires": 60, "time_limit": 9, "soft_time_limit": 8.5}
    app.task(name="echo", shared=False)(run)
    app.task(name="typed", shared=False, typing=chance.pick([True, False]))(typed)
    app.task(name="limited", shared=False, serializer="json", ignore_result=True, **limits)(run)


def change_something(app: Celery, chance: Chance) -> None:
    """What a program may do between two batches."""
    task = app.tasks[chance.pick(["typed", "limited"])]
    queue = Queue("fast", Exchange("faster", delivery_mode=1), routing_key=chance.pick(["fast", "faster"]))
    chance.pick(
        [
            lambda: app.conf.update(task_default_queue=chance.pick(["paid", "mine"])),
            lambda: app.conf.update(task_repr_maxlevels=chance.pick([2, 5])),
            lambda: app.amqp.queues.add(queue),
            lambda: setattr(task, "ignore_result", not task.ignore_result),
            lambda: task._get_exec_options().update(priority=3),  # noqa: SLF001 - Celery keeps them there
            lambda: task._get_exec_options().update(expires=chance.pick([5, None])),  # noqa: SLF001
            lambda: app.tasks.unregister("echo") if "echo" in app.tasks else None,
        ]
    )()


RANDOM_MESSAGES = 1_600 if IS_LONG else 700


@pytest.mark.parametrize("part", range(2))
def test_thousands_of_random_messages_are_those_of_apply_async(
    make_app: MakeApp, server: Server, part: int
) -> None:
    seed = f"{SEED} compiled {part}"
    print(f"REDBEAT_SEED={SEED}")
    chance = Chance(seed)
    reasons: Counter[str] = Counter()
    sent = 0  # by this version of Celery: older ones raise an error for more of these calls
    while sent < RANDOM_MESSAGES:
        app = make_app(**chance.settings(server))
        add_random_tasks(app, chance)
        compiling = make_compiling(app)
        calls = [chance.call(f"entry {number} {chance.text()}") for number in range(20)]
        for _ in range(2):
            for call in calls:
                reason = compare(compiling, call, chance.moment())
                reasons[reason] += 1
                sent += not re.match(r"\w+Error: ", reason)
            change_something(app, chance)
            compiling.begin_batch()
        compiling.broker.close()
    print(reasons.most_common(40))
    assert reasons[""] > 0.525 * RANDOM_MESSAGES, "else this test would show little"
    assert not [reason for reason in reasons if "Celery" in reason or "kombu" in reason]


def compare(compiling: Compiling, call: Call, now: datetime) -> str:
    """Make a run's message both ways if it is compiled; return why it isn't, '' if it is."""
    reason = assert_both_are_the_same(compiling, call, now)
    return reason[:60]


def test_messages_are_compiled_behind_sentinel(make_app: MakeApp, sentinel: SentinelTopology) -> None:
    options = {"master_name": sentinel.service_name, "global_keyprefix": "pre:"}
    app = make_app(broker_url=sentinel.url(3), broker_transport_options=options, task_queues=QUEUES)
    add_tasks(app)
    compiling = make_compiling(app)
    for row in (ROWS["plain"], ROWS["priority-5"], ROWS["topic-to-one-queue"], ROWS["expiring-queue"]):
        for name in ("one", "two"):
            assert assert_both_are_the_same(compiling, Call(name, *row_of(row))) == ""
    (push,) = compiling.pushes_of_apply_async(call_of(), values_of(call_of()))
    assert push.queue == "pre:celery"


def row_of(row: Row) -> tuple[Any, ...]:
    return row.task, row.args, row.kwargs, row.options, None


# -- without effect


def test_a_rehearsal_asks_and_changes_nothing(
    make_app: MakeApp, broker: redis.Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(task_queues=QUEUES, result_backend=server.url(5), task_send_sent_event=True)
    add_tasks(app)
    compiling = make_compiling(app)
    app.send_task("echo", queue="elsewhere")  # the backend is connected, and keeps subscriptions
    broker.flushdb()
    with counting_round_trips(monkeypatch) as count, listening(broker) as published:
        asked = count()
        for options in ({}, {"queue": "fast"}, {"queue": "expiring"}, {"priority": 5}):
            rehearsed = rehearse_call(compiling, call_of(**options))
            assert [push.command for push in rehearsed.pushes] == ["lpush"]
            assert rehearsed.declarations != ()
            assert rehearsed.is_told_backend
        assert count() == asked
    assert (broker.keys(), published) == ([], [])


def rehearse_call(compiling: Compiling, call: Call) -> Rehearsed:
    producer, outbox = compiling.broker.producer, compiling.broker.outbox
    assert outbox is not None

    def send() -> None:
        compiling.send(call, values_of(call))  # nobody keeps its result

    return rehearse(compiling.app, producer, outbox, None, send)


@pytest.mark.parametrize("queue", ["fanned", "everybody"])
def test_a_rehearsal_of_a_fan_out_sends_nothing(make_app: MakeApp, broker: redis.Redis, queue: str) -> None:
    compiling = make_compiling(make_app(task_queues=QUEUES))
    with listening(broker) as published, pytest.raises(SchedulingError):
        rehearse_call(compiling, call_of(queue=queue))
    assert (broker.keys(), published) == ([], [])


def test_nothing_leaves_a_rehearsal_whatever_it_does(make_app: MakeApp, broker: redis.Redis) -> None:
    def send_more() -> None:
        channel = producer.channel
        for client in (channel.client, channel._create_client()):  # noqa: SLF001 - as kombu makes one
            with pytest.raises(UnknownWriteError):
                client.lpush("celery", "another message")
        with pytest.raises(UnknownWriteError), channel.conn_or_acquire() as client:
            client.publish("events", "an event")
        producer.publish("an event", routing_key="celery")
        compiling.send(call_of(), values_of(call_of()))

    compiling = make_compiling(make_app())
    producer, outbox = compiling.broker.producer, compiling.broker.outbox
    assert outbox is not None
    with listening(broker) as published:
        rehearsed = rehearse(compiling.app, producer, outbox, None, send_more)
    assert len(rehearsed.runs) == len(rehearsed.pushes) == 1
    assert (broker.keys(), published) == ([], [])


@pytest.mark.parametrize("backend", ["redis", "rpc://"])
def test_the_result_backend_is_told_of_each_run_and_only_then(
    make_app: MakeApp, server: Server, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(result_backend=server.url(5) if backend == "redis" else backend)
    add_tasks(app)
    compiling = make_compiling(app)
    message = compiling.compile(call_of())
    assert isinstance(message, Message)
    assert message.on_call is not None
    sends: list[Callable[[str], Any]] = [
        lambda task_id: compiling.pushes_of_apply_async(call_of(), values_of(call_of(task_id=task_id))),
        message.on_call,
    ]
    asked: list[list[str]] = []
    for number, send in enumerate(sends):
        send(f"first-{number}")  # connects
        with commands_of(monkeypatch) as commands:
            send("second")
        asked.append(commands)
    by_apply_async, by_message = asked
    assert by_message == by_apply_async
    assert [command.split()[0] for command in by_message] == (
        ["SUBSCRIBE", "UNSUBSCRIBE"] if backend == "redis" else []
    )
    ignoring = compiling.compile(call_of(ignore_result=True))
    assert isinstance(ignoring, Message)
    assert ignoring.on_call is None


@contextmanager
def commands_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The commands that this process sends to Redis servers in the block."""
    commands: list[str] = []
    base = redis.connection.AbstractConnection
    send_now = base.send_command

    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        commands.append(" ".join(str(arg) for arg in args))
        return send_now(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(base, "send_command", send)
        yield commands


# -- what has changed since


def test_a_queue_that_is_bound_amid_a_batch_gets_its_message(make_app: MakeApp) -> None:
    app = make_app(task_queues=QUEUES)
    compiling = make_compiling(app)
    paid, everything = (call_of(queue=queue, routing_key="order.paid.eu") for queue in ("paid", "all-orders"))
    compiling.pushes_of_apply_async(paid, values_of(paid))  # which binds its queue
    compiling.begin_batch()
    message = compiling.compile(paid)
    assert isinstance(message, Message)
    assert compiling.compiler.is_current(message)
    compiling.pushes_of_apply_async(everything, values_of(everything))
    assert not compiling.compiler.is_current(message)
    assert compiling.compile(paid) == "a run isn't one message to one queue"


def test_a_queue_that_another_program_binds_gets_its_message_from_the_next_batch_on(
    make_app: MakeApp, broker: redis.Redis
) -> None:
    app = make_app(task_queues=QUEUES)
    compiling = make_compiling(app)
    call = call_of(queue="paid", routing_key="order.paid.eu")
    compiling.pushes_of_apply_async(call, values_of(call))
    compiling.begin_batch()
    message = compiling.compile(call)
    assert isinstance(message, Message)
    assert compiling.compiler.is_current(message)
    broker.sadd("_kombu.binding.orders", "order.#\x06\x16^order\\..*?$\x06\x16elsewhere")
    compiling.begin_batch()
    assert not compiling.compiler.is_current(message)
    assert assert_both_are_the_same(compiling, call) == "a run isn't one message to one queue"


@pytest.mark.parametrize(("queue", "batches"), [("fast", [1, 1, 1]), ("fleeting", [1, 2, 3])])
def test_queues_are_declared_as_often_as_by_apply_async(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, queue: str, batches: list[int]
) -> None:
    compiling = make_compiling(make_app(task_queues=[*QUEUES, Queue("fast")]))
    declared: list[Any] = []
    channel = compiling.broker.producer.channel
    declare_now = channel.queue_declare
    monkeypatch.setattr(
        channel,
        "queue_declare",
        lambda *args, **kwargs: declared.append(args) or declare_now(*args, **kwargs),
    )
    message = compiling.compile(call_of(queue=queue))
    assert isinstance(message, Message)
    for count in batches:
        for _ in range(3):
            assert compiling.compiler.is_current(message)
        assert len(declared) == count
        compiling.pushes_of_apply_async(call_of(queue=queue), values_of(call_of()))
        assert len(declared) == count
        compiling.begin_batch()


def test_a_new_connection_drops_all_messages(make_app: MakeApp) -> None:
    compiling = make_compiling(make_app())
    message = compiling.compile(call_of())
    assert isinstance(message, Message)
    compiling.broker.close()
    compiling.begin_batch()
    assert not compiling.compiler.is_current(message)
    assert assert_both_are_the_same(compiling, call_of()) == ""


# -- and they run


def test_a_worker_runs_compiled_messages(tmp_path: Path, server: Server, broker: redis.Redis) -> None:
    settings = {"accept_content": ["json", "yaml", "pickle"]}
    write_app(tmp_path, "module", server.url(0), runs_url=server.url(3), **settings)
    app = Celery("module", broker=server.url(0), set_as_current=False)
    app.conf.update(redbeat_redis_url=server.url(1))
    compiling = make_compiling(app)
    serializers = ["json", "pickle", *(["yaml"] if importlib.util.find_spec("yaml") else [])]
    calls = [
        call_of(f"{serializer} {number}", args=[number, "ä"], kwargs={"x": [1.5]}, serializer=serializer)
        for serializer in serializers
        for number in range(3)
    ]
    due = datetime.now(timezone.utc)
    values = {call.name: values_of(call, due) for call in calls}
    pushes = []
    for call in calls:
        message = compiling.compile(call)
        assert isinstance(message, Message)
        assert compiling.compiler.is_current(message)
        pushes.append(message.pushes(values[call.name], str(uuid.uuid4())))
    assert compiling.broker.outbox is not None
    assert compiling.broker.outbox.send(pushes) == [None] * len(calls)
    with celery_worker(tmp_path, "module", env={"C_FORCE_ROOT": "1"}), server.client(db=3) as client:
        found = eventually(lambda: len(runs(client)) == len(calls) and runs(client))
    assert sorted((run.headers["redbeat_entry"], run.id, run.args, run.kwargs) for run in found) == sorted(
        (call.name, values[call.name].task_id, call.args, call.kwargs) for call in calls
    )
