"""The producer that runs are sent with, made from the app's own class of producers.

It publishes a message once, within the time that the batch has left; trying again is the scheduler's.
Invariants: a message that no queue takes is an error; Celery and the broker would drop it silently. So is one
that would go by a reserved name, wherever that comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kombu.transport.virtual.base import NotEquivalentError

from redbeat.delivery.amqp import Confirms
from redbeat.delivery.reserved_names import find_reserved
from redbeat.process.memory import Memory

#: how many declarations a producer remembers: Celery makes a queue for each name that is asked for
MAX_DECLARED = 1_000

#: types of exchanges whose messages go to queues; others may have no queues, or belong to a plugin
_ROUTING_TYPES = ("direct", "topic", "headers")


class BoundedProducer:
    """To be mixed into the app's class of producers.

    Attributes:
        timeout_seconds: returns how long publishing may take.
        expiration_seconds: after how long the next message expires; None: its own expiration counts.
        is_redis: the broker is Redis, where a declaration is kept for good.
        destination: the name of the queue of the last run, else its routing key; '': there was none.
        declaring: the queues and exchanges that the last message needs.
        declared: queues and exchanges that were declared on this connection, by id.
    """

    timeout_seconds: Callable[[], float]
    expiration_seconds: float | None = None
    is_redis: bool
    destination = ""
    declaring: Sequence[Any] = ()
    declared: dict[int, Any]

    _app: Any
    _types: Mapping[str, str]
    _confirms: Confirms | None

    def begin(self, app: Any, timeout_seconds: Callable[[], float], *, is_redis: bool) -> Confirms | None:
        """Read the exchanges of ``app``, and listen for confirms; return these, or None."""
        self._app, self.timeout_seconds = app, timeout_seconds
        self.is_redis = is_redis
        self.declared = Memory(MAX_DECLARED)
        self._types = {exchange.name: exchange.type for exchange in _exchanges_of(app)}
        channel = self.channel  # type: ignore[attr-defined]
        is_confirmed = getattr(channel.connection, "confirm_publish", False)
        self._confirms = Confirms(channel, self._forget_declared) if is_confirmed else None
        if not is_confirmed and hasattr(channel, "events"):
            # a message may come back while the next one is sent, so its entry is unknown
            channel.events["basic_return"].add(lambda *_: None)
        return self._confirms

    def publish(self, body: Any, **options: Any) -> Any:
        reserved = find_reserved(self._app, options)
        if reserved:
            raise LookupError(reserved)
        options["retry"] = False
        if options.get("expiration") is not None and self.expiration_seconds is not None:
            options["expiration"] = self.expiration_seconds  # Celery's is by this machine's clock
        options["timeout"] = min(options.get("timeout") or math.inf, self.timeout_seconds())
        self.declaring = options.get("declare") or ()
        is_run = "redbeat_entry" in (options.get("headers") or ())
        if is_run:
            queue = next((one.name for one in self.declaring if hasattr(one, "routing_key")), None)
            self.destination = str(queue or options.get("routing_key") or "")
        if self._confirms is not None:
            self._confirms.declared = self.declaring
            exchange = options.get("exchange") or ""
            kind = getattr(exchange, "type", None) or self._types.get(exchange, "direct")
            if is_run and kind in _ROUTING_TYPES and options.get("mandatory") is None:
                options["mandatory"] = True
        try:
            return super().publish(body, **options)  # type: ignore[misc]
        except BaseException:
            self._forget_declared(self.declaring)
            raise

    def _forget_declared(self, entities: Iterable[Any]) -> None:
        """Let ``entities`` be declared again, as another program may have deleted them."""
        client = getattr(self.channel.connection, "client", None)  # type: ignore[attr-defined]
        for entity in entities:
            self.declared.pop(id(entity), None)
            if client is not None and getattr(entity, "can_cache_declaration", False):
                client.declared_entities.discard(hash(entity))

    def maybe_declare(self, entity: Any, retry: bool | None = None, **retry_policy: Any) -> Any:
        # kombu, too, declares each entity once for each connection, but takes longer to look that up
        if self.declared.get(id(entity)) is entity:
            return False
        if self._confirms is not None:  # an error closes the channel, and no more confirms come
            self._confirms.settle(self.timeout_seconds())
        is_new = super().maybe_declare(entity, bool(retry), **retry_policy)  # type: ignore[misc]
        # elsewhere a queue that may have deleted itself is declared for each message
        if self.is_redis or getattr(entity, "can_cache_declaration", False):
            self.declared[id(entity)] = entity
        return is_new


def declare_exchanges(channel: Any, app: Any) -> None:
    """Declare the types of the app's exchanges to kombu, which itself matches routing keys on Redis.

    Otherwise it takes an exchange whose queues this process has not declared for a direct one, and drops
    messages whose routing key is not the name of a queue. Nothing is written.
    """
    # of two exchanges with one name the first counts, and a passive one cannot be declared: an error of those
    # entries
    errors = (NotEquivalentError, *channel.connection.channel_errors)
    for exchange in _exchanges_of(app):
        with suppress(*errors):
            exchange.bind(channel).declare()


def _exchanges_of(app: Any) -> Iterator[Any]:
    for queue in app.amqp.queues.values():
        for bound in queue.bindings or [queue]:
            if bound.exchange is not None and bound.exchange.name:
                yield bound.exchange
