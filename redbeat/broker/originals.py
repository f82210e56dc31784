"""Whether nothing but Celery's, kombu's and RedBeat's own code takes part in making an app's messages.

Only then may a message be made in a quicker way, as then nobody can tell. Tools such as Sentry's replace
functions on the classes, subclasses bring their own, receivers of signals may change a message, and routers
may look at its arguments. Invariant: what can't be recognised as an original is an obstacle.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from types import FunctionType, MethodType
from typing import Any
from uuid import UUID

import celery
from amqp.basic_message import Message as AmqpMessage
from celery import signals
from celery.app.amqp import AMQP, Queues
from celery.app.registry import TaskRegistry
from celery.app.routes import MapRoute, Router, prepare
from celery.app.task import Task
from celery.local import Proxy
from celery.result import AsyncResult
from celery.utils.dispatch.signal import Signal
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.serialization import SerializerRegistry, registry
from kombu.transport.pyamqp import Channel as AmqpChannel
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.virtual import exchange as exchanges
from kombu.utils import json as kombu_json

from redbeat.broker.confirms import Confirms
from redbeat.broker.instrumentor import is_idle
from redbeat.broker.outbox import Outbox
from redbeat.broker.producer import BoundedProducer
from redbeat.broker.replacements import Family, Namespace, Watch, describe, is_own, root_of, source_of
from redbeat.broker.routers import describe_router
from redbeat.log.text import joined

# -- the functions on the way of a message, from the scheduler's `apply_async` to the write to its queue

_TASK = Family(Task, "apply_async", "shadow_name", "_get_exec_options", "_get_app", "AsyncResult", "backend")
_APP = Family(
    celery.Celery,
    "send_task",
    "producer_or_acquire",
    "default_producer",
    "now",
    "timezone",
    "thread_oid",
    "current_worker_task",
    "amqp",
    "conf",
    "backend",
    "AsyncResult",
    "tasks",
)
_AMQP = Family(
    AMQP,
    "as_task_v2",
    "create_task_message",
    "send_task_message",
    "_create_task_sender",
    "_verify_seconds",
    "_retry_publish",
    "Queues",
    "Router",
    "queues",
    "router",
    "routes",
    "flush_routes",
    "default_queue",
    "default_exchange",
)
_QUEUES = Family(
    Queues, "__getitem__", "__setitem__", "__missing__", "add", "_add", "_set_max_priority", "new_missing"
)
_ROUTER = Family(Router, "route", "expand_destination", "lookup_route", "query_router")
_REGISTRY = Family(TaskRegistry, "get", "__getitem__", "__missing__", "__contains__")
_RESULT = Family(AsyncResult, "__init__", "__new__", "ignored")
_PRODUCER = Family(
    type("BoundedProducer", (BoundedProducer, Producer), {}),
    "publish",
    "_publish",
    "_prepare",
    "_delivery_details",
    "maybe_declare",
    "_is_for_a_queue",
    "_forget_declared",
    "channel",
    "_get_channel",
    "connection",
)
_CONNECTION = Family(Connection, "_reraise_as_library_errors")
_CHANNEL = Family(
    RedisChannel,
    "basic_publish",
    "prepare_message",
    "encode_body",
    "typeof",
    "get_table",
    "priority",
    "_inplace_augment_message",
    "_next_delivery_tag",
    "_get_message_priority",
    "_put",
    "_q_for_pri",
    "_lookup",
    "_queue_bind",
)
_OUTBOX = Family(Outbox, "_put", "_get_table", "_lookup", "_queue_bind", "collecting", "_full_key")
_AMQP_CHANNEL = Family(AmqpChannel, "prepare_message")
_AMQP_MESSAGE = Family(AmqpMessage, "__init__", "_serialize_properties")
_CONFIRMS = Family(Confirms, "publish")
_OTHERS = (
    Family(Signal, "send", "_live_receivers"),
    Family(MapRoute, "__call__", "__init__"),
    Family(SerializerRegistry, "dumps"),
    Family(kombu_json.JSONEncoder, "__init__", "default", "encode", "iterencode"),
    Family(exchanges.DirectExchange, "lookup", "deliver", "prepare_bind"),
    Family(exchanges.TopicExchange, "lookup", "deliver", "prepare_bind", "_match", "key_to_pattern"),
)

NOT_COLLECTED = "this version of kombu sends messages in a way that RedBeat doesn't know"

#: what an outbox puts into its channel
_TAKEN = {"_put": "_put", "get_table": "_get_table", "_lookup": "_lookup", "_queue_bind": "_queue_bind"}
#: the same of confirms
_TAKEN_BY_CONFIRMS = dict.fromkeys(("basic_publish", "basic_publish_confirm", "_basic_publish"), "publish")
#: kombu's own serializers by their names
_SERIALIZERS = {
    name: codec
    for name, codec in registry._encoders.items()  # noqa: SLF001 - it has no public name
    if is_own(codec.encoder, ("kombu", "yaml", "msgpack"))
}
#: how kombu writes what JSON hasn't got
_JSON_TYPES = Namespace(
    "the JSON encoder of ",
    getattr(kombu_json, "_encoders", {}),
    [datetime, date, time, Decimal, UUID],
    ("kombu", "datetime", "builtins", "decimal", "uuid"),
)

#: what messages of a task depend on, and Celery has as plain values
_ATTRIBUTES = frozenset(
    (
        *("name", "typing", "ignore_result", "time_limit", "soft_time_limit", "expires", "priority", "queue"),
        *("exchange", "routing_key", "delivery_mode", "serializer", "compression", "immediate", "mandatory"),
    )
)

#: the code of the function that Celery makes for `app.amqp.send_task_message`
_SENDER_CODES = tuple(
    constant
    for constant in vars(AMQP)["_create_task_sender"].__code__.co_consts
    if getattr(constant, "co_name", "") == "send_task_message"
)
#: what that function calls, by its own names for them
_SENDERS = ("send_before_publish", "send_after_publish", "send_task_sent")

_EXCHANGE_TYPES = frozenset(exchanges.STANDARD_EXCHANGE_TYPES.values())

#: what an app with durable tasks has itself
_DURABLE = frozenset({"send_task"})
_NOTHING: frozenset[str] = frozenset()

#: packages whose receivers don't count
_OWN_RECEIVERS = ("celery", "redbeat")


class _Way:
    """All functions that take part in making a message, and all that they call by name."""

    def __init__(self, *families: Family) -> None:
        self._watches: list[Watch] = []
        #: set when RedBeat's classes are defined
        self.scheduler: Family | None = None
        self.entry_class: type | None = None
        self.add(*families)
        self._watches.append(Watch(tables=[_JSON_TYPES]))

    def add(self, *families: Family) -> None:
        """Let the functions of ``families`` be watched, too."""
        self._watches.append(Watch(*families))

    def replaced(self) -> Iterator[str]:
        """Yield one function that isn't the original of each who has replaced some."""
        told = set()
        for watch in self._watches:
            for found in watch.replaced():
                source = found.partition(" ")[0]
                if source not in told:
                    told.add(source)
                    yield found


