"""A run's message is the one that kombu would have written for a direct `apply_async`, byte for byte.

Both are sent with one task id and one set of headers while the app's clock stands still, so that nothing but
kombu's delivery tag tells the two apart.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, Task, signature
from celery.beat import SchedulingError
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.delivery.failures import reason_of
from redbeat.delivery.placeholders import Call, RunValues
from redbeat.delivery.templates import MessageTemplate
from redbeat.policy.messages import headers_of
from redbeat.policy.policy import Policy
from tests.conftest import SEED, MakeApp
from tests.faults.rounds import IS_LONG
from tests.integration.conftest import MakeScheduler
from tests.support.compiling import Compiling, values_of
from tests.support.fidelity import (
    Row,
    declare_exchanges,
    forget_connections,
    prepare,
    send_directly,
    writing,
)
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import write_burst
from tests.support.servers import Server

LATER = datetime(2030, 1, 1, 13, 0, 0, 250_000, tzinfo=timezone.utc)


#: a task may say itself how it is sent, though Celery advises against some of it
pytestmark = pytest.mark.filterwarnings(r"ignore:\s*The '\w+' task attribute is deprecated")


ORDERS = Exchange("orders", type="topic")
QUEUES = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("direct", Exchange("direct-exchange"), routing_key="direct-key"),
    Queue("several", [binding(Exchange("several"), routing_key=key) for key in ("one", "two")]),
    Queue("paid", ORDERS, routing_key="order.paid.#"),
    Queue("all-orders", ORDERS, routing_key="order.#"),
    Queue("audit", ORDERS, routing_key="*.paid.*"),
    Queue("expiring", expires=600),
    Queue("expiring-too", queue_arguments={"x-expires": 1_200_000}),
    Queue("urgent", max_priority=10),
    Queue("fleeting", auto_delete=True),
    Queue("fanned", Exchange("fan", type="fanout")),
    Broadcast("everybody", queue="broadcast-queue"),
]


FORMATS: dict[str, dict[str, Any]] = {
    "as-it-is": {},
    "prefix": {"global_keyprefix": "{my}:prefix:"},
    "prefix-like-a-queue": {"global_keyprefix": "celery", "priority_steps": [0, 5]},
    "ten-steps-and-separator": {"priority_steps": list(range(10)), "sep": ":"},
    "patterns": {"fanout_prefix": False, "fanout_patterns": False, "queue_order_strategy": "priority"},
}


ROWS: dict[str, Row] = {
    **{
        f"format-{name}": Row(
            {"priority": 9, "queue": "urgent"}, settings={"broker_transport_options": options}
        )
        for name, options in FORMATS.items()
    },
    "plain": Row(),
    "unregistered-task": Row(task="elsewhere.task"),
    "exchange-and-key": Row({"exchange": "direct-exchange", "routing_key": "direct-key", "queue": "direct"}),
    "topic-to-three-queues": Row({"queue": "paid", "routing_key": "order.paid.eu"}),
    "auto-delete-queue": Row({"queue": "fleeting"}),
    "fan-out": Row({"queue": "fanned"}),
    "broadcast": Row({"queue": "everybody"}),
    "expires-date": Row({"expires": LATER}),
    "eta": Row({"eta": LATER}),
    "stamps": Row({"stamped_headers": ["tenant"], "tenant": ["x"]}),
    "compression": Row({"compression": "zlib"}, args=["x" * 1000]),
    "link": Row({"link": signature("after", args=(1,), options={"queue": "links"})}),
    "ids": Row({"root_id": "r", "parent_id": "p", "group_id": "g", "group_index": 3}),
    "task-with-defaults": Row(task="defaults"),
    "task-of-its-own": Row({"queue": "fast"}, task="own"),
    "task-that-sends-twice": Row({"queue": "fast", "priority": 4}, task="twice"),
    "task-that-sends-another": Row(task="another"),
    "routed-by-name": Row(settings={"task_routes": {"echo": {"queue": "routed", "priority": 8}}}),
    "routed-by-pattern": Row(task="feed.import", settings={"task_routes": {"feed.*": "feeds"}}),
    "routed-by-function": Row(
        settings={
            "task_routes": [lambda name, *rest, **more: {"queue": "paid", "routing_key": "order.paid.de"}]
        }
    ),
    "default-exchange": Row(
        settings={
            "task_default_queue": "q",
            "task_default_exchange": "tasks",
            "task_default_exchange_type": "topic",
            "task_default_routing_key": "tasks.default",
            "task_queues": None,
        }
    ),
}


def add_tasks(app: Celery) -> None:
    """Register tasks of every kind that has a say in how it is sent."""

    class Own(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            options["headers"] = {**(options.get("headers") or {}), "by": "Own"}
            return super().apply_async([*args, "more"], kwargs, shadow="own", **options)

        def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
            return "never asked"

    class Twice(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            super().apply_async(["first"], kwargs, **options)
            return super().apply_async(["second"], kwargs, **{**options, "queue": "slow"})

    class Another(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            app.send_task("note", task_id="note-id", queue="notes")  # by the app's own pool of producers
            return super().apply_async(args, kwargs, **options)

    def run(*args: Any, **kwargs: Any) -> None:
        """Never runs here."""

    defaults = {"queue": "slow", "priority": 7, "compression": "zlib", "expires": 60, "time_limit": 9}
    more = {"soft_time_limit": 8, "ignore_result": True, "serializer": "json", "delivery_mode": 1}
    app.task(name="echo", shared=False)(run)
    app.task(name="defaults", **defaults, **more, shared=False)(run)
    app.task(name="own", base=Own, shared=False)(run)
    app.task(name="twice", base=Twice, shared=False)(run)
    app.task(name="another", base=Another, shared=False)(run)


@pytest.mark.few_cases(12)
@pytest.mark.parametrize("name", ROWS)
def test_message_of_a_run_is_that_of_a_direct_call(
    make_scheduler: MakeScheduler, broker: redis.Redis, name: str
) -> None:
    """Send runs of three entries, by templates where possible. Then make the same calls directly."""
    row = ROWS[name]
    scheduler = make_scheduler(**{"task_queues": QUEUES, **row.settings})
    add_tasks(scheduler.app)
    prepare(scheduler.app, {f"entry-{number}": row for number in range(3)})
    forget_connections(scheduler.app)
    with writing(broker) as by_tick:
        while not scheduler.tick():
            pass
    forget_connections(scheduler.app)
    declare_exchanges(scheduler.app)
    headers = [json.loads(text)["headers"] for texts in by_tick.values() for text in texts]
    sent = {one.get("redbeat_entry"): one for one in headers}
    with writing(broker) as directly:
        for number in range(3):
            send_directly(scheduler.app, row, sent[f"entry-{number}"])
    assert by_tick == directly


def test_queue_bound_by_another_program_gets_messages_from_the_next_batch_on(
    make_scheduler: MakeScheduler, broker: redis.Redis, client: redis.Redis
) -> None:
    scheduler = make_scheduler(task_queues=QUEUES)
    for number in range(2):
        write_burst(client, ["entry"], options={"queue": "paid", "routing_key": "order.paid.eu"})
        scheduler.tick()
        assert broker.llen("elsewhere") == number
        broker.sadd("_kombu.binding.orders", "order.#\x06\x16^order\\..*?$\x06\x16elsewhere")
    assert broker.llen("paid") == 2


def test_class_based_task_with_arguments_is_sent_from_a_template(
    make_scheduler: MakeScheduler,
    broker: redis.Redis,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Celery checks the arguments of functions only; others have no ``__header__``."""

    class Report(Task):
        name = "echo"

    scheduler = make_scheduler()
    scheduler.app.register_task(Report())
    write_burst(client, ["text"], args=["daily"])
    write_burst(client, ["number"], args=[1, 2])
    with caplog.at_level("INFO"):
        scheduler.tick()
    assert broker.llen("celery") == 2
    assert "aren't compiled" not in caplog.text


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
    """Change a setting, a queue or a task as a program may do between two batches."""
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


