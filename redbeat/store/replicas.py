"""Waiting for replicas: what was committed shall survive the loss of the server that it was committed to.

Owns the setting ``redbeat_wait_replicas``. Invariant: replicas that are away cost a batch a moment, never its
commit: that stands on the server already, and isn't taken back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from redbeat.config.config import RedBeatConfig
from redbeat.connection.retry import is_no_permission, without_retry
from redbeat.log.logger import logger
from redbeat.store.rights import REPLICAS, Rights
from redbeat.store.scripts import Script

#: how long replicas are waited for after a commit, milliseconds,
WAIT_MS = 1_000
#: and while they are known to be too few, so that a backlog leaves all the same,
SHORT_WAIT_MS = 100
#: which is done once in this many seconds
SHORT_SECONDS = 1.0


class Replicas:
    """The replicas of the schedule's server, as many as are wanted.

    Attributes:
        wanted: how many must have a commit; 0: nobody waits.
    """

    def __init__(self, config: RedBeatConfig) -> None:
        self.wanted = config.wait_replicas
        self._is_cluster = config.is_cluster
        self._rights = Rights(config)
        self._is_short = False
        self._asked_at = 0.0

    def call(self, script: Script, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Return the script's reply, when enough replicas have what it wrote or have been waited for."""
        if self._is_short and time.monotonic() < self._asked_at + SHORT_SECONDS:
            return script(client, keys, args)
        wait = ("WAIT", self.wanted, self._patience_ms(client))
        if self._is_cluster:  # its pipelines take no WAIT
            reply, acknowledged = script(client, keys, args), None
        else:
            reply, acknowledged = script.call_and_wait(client, keys, args, wait)
        if acknowledged is None:
            # the connection that a single thread has used last is the one that it gets next
            acknowledged = self._wait(client, keys[0], wait)
        self._note(acknowledged)
        self._asked_at = time.monotonic()
        return reply

    def _patience_ms(self, client: Any) -> int:
        """Return how long to wait: no longer than the client waits for a reply."""
        patience_ms = SHORT_WAIT_MS if self._is_short else WAIT_MS
        pool = getattr(without_retry(client), "connection_pool", None)
        timeout_seconds = getattr(pool, "connection_kwargs", {}).get("socket_timeout")
        return min(patience_ms, max(int(timeout_seconds * 500), 1)) if timeout_seconds else patience_ms

    def _wait(self, client: Any, key: str, wait: Sequence[Any]) -> Any:
        client = without_retry(client)
        options = {"target_nodes": client.get_node_from_key(key)} if self._is_cluster else {}
        try:
            return client.execute_command(*wait, **options)
        except RedisError as exc:  # the commit has been made, whatever this is
            return exc

    def _note(self, acknowledged: Any) -> None:
        """Log it when replicas begin, or cease, to be too few."""
        count = acknowledged if isinstance(acknowledged, int) else 0
        was_short, self._is_short = self._is_short, count < self.wanted
        if is_no_permission(acknowledged):
            self._rights.note(REPLICAS, acknowledged)
        elif self._is_short and not was_short:
            logger.warning(
                "beat: %s of %d replicas (redbeat_wait_replicas) have the last batch%s. Beat goes on: what "
                "they don't have is sent again if they take over.",
                count,
                self.wanted,
                f", as WAIT failed: {acknowledged}" if isinstance(acknowledged, RedisError) else "",
            )
        elif was_short and not self._is_short:
            logger.info("beat: %d replicas have the last batch again.", count)
