"""What takes part in making messages is found and named, in whatever way it came in."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import celery._state
import celery.app.amqp
import celery.app.routes
import celery.utils.saferepr
import kombu.common
import kombu.messaging
import kombu.serialization
import kombu.transport.redis
import kombu.transport.virtual.base
import kombu.utils.json
import pytest
from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.registry import TaskRegistry
from celery.beat import Scheduler
from celery.local import Proxy
from celery.result import AsyncResult
from celery.utils.dispatch.signal import Signal
from kombu import Producer
from kombu.connection import Connection
from kombu.transport.virtual.base import Channel as VirtualChannel

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.broker import originals
from redbeat.broker.confirms import Confirms
from redbeat.broker.originals import Originals
from redbeat.broker.outbox import Outbox
from redbeat.broker.producer import BoundedProducer
from redbeat.broker.replacements import Family
from tests.support.ticks import memory_app

#: how this module is named in a reason
HERE = __name__


@pytest.fixture
def app() -> Celery:
    return memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")


def find(app: Celery, scheduler: type[RedBeatScheduler] = RedBeatScheduler) -> str:
    return Originals(app).find_obstacle(scheduler(app, lazy=True))


def traced(original: Any) -> Any:
    """A decorator that hides itself as well as one can."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    wrapper.__wrapped__ = original
    wrapper.__qualname__ = original.__qualname__
    wrapper.__defaults__ = original.__defaults__
    return wrapper


def test_nothing_takes_part_in_a_plain_app(app: Celery) -> None:
    assert find(app) == ""


def test_what_a_message_makes_in_the_app_is_no_obstacle(app: Celery) -> None:
    app.send_task("echo")
    app.amqp.queues.add("another")
    assert {"send_task_message", "create_task_message", "router", "queues"} <= vars(app.amqp).keys()
    assert find(app) == ""


# -- replaced on a class, or in a module

REPLACEABLE: dict[str, tuple[Any, str, str]] = {
    f"{owner.__name__}.{name}": (owner, name, f"{owner.__name__}.{name}")
    for owner, name in [
        (Task, "apply_async"),
        (Task, "shadow_name"),
        (Task, "_get_exec_options"),
        (Celery, "send_task"),
        (Celery, "producer_or_acquire"),
        (AMQP, "as_task_v2"),
        (AMQP, "_create_task_sender"),
        (celery.app.routes.Router, "route"),
        (celery.app.routes.MapRoute, "__call__"),
        (Signal, "send"),
        (Scheduler, "apply_async"),
        (Scheduler, "send_task"),
        (RedBeatScheduler, "apply_async"),
        (Entry, "is_due"),
        (Producer, "publish"),
        (Producer, "_publish"),
        (Producer, "_prepare"),
        (Producer, "maybe_declare"),
        (BoundedProducer, "publish"),
        (Connection, "_reraise_as_library_errors"),
        (VirtualChannel, "basic_publish"),
        (VirtualChannel, "_inplace_augment_message"),
        (VirtualChannel, "prepare_message"),
        (VirtualChannel, "_next_delivery_tag"),
        (kombu.transport.redis.Channel, "_put"),
        (kombu.transport.redis.Channel, "_q_for_pri"),
        (kombu.utils.json.JSONEncoder, "default"),
        (json.JSONEncoder, "encode"),
        (celery.app.amqp, "saferepr"),
        (celery.app.amqp, "anon_nodename"),
        (celery.utils.saferepr, "reprstream"),
        (celery.beat, "_evaluate_entry_args"),
        (celery.beat, "_evaluate_entry_kwargs"),
        (kombu.messaging, "dumps"),
        (kombu.messaging, "compress"),
        (kombu.messaging, "maybe_declare"),
        (kombu.transport.redis, "dumps"),
        (kombu.transport.virtual.base, "uuid"),
    ]
    if hasattr(owner, name)
}