def assert_both_are_the_same(compiling: Compiling, call: Call, now: datetime) -> str:
    """Make a run's message with and without a template. Return why there is no template, '' if there is.

    As in beat, a run without a template is sent by `apply_async`, which may declare what is missing.
    """
    values = values_of(call, now)
    for _ in range(2):
        message = compiling.compile(call)
        if isinstance(message, MessageTemplate) and compiling.templates.is_current(message):
            break
        has_failed = False
        try:
            compiling.pushes_of_apply_async(call, values)
        except SchedulingError:
            has_failed = True
        compiling.begin_batch()
    else:
        assert isinstance(message, str), "the template is dropped each time"
        if re.match(r"\w+: ", message):  # the name of an exception: only apply_async raises it
            assert has_failed, message
        return message
    compiling.app.now = lambda: now.astimezone(compiling.app.timezone)
    try:
        by_apply_async = compiling.pushes_of_apply_async(call, values)
        tag = json.loads(str(by_apply_async[0].value))["properties"]["delivery_tag"]
        assert message.fill(values, tag) == by_apply_async
    finally:
        del compiling.app.now
    return ""


def random_calls(
    app: Celery, chance: Chance, check: Callable[[Compiling, Call, datetime], str], reasons: Counter[str]
) -> None:
    """Check 20 random calls of an app, change something, and check them again. Count what is returned."""
    add_random_tasks(app, chance)
    compiling = Compiling(app)
    compiling.begin_batch()
    calls = [chance.call(f"entry {number} {chance.text()}") for number in range(20)]
    for _ in range(2):
        reasons.update(check(compiling, call, chance.moment())[:60] for call in calls)
        change_something(app, chance)
        compiling.begin_batch()
    compiling.broker.close()


