"""Reasons why Celery must make messages itself, because other code takes part or looks on.

Code that *changes* messages shows when samples are compared (``templates``). The guard looks for code that
only looks on: receivers of Celery's signals about publishing, and replaced or overridden functions. It looks
at few functions, those that tracing tools replace. It also looks for code that may look at the arguments of
each call, such as routers that are functions.

Functions are compared by identity with those remembered at import. A function that is not Celery's, kombu's
or RedBeat's own at import counts as replaced.

``read_state`` returns all of it as one value. As long as it is equal, the reasons need not be looked for.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Iterator
from itertools import repeat
from types import FunctionType, MethodType
from typing import Any

import celery
import celery.beat
from celery import signals
from celery.app import routes
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router
from celery.app.task import Task
from celery.local import Proxy
from celery.utils.dispatch.signal import Signal
from kombu.messaging import Producer
from kombu.serialization import registry
from kombu.transport.redis import Channel as RedisChannel
from kombu.utils import json as kombu_json
from kombu.utils.functional import lazy

from redbeat.config.config import RedBeatConfig
from redbeat.delivery.outbox import Outbox
from redbeat.delivery.producer import BoundedProducer
from redbeat.delivery.tracers import TRACE_API, find_monitoring, is_idle, is_wrapped_by_sentry
from redbeat.log.text import joined, printable, shorten

NOT_COLLECTED = "this version of kombu sends messages in a way that RedBeat doesn't know"

_OWN = ("celery", "kombu", "redbeat")
#: methods of RedBeat's scheduler that a run passes through
_OF_SCHEDULER = (
    *("apply_async", "send_task", "producer", "maybe_due", "apply_entry", "reserve"),
    *("should_sync", "sync", "_do_sync"),
)
_OF_TASK = ("apply_async", "shadow_name")
_OF_CHANNEL = ("basic_publish", "_put")
#: settings that all messages depend on
_SETTINGS = (
    *("task_serializer", "task_always_eager", "task_protocol", "task_compression", "task_send_sent_event"),
    *("task_default_queue", "task_repr_maxlevels"),
)
_OF_AMQP = (
    *("as_task_v2", "_create_task_sender", "create_task_message", "send_task_message", "Producer"),
    *("router", "queues"),
)
#: code of the function that Celery makes for ``app.amqp.send_task_message``
_SENDER_CODES = tuple(
    one
    for one in AMQP._create_task_sender.__code__.co_consts  # noqa: SLF001 - it has no public name
    if getattr(one, "co_name", "") == "send_task_message"
)
_SIGNALS = [
    vars(signals)[name]
    for name in ("before_task_publish", "after_task_publish", "task_sent")
    if name in vars(signals)
]


def find_obstacle(app: Any, scheduler: Any = None) -> str:
    """Return all reasons that concern every message, such as "ddtrace replaces Task.apply_async"; '': none.

    ``scheduler``: the one that sends, or its class.
    """
    if isinstance(app, Proxy):
        app = app._get_current_object()  # noqa: SLF001
    of_scheduler = "" if scheduler is None else find_scheduler_obstacle(scheduler)
    return joined(*_replaced(), *_of_app(app), of_scheduler)


def read_state(app: Any, scheduler: Any, channel: Any) -> tuple[Any, ...]:
    """Return what all messages depend on, and the reasons: as long as it is equal, so are both.

    That does not hold for a reason that is there. Celery has read other settings when it made these objects.

    Arguments:
        scheduler: None: messages are not sent by one.
        channel: of the producer that sends them.

    Raises:
        Exception: whatever Celery raises of settings that are unusable.
    """
    if isinstance(app, Proxy):
        app = app._get_current_object()  # noqa: SLF001
    amqp, settings = app.amqp, list(map(app.conf.get, _SETTINGS))
    is_watched = "sentry_sdk" in sys.modules and find_monitoring() != ""
    objects = [getattr(owner, name, None) for owner, name, _ in _FUNCTIONS]
    objects += [receiver for signal in _SIGNALS for _, receiver in signal.receivers]
    objects.append(registry._encoders.get(settings[0]))  # noqa: SLF001 - it has no public name
    objects += (amqp.create_task_message, amqp.send_task_message, amqp.queues)  # Celery makes them now
    objects += getattr(amqp.router, "routes", ())
    of_scheduler = () if scheduler is None else ((scheduler, ("Entry", *_OF_SCHEDULER)),)
    subjects = (app, ("send_task",)), (amqp, _OF_AMQP), (channel, _OF_CHANNEL), *of_scheduler
    for subject, names in subjects:
        objects += map(vars(subject).get, names)
        objects += map(getattr, repeat(type(subject)), names, repeat(None))
    return (
        # by identity, as a wrapper may be equal to the original; the objects are kept, and so their ids
        *(list(map(id, objects)), objects),
        *(os.getpid(), app.thread_oid, app.current_worker_task, is_watched, *settings),
        *(amqp, amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize),
        list(getattr(kombu_json, "_encoders", {}).items()),
    )


def find_provider() -> Any:
    """Return the tracer provider of this process; None if it is the API's own, which records nothing."""
    get_provider = getattr(sys.modules.get(TRACE_API), "get_tracer_provider", None)
    if get_provider is None:
        return None
    try:
        provider = get_provider()
    except Exception:  # noqa: BLE001 - the provider that the environment names is missing; the API says so
        return None
    return None if type(provider).__module__ == TRACE_API else provider