_WAY = _Way(
    _TASK,
    _APP,
    _REGISTRY,
    _AMQP,
    _QUEUES,
    _ROUTER,
    _RESULT,
    _PRODUCER,
    _CONNECTION,
    _CHANNEL,
    _OUTBOX,
    *_OTHERS,
)
_WAY.add(_AMQP_CHANNEL, _AMQP_MESSAGE, _CONFIRMS)


def remember_scheduler(scheduler: type, entry: type) -> None:
    """Remember the functions of RedBeat's own classes, as they are when they are defined."""
    sending = ("apply_async", "send_task", "producer", "maybe_due", "apply_entry", "reserve")
    _WAY.scheduler = Family(scheduler, *sending, "should_sync", "sync", "_do_sync")
    _WAY.entry_class = entry
    reading = (
        "__init__",
        "decode_definition",
        "decode_meta",
        "generate_key",
        "is_due",
        "default_now",
        "next",
    )
    values = ("name", "task", "schedule", "args", "kwargs", "options", "enabled")
    planning = ("__next__", "_next_instance", "due_at", "due_by_schedule", "score", "score_of", "bounds")
    _WAY.add(_WAY.scheduler, Family(entry, *reading, *values, *planning))


class Originals:
    """Tells what stands in the way of making the messages of one app in the quick way.

    Arguments:
        app: the Celery app.

    All answers are '' or reasons in words, such as "sentry_sdk replaces Task.apply_async".
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    def find_obstacle(self, scheduler: Any = None, producer: Any = None) -> str:
        """Return all that takes part in the making of any message; to be asked for each batch.

        Arguments:
            scheduler: the one that sends, or its class; None: any RedBeatScheduler.
            producer: the one that messages are sent with; None: see :meth:`find_producer_obstacle`.
        """
        app = self._app
        if isinstance(app, Proxy):
            app = app._get_current_object()  # noqa: SLF001
        found = list(_WAY.replaced())
        try:
            found += _obstacles_of_app(app)
            found.append(_find_of_scheduler(scheduler) if scheduler is not None else "")
            found.append(_find_of_producer(producer) if producer is not None else "")
        except Exception:  # where functions are replaced, what they were for may be anything
            if not found:
                raise
        return joined(*found)

    def find_producer_obstacle(self, producer: Any) -> str:
        """Return what of ``producer``, its channel and its connection takes part in making messages."""
        return _find_of_producer(producer)

    def find_task_obstacle(self, task: Any) -> str:
        """Return what the class of ``task``, or the task itself, does to its messages.

        ``task``: None if the app hasn't got it, so that it is sent by its name.
        """
        if task is None:
            return ""
        found = _TASK.find_foreign(task) or _find_computed(type(task))
        if found:
            return found
        if getattr(task, "_dump_pydantic_arguments", None) is not None:
            return "the task has pydantic=True"
        if task.__v2_compat__ or (task.typing and not _is_generated(getattr(task, "__header__", None))):
            return "the task checks its arguments in its own way"
        return "" if task.serializer is None else self.find_serializer_obstacle(task.serializer)

    def find_serializer_obstacle(self, name: str) -> str:
        """Return why messages that are written by the serializer ``name`` aren't kombu's own."""
        return _find_of_serializer(name)


def _find_computed(cls: type) -> str:
    """Return what a task's class computes anew whenever it is read, though messages depend on it."""
    for base in cls.__mro__:
        if base is Task:
            return ""
        for name in _ATTRIBUTES & base.__dict__.keys():
            if hasattr(type(base.__dict__[name]), "__get__"):
                return f"{base.__module__}.{base.__qualname__} computes {name}"
    return ""


