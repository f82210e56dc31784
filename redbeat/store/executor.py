"""Calls on their way to Redis: written now, their replies read later; one outcome for each, errors as values.

Calls that are submitted together go out together: on one connection where the client's own can be used
(``connection/stream.py``), else in one round trip a node (``store/nodes.py``). Invariant: every request has
exactly one outcome. One that has no reply is sent again, alone, and waits for Redis as the settings say. That
does no harm where only the reply was lost, as every script is safe to run twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from redbeat.connection.client import is_hasty
from redbeat.connection.retry import without_retry
from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.log.logger import logger
from redbeat.store.nodes import call_on_nodes, is_away, is_timeout
from redbeat.store.scripts.script import Call
from redbeat.store.store import Store

#: rows that one call has at most: it blocks the server for a millisecond or two
CALL_ROWS = 100
#: rows on their way at most: what others send to the server comes after them, and their replies must fit into
#: what lies between
MAX_UNREAD = 500

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class Request(Generic[Answer]):
    """A call about one part of the schedule, and its outcome.

    Attributes:
        rows: how many rows the call has.
        waits_for_replicas: it is sent apart from others, and until replicas have what it wrote.
        outcome: the answer, or why there is none: LockLost, say; None: it is not known yet.
    """

    store: Store
    call: Call[Answer]
    rows: int = 1
    waits_for_replicas: bool = False
    outcome: Answer | RedBeatError | None = None

    def take(self, reply: Any) -> None:
        """Read the reply."""
        try:
            self.outcome = self.call.read(reply)
        except RedBeatError as exc:
            self.outcome = exc

    def run(self) -> Answer:
        """Return the answer; the call is sent alone, and again while Redis is away, or the layout changes.

        Raises:
            RedBeatError: there is none.
        """
        return self.send(self.store.watched())

    def send(self, client: Any) -> Answer:
        """Return the answer; the call is sent by ``client``, and again if the layout has changed."""
        store = self.store

        def send() -> Any:
            call = self.call.within_part(store.keys)
            with store.translating():
                return store.replicas.send(client, call) if self.waits_for_replicas else call.send(client)

        return self.call.read(store.following(send))

    def answer(self) -> Answer:
        """Return the answer of a request whose outcome is known.

        Raises:
            RedBeatError: there is none.
        """
        if isinstance(self.outcome, RedBeatError):
            raise self.outcome
        return self.outcome  # type: ignore[return-value]


def ask(request: Request[Answer]) -> Answer:
    """Send one request now; return its answer, or raise the error that is its outcome."""
    run_all([request])
    return request.answer()


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
        is_spare: leave a connection to others that is there already; for requests that are long on their way.
    """

    def __init__(self, store: Store, *, is_spare: bool = False) -> None:
        self._store, self._client = store, store.client
        self._is_spare = is_spare
        self._can_stream = not store.config.is_cluster
        self._stream: Stream | None = None
        self._stores: dict[Store, None] = {}  # of all requests
        self._requests: list[Request[Any]] = []
        self._unsent: list[Request[Any]] = []
        self._unread: deque[Request[Any]] = deque()
        self._unsent_rows = self._unread_rows = 0
        self._error: BaseException | None = None  # why the stream has ended

    def submit(self, request: Request[Any]) -> None:
        """Send a request with at most ``CALL_ROWS`` rows, and don't wait for its outcome."""
        self._requests.append(request)
        self._stores[request.store] = None
        if self._can_stream and not request.waits_for_replicas:
            self._unsent.append(request)
            self._unsent_rows += request.rows
            if request.rows > 1 and self._unsent_rows >= CALL_ROWS:
                self.exchange(MAX_UNREAD)

    def drain(self) -> None:
        """Wait until each request has its outcome."""
        requests, self._requests = self._requests, []
        if self._unsent or self._unread:
            self.exchange(0)
        self.close()
        left = [one for one in requests if one.outcome is None]
        if left:
            _settle(self._client, left, self._error)

    def exchange(self, most_unread: int) -> bool:
        """Write what was submitted, and read replies until so many rows have none.

        Returns False if that isn't possible, or an error has ended the connection.
        """
        others = [one for one in self._stores if one is not self._store] if len(self._stores) > 1 else ()
        try:
            with self._store.translating(others=others):
                if self._unsent:
                    self._write()
                while self._stream is not None and self._unread_rows > most_unread:
                    reply = self._stream.read()
                    request = self._unread.popleft()
                    self._unread_rows -= request.rows
                    if not isinstance(reply, ResponseError):  # a refused call is sent again, alone
                        request.take(reply)
        except RedBeatError as exc:
            logger.debug("beat: Calls are sent one after the other: %r", exc)
            self._error, self._can_stream = exc.__cause__, False
            self.close()
        except BaseException:
            self.close()
            raise
        return self._can_stream

    def _write(self) -> None:
        if self._stream is None:
            self._stream = Stream.open(self._client, is_spare=self._is_spare)
        if self._stream is None:
            self._can_stream = False
        else:
            commands = []
            for request in self._unsent:
                commands.append(request.call.words(self._client))
                self._unread.append(request)
            self._stream.write_all(commands)
            self._unread_rows += self._unsent_rows
        self._unsent, self._unsent_rows = [], 0

    def close(self) -> None:
        """Give the connection back; what was written is waited for, 2 seconds at most."""
        stream, self._stream = self._stream, None
        self._unsent.clear()
        self._unread.clear()
        self._unsent_rows = self._unread_rows = 0
        if stream is not None:
            stream.close()


def _settle(client: Any, requests: Sequence[Request[Any]], error: BaseException | None) -> None:
    """Give each request its outcome: they are sent in one round trip a node, and alone where that isn't
    possible.

    A node that is away isn't waited for if another one has answered, or if the client gives up soon, and only
    once if none has answered.

    Arguments:
        error: how sending them has ended before.
    """
    client = without_retry(client)
    together = [one for one in requests if not one.waits_for_replicas]
    replies: dict[Request[Any], Any] = {}
    if isinstance(error, Exception) and is_away(error):
        replies = dict.fromkeys(together, error)
    elif len(together) > 1 or is_hasty(client):
        first, *others = dict.fromkeys([one.store for one in together])
        with first.translating(others=others):
            found = call_on_nodes(client, [one.call for one in together])
        replies.update(zip(together, found, strict=True))
    has_waited = is_hasty(client) and any(map(is_timeout, replies.values()))
    is_waited_for = not has_waited and all(
        isinstance(one, Exception) and is_away(one) for one in replies.values()
    )
    for request in requests:
        reply = replies.get(request)
        try:
            if isinstance(reply, Exception) and is_away(reply) and not is_waited_for:
                with request.store.translating():
                    raise reply
            if reply is None or isinstance(reply, Exception):  # it says why
                request.outcome = request.run()
            else:
                request.take(reply)
        except RedBeatError as exc:
            request.outcome = exc
            is_waited_for = is_waited_for and not isinstance(exc, StoreUnavailable)  # that is enough for all
