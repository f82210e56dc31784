"""The outbox: on a Redis broker, messages are collected here instead of being sent one by one.

kombu's own channel does its usual work (routing, formats, priorities, prefixes) up to the write to a list;
only that write is collected, and with ``task_send_sent_event`` Celery's event about it. Invariant: a fan-out
is sent at once, by kombu itself. So is each message by a version of kombu that writes in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from redbeat.connection.client import user_of
from redbeat.connection.retry import is_refusal
from redbeat.log.logger import logger
from redbeat.process.memory import Memory
from redbeat.store.records import Push, text_of

#: the routing key of the event that Celery sends with a task
_TASK_SENT = "task.sent"

#: warnings that were logged already: one of each in a process, however many connections there are
_said = Memory[str, bool]()


class UnknownWriteError(Exception):
    """kombu writes a message in another way than to a list, or in a way that RedBeat doesn't know."""


class Outbox:
    """The list writes of one kombu channel.

    Arguments:
        channel: of a Redis transport.
        event_exchange: the name of the exchange that Celery sends its events to.

    Attributes:
        events: task-sent events of the messages that were collected last; they are not sent either.
        kombu_client: kombu's client of the broker.
        database: the number of the broker's database.
        user: the broker's name for the user that kombu logs in as.
        tables: which queues are bound to an exchange, as looked up in this batch.

    Raises:
        UnknownWriteError, AttributeError, TypeError, ValueError: this version of kombu is unknown.
    """

    def __init__(self, channel: Any, event_exchange: str) -> None:
        self._channel = channel
        self._event_exchange = event_exchange
        self._put_now = channel._put  # noqa: SLF001 - kombu's transports have no public hook for a write
        self._put_fanout_now = channel._put_fanout  # noqa: SLF001
        self._get_table_now = channel.get_table
        self._lookup_now = channel._lookup  # noqa: SLF001
        self._queue_bind_now = channel._queue_bind  # noqa: SLF001
        with channel.conn_or_acquire() as client:
            self.kombu_client = client
        self._has_prefix = bool(getattr(channel, "global_keyprefix", ""))
        self.user = user_of(client)
        self.database = int(client.connection_pool.connection_kwargs.get("db") or 0)
        if "conn_or_acquire" not in channel._put.__code__.co_names:  # noqa: SLF001
            raise UnknownWriteError("without asking for a connection")
        if len(self._record(self._put_now, "queue", {"properties": {}})) != 1:
            raise UnknownWriteError("by several commands")
        self._is_sampling = False
        self._pushes: list[Push] | None = None
        self.events: list[Push] = []
        self.tables: dict[str, Any] = {}
        channel._put = self._put  # noqa: SLF001
        channel._put_fanout = self._put_fanout  # noqa: SLF001
        channel.get_table = self._get_table
        channel._lookup = self._lookup  # noqa: SLF001
        channel._queue_bind = self._queue_bind  # noqa: SLF001

    @classmethod
    def of(cls, channel: Any, event_exchange: str = "celeryev") -> Outbox | None:
        """Return the outbox of ``channel``; None if its messages cannot be collected, which is logged."""
        driver = getattr(getattr(channel, "connection", None), "driver_type", "")
        if driver != "redis":
            return None
        try:
            return cls(channel, event_exchange)
        except (UnknownWriteError, AttributeError, TypeError, ValueError) as exc:
            reason = f"This version of kombu writes to Redis in a way that RedBeat doesn't know ({exc})"
            if _said.is_news(reason, True):
                logger.warning("beat: %s: messages are sent one by one, and at least once.", reason)
            return None

    @contextmanager
    def collecting(self, *, is_sample: bool = False) -> Iterator[list[Push]]:
        """Yield a list of the list writes of the block, which are not sent; everything else in it is, except
        its task-sent events, which go to :attr:`events`.

        Raises:
            UnknownWriteError: in the block, where kombu writes in another way; or a sample not to a list.
        """
        self._pushes = pushes = list[Push]()
        self.events, self._is_sampling = [], is_sample
        try:
            yield pushes
        finally:
            self._pushes, self._is_sampling = None, False

    def sampling(self) -> AbstractContextManager[list[Push]]:
        """Do the same for a message that is never sent."""
        return self.collecting(is_sample=True)

    def find_queues(self, exchange: str, routing_key: str) -> list[str]:
        """Return which queues a message goes to; the bindings are looked up once a batch.

        Raises:
            LookupError: to none.
        """
        return list(self._lookup(exchange, routing_key))

    def send(self, batches: list[tuple[Push, ...]]) -> list[Exception | None]:
        """Send the writes of all ``batches`` in one round trip; return the error of each, None for one that
        was sent.

        Raises what the redis client raises if the broker is unreachable.
        """
        pipeline = self.kombu_client.pipeline(transaction=False)
        for push in (push for batch in batches for push in batch):
            prefix = self._full_key(push.command, "")  # the client itself adds it again
            getattr(pipeline, push.command)(push.queue.removeprefix(prefix), push.value)
        replies = iter(pipeline.execute(raise_on_error=False))
        outcomes: list[Exception | None] = []
        for batch in batches:
            of_batch = [next(replies) for _ in batch]
            outcomes.append(next((reply for reply in of_batch if isinstance(reply, Exception)), None))
        return outcomes

    def server_id(self) -> str | None:
        """Return the run id of the broker's server; None where its user lacks the right to ask."""
        try:
            return text_of(self.kombu_client.info("server").get("run_id")) or None
        except self._channel.connection.channel_errors as exc:
            if is_refusal(exc):  # it may answer later: it is busy, say
                raise
            logger.debug("beat: The broker doesn't tell its run id: %s", exc)
            return None

    def _full_key(self, command: str, key: str) -> str:
        """Return ``key`` as kombu's client sends it: with the transport option ``global_keyprefix``."""
        if not self._has_prefix:
            return key
        arguments = self.kombu_client._prefix_args([command.upper(), key])  # noqa: SLF001 - it has no public name
        return str(arguments[1])

    def _get_table(self, exchange: str) -> Any:
        if exchange not in self.tables:
            self.tables[exchange] = self._get_table_now(exchange)
        return self.tables[exchange]

    def _lookup(self, exchange: str, routing_key: str, *args: Any, **kwargs: Any) -> Any:
        try:
            queues = self._lookup_now(exchange, routing_key, *args, **kwargs)
        except KeyError as exc:  # an exchange of type headers, say, or one that cannot be declared
            raise LookupError(
                f"Redis can't take a message by the exchange {exchange!r}: kombu has no {exc} there"
            ) from exc
        if not queues:  # kombu would silently drop the message
            raise no_queue(exchange, routing_key)
        return queues

    def _queue_bind(self, exchange: str, *args: Any, **kwargs: Any) -> Any:
        self.tables.pop(exchange, None)
        return self._queue_bind_now(exchange, *args, **kwargs)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> Any:
        if self._pushes is None:
            return self._put_now(queue, message, **kwargs)
        self._pushes += self._record(self._put_now, queue, message, **kwargs)
        return None

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> Any:
        if self._is_sampling:
            raise UnknownWriteError("a run isn't one message to one queue")
        write = self._put_fanout_now
        is_event = exchange == self._event_exchange and routing_key == _TASK_SENT
        if self._pushes is None or not is_event:
            return write(exchange, message, routing_key, **kwargs)
        self.events += self._record(write, exchange, message, routing_key, **kwargs)
        return None

    def _record(self, write: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Push]:
        """Return what ``write`` writes; the channel gets a recorder instead of its client."""
        recorder, before = _Recorder(self._full_key), self._channel.conn_or_acquire
        self._channel.conn_or_acquire = lambda *_args, **_kwargs: nullcontext(recorder)
        try:
            write(*args, **kwargs)
        finally:
            self._channel.conn_or_acquire = before
        return recorder.pushes