def assert_most_are_compiled(reasons: Counter[str], share: float) -> None:
    print(reasons.most_common(40))
    assert reasons[""] > share * reasons.total(), "else this test would show little"
    assert not [reason for reason in reasons if "Celery" in reason or "kombu" in reason]


RANDOM_APPS = 120 if IS_LONG else 6


def test_random_messages_from_templates_are_those_of_apply_async(make_app: MakeApp, server: Server) -> None:
    print(f"REDBEAT_SEED={SEED}")
    chance = Chance(f"{SEED} compiled")
    reasons: Counter[str] = Counter()
    for _ in range(RANDOM_APPS):
        random_calls(make_app(**chance.settings(server)), chance, assert_both_are_the_same, reasons)
    assert_most_are_compiled(reasons, 0.25)


@contextmanager
def writing_frames(compiling: Compiling) -> Iterator[list[bytes]]:
    """Yield a list of the frames of the messages in the block, which are not written."""
    confirms, written = compiling.broker.confirms, list[bytes]()
    confirms._send = lambda message, *_: written.append(message.frames)  # noqa: SLF001
    try:
        yield written
    finally:
        del confirms._send  # noqa: SLF001


def frames_of_apply_async(compiling: Compiling, call: Call, values: RunValues) -> list[bytes]:
    """Return the frames that `apply_async` writes to RabbitMQ."""
    compiling.broker.producer.expiration_seconds = values.expiration_seconds
    with writing_frames(compiling) as written:
        compiling.send(call, values)
    return written


def frames_of_template(
    compiling: Compiling, template: MessageTemplate, runs: Iterable[RunValues]
) -> list[bytes]:
    """Return the frames that a template lets beat write for the last of several runs."""
    with writing_frames(compiling) as written:
        for values in runs:
            [push] = template.fill(values, "any")
            compiling.broker.confirms.publish_run(template, str(push.value), values.task_id, values.due, 5)
    return written[-1:]


def assert_frames_are_the_same(compiling: Compiling, call: Call, now: datetime) -> str:
    """Compare frames made with and without a template. Return why there is no template, '' if there is."""
    message = compiling.compile(call)
    if isinstance(message, str):
        return message
    try:
        if not compiling.templates.is_current(message):
            return "not current"
    except Exception:  # noqa: BLE001 - two of these apps declare a queue in two ways; a new channel helps
        compiling.broker.close()
        compiling.begin_batch()
        return "not current"
    values = values_of(call, now)
    compiling.app.now = lambda: now.astimezone(compiling.app.timezone)
    try:
        runs = [values_of(call, now + timedelta(days=1)), values]
        by_template = outcome(lambda: frames_of_template(compiling, message, runs))
        assert by_template == outcome(lambda: frames_of_apply_async(compiling, call, values))
    finally:
        del compiling.app.now
    return ""


def outcome(make: Callable[[], list[bytes]]) -> list[bytes] | str:
    """Return the frames, or the error, for example about a header's name that is too long."""
    try:
        return make()
    except Exception as exc:  # noqa: BLE001 - any error is compared
        return reason_of(exc)


@pytest.mark.long_form
def test_random_messages_to_rabbitmq_are_those_of_apply_async(
    make_app: MakeApp, server: Server, rabbitmq: RabbitMQ
) -> None:
    print(f"REDBEAT_SEED={SEED}")
    chance = Chance(f"{SEED} compiled for rabbitmq")
    reasons: Counter[str] = Counter()
    for _ in range(25):
        settings = {**chance.settings(server), "broker_transport_options": {}}
        app = make_app(**settings, broker_url=rabbitmq.url())
        random_calls(app, chance, assert_frames_are_the_same, reasons)
    assert_most_are_compiled(reasons, 0.08)
