"""The producer that runs are sent with, made from the app's own class of producers; samples of its messages.

It publishes a message once, within the time that the batch has left; trying again is the scheduler's.
Invariants: a message that no queue takes is an error; Celery and the broker would drop it silently. So is one
that would go by a reserved name, wherever that comes from. A sample has no effect: nothing is sent, declared
or subscribed to, no event is published and no result backend is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

from kombu.transport.virtual.base import NotEquivalentError

from redbeat.delivery.amqp import Confirms
from redbeat.delivery.outbox import Outbox
from redbeat.delivery.placeholders import RunValues, UnfitError
from redbeat.delivery.reserved_names import find_reserved_way
from redbeat.delivery.tracers import bypassing_sentry
from redbeat.store.records import Push

#: how many declarations a producer remembers: Celery makes a queue for each name that is asked for
MAX_DECLARED = 1_000

#: types of exchanges whose messages go to queues; others may have no queues, or belong to a plugin
_ROUTING_TYPES = ("direct", "topic", "headers")


class Declaration(NamedTuple):
    """What ``maybe_declare`` was asked to declare, and how."""

    entity: Any
    retry: bool | None
    retry_policy: Mapping[str, Any]
    is_retry_asked: bool

    @property
    def is_lasting(self) -> bool:
        """Whether it need be declared only once for each connection."""
        return bool(getattr(self.entity, "can_cache_declaration", False))


@dataclass
class Sample:
    """The message of one run, and what else sending it would have done.

    Attributes:
        values: of the run.
        bodies: what was published, before it is encoded.
        serializer, compression: how to encode it.
        declarations: of queues and exchanges.
        pushes: list writes, the message first.
        text: the message, as JSON.
        calls_backend: the result backend would have been called.
    """

    values: RunValues
    bodies: list[Any] = field(default_factory=list)
    serializer: str | None = None
    compression: str | None = None
    declarations: list[Declaration] = field(default_factory=list)
    pushes: tuple[Push, ...] = ()
    text: str = ""
    calls_backend: bool = False


class BoundedProducer:
    """To be mixed into the app's class of producers.

    Attributes:
        timeout_seconds: returns how long publishing may take.
        expiration_seconds: after how long the next message expires; None: its own expiration counts.
        is_redis: the broker is Redis, where a declaration is kept for good.
        destination: the name of the queue of the last run, else its routing key; '': there was none.
        declared: queues and exchanges that were declared on this connection, by id.
        fleeting: queues that may delete themselves, as declared in this batch.
    """

    timeout_seconds: Callable[[], float]
    expiration_seconds: float | None = None
    is_redis: bool
    destination = ""
    declared: dict[int, Any]
    fleeting: dict[int, Any]
    _is_retry_asked = False
    _sample: Sample | None = None

    _app: Any
    _types: Mapping[str, str]
    _confirms: Confirms | None

    def begin(self, app: Any, *, is_redis: bool) -> Confirms | None:
        """Read the exchanges of ``app``, and listen for confirms; return these, or None."""
        self._app = app
        self.is_redis = is_redis
        self.declared, self.fleeting = {}, {}
        self._types = {exchange.name: exchange.type for exchange in _exchanges_of(app)}
        channel = self.channel  # type: ignore[attr-defined]
        self._confirms = Confirms.of(channel, self._forget_declared)
        if self._confirms is None and hasattr(channel, "events"):
            # a message may come back while the next one is sent, so its entry is unknown
            channel.events["basic_return"].add(lambda *_: None)
        return self._confirms

    @contextmanager
    def sampling(self, values: RunValues) -> Iterator[Sample]:
        """Yield a sample of the run with these values: nothing is declared, and events are not published.

        A run is published, so its message must be collected, and dropped, by an outbox.
        """
        before = self.expiration_seconds
        self._sample, self.expiration_seconds = Sample(values), values.expiration_seconds
        try:
            yield self._sample
        finally:
            self._sample, self.expiration_seconds = None, before

    def repeat(self, declaration: Declaration) -> None:
        """Declare what was to be declared in a sample, unless that is done already."""
        self._is_retry_asked = declaration.is_retry_asked
        self.maybe_declare(declaration.entity, declaration.retry, **declaration.retry_policy)

    def publish(self, body: Any, **options: Any) -> Any:
        reserved = find_reserved_way(self._app, options)
        if reserved:
            raise LookupError(reserved)
        if self._sample is not None:
            if not _is_run(options):
                return None
            self._sample.bodies.append(body)
            self._sample.serializer = options.get("serializer")
            self._sample.compression = options.get("compression")
        self._is_retry_asked = bool(options.get("retry"))
        options["retry"] = False
        if options.get("expiration") is not None and self.expiration_seconds is not None:
            options["expiration"] = self.expiration_seconds  # Celery's is by this machine's clock
        options["timeout"] = min(options.get("timeout") or math.inf, self.timeout_seconds())
        declared = options.get("declare") or ()
        if _is_run(options):
            queue = next((one.name for one in declared if hasattr(one, "routing_key")), None)
            self.destination = str(queue or options.get("routing_key") or "")
        if self._confirms is not None:
            self._confirms.declared = declared
            if options.get("mandatory") is None and self._is_for_a_queue(options):
                options["mandatory"] = True
        try:
            return super().publish(body, **options)  # type: ignore[misc]
        except BaseException:
            if self._sample is None:
                self._forget_declared(declared)
            raise

    def _forget_declared(self, entities: Iterable[Any]) -> None:
        """Let ``entities`` be declared again, as another program may have deleted them."""
        client = getattr(self.channel.connection, "client", None)  # type: ignore[attr-defined]
        for entity in entities:
            self.declared.pop(id(entity), None)
            if client is not None and getattr(entity, "can_cache_declaration", False):
                client.declared_entities.discard(hash(entity))

    def _is_for_a_queue(self, options: Mapping[str, Any]) -> bool:
        """Return True if this is a run, not an event, and its exchange sends it to queues."""
        exchange = options.get("exchange") or ""
        kind = getattr(exchange, "type", None) or self._types.get(exchange, "direct")
        return kind in _ROUTING_TYPES and _is_run(options)

    def maybe_declare(self, entity: Any, retry: bool | None = None, **retry_policy: Any) -> Any:
        if self._sample is not None:
            declaration = Declaration(entity, retry, retry_policy, self._is_retry_asked)
            self._sample.declarations.append(declaration)
            return False
        # kombu, too, declares each entity once for each connection, but takes longer to look that up
        declared = self.declared
        # a queue that may have deleted itself is declared for each message; on Redis once a batch, as a
        # declaration leaves nothing there but bindings, which kombu itself writes only once
        fleeting = self.fleeting
        if declared.get(id(entity)) is entity or fleeting.get(id(entity)) is entity:
            return False
        # a copy is declared where kombu, too, declares one, as it may have fewer bindings than the queue
        # itself
        is_copied = retry is not None and self._is_retry_asked and not entity.is_bound
        declarable = entity.bind(self.channel) if is_copied else entity  # type: ignore[attr-defined]
        if self._confirms is not None:  # an error closes the channel, and no more confirms come
            self._confirms.settle(self.timeout_seconds())
        is_new = super().maybe_declare(declarable, bool(retry), **retry_policy)  # type: ignore[misc]
        can_cache = getattr(entity, "can_cache_declaration", False)
        remembered = declared if can_cache else fleeting
        if (can_cache or self.is_redis) and len(remembered) < MAX_DECLARED:
            remembered[id(entity)] = entity
        return is_new


def _is_run(options: Mapping[str, Any]) -> bool:
    """Return True if a run is published with ``options``, and not an event."""
    return "redbeat_entry" in (options.get("headers") or ())


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


# -- samples

#: sends a run of an entry with these values by the scheduler's ``apply_async``
Send = Callable[[RunValues], Any]

#: held while attributes are replaced, as several beats may run in threads of one process
_REPLACING = RLock()


def take_sample(
    app: Any, producer: BoundedProducer, outbox: Outbox | Confirms, values: RunValues, send: Send
) -> Sample:
    """Return the message that ``send`` would have sent by ``producer``.

    Raises:
        UnfitError: a run is not one message to one queue.
        Exception: whatever ``send`` raises.
    """
    with (
        producer.sampling(values) as sample,
        outbox.sampling() as pushes,
        _muted_backend(app) as calls,
        bypassing_sentry(),
    ):
        send(values)
    commands = [push.command for push in pushes]
    if len(sample.bodies) != 1 or commands[:1] != ["lpush"] or "lpush" in commands[1:]:
        raise UnfitError("a run isn't one message to one queue")
    sample.pushes, sample.text, sample.calls_backend = tuple(pushes), str(pushes[0].value), bool(calls)
    return sample


@contextmanager
def replacing(subject: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Give an object other functions in this context."""
    with _REPLACING:
        attributes = vars(subject)
        before = {name: attributes[name] for name in functions if name in attributes}
        attributes.update(functions)
        try:
            yield
        finally:
            for name in functions:
                attributes.pop(name, None)
            attributes.update(before)


@contextmanager
def _muted_backend(app: Any) -> Iterator[list[Any]]:
    """Yield a list of the calls of the result backend's ``on_task_call`` in this context."""
    calls: list[Any] = []
    with replacing(
        app.backend,
        on_task_call=lambda *args, **kwargs: calls.append((args, kwargs)),
        remove_pending_result=lambda result: result,  # called when a result is garbage
    ):
        yield calls
