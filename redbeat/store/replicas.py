"""Waiting for replicas, so that commits survive the loss of the server.

Owns the setting ``redbeat_wait_replicas``. Invariant: replicas that are away delay a batch, but never undo
its commit, which the server has made already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from redbeat.config.config import RedBeatConfig
from redbeat.connection.retry import without_retry
from redbeat.log.events import REPLICAS_BACK, REPLICAS_SHORT
from redbeat.log.logger import logger

#: how long to wait for replicas after a commit
WAIT_MS = 1_000
#: how long to wait while too few replicas are there, so that a backlog is sent all the same
SHORT_WAIT_MS = 100
#: how often to wait then
SHORT_SECONDS = 1.0


class WaitingClient(NamedTuple):
    """A client for scripts, as ``Replicas.waiting`` returns it."""

    replicas: Replicas
    client: Any

    def evalsha(self, *words: Any) -> Any:
        """Call a script that the server knows; return its reply."""
        return self.replicas.send(self.client, "evalsha", words)

    def eval(self, *words: Any) -> Any:
        """Call a script; return its reply."""
        return self.replicas.send(self.client, "eval", words)


class Replicas:
    """The replicas of the schedule's server.

    Attributes:
        wanted: how many replicas must have a commit; 0: beat doesn't wait for them.
    """

    def __init__(self, config: RedBeatConfig) -> None:
        self.wanted = config.wait_replicas
        self._is_cluster = config.is_cluster
        self._is_short = False
        self._asked_at = 0.0

    def waiting(self, client: Any) -> WaitingClient:
        """Return a client that waits after each script until enough replicas have what it wrote."""
        return WaitingClient(self, client)

    def send(self, client: Any, method: str, words: Sequence[Any]) -> Any:
        """Call a script, and wait until enough replicas have what it wrote; return its reply."""
        if self._is_short and time.monotonic() < self._asked_at + SHORT_SECONDS:
            return getattr(client, method)(*words)
        wait = ("WAIT", self.wanted, self._patience_ms(client))
        if self._is_cluster:  # its pipelines don't allow WAIT
            reply = getattr(client, method)(*words)
            acknowledged = self._wait(without_retry(client), words[2], wait)
        else:
            pipeline = client.pipeline(transaction=False)
            getattr(pipeline, method)(*words)
            pipeline.execute_command(*wait)
            reply, acknowledged = pipeline.execute(raise_on_error=False)
        self._asked_at = time.monotonic()
        if isinstance(reply, Exception):  # the script isn't known to the server yet, say
            raise reply
        self._note(acknowledged)
        return reply

    def _patience_ms(self, client: Any) -> int:
        """Return how long to wait: less than the client waits for a reply."""
        patience_ms = SHORT_WAIT_MS if self._is_short else WAIT_MS
        pool = getattr(without_retry(client), "connection_pool", None)
        timeout_seconds = getattr(pool, "connection_kwargs", {}).get("socket_timeout")
        return min(patience_ms, max(int(timeout_seconds * 500), 1)) if timeout_seconds else patience_ms

    @staticmethod
    def _wait(cluster: Any, key: str, wait: Sequence[Any]) -> Any:
        # on the same connection: a single thread gets the one that it used last
        try:
            return cluster.execute_command(*wait, target_nodes=cluster.get_node_from_key(key))
        except RedisError as exc:  # the commit has been made in any case
            return exc

    def _note(self, acknowledged: Any) -> None:
        """Log when too few replicas have a commit, and when enough have one again."""
        count = acknowledged if isinstance(acknowledged, int) else 0
        was_short, self._is_short = self._is_short, count < self.wanted
        if self._is_short and not was_short:
            logger.warning(
                "beat: %s of %d replicas (redbeat_wait_replicas) have the last batch%s. Beat goes on: what "
                "they don't have is sent again if they take over.",
                count,
                self.wanted,
                f", as WAIT failed: {acknowledged}" if isinstance(acknowledged, RedisError) else "",
                extra=REPLICAS_SHORT.of(replicas=count),
            )
        elif was_short and not self._is_short:
            logger.warning(
                "beat: %d replicas have the last batch again.", count, extra=REPLICAS_BACK.of(replicas=count)
            )