@pytest.mark.parametrize("where", REPLACEABLE)
def test_a_replaced_function_is_named_with_who_replaced_it(
    where: str, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, label = REPLACEABLE[where]
    monkeypatch.setattr(owner, name, traced(getattr(owner, name)))
    assert find(app) == f"{HERE} replaces {label}"


@pytest.mark.parametrize("where", REPLACEABLE)
def test_a_function_that_is_put_back_is_no_obstacle_any_more(
    where: str, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, _ = REPLACEABLE[where]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, traced(getattr(owner, name)))
        assert find(app)
    assert find(app) == ""


def test_a_replaced_property_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedBeatScheduler, "producer", property(lambda self: None))
    assert find(app) == f"{HERE} replaces RedBeatScheduler.producer"


def test_an_inherited_function_that_a_class_gets_itself_is_found(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = kombu.transport.redis.Channel
    monkeypatch.setattr(channel, "basic_publish", traced(channel.basic_publish), raising=False)
    scheduler = RedBeatScheduler(app, lazy=True)
    assert "basic_publish" in vars(channel)
    assert Originals(app).find_obstacle(scheduler) == f"{HERE} replaces Channel.basic_publish"


def test_code_that_is_changed_in_place_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self: Any, *args: Any, **kwargs: Any) -> None: ...

    monkeypatch.setattr(Producer.publish, "__code__", publish.__code__)
    assert find(app).endswith("has changed kombu.messaging.Producer.publish")


def test_a_changed_default_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortest(*args: Any, **kwargs: Any) -> str:
        return json.dumps(*args, **kwargs, separators=(",", ":"))

    first, *others = kombu.utils.json.dumps.__defaults__
    assert first is json.dumps
    monkeypatch.setattr(kombu.utils.json.dumps, "__defaults__", (shortest, *others))
    assert find(app).endswith("has changed kombu.utils.json.dumps")


class FunctionWrapper:
    """As wrapt's: it says that it is what it stands for."""

    def __init__(self, wrapped: Any, wrapper: Callable[..., Any]) -> None:
        self.__wrapped__ = wrapped
        self._self_wrapper = wrapper

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return FunctionType

    def __get__(self, subject: Any, owner: type | None = None) -> Any:
        return self.__wrapped__.__get__(subject, owner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, None, args, kwargs)


def test_a_proxy_that_is_equal_to_the_original_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FunctionWrapper(
        Task.apply_async, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs)
    )
    assert proxy == Task.apply_async
    assert isinstance(proxy, FunctionType)
    monkeypatch.setattr(Task, "apply_async", proxy)
    assert find(app) == f"{HERE} replaces Task.apply_async"


def test_a_mock_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producer, "publish", MagicMock(side_effect=Producer.publish))
    assert find(app) == "unittest.mock replaces Producer.publish"


def test_a_function_that_is_gone_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RedBeatScheduler, "apply_async")
    assert find(app) == "RedBeatScheduler.apply_async is gone"


#: what the watched functions call besides, and why it has no say in a message
BESIDE = {
    Task: {"apply": "only with task_always_eager", "bind": "only once"},
    Celery: {
        "_acquire_producer": "only without a producer",
        "producer_pool": "only without a producer",
        "connection": "only without a producer",
        "_backend": "told of a run, if at all",
        "_get_backend": "told of a run, if at all",
        "_load_config": "only once",
        "finalize": "only once",
        "subclass_with_self": "only once",
        "oid": "only once",
    },
    AMQP: {"_event_dispatcher": "of events"},
    celery.app.amqp.Queues: {"add_compat": "of the settings of Celery 2"},
    AsyncResult: {"_on_fulfilled": "of those who wait for a result"},
    BoundedProducer: {"revive": "only for a new channel"},
    Connection: {
        "recoverable_channel_errors": "of errors",
        "recoverable_connection_errors": "of errors",
    },
    VirtualChannel: {
        "_binding_ttl": "of declarations",
        "_new_queue": "of declarations",
        "_refresh_binding": "of declarations",
        "_script_binding_deadlines": "of declarations",
        "conn_or_acquire": "replaced while messages are collected",
        "state": "of declarations",
    },
    Signal: {"_clear_dead_receivers": "there is no receiver"},
}


