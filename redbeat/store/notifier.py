"""Waiting, and being woken: a beat with nothing to do listens on the wake-up channel.

Every write of RedBeat's publishes there, and writers in other languages may. A message carries no data: a
beat that is woken looks at the schedule. Without the channel (a broken connection, a missing right) waiting
works, too, and ends only when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from redis.exceptions import ConnectionError, RedisError, TimeoutError  # noqa: A004 - the client's own

from redbeat.connection.retry import is_no_permission
from redbeat.log.logger import logger
from redbeat.process.memory import Memory
from redbeat.store.records import text_of
from redbeat.store.rights import WAKE_UPS, Rights

#: how long after a failure the channel is tried again
RECONNECT_SECONDS = 5.0

#: how many messages one wait takes for one wake-up at most
MAX_MESSAGES = 1_000

#: how many channels are named where they can't be used
SHOWN_CHANNELS = 3


class WakeChannel:
    """One subscription to one or several channels, on a connection of its own, made at the first wait.

    In a cluster that is any node: what is published on one of them reaches all.
    """

    def __init__(self, client: Any, channels: str | Iterable[str], rights: Rights | None = None) -> None:
        self._client = client
        self._channels = _listed(channels)
        self._heard: tuple[str, ...] = ()  # what the connection is subscribed to
        self._pubsub: Any = None
        self._retry_at = 0.0
        #: without the right to leave a channel a new connection hears only what it is to hear
        self._may_leave = True
        self._rights = rights
        self._said = Memory[str, bool]()
        self._announced: set[str] = set()

    def take_announced(self) -> set[str]:
        """Return on which channels there were messages since the last call."""
        announced, self._announced = self._announced, set()
        return announced

    def listen_to(self, channels: str | Iterable[str]) -> None:
        """Listen to these channels from the next wait on, and to no others.

        What is published before that wait begins isn't noticed on a channel that is new.
        """
        self._channels = _listed(channels)

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``; return whether a message ended it."""
        deadline = time.monotonic() + seconds
        try:
            if self._is_ready():
                return self._wait_for_message(deadline)
        except (RedisError, OSError, NotImplementedError) as exc:
            if is_no_permission(exc) and "unsubscribe" in str(exc):
                self._may_leave = False
                self.close()
                return self.wait(max(deadline - time.monotonic(), 0))
            self._fail(exc)
        time.sleep(max(deadline - time.monotonic(), 0))
        return False

    def close(self) -> None:
        """Give the connection back; a later wait subscribes again."""
        pubsub, self._pubsub, self._heard = self._pubsub, None, ()
        if pubsub is not None:
            try:
                pubsub.close()
            except (RedisError, OSError) as exc:
                logger.debug("beat: Closing the wake-up channel: %s", exc)

    def _is_ready(self) -> bool:
        if self._pubsub is not None and self._heard != self._channels:
            self._change_channels()
        if self._pubsub is None and time.monotonic() >= self._retry_at:
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            pubsub.subscribe(*self._channels)
            self._pubsub, self._heard = pubsub, self._channels
        return self._pubsub is not None

    def _change_channels(self) -> None:
        added = set(self._channels).difference(self._heard)
        removed = set(self._heard).difference(self._channels)
        if removed and not self._may_leave:
            self.close()
            return
        self._heard = self._channels
        # new ones first: a client that is subscribed to nothing may be taken for an ordinary connection
        if added:
            self._pubsub.subscribe(*sorted(added))
        if removed:
            self._pubsub.unsubscribe(*sorted(removed))

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
                _named(self._channels),
                exc,
            )
        self._retry_at = time.monotonic() + RECONNECT_SECONDS
        self.close()


def _listed(channels: str | Iterable[str]) -> tuple[str, ...]:
    return (channels,) if isinstance(channels, str) else tuple(sorted(set(channels)))


def _named(channels: tuple[str, ...]) -> str:
    rest = len(channels) - SHOWN_CHANNELS
    return ", ".join(channels[:SHOWN_CHANNELS]) + (f" and {rest} more" if rest > 0 else "")
