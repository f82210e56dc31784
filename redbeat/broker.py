"""The broker as the scheduler sees it: a producer, and whether there is anybody to send to.

A tick must come back quickly and keep the lock, so nothing here waits for a broker longer than a moment;
runs stay due until it is back.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

__all__ = ["Broker"]

logger = get_logger("celery.beat")

#: how long one attempt to connect may take, seconds
CONNECT_SECONDS = 5


class Broker:
    """One connection to the broker, made when it is first needed.

    Attributes:
        is_away: the last attempt to send or to connect found no broker.
    """

    def __init__(self, app: Any, producer_class: Any) -> None:
        self._app = app
        self._producer_class = producer_class
        self._connection: Any = None
        self._producer: Any = None
        self.is_away = False

    @property
    def producer(self) -> Any:
        """A producer on a connection that was good a moment ago; raises what the transport raises."""
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._connection.ensure_connection(
                max_retries=1, interval_start=0, interval_step=0.2, timeout=CONNECT_SECONDS
            )
            self._producer = self._producer_class(self._connection, auto_declare=False)
        return self._producer

    def has_failed(self, exc: Exception) -> bool:
        """Tell whether sending raised ``exc`` because there is no broker, and not because of the entry."""
        connection = self._connection or self._app.connection_for_write()
        errors = (OperationalError, OSError, *connection.connection_errors)
        if not any(isinstance(cause, errors) for cause in (exc, exc.__cause__, exc.__context__)):
            return False
        self.is_away = not self._answers()
        if self.is_away:
            logger.error(
                "beat: The broker %s can't be reached, due runs wait for it: %s", connection.as_uri(), exc
            )
        return self.is_away

    def is_back(self) -> bool:
        """Try again; return whether the broker is there."""
        self.is_away = not self._answers()
        if not self.is_away:
            logger.info("beat: The broker is back.")
        return not self.is_away

    def _answers(self) -> bool:
        self.close()
        try:
            return self.producer is not None
        except Exception as exc:  # noqa: BLE001 - whatever a transport raises: there is no broker
            logger.debug("beat: The broker can't be reached: %r", exc)
            return False

    def close(self) -> None:
        """Close the connection; the next producer makes a new one."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as exc:  # noqa: BLE001 - a broken connection may fail in any way when closed
                logger.debug("beat: Closing the connection to the broker: %r", exc)
