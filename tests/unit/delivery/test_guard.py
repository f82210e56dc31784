"""Code that looks on while messages are made is found and named, so that Celery itself makes them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any
from unittest.mock import MagicMock

import kombu.messaging
import kombu.serialization
import kombu.transport.redis
import kombu.utils.json
import pytest
from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.beat import Scheduler
from celery.utils.dispatch.signal import Signal
from kombu import Producer

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.delivery.guard import find_obstacle, find_task_obstacle
from tests.support.ticks import memory_app

HERE = __name__
URL = "redis://127.0.0.1:1/0"


@pytest.fixture
def app() -> Celery:
    return memory_app(redbeat_redis_url=URL)


def find(app: Celery, scheduler: type[RedBeatScheduler] = RedBeatScheduler) -> str:
    return find_obstacle(app, scheduler(app, lazy=True))


def traced(original: Any) -> Any:
    """Wrap a function, and hide it as well as possible."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    wrapper.__wrapped__ = original
    wrapper.__qualname__ = original.__qualname__
    wrapper.__defaults__ = original.__defaults__
    return wrapper


def test_plain_app_has_no_obstacle_before_and_after_a_message(app: Celery) -> None:
    assert find(app) == ""
    app.send_task("echo")
    app.amqp.queues.add("another")
    assert find(app) == ""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Task, "apply_async"),
        (Celery, "send_task"),
        (Scheduler, "apply_async"),
        (RedBeatScheduler, "maybe_due"),
        (Producer, "publish"),
        (Producer, "_publish"),
        (AMQP, "as_task_v2"),
        (Signal, "send"),
        (Entry, "is_due"),
    ],
)
def test_patched_function_is_named_until_it_is_restored(
    app: Celery, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, traced(getattr(owner, name)))
        assert find(app) == f"{HERE} replaces {owner.__name__}.{name}"
    assert find(app) == ""


