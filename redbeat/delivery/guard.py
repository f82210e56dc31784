"""Reasons why Celery must make messages itself, because other code takes part or looks on.

Code that *changes* messages shows when samples are compared (``templates``). The guard looks for code that
only looks on: receivers of Celery's signals about publishing, and replaced or overridden functions. It looks
at few functions, those that tracing tools replace. A function whose code is not in Celery, kombu, py-amqp or
RedBeat counts as replaced. It also looks for code that may look at the arguments of each call, such as
routers that are functions.

``read_state`` returns all of it as one value. As long as it is equal, the reasons need not be looked for.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

from celery import signals
from celery.app import routes
from celery.app.routes import MapRoute, Router
from celery.app.task import Task
from celery.local import Proxy
from celery.utils.dispatch.signal import Signal
from kombu.messaging import Producer
from kombu.serialization import registry
from kombu.utils import json as kombu_json
from kombu.utils.functional import lazy

from redbeat.config.config import ensure_conf
from redbeat.delivery.tracers import can_bypass_sentry, find_monitoring, find_provider, is_idle
from redbeat.log.text import joined, printable, shorten

NOT_COLLECTED = "this version of kombu sends messages in a way that RedBeat doesn't know"

#: what has a function, its name there, and the function itself
Function = tuple[Any, str, Any]

_OWN = ("amqp", "celery", "kombu", "redbeat")
_OF_TASK = ("apply_async", "shadow_name")
_OF_AMQP = ("as_task_v2", "_create_task_sender", "create_task_message", "send_task_message")
_OF_SCHEDULER = (
    *("apply_async", "send_task", "producer", "maybe_due", "apply_entry", "reserve"),
    *("should_sync", "sync", "_do_sync"),
)
#: settings that all messages depend on
_SETTINGS = (
    *("task_serializer", "task_always_eager", "task_protocol", "task_compression", "task_send_sent_event"),
    *("task_default_queue", "task_repr_maxlevels"),
)
_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def find_obstacle(app: Any, scheduler: Any = None, producer: Any = None) -> str:
    """Return all reasons that concern every message, such as "ddtrace replaces Task.apply_async"; '': none.

    Arguments:
        scheduler: the one that sends, or its class; None: none does.
        producer: the one that sends; None: there is none yet.
    """
    app = _real(app)
    config, setting = ensure_conf(app), app.conf.get
    return joined(
        "" if config.templates else "redbeat_templates is False",
        "" if config.message_cache_bytes else "redbeat_message_cache_bytes is 0",
        "task_send_sent_event is set" if setting("task_send_sent_event") else "",
        "" if config.sentry and producer is None else find_monitoring(),  # it ends when beat starts
        "task_always_eager is set" if setting("task_always_eager") else "",
        "" if setting("task_protocol") == 2 else f"task_protocol is {setting('task_protocol')}",
        f"task_compression is {setting('task_compression')!r}" if setting("task_compression") else "",
        find_serializer_obstacle(setting("task_serializer")),
        "a task of a worker sends it" if app.current_worker_task is not None else "",
        *_find_foreign(_functions(app, scheduler, producer)),
        *_receivers(),
        _find_class_obstacle(app, scheduler),
        _find_route_obstacle(app.conf, vars(app.amqp).get("router")),
    )


def read_state(app: Any, scheduler: Any, producer: Any) -> tuple[Any, ...]:
    """Return what all messages depend on, and the reasons: as long as it is equal, so are both.

    That does not hold for a reason that is there. Celery has read other settings when it made these objects.

    Raises:
        Exception: whatever Celery raises of settings that are unusable.
    """
    app = _real(app)
    amqp, settings = app.amqp, list(map(app.conf.get, _SETTINGS))
    objects = [amqp.create_task_message, amqp.send_task_message, amqp.queues, amqp.Producer]  # made now
    objects += [function for _, _, function in _functions(app, scheduler, producer)]
    objects += [receiver for signal in _SIGNALS for _, receiver in signal.receivers]
    objects += (codec_of(settings[0]), type(amqp.router), *getattr(amqp.router, "routes", ()))
    objects.append(getattr(scheduler, "Entry", None))
    return (
        # by identity, as a wrapper may be equal to the original; the objects are kept, and so their ids
        *(list(map(id, objects)), objects),
        *(
            os.getpid(),
            app.thread_oid,
            app.current_worker_task,
            find_monitoring(),
            find_provider(),
            *settings,
        ),
        *(amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize),
        list(getattr(kombu_json, "_encoders", {}).items()),
    )


def find_broker_obstacle(app: Any) -> str:
    """Return a reason in the kind of broker, without a connection to it; '': none."""
    transport = app.connection_for_write().get_transport_cls()
    if transport.driver_name == "py-amqp":
        is_confirmed = (app.conf.broker_transport_options or {}).get("confirm_publish", True)
        return "" if is_confirmed else "confirm_publish is False"
    return "" if transport.driver_type == "redis" else "the broker is neither Redis nor RabbitMQ"


def find_task_obstacle(task: Any) -> str:
    """Return a reason in the class of a task, or in the task itself; '': none.

    ``task``: None if it is not registered, so that it is sent by its name.
    """
    if task is None:
        return ""
    found = next(_find_foreign(_functions_of(task, _OF_TASK)), "")
    if not found and getattr(task, "_dump_pydantic_arguments", None) is not None:
        return "the task has pydantic=True"
    return found or ("" if task.serializer is None else find_serializer_obstacle(task.serializer))


def find_serializer_obstacle(name: str) -> str:
    """Return a reason if the serializer ``name`` is not kombu's own; '': it is."""
    codec = codec_of(name)
    is_kombus = codec is not None and root_of(codec.encoder) in ("kombu", "yaml", "msgpack")
    return "" if is_kombus else f"the serializer {name!r} isn't kombu's own"