def _obstacles_of_app(app: Any) -> Iterator[str]:
    found = _APP.find_foreign(app, _DURABLE if _is_durable(app) else _NOTHING)
    if found:
        yield found
        return  # what follows may be anything
    conf = app.conf
    if conf.task_always_eager:
        yield "task_always_eager is set"
    if app.current_worker_task is not None:
        yield "a task of a worker sends it"
    yield _REGISTRY.find_foreign(vars(app)["_tasks"])  # app.tasks finalizes it
    result_class = vars(app).get("AsyncResult")
    if result_class is not None:
        yield _RESULT.find_override(result_class)
    yield from _obstacles_of_amqp(app.amqp)


def _obstacles_of_amqp(amqp: Any) -> Iterator[str]:
    found = _AMQP.find_foreign(amqp)
    if found:
        yield found
        return
    made, conf = vars(amqp), amqp.app.conf  # what isn't made yet is made by functions that are watched
    create, send = made.get("create_task_message"), made.get("send_task_message")
    if create is None:
        protocol = conf.task_protocol
        if protocol != 2:
            yield f"task_protocol is {protocol}"
    elif not _is_method(create, amqp, vars(AMQP)["as_task_v2"]):
        is_old = _is_method(create, amqp, vars(AMQP).get("as_task_v1"))
        yield "task_protocol is 1" if is_old else f"{source_of(create)} replaces AMQP.create_task_message"
    if send is None:
        sent, compression, serializer = _signals(), conf.task_compression, conf.task_serializer
    elif type(send) is not FunctionType or send.__code__ not in _SENDER_CODES:
        yield f"{source_of(send)} replaces AMQP.send_task_message"
        return
    else:
        cells = dict(zip(send.__code__.co_freevars, send.__closure__ or (), strict=True))
        sent = []
        for name in _SENDERS:
            if name in cells:
                function = cells[name].cell_contents
                if not _is_method(function, getattr(function, "__self__", None), vars(Signal)["send"]):
                    yield f"{source_of(function)} replaces Signal.send"
                    return
                sent.append(function.__self__)
        compression = cells["default_compressor"].cell_contents
        serializer = cells["default_serializer"].cell_contents
    if compression:
        yield f"task_compression is {compression!r}"
    yield from _receivers(sent)
    yield _find_of_serializer(serializer)
    yield _QUEUES.find_foreign(made["queues"]) if "queues" in made else _QUEUES.find_override(amqp.queues_cls)
    yield _find_of_routes(amqp, made)


def _is_durable(app: Any) -> bool:
    """Tell whether ``app`` has durable tasks: then its own ``send_task`` only stores what is far ahead.

    Messages with such options aren't compiled.
    """
    send = vars(app).get("send_task")
    is_ours = type(send).__module__ == "redbeat.later.installing"
    return is_ours and _is_method(send.original, app, vars(celery.Celery)["send_task"])


def _find_of_routes(amqp: Any, made: dict[str, Any]) -> str:
    router = made.get("router")
    if router is not None:
        found = _ROUTER.find_foreign(router)
        if found:
            return found
    try:
        routes = prepare(amqp.app.conf.task_routes) if router is None else router.routes
    except Exception as exc:  # noqa: BLE001 - whatever Celery raises of a value that it can't use
        return f"task_routes can't be used: {type(exc).__name__}: {exc}"
    for route in routes:
        if type(route) is not MapRoute:
            return f"task_routes has a function: {describe_router(route)}"
    return ""