def find_setting_obstacle(config: RedBeatConfig) -> str:
    """Return all RedBeat settings that turn templates off; '': none."""
    return joined(
        "" if config.templates else "redbeat_templates is False",
        "" if config.message_cache_bytes else "redbeat_message_cache_bytes is 0",
        "task_send_sent_event is set" if config.app.conf.task_send_sent_event else "",
        "" if config.sentry else find_monitoring(),
    )


def find_broker_obstacle(app: Any) -> str:
    """Return a reason in the kind of broker, without a connection to it; '': none."""
    transport = app.connection_for_write().get_transport_cls()
    if transport.driver_name == "py-amqp":
        is_confirmed = (app.conf.broker_transport_options or {}).get("confirm_publish", True)
        return "" if is_confirmed else "confirm_publish is False"
    return "" if transport.driver_type == "redis" else "the broker is neither Redis nor RabbitMQ"


def find_channel_obstacle(channel: Any) -> str:
    """Return a reason between a channel and its outbox: a sample must not send by other code than kombu's."""
    if not isinstance(channel, RedisChannel):
        return ""
    put = vars(channel).get("_put")
    if type(getattr(put, "__self__", None)) is not Outbox:
        return f"{source_of(put)} replaces Channel._put"
    return _find_override(type(channel), RedisChannel, _OF_CHANNEL)


def find_task_obstacle(task: Any) -> str:
    """Return a reason in the class of a task, or in the task itself; '': none.

    ``task``: None if it is not registered, so that it is sent by its name.
    """
    if task is None:
        return ""
    found = _find_override(task, Task, _OF_TASK)
    if found:
        return found
    if getattr(task, "_dump_pydantic_arguments", None) is not None:
        return "the task has pydantic=True"
    return "" if task.serializer is None else find_serializer_obstacle(task.serializer)


def find_serializer_obstacle(name: str) -> str:
    """Return a reason if the serializer ``name`` is not kombu's own; '': it is."""
    is_kombus = name in _SERIALIZERS and codec_of(name) is _SERIALIZERS[name]
    return "" if is_kombus else f"the serializer {name!r} isn't kombu's own"


def find_scheduler_obstacle(scheduler: Any) -> str:
    """Return a reason in a scheduler, or in its class; '': none."""
    base, entry_class = _SCHEDULER
    found = _find_override(scheduler, base, _OF_SCHEDULER)
    if not found and scheduler.Entry is not entry_class:
        return f"the scheduler has a class of entries of its own: {describe(scheduler.Entry)}"
    return found


# -- the functions


def remember_scheduler(scheduler: type, entry: type) -> None:
    """Remember RedBeat's own classes when they are defined."""
    _SCHEDULER.extend((scheduler, entry))
    _FUNCTIONS.extend((*_remember(scheduler, *_OF_SCHEDULER), *_remember(entry, "is_due")))


def _remember(owner: type, *names: str) -> Iterator[tuple[type, str, Any]]:
    """Yield methods as they are now; None for those that are replaced already."""
    for name in names:
        present = getattr(owner, name)
        yield owner, name, present if root_of(present) in _OWN else None


def _replaced() -> list[str]:
    """Return one replaced function for each tool that has replaced any."""
    found: dict[str, str] = {}
    for owner, name, original in _FUNCTIONS:
        present = getattr(owner, name, None)
        if present is not original and not is_wrapped_by_sentry(present, original):
            found.setdefault(source_of(present), f"replaces {owner.__name__}.{name}")
    return [" ".join(one) for one in found.items()]


def _find_override(subject: Any, base: type, names: tuple[str, ...]) -> str:
    """Return which of ``names`` an object, or its class, does not have from ``base``; '': none."""
    is_class = isinstance(subject, type)
    cls = subject if is_class else type(subject)
    for one in () if cls is base else cls.__mro__:
        if one not in base.__mro__ and not vars(one).keys().isdisjoint(names):
            name = next(name for name in names if name in vars(one))
            return f"{one.__module__}.{one.__qualname__} overrides {name}"
    if not is_class and not vars(subject).keys().isdisjoint(names):
        name = next(name for name in names if name in vars(subject))
        return f"{source_of(vars(subject)[name])} replaces {name} of one {cls.__name__}"
    return ""


# -- the app


