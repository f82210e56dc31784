"""A run's message is the one that kombu would have written for a direct `apply_async`, byte for byte.

Both are sent with one task id and one set of headers while the app's clock stands still, so that nothing but
kombu's delivery tag tells the two apart.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery, Task, signature
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import Recording, Row, Written, prepare, send_both_ways
from tests.support.servers import Server
from tests.support.topologies import SentinelTopology

LATER = datetime(2030, 1, 1, 13, 0, 0, 250_000, tzinfo=timezone.utc)


#: a task may say itself how it is sent, though Celery advises against some of it
pytestmark = pytest.mark.filterwarnings(r"ignore:\s*The '\w+' task attribute is deprecated")

#: messages are kombu's work: one kind of server is enough where there are many cases of them


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

WITHOUT_YAML = pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="PyYAML isn't installed")

ROWS: dict[str, Row] = {
    "plain": Row(),
    "no-arguments": Row(args=[], kwargs={}),
    "unregistered-task": Row(task="elsewhere.task"),
    "queue": Row({"queue": "fast"}),
    "queue-with-exchange": Row({"queue": "direct"}),
    "exchange-and-key": Row({"exchange": "direct-exchange", "routing_key": "direct-key", "queue": "direct"}),
    "exchange-nobody-knows": Row({"exchange": "nobody", "routing_key": "nothing"}),
    "routing-key-only": Row({"routing_key": "a.b"}),
    "several-bindings": Row({"queue": "several", "exchange": "several", "routing_key": "two"}),
    "topic-to-three-queues": Row({"queue": "paid", "routing_key": "order.paid.eu"}),
    "topic-to-one-queue": Row({"queue": "all-orders", "routing_key": "order.sent"}),
    "expiring-queue": Row({"queue": "expiring"}),
    "expiring-queue-with-priority": Row({"queue": "expiring-too", "priority": 9}),
    "auto-delete-queue": Row({"queue": "fleeting"}),
    "fan-out": Row({"queue": "fanned"}),
    "broadcast": Row({"queue": "everybody"}),
    "priority-0": Row({"priority": 0}),
    "priority-5": Row({"priority": 5}),
    "priority-9": Row({"priority": 9, "queue": "urgent"}),
    "priority-beyond": Row({"priority": 200}),
    "default-priority": Row(settings={"task_default_priority": 6, "task_queue_max_priority": 10}),
    "expires-seconds": Row({"expires": 90}),
    "expires-date": Row({"expires": LATER}),
    "expired-already": Row({"expires": -1}),
    "eta": Row({"eta": LATER}),
    "countdown": Row({"countdown": 30.5}),
    "headers": Row({"headers": {"tenant": "x", "nested": {"a": [1]}}}),
    "stamps": Row({"stamped_headers": ["tenant"], "tenant": ["x"]}),
    "json": Row({"serializer": "json"}, kwargs={"at": LATER}),
    "yaml": Row({"serializer": "yaml"}, kwargs={"at": LATER, "text": "ä: [b]"}),
    "pickle": Row({"serializer": "pickle"}, settings={"accept_content": ["pickle"]}),
    "pickle-setting": Row(settings={"task_serializer": "pickle"}, kwargs={"at": LATER}),
    "compression": Row({"compression": "zlib"}, args=["x" * 1000]),
    "bzip2": Row({"compression": "bzip2", "serializer": "pickle"}),
    "compression-setting": Row(settings={"task_compression": "gzip"}),
    "ignore-result": Row({"ignore_result": True}),
    "link": Row({"link": signature("after", args=(1,), options={"queue": "links"})}),
    "links": Row({"link": [signature("a"), signature("b", immutable=True)], "link_error": signature("c")}),
    "shadow": Row({"shadow": "another name"}),
    "time-limits": Row({"time_limit": 60, "soft_time_limit": 55.5}),
    "delivery-mode": Row({"delivery_mode": 1}),
    "retry-policy": Row({"retry": True, "retry_policy": {"max_retries": 7}}),
    "no-retry": Row({"retry": False}),
    "ids": Row({"root_id": "r", "parent_id": "p", "group_id": "g", "group_index": 3}),
    "own-task-id": Row({"task_id": "my-own-id"}),
    "message-properties": Row({"reply_to": "answers", "app_id": "me", "correlation_id": "c"}),
    "protocol-1": Row({"priority": 3}, settings={"task_protocol": 1}),
    "task-with-defaults": Row(task="defaults"),
    "task-with-defaults-overridden": Row({"priority": 1, "compression": "bzip2"}, task="defaults"),
    "task-of-its-own": Row({"queue": "fast"}, task="own"),
    "task-that-sends-twice": Row({"queue": "fast", "priority": 4}, task="twice"),
    "task-that-sends-another": Row(task="another"),
    "task-that-is-bound": Row(task="bound", args=[], kwargs={}),
    "routed-by-name": Row(settings={"task_routes": {"echo": {"queue": "routed", "priority": 8}}}),
    "routed-by-pattern": Row(task="feed.import", settings={"task_routes": {"feed.*": "feeds"}}),
    "routed-by-function": Row(
        settings={
            "task_routes": [lambda name, *rest, **more: {"queue": "paid", "routing_key": "order.paid.de"}]
        }
    ),
    "event": Row(settings={"task_send_sent_event": True}),
    "event-prefix": Row(settings={"task_send_sent_event": True, "event_exchange": "events"}),
    "default-queue": Row(settings={"task_default_queue": "mine", "task_queues": None}),
    "default-exchange": Row(
        settings={
            "task_default_queue": "q",
            "task_default_exchange": "tasks",
            "task_default_exchange_type": "topic",
            "task_default_routing_key": "tasks.default",
            "task_queues": None,
        }
    ),
    "results-by-messages": Row(settings={"result_backend": "rpc://"}),
    "large": Row(args=["ü" * 150_000]),
}
PARAMETERS = [
    pytest.param(row, id=name, marks=WITHOUT_YAML if name == "yaml" else ()) for name, row in ROWS.items()
]


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

    class Named(Task):
        def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
            return f"{self.name} for {options['headers']['redbeat_entry']}"

    def run(*args: Any, **kwargs: Any) -> None:
        """Never runs here."""

    def run_bound(self: Any) -> None:
        """Nor does this."""

    defaults = {"queue": "slow", "priority": 7, "compression": "zlib", "expires": 60, "time_limit": 9}
    more = {"soft_time_limit": 8, "ignore_result": True, "serializer": "json", "delivery_mode": 1}
    app.task(name="echo", shared=False)(run)
    app.task(name="bound", bind=True, base=Named, shared=False)(run_bound)
    app.task(name="defaults", **defaults, **more, shared=False)(run)
    app.task(name="own", base=Own, shared=False)(run)
    app.task(name="twice", base=Twice, shared=False)(run)
    app.task(name="another", base=Another, shared=False)(run)


@pytest.mark.few_cases(24)
@pytest.mark.parametrize("row", PARAMETERS)
def test_a_message_is_the_same_as_of_a_direct_call(
    make_scheduler: MakeScheduler, broker: redis.Redis, row: Row
) -> None:
    scheduler = make_scheduler(scheduler=Recording, **{"task_queues": QUEUES, **row.settings})
    add_tasks(scheduler.app)
    prepare(scheduler.app, {"entry": row})
    by_tick, directly = send_both_ways(scheduler, {"entry": row}, broker)
    assert by_tick == directly
    assert scheduler.pushed_early == ({"notes"} if row.task == "another" else set())
    assert by_tick.lists or by_tick.published or row is ROWS["exchange-nobody-knows"]


#: what can be sent in one batch, by one app
BATCH = {name: row for name, row in ROWS.items() if not row.settings and name not in ("large", "yaml")}

FORMATS: dict[str, dict[str, Any]] = {
    "as-it-is": {},
    "prefix": {"global_keyprefix": "{my}:prefix:"},
    "prefix-like-a-queue": {"global_keyprefix": "celery", "priority_steps": [0, 5]},
    "ten-steps-and-separator": {"priority_steps": list(range(10)), "sep": ":"},
    "patterns": {"fanout_prefix": False, "fanout_patterns": False, "queue_order_strategy": "priority"},
}
EVERY_FORMAT = pytest.mark.parametrize("transport_options", FORMATS.values(), ids=FORMATS)


@dataclass(frozen=True)
class Place:
    """Where a broker is, seen from the schedule."""

    broker_url: str
    broker: redis.Redis


@pytest.fixture(params=["same-database", "other-database", "other-server"])
def place(request: pytest.FixtureRequest, server: Server) -> Iterator[Place]:
    """A broker beside the schedule, and one that is elsewhere."""
    home, database = server, 1 if request.param == "same-database" else 4
    if request.param == "other-server":
        home = request.getfixturevalue("redis" if server.kind == "valkey" else "valkey")
    with home.client(db=database) as broker:
        yield Place(home.url(database), broker)


def assert_a_batch_is_the_same(scheduler: Recording, broker: redis.Redis) -> Written:
    """Send the batch either way; return what was written."""
    add_tasks(scheduler.app)
    prepare(scheduler.app, BATCH)
    by_tick, directly = send_both_ways(scheduler, BATCH, broker)
    assert by_tick == directly
    assert len(by_tick.messages()) == len(BATCH) - 3 + 2  # two tasks send twice, and no list takes those that
    assert len(by_tick.published) == 2  # are fanned out, nor the one to an exchange that nobody knows
    assert len(scheduler.pushed_early) == 1  # what the task "another" sent by itself
    return by_tick


@pytest.mark.few_cases(6)
@EVERY_FORMAT
def test_a_batch_is_the_same_wherever_the_broker_is(
    make_scheduler: MakeScheduler, place: Place, transport_options: dict[str, Any]
) -> None:
    settings = {"broker_url": place.broker_url, "broker_transport_options": transport_options}
    scheduler = make_scheduler(scheduler=Recording, task_queues=QUEUES, **settings)
    written = assert_a_batch_is_the_same(scheduler, place.broker)
    prefix = transport_options.get("global_keyprefix", "")
    assert all(key.startswith(prefix) for key in written.lists)


@pytest.mark.parametrize("has_schedule", [True, False], ids=["with-schedule", "without-schedule"])
def test_a_batch_is_the_same_behind_sentinel(
    make_scheduler: MakeScheduler, sentinel: SentinelTopology, has_schedule: bool
) -> None:
    settings: dict[str, Any] = {
        "broker_url": sentinel.url(3),
        "broker_transport_options": {"master_name": sentinel.service_name, "global_keyprefix": "pre:"},
    }
    if has_schedule:
        settings["redbeat_redis_url"] = sentinel.url(1)
        settings["redbeat_redis_options"] = {"service_name": sentinel.service_name}
    scheduler = make_scheduler(scheduler=Recording, task_queues=QUEUES, **settings)
    with sentinel.client(db=3) as broker:
        assert_a_batch_is_the_same(scheduler, broker)


def test_a_batch_is_the_same_with_results_in_redis(
    make_scheduler: MakeScheduler, broker: redis.Redis, server: Server
) -> None:
    scheduler = make_scheduler(scheduler=Recording, task_queues=QUEUES, result_backend=server.url(5))
    assert_a_batch_is_the_same(scheduler, broker)


def test_topics_reach_every_queue_that_workers_have_bound(
    make_scheduler: MakeScheduler, broker: redis.Redis
) -> None:
    rows = {
        "three": Row({"queue": "paid", "routing_key": "order.paid.eu"}),
        "one": Row({"queue": "paid", "routing_key": "order.sent"}),
        "none": Row({"queue": "paid", "routing_key": "x"}),
    }
    scheduler = make_scheduler(scheduler=Recording, task_queues=QUEUES)
    add_tasks(scheduler.app)
    prepare(scheduler.app, rows)
    bound = {queue.name: queue for queue in QUEUES if queue.exchange == ORDERS}
    with scheduler.app.connection_for_read() as connection:
        for queue in bound.values():
            queue(connection.default_channel).declare()
        bindings = broker.smembers("_kombu.binding.orders")
        scheduler.broker = broker
        scheduler.tick()
    lists = {key: broker.llen(key) for key in broker.scan_iter(_type="list")}
    assert lists == {"paid": 1, "all-orders": 2, "audit": 1}
    assert broker.smembers("_kombu.binding.orders") == bindings


def test_a_queue_that_is_bound_amid_a_batch_gets_its_message(
    make_scheduler: MakeScheduler, broker: redis.Redis
) -> None:
    rows = {
        name: Row({"queue": name, "routing_key": f"order.paid.{name}"}) for name in ("paid", "all-orders")
    }
    scheduler = make_scheduler(scheduler=Recording, task_queues=QUEUES)
    add_tasks(scheduler.app)
    prepare(scheduler.app, rows)
    by_tick, directly = send_both_ways(scheduler, rows, broker)
    assert by_tick == directly
    assert {key: len(messages) for key, messages in by_tick.lists.items()} == {"paid": 2, "all-orders": 1}