def test_function_that_was_replaced_before_the_import_is_named() -> None:
    program = (
        "from celery import Celery; from kombu import Producer; original = Producer.publish; "
        "Producer.publish = lambda *args, **kwargs: original(*args, **kwargs); "
        "from redbeat.delivery.guard import find_obstacle; print(find_obstacle(Celery('shop')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ replaces Producer.publish\n"


sentrys = pytest.importorskip("sentry_sdk.integrations.celery")
wrap = getattr(sentrys, "_wrap_task_run", None) or sentrys._wrap_apply_async  # noqa: SLF001 - as in 2.0


@pytest.mark.parametrize("change", [wrap, lambda original: wrap(wrap(original))])
def test_wrapper_of_sentry_does_not_count(
    app: Celery, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(Task, "apply_async", change(Task.apply_async))
    assert find(app) == ""


def test_wrapper_of_sentry_around_that_of_another_tool_counts(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "apply_async", wrap(traced(Task.apply_async)))
    assert find(app).endswith("replaces Task.apply_async")


class FunctionWrapper:
    """A proxy like those of wrapt, which pretends to be the function."""

    __class__ = FunctionType  # type: ignore[assignment]

    def __init__(self, wrapped: Any) -> None:
        self.__wrapped__ = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == other)

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


def _shortest(*args: Any, **kwargs: Any) -> str:
    return json.dumps(*args, **kwargs, separators=(",", ":"))


ENCODERS = vars(kombu.serialization.registry)["_encoders"]
#: how a program can take part without an assignment of a function, and what is said of it
HIDDEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "property": (
        lambda patch: patch.setattr(RedBeatScheduler, "producer", property(lambda _: None)),
        f"{HERE} replaces RedBeatScheduler.producer",
    ),
    "proxy": (
        lambda patch: patch.setattr(Task, "apply_async", FunctionWrapper(Task.apply_async)),
        f"{HERE} replaces Task.apply_async",
    ),
    "mock": (
        lambda patch: patch.setattr(Producer, "publish", MagicMock()),
        "unittest.mock replaces Producer.publish",
    ),
    "serializer": (
        lambda patch: patch.setitem(ENCODERS, "json", ENCODERS["json"]._replace(encoder=_shortest)),
        "the serializer 'json' isn't kombu's own",
    ),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_change_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    change, said = HIDDEN[kind]
    with monkeypatch.context() as patch:
        change(patch)
        found = find(app)
    assert found.endswith(said)


def own(base: Any, name: str) -> Any:
    """Return a subclass that overrides a method, and calls the original."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(base, name)(self, *args, **kwargs)

    return type(f"Own{base.__name__}", (base,), {name: method})


class Mixed(RedBeatScheduler, own(Scheduler, "apply_async")): ...


class WithEntry(RedBeatScheduler):
    class Entry(Entry): ...


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (Mixed, f"{HERE}.OwnScheduler overrides apply_async"),
        (own(RedBeatScheduler, "maybe_due"), f"{HERE}.OwnRedBeatScheduler overrides maybe_due"),
        (WithEntry, f"the scheduler has a class of entries of its own: {HERE}.WithEntry.Entry"),
        (own(RedBeatScheduler, "setup_schedule"), ""),
    ],
)
def test_override_of_a_scheduler_is_named(app: Celery, scheduler: type[RedBeatScheduler], said: str) -> None:
    assert find(app, scheduler) == said


def test_override_of_an_app_or_of_its_parts_is_named(app: Celery) -> None:
    options: dict[str, Any] = {"broker": "memory://", "set_as_current": False}
    found = find_obstacle(own(Celery, "send_task")(**options))
    assert found == f"{HERE}.OwnCelery overrides send_task"
    app.amqp = own(AMQP, "as_task_v2")(app)
    assert find(app) == f"{HERE}.OwnAMQP overrides as_task_v2"


def test_class_of_producers_of_the_app_is_named(app: Celery) -> None:
    app.amqp.Producer = own(Producer, "publish")
    assert find(app) == f"the app has a class of producers of its own: {HERE}.OwnProducer"


def test_attribute_of_one_object_is_named(app: Celery) -> None:
    scheduler = RedBeatScheduler(app, lazy=True)
    scheduler.apply_async = traced(scheduler.apply_async)  # type: ignore[method-assign]
    assert find_obstacle(app, scheduler) == f"{HERE} replaces apply_async of one RedBeatScheduler"
    app.amqp.send_task_message = traced(app.amqp.send_task_message)
    assert find(app) == f"{HERE} replaces send_task_message of one AMQP"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("before_task_publish", {}),
        ("after_task_publish", {"weak": False}),
        ("task_sent", {"sender": "shop.add"}),
    ],
)
def test_signal_receiver_is_named_until_it_is_gone(app: Celery, name: str, options: dict[str, Any]) -> None:
    def note(**said: Any) -> None: ...

    note.__module__ = "celery.somewhere"  # the file counts, and not what it says of itself
    signal = getattr(signals, name)
    signal.connect(note, **options)
    try:
        assert find(app).startswith(f"a receiver of {name}: ")
    finally:
        signal.disconnect(note, sender=options.get("sender"))
    assert find(app) == ""


def test_signal_receiver_of_celery_does_not_count(app: Celery) -> None:
    namespace: dict[str, Any] = {"__name__": "celery.somewhere"}
    exec("def note(**said): pass", namespace)
    signals.before_task_publish.connect(namespace["note"])
    try:
        assert find(app) == ""
    finally:
        signals.before_task_publish.disconnect(namespace["note"])


def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> Any: ...


class ShopRouter:
    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any: ...


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task_routes": [{"shop.*": {"queue": "fast"}}, [("mail.send", "mail")]]}, ""),
        ({"task_routes": [{"shop.*": "fast"}, route]}, f"task_routes has a function: {HERE}.route"),
        ({"task_routes": f"{HERE}.ShopRouter"}, f"task_routes has a function: {HERE}.ShopRouter"),
        ({"task_routes": ShopRouter()}, f"task_routes has a function: {HERE}.ShopRouter"),
        ({"task_protocol": 1}, "task_protocol is 1"),
        ({"task_always_eager": True}, "task_always_eager is set"),
        ({"task_compression": "gzip"}, "task_compression is 'gzip'"),
        ({"task_serializer": "pickle"}, ""),
        ({"task_serializer": "shop"}, "the serializer 'shop' isn't kombu's own"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_setting_that_changes_how_messages_are_made_is_named(settings: dict[str, Any], said: str) -> None:
    assert find(memory_app(redbeat_redis_url=URL, **settings)) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bind": True}, ""),
        ({"typing": False}, ""),
        ({"base": own(Task, "apply_async")}, f"{HERE}.OwnTask overrides apply_async"),
        ({"base": own(Task, "shadow_name")}, f"{HERE}.OwnTask overrides shadow_name"),
        ({"base": own(Task, "__call__")}, ""),
        ({"apply_async": lambda *_: None}, f"{HERE}.add overrides apply_async"),
        ({"serializer": "shop"}, "the serializer 'shop' isn't kombu's own"),
    ],
)
def test_override_of_a_task_is_named(app: Celery, options: dict[str, Any], said: str) -> None:
    @app.task(name="shop.add", **options)
    def add(a: int, b: int = 2) -> None: ...

    assert find_task_obstacle(app.tasks["shop.add"]) == said
