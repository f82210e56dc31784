"""What a compiled message rests on besides its entry: settings, the task, its route, and queues.

Invariant: as long as all of it stays equal, Celery makes equal messages of equal calls. It is compared once a
batch, so whatever a program changes is noticed with the next batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from kombu import serialization

from redbeat.broker.drafts import Drafts
from redbeat.broker.originals import Originals
from redbeat.broker.outbox import Outbox

#: settings that Celery reads when it makes a message, or when it makes what makes messages
_SETTINGS = (
    "enable_utc",
    "task_compression",
    "task_default_delivery_mode",
    "task_default_exchange",
    "task_default_queue",
    "task_default_routing_key",
    "task_protocol",
    "task_repr_maxlevels",
    "task_send_sent_event",
    "task_serializer",
    "timezone",
)

#: attributes of a task that its messages depend on
_TASK_ATTRIBUTES = (
    "name",
    "ignore_result",
    "priority",
    "serializer",
    "soft_time_limit",
    "time_limit",
    "expires",
    "typing",
    "__header__",
    "__v2_compat__",
    "_backend",
)

#: options that a route depends on
_ROUTE_OPTIONS = ("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode")


class Sources(NamedTuple):
    """Where to read what the messages of one shape rest on.

    Attributes:
        options: those that a route depends on.
        has_backend: the result backend is told of each run.
    """

    task: str
    options: Mapping[str, Any]
    serializer: str
    exchange: str
    routing_key: str
    has_backend: bool


def read_common_ground(app: Any) -> tuple[Any, ...]:
    """Return what the messages of all tasks rest on."""
    amqp, setting = app.amqp, app.conf.get
    return (
        os.getpid(),
        app.thread_oid,
        *(amqp.create_task_message, amqp.send_task_message, amqp.router, amqp.queues),
        *(amqp.argsrepr_maxsize, amqp.kwargsrepr_maxsize),
        *[setting(name) for name in _SETTINGS],
    )


def read_ground(app: Any, outbox: Outbox | Drafts, sources: Sources) -> tuple[Any, ...]:
    """Return what the messages of one shape rest on.

    Raises:
        Exception: whatever Celery raises where there is no such queue.
    """
    task = app.tasks.get(sources.task)
    backend = app.backend if sources.has_backend else None
    return (
        *(task, *[getattr(task, name, None) for name in _TASK_ATTRIBUTES]),
        Originals(app).find_task_obstacle(task),
        dict(options_of_task(task)),
        _route_of(app, task, sources),
        _queues_of(outbox, sources),
        codec_of(sources.serializer),
        *(backend, vars(backend).get("on_task_call") if backend is not None else None),
    )


def options_of_task(task: Any) -> Mapping[str, Any]:
    """Return the options that a task brings itself; None: it isn't registered."""
    options: Mapping[str, Any] = {} if task is None else task._get_exec_options()  # noqa: SLF001
    return options


def route_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an entry's or a task's options that a route depends on."""
    return {name: options[name] for name in _ROUTE_OPTIONS if options.get(name) is not None}


def codec_of(serializer: str | None) -> Any:
    """Return kombu's encoder of that name; None: there is none."""
    return serialization.registry._encoders.get(serializer)  # noqa: SLF001 - it has no public name


def _route_of(app: Any, task: Any, sources: Sources) -> tuple[Any, ...]:
    asked = route_options({**options_of_task(task), **sources.options})
    route = app.amqp.router.route(asked, sources.task, (), {}, task)
    return tuple([(name, value, _looks_of(value)) for name, value in sorted(route.items())])


def _queues_of(outbox: Outbox | Drafts, sources: Sources) -> list[Any]:
    """Return to which queues messages go, and when these are deleted."""
    queues = [sources.routing_key]
    if sources.exchange:
        queues = outbox.find_queues(sources.exchange, sources.routing_key)
    return [(queue, outbox.expiry_ms(queue)) for queue in queues]


def _looks_of(value: Any) -> tuple[Any, ...]:
    """Return what of a queue goes into messages: one may be changed in place."""
    exchange = getattr(value, "exchange", None)
    return (
        *[getattr(value, attribute, None) for attribute in ("name", "routing_key")],
        *[getattr(exchange, attribute, None) for attribute in ("name", "type", "delivery_mode")],
    )
