"""A connection on which commands are sent now, and their replies read later.

Invariant: it goes back to its pool with every reply read, or it is ended first.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import redis
import redis.connection
import redis.sentinel
from redis.exceptions import RedisError, ResponseError

from redbeat.connection.retry import LAST_WORDS_SECONDS, call_briefly
from redbeat.errors import RedBeatError
from redbeat.process.signals import hold_interrupts

#: a client whose pool has fewer connections keeps them for the commands that are sent meanwhile
MIN_CONNECTIONS = 10

#: the clients and the connections that do with a command nothing but send it. Fakes, clusters and subclasses
#: get each command in the ordinary way
_PLAIN_CLIENT = redis.Redis
_PLAIN_CONNECTIONS = (
    redis.connection.Connection,
    redis.connection.SSLConnection,
    redis.connection.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection,
    redis.sentinel.SentinelManagedSSLConnection,
)
#: and so does a client of which somebody watches the commands
_ORDINARY_WAYS = (redis.Redis.execute_command, redis.client.Pipeline.execute)


class Stream:
    """One connection of a client's pool, not available to others until ``close``.

    Attributes:
        unread: of how many commands the replies weren't read yet.
    """

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._connection = connection
        self.unread = 0

    @classmethod
    def open(cls, client: Any, *, is_spare: bool = False) -> Stream | None:
        """Return a stream to the server of ``client``; None: with this client there can be none.

        Arguments:
            is_spare: leave a connection to others that is there already; for a stream that is kept.

        Raises what the client raises if it can't connect.
        """
        pool = _pool_of(getattr(client, "wrapped_connection", client))
        if pool is None:
            return None
        words = ("EVALSHA",) if _wants_the_command(type(pool).get_connection) else ()
        connection = pool.get_connection(*words)
        if not is_spare:
            return cls(pool, connection)
        try:
            return cls(pool, pool.get_connection(*words))
        finally:
            pool.release(connection)

    def write_all(self, commands: Sequence[Sequence[Any]]) -> None:
        """Send commands at once, and don't wait for their replies; an error ends the connection."""
        encode = self._connection.encoder.encode
        # the packer of redis-py takes three times as long, 5 % of a burst, and makes a piece of every 6 kB
        packed = []
        for words in commands:
            packed.append(b"*%d\r\n" % len(words))
            for word in words:
                value = word if type(word) is bytes else encode(word)
                packed += (b"$%d\r\n" % len(value), value, b"\r\n")
        try:
            # a health check would read a reply
            self._connection.send_packed_command([b"".join(packed)], check_health=not self.unread)
        except BaseException:
            self._end()
            raise
        self.unread += len(commands)

    def read(self) -> Any:
        """Return the reply to the first command that has none yet, or the error that the server has replied.

        Any other error ends the connection, and is raised.
        """
        try:
            reply = self._connection.read_response()
        except ResponseError as exc:
            reply = exc
        except BaseException:
            self._end()
            raise
        self.unread -= 1
        return reply

    def close(self) -> None:
        """Give the connection back. Harmless when repeated.

        Replies that weren't read are waited for, 2 seconds at most, and dropped; if they don't come, the
        connection is ended. Otherwise a command might arrive when beat has released its lock, and be refused:
        the messages of its runs, which another broker may have already, would be sent again.
        """
        if self._connection is None:
            return
        if self.unread:
            with (
                suppress(RedBeatError, RedisError, OSError),
                hold_interrupts(LAST_WORDS_SECONDS, is_firm=True),
            ):
                call_briefly(self._drop_unread)
        if self.unread:
            self._end()
        elif self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.release(connection)

    def _drop_unread(self) -> None:
        while self.unread:
            self.read()

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        self.unread = 0
        if connection is not None:
            try:
                connection.disconnect()
            finally:
                self._pool.release(connection)


def _pool_of(client: Any) -> Any:
    """Return the pool of a client whose connections may be used directly, else None."""
    if type(client) is not _PLAIN_CLIENT or getattr(client, "connection", None) is not None:
        return None
    if (redis.Redis.execute_command, redis.client.Pipeline.execute) != _ORDINARY_WAYS:
        return None
    if {"execute_command", "evalsha", "pipeline"} & vars(client).keys():
        return None
    pool = client.connection_pool
    is_plain = pool.connection_class in _PLAIN_CONNECTIONS and getattr(pool, "cache", None) is None
    return pool if is_plain and pool.max_connections >= MIN_CONNECTIONS else None


@cache
def _wants_the_command(get_connection: Any) -> bool:
    """Tell whether connections are asked for with a command, as before redis-py 5.3."""
    parameters = inspect.signature(get_connection).parameters
    required = [one for one in parameters.values() if one.default is one.empty and one.name != "self"]
    return any(one.kind is one.POSITIONAL_OR_KEYWORD for one in required)
