"""The broker as the scheduler sees it: a producer, its outbox, and whether there is anybody to send to.

A tick must come back in time and keep the lock, so nothing here waits for a broker longer than
``redbeat_publish_timeout``; runs stay due until it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from redbeat.lua import Push
from redbeat.outbox import Outbox

__all__ = ["Broker"]

logger = get_logger("celery.beat")

#: how long one attempt to connect may take at the most, seconds
CONNECT_SECONDS = 5.0

#: how many declarations a producer remembers; the queues that Celery makes up are not bounded
MAX_DECLARED = 1_000


class Broker:
    """One connection to the broker, made when it is first needed.

    Arguments:
        app: the Celery app.
        producer_class: kombu's, or one made from it.
        timeout_seconds: how long the sending of one batch may take.

    Attributes:
        is_away: the last attempt to send or to connect found no broker.
        outbox: collects the messages of ``producer``; None where it sends at once, or isn't there yet.
    """

    def __init__(self, app: Any, producer_class: Any, timeout_seconds: float) -> None:
        self._app = app
        self._producer_class = producer_class
        self._timeout_seconds = timeout_seconds
        self._deadline = 0.0
        self._connection: Any = None
        self._producer: Any = None
        self.outbox: Outbox | None = None
        self.is_away = False

    @property
    def producer(self) -> Any:
        """A producer on a connection that was good a moment ago; raises what the transport raises."""
        if self._connection is None:
            connection = self._app.connection_for_write()
            connection.transport_options = {
                **_bounds(connection, self._timeout_seconds),
                **(connection.transport_options or {}),
            }
            connection.ensure_connection(
                max_retries=1,
                interval_start=0,
                interval_step=0.2,
                timeout=min(CONNECT_SECONDS, self._timeout_seconds),
            )
            self._connection = connection
        if self._producer is None:
            channel = self._connection.channel()
            self.outbox = Outbox.of(channel)
            bounded = type("BoundedProducer", (_BoundedProducer, self._producer_class), {})
            self._producer = bounded(channel, auto_declare=False)
            self._producer.seconds_left = self.seconds_left
        return self._producer

    def begin_batch(self) -> None:
        """From now on a batch is sent."""
        self._deadline = time.monotonic() + self._timeout_seconds
        if self.outbox is not None:
            self.outbox.forget_tables()

    def seconds_left(self) -> float:
        """Return how long the sending of this batch may still take; 0: no longer."""
        return max(self._deadline - time.monotonic(), 0)

    def collecting(self) -> AbstractContextManager[list[Push]]:
        """Return a context that yields the list writes of its block; where all is sent at once, none."""
        return nullcontext([]) if self.outbox is None else self.outbox.collecting()

    def is_connection_error(self, exc: Exception) -> bool:
        """Tell whether sending raised ``exc`` because of the connection, and not because of the message."""
        connection = self._connection or self._app.connection_for_write()
        errors = (OperationalError, OSError, *connection.connection_errors)
        return any(isinstance(cause, errors) for cause in (exc, exc.__cause__, exc.__context__))

    def reconnect(self, exc: Exception) -> bool:
        """After ``exc`` connect anew; return whether there is a broker."""
        name = (self._connection or self._app.connection_for_write()).as_uri()
        self.is_away = not self._answers()
        if self.is_away:
            logger.error("beat: The broker %s can't be reached, due runs wait for it: %s", name, exc)
        return not self.is_away

    def is_back(self) -> bool:
        """Try again; return whether the broker is there."""
        self.is_away = not self._answers()
        if not self.is_away:
            logger.info("beat: The broker is back.")
        return not self.is_away

    def renew_channel(self) -> None:
        """After an error use a new channel, where the broker has closed the one that the error was about."""
        if self._producer is None or self.outbox is not None:
            return
        channel = self._producer.channel
        if not getattr(channel, "is_open", not getattr(channel, "closed", False)):
            self._producer = None
            _close_quietly(channel.close)

    def close(self) -> None:
        """Close the connection; the next producer makes a new one."""
        connection, self._connection, self._producer, self.outbox = self._connection, None, None, None
        if connection is not None:
            _close_quietly(connection.release)

    def _answers(self) -> bool:
        self.close()
        try:
            return self.producer is not None
        except Exception as exc:  # noqa: BLE001 - whatever a transport raises: there is no broker
            logger.debug("beat: The broker can't be reached: %r", exc)
            self.close()
            return False


class _BoundedProducer:
    """Publishes once, in the time that is left: the scheduler itself tries again."""

    seconds_left: Callable[[], float]
    _declared: dict[int, Any]
    _is_retry_asked = False

    def publish(self, body: Any, **options: Any) -> Any:
        self._is_retry_asked = bool(options.get("retry"))
        options["retry"] = False
        options["timeout"] = options.get("timeout") or max(self.seconds_left(), 0.1)
        return super().publish(body, **options)  # type: ignore[misc]

    def maybe_declare(self, entity: Any, retry: bool | None = None, **retry_policy: Any) -> Any:
        # kombu, too, declares a thing once for each connection, but takes long to find out that it has
        declared = self.__dict__.setdefault("_declared", {})
        if declared.get(id(entity)) is entity:
            return False
        # where it may try again, kombu declares a copy, and a copy of a queue may have fewer bindings
        is_copied = retry is not None and self._is_retry_asked and not entity.is_bound
        declarable = entity.bind(self.channel) if is_copied else entity  # type: ignore[attr-defined]
        is_new = super().maybe_declare(declarable, bool(retry), **retry_policy)  # type: ignore[misc]
        if getattr(entity, "can_cache_declaration", False) and len(declared) < MAX_DECLARED:
            declared[id(entity)] = entity
        return is_new


def _bounds(connection: Any, seconds: float) -> dict[str, Any]:
    """Return the transport options that make a silent broker an error, and a publish a confirmed one."""
    transport = connection.get_transport_cls()
    if transport.driver_name == "py-amqp":
        return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}
    if transport.driver_type == "redis":
        return {"socket_timeout": seconds, "socket_connect_timeout": min(seconds, CONNECT_SECONDS)}
    return {}


def _close_quietly(close: Callable[[], Any]) -> None:
    try:
        close()
    except Exception as exc:  # noqa: BLE001 - what is broken may fail in any way when closed
        logger.debug("beat: Closing what led to the broker: %r", exc)