# -- functions


def _functions(app: Any, scheduler: Any, producer: Any) -> list[Function]:
    """Return the functions that each message passes through."""
    found = _functions_of(Task, _OF_TASK) + _functions_of(app, ("send_task",))
    found += _functions_of(app.amqp, _OF_AMQP) + _functions_of(Signal, ("send",))
    found += _functions_of(Producer if producer is None else producer, ("publish", "_publish"))
    if producer is not None:
        found += _functions_of(producer.channel, ("basic_publish", "_put"))
    if scheduler is not None:
        found += _functions_of(scheduler, _OF_SCHEDULER) + _functions_of(scheduler.Entry, ("is_due",))
    return found


def _functions_of(subject: Any, names: tuple[str, ...]) -> list[Function]:
    """Return all that an object, or a class, and its bases have under ``names``."""
    owners = subject.__mro__ if isinstance(subject, type) else (subject, *type(subject).__mro__)
    return [
        (owner, name, own[name])
        for owner in owners
        for own in (vars(owner),)
        for name in names
        if name in own
    ]


def _find_foreign(functions: Iterable[Function]) -> Iterator[str]:
    """Yield which functions are other code's: one for each class or tool."""
    seen = set()
    for owner, name, function in functions:
        if _is_own(function):
            continue
        is_class = isinstance(owner, type)
        is_override = is_class and owner.__module__.partition(".")[0] not in _OWN
        source = f"{owner.__module__}.{owner.__qualname__}" if is_override else source_of(function)
        if source not in seen:
            seen.add(source)
            place = f"{owner.__name__}.{name}" if is_class else f"{name} of one {type(owner).__name__}"
            yield f"{source} overrides {name}" if is_override else f"{source} replaces {place}"


def _is_own(function: Any) -> bool:
    """Return True for code of Celery, kombu and RedBeat, also in wrappers of Sentry's, which are bypassed."""
    if type(function).__name__ == "DurableSend" and root_of(function) == "redbeat":
        return _is_own(function.original)
    root = root_of(function)
    if root == "sentry_sdk" and can_bypass_sentry():
        inner = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        return any(type(one) is FunctionType and _is_own(one) for one in inner)
    return root in _OWN


# -- the app


def _real(app: Any) -> Any:
    return app._get_current_object() if isinstance(app, Proxy) else app  # noqa: SLF001


def _find_class_obstacle(app: Any, scheduler: Any) -> str:
    if app.amqp.Producer is not Producer:
        return f"the app has a class of producers of its own: {describe(app.amqp.Producer)}"
    if scheduler is not None and root_of(scheduler.Entry) != "redbeat":
        return f"the scheduler has a class of entries of its own: {describe(scheduler.Entry)}"
    return ""


def _find_route_obstacle(conf: Any, router: Any) -> str:
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


def in_words(obstacle: str) -> str:
    """Return how messages are made: from templates ("compiled"), or one by one because of ``obstacle``."""
    return f"one by one: {shorten(printable(obstacle))}" if obstacle else "compiled"
