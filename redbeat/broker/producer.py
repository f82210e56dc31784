"""The producer that runs are sent with, laid over kombu's own.

It publishes once, in the time that is left: the scheduler itself tries again. Invariant: a message that no
queue takes is an error, where Celery and the broker would drop it without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from kombu.transport.virtual.base import NotEquivalentError

#: how many declarations a producer remembers; the queues that Celery makes up are not bounded
MAX_DECLARED = 1_000

#: exchanges of these types take a message to queues; others may have listeners, or be a plugin's
_ROUTING_TYPES = ("direct", "topic", "headers")


class BoundedProducer:
    """To be mixed into the app's class of producers.

    Attributes:
        timeout_seconds: tells how long a message may take.
        expiration_seconds: how long the next message is good for; None: as it says itself.
        is_redis: declarations cost nothing, and are forgotten by nobody.
    """

    timeout_seconds: Callable[[], float]
    expiration_seconds: float | None = None
    is_redis: bool
    _declared: dict[int, Any]
    _is_retry_asked = False

    _types: Mapping[str, str]
    _returned: list[LookupError]

    def begin(self, app: Any, *, is_redis: bool) -> None:
        """Get ready to publish for ``app``."""
        self.is_redis = is_redis
        self._types = {exchange.name: exchange.type for exchange in _exchanges_of(app)}
        self._returned = []
        channel = self.channel  # type: ignore[attr-defined]
        # without confirms nobody waits for what comes back, and it may come amid the next message
        self._hears_of_returns = bool(getattr(channel.connection, "confirm_publish", False))
        if hasattr(channel, "events"):
            channel.events["basic_return"].add(self._note_returned)

    def forget_fleeting(self) -> None:
        """From now on declare the queues that go by themselves once more."""
        self.__dict__.pop("_fleeting", None)

    def publish(self, body: Any, **options: Any) -> Any:
        self._is_retry_asked = bool(options.get("retry"))
        options["retry"] = False
        if options.get("expiration") is not None and self.expiration_seconds is not None:
            options["expiration"] = self.expiration_seconds  # Celery has it by the clock of this machine
        options["timeout"] = min(options.get("timeout") or math.inf, self.timeout_seconds())
        if options.get("mandatory") is None and self._hears_of_returns and self._is_for_a_queue(options):
            options["mandatory"] = True
        self._returned.clear()
        try:
            result = super().publish(body, **options)  # type: ignore[misc]
            if self._returned and self._hears_of_returns:
                raise self._returned[0]
        except Exception:
            self._forget_declared(options.get("declare") or ())
            raise
        return result

    def _forget_declared(self, entities: Iterable[Any]) -> None:
        """Declare ``entities`` anew the next time: somebody may have deleted them."""
        client = getattr(self.channel.connection, "client", None)  # type: ignore[attr-defined]
        for entity in entities:
            self.__dict__.get("_declared", {}).pop(id(entity), None)
            if client is not None and getattr(entity, "can_cache_declaration", False):
                client.declared_entities.discard(hash(entity))

    def _is_for_a_queue(self, options: Mapping[str, Any]) -> bool:
        """Tell whether a run is published, and no event, by an exchange that takes it to a queue."""
        exchange = options.get("exchange") or ""
        kind = getattr(exchange, "type", None) or self._types.get(exchange, "direct")
        return kind in _ROUTING_TYPES and "redbeat_entry" in (options.get("headers") or ())

    def _note_returned(self, _exc: Any, exchange: str, routing_key: str, _message: Any) -> None:
        # raised here, it would leave the confirm that follows to be taken for the next message's
        self._returned.append(no_queue(exchange, routing_key))

    def maybe_declare(self, entity: Any, retry: bool | None = None, **retry_policy: Any) -> Any:
        # kombu, too, declares a thing once for each connection, but takes long to find out that it has
        declared = self.__dict__.setdefault("_declared", {})
        # a queue that goes by itself is declared for each message, in case it went. On Redis once a batch:
        # nothing is kept there of a declaration but the bindings, and kombu itself writes those only once
        fleeting = self.__dict__.setdefault("_fleeting", {})
        if declared.get(id(entity)) is entity or fleeting.get(id(entity)) is entity:
            return False
        # where it may try again, kombu declares a copy, and a copy of a queue may have fewer bindings
        is_copied = retry is not None and self._is_retry_asked and not entity.is_bound
        declarable = entity.bind(self.channel) if is_copied else entity  # type: ignore[attr-defined]
        is_new = super().maybe_declare(declarable, bool(retry), **retry_policy)  # type: ignore[misc]
        can_cache = getattr(entity, "can_cache_declaration", False)
        remembered = declared if can_cache else fleeting
        if (can_cache or self.is_redis) and len(remembered) < MAX_DECLARED:
            remembered[id(entity)] = entity
        return is_new


def declare_exchanges(channel: Any, app: Any) -> None:
    """Let kombu know the types of the app's exchanges: on Redis it is kombu that matches routing keys.

    Nothing is written. Otherwise it would take an exchange whose queues this process hasn't declared for a
    direct one, and drop what isn't for a queue with just that key.
    """
    # two of one name: the first stands; and a passive one isn't there. Either is an error of its own entries
    errors = (NotEquivalentError, *channel.connection.channel_errors)
    for exchange in _exchanges_of(app):
        with suppress(*errors):
            exchange.bind(channel).declare()


def _exchanges_of(app: Any) -> Iterator[Any]:
    for queue in app.amqp.queues.values():
        for bound in queue.bindings or [queue]:
            if bound.exchange is not None and bound.exchange.name:
                yield bound.exchange


def no_queue(exchange: str, routing_key: str) -> LookupError:
    """Return the error about a message that no queue takes."""
    if not exchange:
        return LookupError(f"there is no queue {routing_key!r}")
    return LookupError(f"no queue is bound to the exchange {exchange!r} for the routing key {routing_key!r}")