def methods_called(family: Family) -> Iterator[tuple[type, str]]:
    """The class and name of each method that a family's functions call, but that isn't watched."""
    classes = [base for base in family.classes if base.__module__ != "builtins"]
    watched = {name for namespace in family.namespaces for name in namespace.names}
    for function in (one for namespace in family.namespaces for one in namespace.functions):
        for name in set(function.__code__.co_names) - watched:
            for base in classes:
                found = vars(base).get(name)
                if isinstance(found, (FunctionType, classmethod, staticmethod, property, cached_property)):
                    yield base, name


def test_no_function_on_the_way_is_left_out() -> None:
    """A new Celery or kombu may have new ones."""
    families = [*vars(originals).values(), *originals._OTHERS]  # noqa: SLF001
    found = {
        (family.classes[0].__name__, base.__name__, name)
        for family in families
        if isinstance(family, Family) and family.classes[0] not in (Outbox, Confirms)
        for base, name in methods_called(family)
        if not any(name in known for cls, known in BESIDE.items() if issubclass(family.classes[0], cls))
    }
    assert found == set()


# -- overridden by a subclass, or on one object


def test_a_schedulers_own_apply_async_is_found(app: Celery) -> None:
    class Shop(RedBeatScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_async(*args, **kwargs)

    assert find(app, Shop) == f"{HERE}.{Shop.__qualname__} overrides apply_async"


def test_a_class_between_redbeats_and_celerys_scheduler_is_found(app: Celery) -> None:
    class Counting(Scheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_async(*args, **kwargs)

    class Shop(RedBeatScheduler, Counting):
        pass

    assert find(app, Shop) == f"{HERE}.{Counting.__qualname__} overrides apply_async"


def test_a_scheduler_that_overrides_something_else_is_plain(app: Celery) -> None:
    class Shop(RedBeatScheduler):
        def setup_schedule(self) -> None: ...

    assert find(app, Shop) == ""


def test_a_scheduler_that_answers_for_its_attributes_is_found(app: Celery) -> None:
    class Shop(RedBeatScheduler):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    assert find(app, Shop) == f"{HERE}.{Shop.__qualname__} overrides __getattribute__"


def test_a_class_of_entries_of_ones_own_is_found(app: Celery) -> None:
    class ShopEntry(Entry):
        pass

    class Shop(RedBeatScheduler):
        Entry = ShopEntry

    reason = "the scheduler has a class of entries of its own"
    assert find(app, Shop) == f"{reason}: {HERE}.{ShopEntry.__qualname__}"


def test_an_attribute_of_one_object_is_found(app: Celery) -> None:
    scheduler = RedBeatScheduler(app, lazy=True)
    scheduler.apply_async = traced(scheduler.apply_async)  # type: ignore[method-assign]
    assert Originals(app).find_obstacle(scheduler) == f"{HERE} replaces apply_async of one RedBeatScheduler"


def test_an_app_of_ones_own_class_is_found() -> None:
    class Shop(Celery):
        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            return super().send_task(*args, **kwargs)

    app = Shop("shop", broker="memory://", set_as_current=False)
    assert Originals(app).find_obstacle() == f"{HERE}.{Shop.__qualname__} overrides send_task"


def test_an_amqp_of_ones_own_class_is_found(app: Celery) -> None:
    class Shop(AMQP):
        def as_task_v2(self, *args: Any, **kwargs: Any) -> Any:
            return super().as_task_v2(*args, **kwargs)

    app.amqp = Shop(app)
    assert find(app) == f"{HERE}.{Shop.__qualname__} overrides as_task_v2"


@pytest.mark.parametrize("name", ["send_task_message", "create_task_message"])
def test_what_is_laid_over_app_amqp_is_found(name: str, app: Celery) -> None:
    setattr(app.amqp, name, traced(getattr(app.amqp, name)))
    assert find(app) == f"{HERE} replaces AMQP.{name}"


def test_a_queue_table_of_ones_own_is_found(app: Celery) -> None:
    class Shop(celery.app.amqp.Queues):
        def __missing__(self, name: str) -> Any:
            return super().__missing__(name)

    app.amqp.queues_cls = Shop
    assert find(app) == f"{HERE}.{Shop.__qualname__} overrides __missing__"
    assert type(app.amqp.queues) is Shop
    assert find(app) == f"{HERE}.{Shop.__qualname__} overrides __missing__"


def test_a_registry_of_ones_own_is_found() -> None:
    class Registry(TaskRegistry):
        def get(self, name: str, default: Any = None) -> Any:
            return super().get(name, default)

    app = Celery("shop", broker="memory://", set_as_current=False, tasks=Registry())
    assert Originals(app).find_obstacle() == f"{HERE}.{Registry.__qualname__} overrides get"


def test_a_value_of_entries_that_is_computed_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "kwargs", property(lambda self: {}), raising=False)
    assert find(app) == f"{HERE} replaces RedBeatSchedulerEntry.kwargs"


def test_an_app_behind_celerys_proxy_is_judged_itself(app: Celery) -> None:
    assert Originals(Proxy(lambda: app)).find_obstacle() == ""


# -- signals


@contextmanager
def connected(signal: Any, receiver: Any, **options: Any) -> Iterator[None]:
    signal.connect(receiver, **options)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=options.get("sender"))