def _receivers(sent: list[Signal]) -> Iterator[str]:
    """Yield which receivers of the signals about publishing are connected, whatever their sender."""
    for signal in sent:
        for _, receiver in signal.receivers or ():
            if isinstance(receiver, weakref.ReferenceType):
                receiver = receiver()
                if receiver is None:
                    continue  # dead, and to be removed by the next one that is connected
            receiver = _without_retry(receiver)
            if root_of(receiver) not in _OWN_RECEIVERS and not is_idle(receiver):
                yield f"a receiver of {signal.name}: {describe(receiver)}"


def _without_retry(receiver: Any) -> Any:
    """Return what Celery's function for ``connect(retry=True)`` calls, else ``receiver``."""
    if type(receiver) is FunctionType and "retry_fun" in receiver.__code__.co_freevars:
        cells = dict(zip(receiver.__code__.co_freevars, receiver.__closure__ or (), strict=True))
        return cells["retry_fun"].cell_contents
    return receiver


def _signals() -> list[Signal]:
    names = ("before_task_publish", "after_task_publish", "task_sent")
    return [vars(signals)[name] for name in names if name in vars(signals)]


def _find_of_serializer(name: str) -> str:
    codec = registry._encoders.get(name)  # noqa: SLF001
    if codec is not None and codec is _SERIALIZERS.get(name):
        return ""
    if codec is None or name not in _SERIALIZERS:
        return f"the serializer {name!r} isn't kombu's own"
    return f"{source_of(codec.encoder)} replaces the serializer {name!r}"


def _find_of_scheduler(scheduler: Any) -> str:
    family = _WAY.scheduler
    if family is None:
        return "the scheduler isn't RedBeat's own"
    is_class = isinstance(scheduler, type)
    found = family.find_override(scheduler) if is_class else family.find_foreign(scheduler)
    if found:
        return found
    if scheduler.Entry is not _WAY.entry_class:
        return f"the scheduler has a class of entries of its own: {describe(scheduler.Entry)}"
    return ""


def _find_of_producer(producer: Any) -> str:
    if BoundedProducer not in type(producer).__mro__:
        return f"the producer isn't RedBeat's own: {describe(type(producer))}"
    found = _PRODUCER.find_foreign(producer)
    if found:
        return found
    if producer.compression:
        return f"the producer compresses with {producer.compression!r}"
    channel = producer.channel
    if isinstance(channel, AmqpChannel):
        return (
            _AMQP_CHANNEL.find_foreign(channel)
            or _find_of_confirms(channel)
            or _CONNECTION.find_foreign(producer.connection)
        )
    if not isinstance(channel, RedisChannel):
        return "the broker is neither Redis nor RabbitMQ"
    return (
        _CHANNEL.find_foreign(channel, frozenset(_TAKEN))
        or _find_of_outbox(channel)
        or _CONNECTION.find_foreign(producer.connection)
    )


def _find_of_outbox(channel: Any) -> str:
    """Return what is between ``channel`` and its queues besides an outbox of its own."""
    put = vars(channel).get("_put")
    outbox: Any = getattr(put, "__self__", None)
    if type(outbox) is not Outbox:
        return NOT_COLLECTED if put is None else f"{source_of(put)} replaces Channel._put"
    if outbox.has_given_up:
        return NOT_COLLECTED
    for name, its_name in _TAKEN.items():
        taken = vars(channel).get(name)
        if not _is_method(taken, outbox, vars(Outbox)[its_name]):
            return f"{source_of(taken)} replaces Channel.{name}"
    found = _OUTBOX.find_foreign(outbox)
    if found:
        return found
    for kind in channel.exchange_types.values():
        if type(kind) not in _EXCHANGE_TYPES:
            return f"an exchange's type isn't kombu's own: {describe(type(kind))}"
    return ""


def _find_of_confirms(channel: Any) -> str:
    """Return what is between ``channel`` and its connection besides confirms of its own."""
    publish = vars(channel).get("basic_publish")
    confirms: Any = getattr(publish, "__self__", None)
    if type(confirms) is not Confirms:
        is_channels = publish is None or confirms is channel
        return "confirm_publish is False" if is_channels else f"{source_of(publish)} publishes"
    for name, its_name in _TAKEN_BY_CONFIRMS.items():
        taken = vars(channel).get(name)
        if not _is_method(taken, confirms, vars(Confirms)[its_name]):
            return f"{source_of(taken)} replaces Channel.{name}"
    return _CONFIRMS.find_foreign(confirms)


def _is_method(function: Any, subject: Any, original: Any) -> bool:
    """Tell whether ``function`` is the method of ``subject`` whose function is ``original``."""
    return type(function) is MethodType and function.__self__ is subject and function.__func__ is original


def _is_generated(header: Any) -> bool:
    """Tell whether Celery has made this function from a task's signature, or there is none."""
    header = header.func if type(header) is functools.partial else header
    if header is None:
        return True
    return (
        type(header) is FunctionType
        and "_source" in vars(header)
        and header.__code__.co_filename == "<string>"
    )