def _of_app(app: Any) -> Iterator[str]:
    is_durable = "send_task" in vars(app) and _has_durable_tasks(app)
    amqp, setting = app.amqp, app.conf.get
    yield _find_override(app, celery.Celery, () if is_durable else ("send_task",))
    yield _find_override(amqp, AMQP, ("as_task_v2", "_create_task_sender"))
    if setting("task_always_eager"):
        yield "task_always_eager is set"
    if app.current_worker_task is not None:
        yield "a task of a worker sends it"
    made = vars(amqp)  # Celery makes what is missing, of functions that are watched
    create, send = made.get("create_task_message"), made.get("send_task_message")
    if setting("task_protocol") != 2:
        yield f"task_protocol is {setting('task_protocol')}"
    elif create is not None and getattr(create, "__func__", None) is not AMQP.as_task_v2:
        yield f"{source_of(create)} replaces AMQP.create_task_message"
    if setting("task_compression"):
        yield f"task_compression is {setting('task_compression')!r}"
    yield find_serializer_obstacle(setting("task_serializer"))
    if send is not None and getattr(send, "__code__", None) not in _SENDER_CODES:
        yield f"{source_of(send)} replaces AMQP.send_task_message"
    yield from _receivers()
    if amqp.Producer is not Producer:
        yield f"the app has a class of producers of its own: {describe(amqp.Producer)}"
    yield _of_routes(app.conf, made.get("router"))


def _has_durable_tasks(app: Any) -> bool:
    """Return True if ``app.send_task`` is RedBeat's, which stores messages with a far eta."""
    send = vars(app)["send_task"]
    is_ours = type(send).__module__ == "redbeat.later.installing"
    return is_ours and getattr(send.original, "__func__", None) is celery.Celery.send_task


def _of_routes(conf: Any, router: Any) -> str:
    if router is not None and type(router) is not Router:
        return f"the app has a router of its own: {describe(router)}"
    try:
        found = routes.prepare(conf.task_routes) if router is None else router.routes
    except Exception as exc:  # noqa: BLE001 - Celery raises anything about an unusable value
        return f"task_routes can't be used: {type(exc).__name__}: {exc}"
    for route in found:
        if type(route) is not MapRoute:
            return f"task_routes has a function: {describe_router(route)}"
    return ""


def _receivers() -> Iterator[str]:
    """Yield the receivers of the signals about publishing."""
    for signal in _SIGNALS:
        for _, receiver in signal.receivers:
            if isinstance(receiver, weakref.ReferenceType):
                receiver = receiver()
                if receiver is None:
                    continue
            if type(receiver) is FunctionType and "retry_fun" in receiver.__code__.co_freevars:
                # Celery's function for connect(retry=True)
                position = receiver.__code__.co_freevars.index("retry_fun")
                receiver = (receiver.__closure__ or ())[position].cell_contents
            if root_of(receiver) not in _OWN and not is_idle(receiver, find_provider()):
                yield f"a receiver of {signal.name}: {describe(receiver)}"


# -- names of code


def source_of(value: Any) -> str:
    """Return whose function this is: an installed package, or else a module."""
    module, root = _module_of(value), root_of(value)
    path = str(getattr(sys.modules.get(root), "__file__", None) or "")
    return root if "site-packages" in path or "dist-packages" in path else module


def describe(value: Any) -> str:
    """Return the module and the name of a function, a class, or another callable."""
    if type(value) is functools.partial:
        return describe(value.func)
    return f"{_module_of(value)}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def describe_router(router: Any) -> str:
    """Return the name of a router: the one in ``task_routes`` if it is a text there."""
    written = getattr(router, "_args", None) if isinstance(router, lazy) else (router,)
    return written[0] if written and isinstance(written[0], str) else describe(router)


def codec_of(serializer: str | None) -> Any:
    """Return kombu's encoder of that name; None: it is missing."""
    return registry._encoders.get(serializer)  # noqa: SLF001 - it has no public name


def root_of(value: Any) -> str:
    """Return the package in which the code of a function stands."""
    return _module_of(value).partition(".")[0]


def _module_of(value: Any) -> str:
    """Return the module in which the code of a function stands; wrappers copy everything else."""
    kind = type(value)
    for outer, name in ((functools.partial, "func"), (MethodType, "__func__"), (property, "fget")):
        if kind is outer:
            return _module_of(getattr(value, name))
    if kind.__name__ in ("FunctionWrapper", "BoundFunctionWrapper"):  # of wrapt
        return _module_of(getattr(value, "_self_wrapper", kind))
    if kind is FunctionType:
        return str(value.__globals__.get("__name__"))
    return str((value if isinstance(value, type) else kind).__module__)


_FUNCTIONS = [
    *_remember(Task, *_OF_TASK),
    *_remember(celery.Celery, "send_task"),
    *_remember(AMQP, "as_task_v2"),
    *_remember(Producer, "publish", "_publish"),
    *_remember(BoundedProducer, "publish"),
    *_remember(RedisChannel, *_OF_CHANNEL),
    *_remember(Signal, "send"),
    *_remember(celery.beat.Scheduler, "apply_async"),
]
#: RedBeat's own scheduler and its class of entries
_SCHEDULER: list[Any] = []
#: kombu's own serializers
_SERIALIZERS = {
    name: codec
    for name, codec in registry._encoders.items()  # noqa: SLF001 - it has no public name
    if root_of(codec.encoder) in ("kombu", "yaml", "msgpack")
}


def in_words(obstacle: str) -> str:
    """Return how messages are made: from templates ("compiled"), or one by one because of ``obstacle``."""
    return f"one by one: {shorten(printable(obstacle))}" if obstacle else "compiled"
