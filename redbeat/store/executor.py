"""Calls on their way to Redis: written now, their replies read later; one outcome for each, errors as values.

Calls that are submitted together go out together: on one connection where the client's own can be used
(``Stream``), else as ``Store.try_all`` sends them. Invariant: every request has exactly one outcome. One
that has no reply is sent again, and waits for Redis as the settings say. That does no harm where only the
reply was lost, as every script is safe to run twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import redis
import redis.connection
import redis.sentinel
from redis.exceptions import RedisError, ResponseError

from redbeat.connection.retry import LAST_WORDS_SECONDS, call_briefly
from redbeat.errors import RedBeatError, StoreRefused
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts
from redbeat.store.records import Fence, LockStatus
from redbeat.store.scripts.script import Call
from redbeat.store.store import Store, raised

#: rows that one call has at most: it blocks the server for a millisecond or two
CALL_ROWS = 100
#: rows on their way at most: what others send to the server comes after them, and their replies must fit into
#: what lies between
MAX_UNREAD = 500

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
#: a client whose commands are watched sends each in the ordinary way, too
_ORDINARY_WAYS = (redis.Redis.execute_command, redis.client.Pipeline.execute)

Answer = TypeVar("Answer")

_ROWS = attrgetter("rows")


@dataclass(eq=False, slots=True)
class Request(Generic[Answer]):
    """A call about one part of the schedule, and its outcome.

    Attributes:
        rows: how many rows the call has.
        waits_for_replicas: it is sent apart from others, and until replicas have what it wrote.
        outcome: the answer, or why there is none: LockLost, say; None: it is not known yet.
        fence: the answer has the ``status`` of this lock; None: the script checks no lock.
        is_repeated: it may have been sent before, and the answer to that was lost.
    """

    store: Store
    call: Call[Answer]
    rows: int = 1
    waits_for_replicas: bool = False
    outcome: Answer | RedBeatError | None = None
    fence: Fence | None = None
    is_repeated: bool = False

    def run(self) -> Answer:
        """Send it, and return the answer.

        Raises:
            RedBeatError: there is none.
        """
        run_all([self])
        return self.answer()

    def answer(self) -> Answer:
        """Return the answer of a request whose outcome is known.

        Raises:
            RedBeatError: there is none.
        """
        return raised(self.outcome)  # type: ignore[return-value]  # it is known

    def send_smaller(self, refusal: StoreRefused) -> Answer | RedBeatError:
        """Return the outcome after the server has refused the call: that, where it can't be divided."""
        return refusal


def _check_fences(requests: Iterable[Request[Any]]) -> None:
    """Replace the answers of those scripts by LockLost that have found the lock to be another beat's."""
    for request in requests:
        outcome: Any = request.outcome
        if request.fence is None or isinstance(outcome, RedBeatError):
            continue
        if outcome.status is not LockStatus.HELD:
            try:
                request.store.check_lock(outcome.status, request.fence)
            except RedBeatError as exc:
                request.outcome = exc


def run_all(requests: Sequence[Request[Any]]) -> None:
    """Send requests together, and wait until each has its outcome."""
    if requests:
        executor = Executor(requests[0].store)
        for request in requests:
            executor.submit(request)
        executor.drain()