def no_queue(exchange: str, routing_key: str) -> LookupError:
    """Return the error about a message that no queue takes: kombu and brokers would drop it silently."""
    if not exchange:
        return LookupError(f"there is no queue {routing_key!r}")
    return LookupError(f"no queue is bound to the exchange {exchange!r} for the routing key {routing_key!r}")


class _Recorder:
    """Takes the place of kombu's client and pipeline for one message, and notes what it writes."""

    def __init__(self, full_key: Callable[[str, str], str]) -> None:
        self._full_key = full_key
        self.pushes: list[Push] = []

    def _note(self, command: str, key: str, value: Any) -> _Recorder:
        self.pushes.append(Push(command, self._full_key(command, key), value))
        return self

    def lpush(self, key: str, value: Any) -> _Recorder:
        return self._note("lpush", key, text_of(value))

    def pexpire(self, key: str, milliseconds: int) -> _Recorder:
        return self._note("pexpire", key, int(milliseconds))

    def publish(self, channel: str, payload: Any) -> _Recorder:
        return self._note("publish", channel, text_of(payload))

    def pipeline(self, *_args: Any, **_kwargs: Any) -> AbstractContextManager[_Recorder]:
        return nullcontext(self)

    def execute(self) -> None:
        """Do nothing: it is noted already."""

    def __getattr__(self, name: str) -> Any:
        raise UnknownWriteError(f"by {name}")
