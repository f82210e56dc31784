"""Waiting, and being woken: a beat with nothing to do listens on the wake-up channel.

Every write of RedBeat's publishes there, and writers in other languages may. A message carries no data: a
beat that is woken looks at the schedule. Invariant: the channel is an optimisation. Whatever fails on it (a
connection, a right, or the redis client itself) closes it. It is opened again later; until then a wait ends
only when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError

from redbeat.log.logger import logger
from redbeat.store.records import text_of

#: how long after the first failure in a row the channel is opened again, and after each other one
REOPEN_SECONDS, RECONNECT_SECONDS = 0.1, 5.0
#: after so many failures in a row it is said that the channel can't be used
LASTING_FAILURES = 3

#: how many messages one wait takes for one wake-up at most
MAX_MESSAGES = 1_000


class _NoReauthentication:
    """Stands in for redis-py's event dispatcher in a subscription.

    With RESP3, and a streaming credential provider, the dispatcher has the provider's thread send AUTH on the
    connection, and read from it at the same time as this thread does. A connection that the server ends with
    its token is opened again instead, with the current one.
    """

    def dispatch(self, event: object) -> None:
        """Ignore the event: the connection was opened."""


class WakeChannel:
    """One subscription to one or several channels, on a connection of its own, made at the first wait.

    In a cluster that is any node: what is published on one of them reaches all.
    """

    def __init__(self, client: Any, channels: str | Iterable[str]) -> None:
        self._client = client
        self.listen_to(channels)
        self._heard: tuple[str, ...] = ()  # what the connection is subscribed to
        self._pubsub: Any = None
        self._failures = 0  # in a row
        self._retry_at = 0.0
        self._announced: set[str] = set()

    def take_announced(self) -> set[str]:
        """Return on which channels there were messages since the last call."""
        announced, self._announced = self._announced, set()
        return announced

    def listen_to(self, channels: str | Iterable[str]) -> None:
        """Listen to these channels from the next wait on, and to no others.

        What is published before that wait begins isn't noticed if they are others than before.
        """
        some = [channels] if isinstance(channels, str) else channels
        self._channels = tuple(sorted({*some}))

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether a message ended it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._is_ready():
                    is_woken = self._wait_for_message(deadline)
                    self._note_works()
                    return is_woken
            except Exception as exc:  # noqa: BLE001 - the boundary of the channel
                self._fail(exc)
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                return False
            time.sleep(min(left_seconds, max(self._retry_at - time.monotonic(), 0)))

    def close(self) -> None:
        """Give the connection back; a later wait subscribes again."""
        pubsub, self._pubsub, self._heard = self._pubsub, None, ()
        if pubsub is not None:
            try:
                pubsub.close()
            except Exception as exc:  # noqa: BLE001 - the boundary of the channel
                logger.debug("beat: Closing the wake-up channel: %s", exc)

    def _is_ready(self) -> bool:
        if self._heard != self._channels:
            self.close()  # the documented rule has no right to UNSUBSCRIBE
        if self._pubsub is None and time.monotonic() >= self._retry_at:
            self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            if hasattr(self._pubsub, "_event_dispatcher"):  # redis-py 5.3 or newer has no public name for it
                self._pubsub._event_dispatcher = _NoReauthentication()  # noqa: SLF001
            self._pubsub.subscribe(*self._channels)
            self._heard = self._channels
        return self._pubsub is not None

    def _wait_for_message(self, deadline: float) -> bool:
        is_woken = False
        for _ in range(MAX_MESSAGES):
            patience = 0.0 if is_woken else max(deadline - time.monotonic(), 0)
            message = self._pubsub.get_message(timeout=patience)
            if message is not None:
                is_woken = True
                self._announced.add(text_of(message["channel"]))
            elif is_woken or time.monotonic() >= deadline:  # None is also a subscription's confirmation
                break
        return is_woken

    def _note_works(self) -> None:
        if self._failures >= LASTING_FAILURES:  # at the level of the outage
            logger.warning("beat: The wake-up channel %s works again.", _named(self._channels))
        self._failures = 0

    def _fail(self, exc: Exception) -> None:
        self._retry_at = time.monotonic() + (RECONNECT_SECONDS if self._failures else REOPEN_SECONDS)
        self._failures += 1
        reason = str(exc) if isinstance(exc, (RedisError, OSError)) else f"{type(exc).__name__}: {exc}"
        logger.debug("beat: The wake-up channel has failed: %s", reason)
        if self._failures == LASTING_FAILURES:  # sooner, Redis may be away, which is logged where it matters
            logger.warning(
                "beat: The wake-up channel %s can't be used (%s); changes are noticed within a second.",
                _named(self._channels),
                reason,
            )
        self.close()


def _named(channels: tuple[str, ...]) -> str:
    return channels[0] + (f" and {len(channels) - 1} more" if len(channels) > 1 else "")