class Executor:
    """Sends requests.

    Arguments:
        store: of any of their parts, and of the same client.
        is_spare: leave a connection to others that is there already, as new ones may be refused.
    """

    def __init__(self, store: Store, *, is_spare: bool = False) -> None:
        self._store, self._client, self._is_spare = store, store.client, is_spare
        self._can_stream = not store.config.is_cluster
        self._stream: Stream | None = None
        self._unsent: list[Request[Any]] = []
        self._unread: deque[Request[Any]] = deque()
        self._left: list[Request[Any]] = []  # those that are sent alone, or together in another way

    def submit(self, request: Request[Any]) -> None:
        """Send a request with at most ``CALL_ROWS`` rows, and don't wait for its outcome."""
        if self._can_stream and not request.waits_for_replicas:
            self._unsent.append(request)
            if request.rows > 1 and sum(map(_ROWS, self._unsent)) >= CALL_ROWS:
                self.exchange(MAX_UNREAD)
        else:
            self._left.append(request)

    def drain(self) -> None:
        """Wait until each request has its outcome."""
        if self._unsent or self._unread:
            self.exchange(0)
        self.close()
        if self._left:
            left, self._left = self._left, []
            self._settle(left)

    def exchange(self, most_unread: int) -> bool:
        """Write what was submitted, and read replies until so many rows have none.

        Returns False if that isn't possible, or an error has ended the connection.
        """
        replies = list[tuple[Request[Any], Any]]()
        try:
            with self._store.translating():
                if self._unsent:
                    self._stream = self._stream or Stream.open(self._client, is_spare=self._is_spare)
                if self._unsent and self._stream is not None:
                    commands = [request.call.words() for request in self._unsent]
                    self._unread += self._unsent
                    self._unsent = []
                    self._stream.write_all(commands)
                unread_rows = sum(map(_ROWS, self._unread))
                while self._stream is not None and unread_rows > most_unread:
                    reply = self._stream.read()
                    request = self._unread.popleft()
                    unread_rows -= request.rows
                    if isinstance(reply, ResponseError):
                        self._left.append(request)
                    else:
                        replies.append((request, reply))
        except RedBeatError as exc:
            logger.debug("beat: Calls are sent one after the other: %r", exc)
            self._can_stream = False
            self.close()
        except BaseException:
            self.close()
            raise
        for request, reply in replies:
            try:
                request.outcome = request.call.read(reply)
            except RedBeatError as exc:
                request.outcome = exc
        _check_fences(map(itemgetter(0), replies))
        if self._stream is None:
            self._can_stream = False
            self.close()
        return self._can_stream

    def _settle(self, requests: Sequence[Request[Any]]) -> None:
        """Give each request its outcome: they are sent in one round trip for each node, and alone where that
        is not possible.
        """
        store = self._store
        client = store.client if store.is_hasty else store.watched()
        together = [one for one in requests if not one.waits_for_replicas]
        apart = [one for one in requests if one.waits_for_replicas]
        answers = store.try_all([one.call for one in together], client)
        for one in apart:
            answers += store.try_all([one.call], one.store.replicas.waiting(client))
        for request, answer in zip(together + apart, answers, strict=True):
            request.store.follow_part()
            if isinstance(answer, StoreRefused):
                answer = request.send_smaller(answer)
            request.outcome, request.is_repeated = answer, True
        _check_fences(requests)

    def close(self) -> None:
        """Give the connection back; what was written is waited for, 2 seconds at most.

        Requests that have no reply are left to be sent in another way, in their order.
        """
        stream, self._stream = self._stream, None
        self._left += [*self._unread, *self._unsent]
        self._unsent.clear()
        self._unread.clear()
        if stream is not None:
            stream.close()


@dataclass(eq=False, slots=True)
class Stream:
    """One connection of a client's pool, not available to others until ``close``.

    Attributes:
        unread: of how many commands the replies weren't read yet.
    """

    _pool: Any
    _connection: Any
    unread: int = 0

    @classmethod
    def open(cls, client: Any, *, is_spare: bool = False) -> Stream | None:
        """Return a stream to the server of ``client``; None: with this client there can be none.

        Arguments:
            is_spare: leave a connection to others that is there already.

        Raises what the client raises if it can't connect.
        """
        pool = _pool_of(getattr(client, "wrapped_connection", client))
        if pool is None:
            return None
        connection = _connection_of(pool)
        if not is_spare:
            return cls(pool, connection)
        try:
            return cls(pool, _connection_of(pool))
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
                packed.append(b"$%d\r\n%b\r\n" % (len(value), value))
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
                hold_interrupts(LAST_WORDS_SECONDS),
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


def _connection_of(pool: Any) -> Any:
    """Return a connection of a pool that no other command uses until it is released."""
    try:
        return pool.get_connection()
    except TypeError:  # before redis-py 5.3
        return pool.get_connection("EVALSHA")
