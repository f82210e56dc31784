"""The producer that stores a message, where Celery's would publish it.

Celery gives it all that it gives any producer: the message is made, routed and announced by its own code.
What it publishes besides, such as events, goes to the broker at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kombu
from kombu import compression as kombu_compression
from kombu import serialization

from redbeat.delivery.reserved_names import find_reserved
from redbeat.errors import MessageRefused
from redbeat.later.message import Message

_serialize: Any = serialization.dumps
_compress: Any = kombu_compression.compress
_Exchange: Any = kombu.Exchange  # type: ignore[attr-defined]
_Queue: Any = kombu.Queue  # type: ignore[attr-defined]

#: what a publish is told about itself, and no broker of the message
_ABOUT_PUBLISHING = frozenset(("retry", "retry_policy", "timeout", "confirm_timeout"))

#: arguments of a queue, as kombu names them
_QUEUE_ARGUMENTS = (
    *("durable", "exclusive", "auto_delete", "no_ack", "queue_arguments", "binding_arguments", "expires"),
    *("message_ttl", "max_length", "max_length_bytes", "max_priority", "no_declare"),
)


class StoringProducer:
    """Stands for one of kombu's producers.

    Arguments:
        app: the Celery app.
        task: the name of the task.
        store: takes the message.
        producer: the one that the caller has given; None: none.
    """

    auto_declare = False

    def __init__(self, app: Any, task: str, store: Callable[[Message], None], producer: Any = None) -> None:
        self._app = app
        self._task = task
        self._store = store
        self._given = producer
        #: kombu's connection, which connects when something is asked of it
        self.connection = producer.connection if producer is not None else app.connection_for_write()

    @property
    def channel(self) -> Any:
        """A channel of the broker, for a result backend that declares a queue for the result."""
        return self.connection.default_channel

    def publish(self, body: Any, **options: Any) -> None:
        """Store the message; publish what isn't the task's."""
        headers = dict(options.pop("headers", None) or {})
        task_id = headers.get("id") or (body.get("id") if isinstance(body, Mapping) else None)
        if not task_id or options.get("exchange") == self._app.conf.event_exchange:
            with self._app.producer_or_acquire(self._given) as producer:
                producer.publish(body, headers=headers, **options)
            return
        reserved = find_reserved(self._app, options)
        if reserved:
            raise MessageRefused(f"Not stored, so not sent later: {reserved}", str(task_id))
        options = {name: value for name, value in options.items() if name not in _ABOUT_PUBLISHING}
        serializer, compression = options.pop("serializer", None), options.pop("compression", None)
        content_type, encoding = options.pop("content_type", None), options.pop("content_encoding", None)
        if not content_type:
            content_type, encoding, body = _serialize(body, serializer=serializer)
        if compression:
            body, headers["compression"] = _compress(body, compression)
        expiration, declared = options.pop("expiration", None), options.pop("declare", None) or ()
        exchange, routing_key = options.pop("exchange", None) or "", options.pop("routing_key", None) or ""
        reply_to = options.get("reply_to")
        if isinstance(reply_to, _Queue):
            options["reply_to"] = reply_to.name
        self._store(
            Message(
                task_id=str(task_id),
                task=self._task,
                body=body.encode() if isinstance(body, str) else bytes(body),
                content_type=content_type,
                content_encoding=encoding or "binary",
                headers=headers,
                properties={name: value for name, value in options.items() if value is not None},
                exchange=exchange.name if isinstance(exchange, _Exchange) else str(exchange),
                routing_key=str(routing_key),
                queues=list(_queues_of(self._app, declared)),
                expires_at=None if expiration is None else time.time() + float(expiration),
            )
        )

    def revive(self, _connection: Any) -> None:
        """Do nothing: there is no channel to be renewed."""


def _queues_of(app: Any, declared: Iterable[Any]) -> Iterable[str | dict[str, Any]]:
    """Yield the queues that are declared before the message: by their names where each app knows them."""
    for one in declared:
        if not isinstance(one, _Queue):
            continue
        if app.amqp.queues.get(one.name) is one:
            yield one.name
            continue
        given = {name: getattr(one, name, None) for name in _QUEUE_ARGUMENTS}
        known = {name: value for name, value in given.items() if value is not None}
        exchange = one.exchange or _Exchange("")
        yield {"name": one.name, "exchange": exchange.name, "type": exchange.type, **known} | (
            {"routing_key": one.routing_key} if one.routing_key else {}
        )


def queue_of(app: Any, stored: str | Mapping[str, Any]) -> Any:
    """Return the queue that a message declares.

    Raises:
        KeyError: ``app`` has no queue of this name, and makes none.
    """
    if isinstance(stored, str):
        return app.amqp.queues[stored]
    given = dict(stored)
    exchange = _Exchange(given.pop("exchange"), type=given.pop("type", "direct"))
    return _Queue(given.pop("name"), exchange, routing_key=given.pop("routing_key", ""), **given)