def add_headers(**said: Any) -> None: ...


SIGNALS = ["before_task_publish", "after_task_publish", "task_sent"]


@pytest.mark.parametrize("is_used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("options", [{}, {"weak": False}, {"sender": "shop.add"}, {"retry": True}], ids=str)
@pytest.mark.parametrize("name", SIGNALS)
def test_a_receiver_is_named(name: str, options: dict[str, Any], is_used: bool, app: Celery) -> None:
    if is_used:
        app.send_task("echo")
    with connected(getattr(signals, name), add_headers, **options):
        assert find(app) == f"a receiver of {name}: {HERE}.add_headers"
    assert find(app) == ""


def test_a_receiver_that_is_a_method_is_named(app: Celery) -> None:
    class Tracer:
        def start(self, **said: Any) -> None: ...

    tracer = Tracer()
    with connected(signals.before_task_publish, tracer.start):
        assert find(app) == f"a receiver of before_task_publish: {HERE}.{Tracer.__qualname__}.start"


def test_a_dead_receiver_is_none(app: Celery) -> None:
    def shortlived(**said: Any) -> None: ...

    signals.before_task_publish.connect(shortlived)
    assert find(app)
    del shortlived
    assert signals.before_task_publish.receivers
    assert find(app) == ""
    signals.before_task_publish.disconnect(add_headers)  # clears the dead ones


def test_receivers_of_celery_and_redbeat_do_not_count(app: Celery) -> None:
    for package in ("celery.somewhere", "redbeat.somewhere"):
        namespace: dict[str, Any] = {"__name__": package}
        exec("def note(**said): pass", namespace)
        with connected(signals.before_task_publish, namespace["note"]):
            assert find(app) == ""


def test_a_receiver_that_only_says_it_is_celerys_counts(app: Celery) -> None:
    def note(**said: Any) -> None: ...

    note.__module__ = "celery.somewhere"
    with connected(signals.before_task_publish, note):
        assert find(app)


# -- routes, and the configuration


def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> Any: ...


class ShopRouter:
    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any: ...


@pytest.mark.parametrize("is_used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize(
    ("routes", "named"),
    [
        (route, f"{HERE}.route"),
        ([{"shop.*": "fast"}, route], f"{HERE}.route"),
        (f"{HERE}.route", f"{HERE}.route"),
        (ShopRouter(), f"{HERE}.ShopRouter"),
        (f"{HERE}.ShopRouter", f"{HERE}.ShopRouter"),
    ],
    ids=["function", "after a table", "by name", "object", "class by name"],
)
def test_a_router_that_is_a_function_is_named(routes: Any, named: str, is_used: bool) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", task_routes=routes)
    if is_used:
        app.send_task("echo")
    assert find(app) == f"task_routes has a function: {named}"


def test_a_table_of_routes_is_no_obstacle() -> None:
    routes = [{"shop.*": {"queue": "fast", "priority": 3}}, [("mail.send", "mail")]]
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", task_routes=routes)
    app.send_task("mail.send")
    assert find(app) == ""


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"task_protocol": 1}, "task_protocol is 1"),
        ({"task_always_eager": True}, "task_always_eager is set"),
        ({"task_compression": "gzip"}, "task_compression is 'gzip'"),
        ({"task_serializer": "shop"}, "the serializer 'shop' isn't kombu's own"),
    ],
    ids=str,
)
def test_a_setting_that_changes_the_way_is_named(settings: dict[str, Any], reason: str) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", **settings)
    assert find(app) == reason
    _ = app.amqp.send_task_message, app.amqp.create_task_message
    assert find(app) == reason


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_kombus_own_serializers_are_no_obstacle(serializer: str) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", task_serializer=serializer)
    assert find(app) == ""


