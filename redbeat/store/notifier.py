"""Waiting, and being woken: a beat with nothing to do listens on the wake-up channel.

Every write of RedBeat's publishes there, and writers in other languages may. A message carries no data: a
beat that is woken looks at the schedule. Without the channel (a broken connection, a missing right) waiting
works, too, and ends only when its time is over.
"""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import ConnectionError, RedisError, TimeoutError  # noqa: A004 - the client's own

from redbeat.connection.retry import is_no_permission
from redbeat.log.logger import logger
from redbeat.process.memory import Memory
from redbeat.store.rights import WAKE_UPS, Rights

#: how long after a failure the channel is tried again
RECONNECT_SECONDS = 5.0

#: how many messages one wait takes for one wake-up at most
MAX_MESSAGES = 1_000


class WakeChannel:
    """One subscription, on a connection of its own, made at the first wait."""

    def __init__(self, client: Any, channel: str, rights: Rights | None = None) -> None:
        self._client = client
        self._channel = channel
        self._pubsub: Any = None
        self._retry_at = 0.0
        self._rights = rights
        self._said = Memory[str, bool]()

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether a message ended it."""
        deadline = time.monotonic() + seconds
        try:
            if self._is_ready():
                return self._wait_for_message(deadline)
        except (RedisError, OSError, NotImplementedError) as exc:
            self._fail(exc)
        time.sleep(max(deadline - time.monotonic(), 0))
        return False

    def close(self) -> None:
        """Give the connection back; a later wait subscribes again."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            try:
                pubsub.close()
            except (RedisError, OSError) as exc:
                logger.debug("beat: Closing the wake-up channel: %s", exc)

    def _is_ready(self) -> bool:
        if self._pubsub is None and time.monotonic() >= self._retry_at:
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            pubsub.subscribe(self._channel)
            self._pubsub = pubsub
        return self._pubsub is not None

    def _wait_for_message(self, deadline: float) -> bool:
        is_woken = False
        for _ in range(MAX_MESSAGES):
            patience = 0.0 if is_woken else max(deadline - time.monotonic(), 0)
            message = self._pubsub.get_message(timeout=patience)
            if message is not None:
                is_woken = True
            elif is_woken or time.monotonic() >= deadline:  # None is also a subscription's confirmation
                break
        self._said.pop("unusable", None)
        return is_woken

    def _fail(self, exc: Exception) -> None:
        is_cut = isinstance(exc, (ConnectionError, TimeoutError, OSError)) and self._pubsub is not None
        if is_cut:  # the connection had worked; if the next one fails, too, that is logged
            logger.debug("beat: The wake-up channel has broken: %s", exc)
        elif is_no_permission(exc) and self._rights is not None:
            self._rights.note(WAKE_UPS, exc)
        elif self._said.is_news("unusable", True):
            logger.warning(
                "beat: The wake-up channel %s can't be used (%s); changes are noticed within a second.",
                self._channel,
                exc,
            )
        self._retry_at = time.monotonic() + RECONNECT_SECONDS
        self.close()