def test_a_serializer_that_is_registered_anew_is_named(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    def dumps(data: Any) -> str:
        return json.dumps(data, indent=1)

    encoders = vars(kombu.serialization.registry)["_encoders"]
    monkeypatch.setitem(encoders, "json", encoders["json"]._replace(encoder=dumps))
    assert find(app) == f"{HERE} replaces the serializer 'json'"


def test_a_type_that_json_gets_another_encoder_for_is_named(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def day(value: datetime) -> str:
        return f"{value:%Y-%m-%d}"

    monkeypatch.setitem(vars(kombu.utils.json)["_encoders"], datetime, ("datetime", day))
    assert find(app) == f"{HERE} replaces the JSON encoder of datetime"


def test_a_message_that_a_workers_task_sends_is_not_plain(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = SimpleNamespace(request=SimpleNamespace(called_directly=False))
    monkeypatch.setattr(celery._state, "_task_stack", SimpleNamespace(stack=[parent]))  # noqa: SLF001
    assert app.current_worker_task is parent
    assert find(app) == "a task of a worker sends it"


# -- one task


def judge(app: Celery, **options: Any) -> str:
    @app.task(name="shop.add", **options)
    def add(a: int, b: int = 2) -> None: ...

    return Originals(app).find_task_obstacle(app.tasks["shop.add"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bind": True},
        {"queue": "fast"},
        {"typing": False},
        {"autoretry_for": (OSError,)},
        {"serializer": "yaml"},
    ],
    ids=str,
)
def test_a_plain_task_has_no_obstacle(options: dict[str, Any], app: Celery) -> None:
    assert judge(app, **options) == ""


def test_a_task_that_the_app_has_not_got_has_no_obstacle(app: Celery) -> None:
    assert Originals(app).find_task_obstacle(None) == ""


class Tracing(Task):
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


def test_a_tasks_own_class_is_named(app: Celery) -> None:
    assert judge(app, base=Tracing) == f"{HERE}.Tracing overrides apply_async"


def test_the_apps_own_class_of_tasks_is_named() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False, task_cls=Tracing)
    assert judge(app) == f"{HERE}.Tracing overrides apply_async"


def test_a_value_that_a_task_computes_is_named(app: Celery) -> None:
    class Computing(Task):
        @property
        def ignore_result(self) -> bool:
            return bool(self.app)

    assert judge(app, base=Computing) == f"{HERE}.{Computing.__qualname__} computes ignore_result"


def test_an_attribute_of_one_task_is_named(app: Celery) -> None:
    judge(app)
    task = app.tasks["shop.add"]
    task.apply_async = traced(task.apply_async)
    assert Originals(app).find_task_obstacle(task) == f"{HERE} replaces apply_async of one add"


def test_an_option_of_the_decorator_that_is_a_function_is_named(app: Celery) -> None:
    def shadow_name(task: Any, args: Any, kwargs: Any, options: Any) -> str:
        return "shadow"

    assert judge(app, shadow_name=shadow_name) == f"{HERE}.add overrides shadow_name"


def test_an_annotation_that_wraps_apply_async_is_named() -> None:
    app = memory_app(
        redbeat_redis_url="redis://127.0.0.1:1/0", task_annotations={"*": {"@apply_async": traced}}
    )
    assert judge(app) == f"{HERE}.add overrides apply_async"


def test_a_task_that_checks_its_arguments_itself_is_named(app: Celery) -> None:
    def check(*args: Any, **kwargs: Any) -> None: ...

    assert judge(app, __header__=staticmethod(check)) == "the task checks its arguments in its own way"


def test_a_tasks_serializer_is_judged(app: Celery) -> None:
    assert judge(app, serializer="shop") == "the serializer 'shop' isn't kombu's own"


@pytest.mark.skipif(
    not hasattr(Task, "_dump_pydantic_arguments"), reason="this Celery dumps models in the worker only"
)
def test_a_task_with_models_is_named(app: Celery) -> None:
    pytest.importorskip("pydantic")
    assert judge(app, pydantic=True) == "the task has pydantic=True"


# -- replaced before RedBeat was imported

EARLY = """
import functools, sys
{patch}
from celery import Celery
from redbeat.schedulers import RedBeatScheduler
from redbeat.broker import originals
from redbeat.broker.originals import Originals
from redbeat.broker.confirms import Confirms
from redbeat.broker.outbox import Outbox
app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.redbeat_redis_url = "redis://127.0.0.1:1/0"
print(Originals(app).find_obstacle(RedBeatScheduler(app, lazy=True)))
"""

PATCHES = {
    "Task.apply_async": "from celery.app.task import Task as owner; name = 'apply_async'",
    "Producer.publish": "from kombu.messaging import Producer as owner; name = 'publish'",
    "Scheduler.apply_async": "from celery.beat import Scheduler as owner; name = 'apply_async'",
    "Channel._put": "from kombu.transport.redis import Channel as owner; name = '_put'",
    "celery.app.amqp.saferepr": "import celery.app.amqp as owner; name = 'saferepr'",
    "kombu.transport.redis.dumps": "import kombu.transport.redis as owner; name = 'dumps'",
}

REPLACE = """
original = getattr(owner, name)
def replacement(*args, **kwargs):
    return original(*args, **kwargs)
replacement = functools.update_wrapper(replacement, original)
setattr(owner, name, replacement)
"""


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("where", PATCHES)
def test_what_was_replaced_before_redbeat_was_imported_is_found(where: str) -> None:
    assert run(EARLY.format(patch=PATCHES[where] + REPLACE)) == f"__main__ replaces {where}"


@pytest.mark.few_cases(2)
@pytest.mark.parametrize(
    "patch",
    [
        "",
        "from gevent import monkey; monkey.patch_all()",
        "import eventlet; eventlet.monkey_patch()",
        "import django; from django.conf import settings; settings.configure(); django.setup()",
    ],
    ids=["plain", "gevent", "eventlet", "Django"],
)
def test_what_has_no_say_in_messages_is_no_obstacle(patch: str) -> None:
    assert run(EARLY.format(patch=patch)) == ""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_replaced_function_that_raises_is_named_all_the_same(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Celery) -> None:
        raise ValueError("something strange")

    monkeypatch.setattr(Celery, "amqp", property(fail))
    assert Originals(app).find_obstacle() == f"{HERE} replaces Celery.amqp"
