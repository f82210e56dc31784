"""Publishing on RabbitMQ: frames, publisher confirms, and drafts for templates.

RabbitMQ numbers the messages of a channel from 1. It confirms them by these numbers (delivery tags), one by
one or many at once, in any order. One that a queue refuses it confirms negatively (nack). One that no queue
takes comes back first, and is confirmed after that. A mistake, such as an exchange that is missing, closes
the channel, or the connection: then no more confirms come, and what wasn't confirmed may have arrived or not.

::

    publish  ->  written together with others  ->  confirmed, or failed
                                               ->  lost: the channel has ended before

Invariants: what is told of a message is about that very message; one that may close the channel, as far as
that can be known before, is sent when all others are confirmed, and is waited for by itself. A draft that was
made of a message is published as that message, byte by byte.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from amqp.basic_message import Message
from amqp.exceptions import MessageNacked, RecoverableConnectionError

from redbeat.delivery.outbox import no_queue
from redbeat.store.records import Push

#: how many messages may be unconfirmed at a time, and their bytes: what may arrive twice when a connection is
#: lost
MAX_UNCONFIRMED = 500
MAX_BYTES = 4_000_000
#: how many messages are written together
MAX_WRITTEN = 32

#: so many messages of a new channel are waited for one by one, and one of each batch: a connection that was
#: closed, or blocked by an alarm, meanwhile is noticed before a batch is written to it
FIRST_ALONE = 8

#: a longer message is waited for by itself: it gains nothing, and may be more than RabbitMQ takes
LARGE_BYTES = 256 * 1024

#: how many exchanges are remembered as present
MAX_EXCHANGES = 1_000


class Publication:
    """What one run has published.

    Attributes:
        unconfirmed: how many of its messages have no confirm yet.
        failure: why one of them didn't arrive; None: none is known to.
        is_lost: the channel has ended before all of them were confirmed.
    """

    __slots__ = ("failure", "is_lost", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed = 0
        self.failure: Exception | None = None
        self.is_lost = False

    @property
    def is_confirmed(self) -> bool:
        """Whether all of its messages have arrived."""
        return not self.unconfirmed and not self.is_lost and self.failure is None


class _Message(NamedTuple):
    """What is kept of a message until it is confirmed."""

    publication: Publication
    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    size_bytes: int
    declared: Iterable[Any]

    def is_like(self, exchange: str, routing_key: str, properties: Mapping[str, Any]) -> bool:
        """Tell whether this message has come back, from what came back."""
        return (
            self.exchange == exchange
            and self.routing_key == routing_key
            and _identity_of(self.properties) == _identity_of(properties)
        )


class Confirms:
    """Publishes the messages of one channel of py-amqp, and listens for their confirms.

    Arguments:
        channel: of a connection with ``confirm_publish``; nothing was published on it.
        forget_declared: called with what was declared for a message that has failed.

    Attributes:
        declared: what was declared for the next message.
        forget_declared: as it was given.
        on_sample: called with a message, and the other arguments of its publish, instead of publishing it;
            None: messages are published.
    """

    on_sample: Callable[[Any, str, str, bool, bool], None] | None = None

    def __init__(self, channel: Any, forget_declared: Callable[[Iterable[Any]], None]) -> None:
        self._channel = channel
        self.forget_declared = forget_declared
        self._open_now = channel.open
        self._publication: Publication | None = None  # of the run that is being sent
        self.declared: Iterable[Any] = ()
        self._begin()
        channel.events["basic_ack"].add(self._note_ack)
        channel.events["basic_nack"].add(self._note_nack)
        channel.events["basic_return"].add(self._note_returned)
        # whatever is published on the channel has a number
        channel.basic_publish = channel.basic_publish_confirm = channel._basic_publish = self.publish  # noqa: SLF001
        channel.open = self._open

    def _begin(self) -> None:
        """Begin anew, on a channel that is new or was opened again."""
        self._is_selected = False
        self._unwritten: list[tuple[bytes, _Message]] = []  # they wait to be written together
        self._unconfirmed: dict[int, _Message] = {}  # by their numbers, in this order
        self._bytes = 0  # of both
        self._last_tag = self._settled_tag = 0
        self._returned: dict[int, Exception] = {}
        self._present = {""}  # exchanges
        self._alone = FIRST_ALONE

    @classmethod
    def of(cls, channel: Any, forget_declared: Callable[[Iterable[Any]], None]) -> Confirms | None:
        """Return the confirms of ``channel``; None: it has none, or py-amqp waits for each of them."""
        if not getattr(channel.connection, "confirm_publish", False):
            return None
        try:
            return cls(channel, forget_declared)
        except AttributeError:
            return None

    @contextmanager
    def deferring(self) -> Iterator[Publication]:
        """Let the messages of the block be confirmed later; yields what becomes of them."""
        self._publication = Publication()
        try:
            yield self._publication
        finally:
            self._publication = None

    def begin_batch(self) -> None:
        """Wait for the next message: its connection may have ended since the last one."""
        self._alone = max(self._alone, 1)

    def publish(
        self,
        message: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_options: Any,
    ) -> None:
        """Publish ``message``, and wait for its confirm unless that may come later.

        It takes the place of the channel's own function, and so has its arguments. ``timeout`` and
        ``confirm_timeout``: how long to wait, seconds; None: for ever.

        Raises:
            MessageNacked: a queue refuses it.
            LookupError: no queue takes it.
            Exception: whatever py-amqp raises. Messages before it may then be lost.
        """
        if self.on_sample is not None:
            self.on_sample(message, exchange, routing_key, mandatory, immediate)
            return
        if not self._is_selected:
            self._channel.confirm_select()
            self._is_selected = True
        frames = publish_frames(self._channel, message, exchange, routing_key, mandatory, immediate)
        is_alone = (
            self._publication is None
            or self._alone > 0
            or immediate
            or exchange not in self._present
            or len(frames) > LARGE_BYTES
        )
        if is_alone:
            self.settle(timeout)
        elif not self._has_room():
            self._hear()
            self._wait(self._has_room, timeout)
        publication = self._publication or Publication()
        publication.unconfirmed += 1
        self._bytes += len(frames)
        kept = _Message(publication, exchange, routing_key, message.properties, len(frames), self.declared)
        self._unwritten.append((frames, kept))
        if is_alone:
            self.settle(confirm_timeout or timeout)
            if publication.failure is not None:
                raise publication.failure
            self._alone = max(self._alone - 1, 0)
            if len(self._present) < MAX_EXCHANGES:
                self._present.add(exchange)
        elif len(self._unwritten) >= MAX_WRITTEN:
            self._write(timeout)
            self._hear()

    def settle(self, timeout: float | None) -> None:
        """Wait until no message is unconfirmed, ``timeout`` seconds at most; None: for ever.

        Raises TimeoutError, and what py-amqp raises.
        """
        if self._unconfirmed or self._unwritten:
            self._wait(lambda: not self._unconfirmed, timeout)

    def lose(self) -> None:
        """Note that no more confirms come, as the channel has ended or isn't used any more."""
        for message in (*self._unconfirmed.values(), *(message for _, message in self._unwritten)):
            message.publication.is_lost = True
        self._begin()

    def _open(self) -> Any:
        self.lose()  # py-amqp opens a channel again that the broker has closed
        return self._open_now()

    def _has_room(self) -> bool:
        return len(self._unconfirmed) < MAX_UNCONFIRMED and self._bytes < MAX_BYTES

    def _wait(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._write(timeout)
        while not is_done():
            seconds_left = None if deadline is None else deadline - time.monotonic()
            if seconds_left is not None and seconds_left <= 0:
                raise TimeoutError("RabbitMQ doesn't confirm messages in time")
            self._connection().drain_events(timeout=seconds_left)

    def _write(self, timeout: float | None) -> None:
        if not self._unwritten:
            return
        connection = self._connection()
        try:
            for _, message in self._unwritten:
                self._last_tag += 1
                self._unconfirmed[self._last_tag] = message
            frames = b"".join(frames for frames, _ in self._unwritten)
            self._unwritten = []
            with connection.transport.having_timeout(timeout):
                connection.transport.write(frames)
            connection.bytes_sent += 1  # the heartbeat looks whether it changes
        except BaseException:  # a signal's, too: nobody knows how much was written
            self.lose()
            connection.collect()
            raise

    def _hear(self) -> None:
        """Read what the broker has said."""
        try:
            while True:
                self._connection().drain_events(timeout=0)
        except TimeoutError:
            pass

    def _connection(self) -> Any:
        connection = self._channel.connection
        if connection is None or not connection.connected:
            raise RecoverableConnectionError("the connection to RabbitMQ has ended")
        return connection

    # -- what the broker says

    def _note_ack(self, tag: int, is_multiple: bool) -> None:
        for number in self._tags(tag, is_multiple):
            self._note_settled(number, self._returned.pop(number, None))

    def _note_nack(self, tag: int, is_multiple: bool) -> None:
        for number in self._tags(tag, is_multiple):
            self._note_settled(number, MessageNacked())

    def _tags(self, tag: int, is_multiple: bool) -> Iterable[int]:
        if not is_multiple:
            return (tag,)
        last = tag or self._last_tag  # 0: all of them
        first, self._settled_tag = self._settled_tag + 1, max(last, self._settled_tag)
        return range(first, last + 1)

    def _note_settled(self, tag: int, failure: Exception | None) -> None:
        message = self._unconfirmed.pop(tag, None)
        if message is None:
            return
        self._bytes -= message.size_bytes
        message.publication.unconfirmed -= 1
        if failure is not None:
            message.publication.failure = message.publication.failure or failure
            self.forget_declared(message.declared)

    def _note_returned(self, _exc: Any, exchange: str, routing_key: str, returned: Any) -> None:
        # not raised here, as its confirm is still to come; equal messages come back in their order
        for tag, message in self._unconfirmed.items():
            if tag not in self._returned and message.is_like(exchange, routing_key, returned.properties):
                self._returned[tag] = no_queue(exchange, routing_key)
                return


def _identity_of(properties: Mapping[str, Any]) -> tuple[Any, ...]:
    headers = properties.get("application_headers") or {}
    identity = (properties.get("correlation_id"), headers.get("id"), headers.get("redbeat_entry"))
    return tuple(None if value is None else str(value) for value in identity)


# -- frames: py-amqp makes the same bytes, and writes each message by itself. Source: the specification of
# AMQP 0-9-1, sections 2.3 (frames) and 4.2.6 (content)

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH = 60, 40

_octet = Struct("B").pack
_frame = Struct(">BHI").pack  # type, channel, bytes
_method = Struct(">HHH").pack  # class, method, reserved
_content = Struct(">HHQ").pack  # class, weight, bytes of the body

#: what a frame has besides its payload, bytes
_OVERHEAD = 8


def publish_frames(
    channel: Any, message: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool
) -> bytes:
    """Return the frames that publish ``message``, one of py-amqp's, on ``channel``.

    Raises what py-amqp raises when a property can't be written, and UnicodeEncodeError.
    """
    body = message.body
    if isinstance(body, str):
        body = body.encode(message.properties.setdefault("content_encoding", "utf-8"))
    number = channel.channel_id
    method = b"".join(
        (
            _method(_BASIC, _PUBLISH, 0),
            _short_text(exchange),
            _short_text(routing_key),
            _octet(bool(mandatory) + 2 * bool(immediate)),
        )
    )
    header = _content(_BASIC, 0, len(body)) + message._serialize_properties()  # noqa: SLF001 - it has no public name
    parts = [_frame(_METHOD, number, len(method)), method, _END]
    parts += (_frame(_HEADER, number, len(header)), header, _END)
    max_payload = channel.connection.frame_max - _OVERHEAD
    for start in range(0, len(body), max_payload):
        payload = body[start : start + max_payload]
        parts += (_frame(_BODY, number, len(payload)), payload, _END)
    return b"".join(parts)


def _short_text(text: str) -> bytes:
    encoded = (text or "").encode("utf-8", "surrogatepass")
    return _octet(len(encoded)) + encoded


# -- drafts: messages as JSON texts, in the form of messages on Redis, so that templates apply

#: what a draft has among its properties that isn't one of AMQP's
_INFO = "delivery_info"
_ENCODING = "body_encoding"
_TAG = "delivery_tag"


class Drafts:
    """Takes the place of an outbox for templates: makes drafts of samples, and publishes filled ones.

    Arguments:
        confirms: publishes them.

    Attributes:
        bindings: always 0, as RabbitMQ itself knows to which queues a message goes.
        expiries: always empty, as RabbitMQ itself deletes queues.
    """

    has_given_up = False
    bindings = 0
    expiries: Mapping[str, int] = MappingProxyType({})

    def __init__(self, confirms: Confirms) -> None:
        self._confirms = confirms

    @contextmanager
    def sampling(self) -> Iterator[list[Push]]:
        """Yield a list of the drafts of what the block publishes, which isn't sent."""
        drafts: list[Push] = []

        def note(message: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool) -> None:
            info = {"exchange": exchange, "routing_key": routing_key}
            text = text_of(message, {**info, "mandatory": bool(mandatory), "immediate": bool(immediate)})
            drafts.append(Push("lpush", routing_key, text))

        self._confirms.on_sample = note
        try:
            yield drafts
        finally:
            self._confirms.on_sample = None

    def find_queues(self, _exchange: str, _routing_key: str) -> list[str]:
        """Return no queues: it doesn't matter to a message which they are."""
        return []

    def publish(self, draft: str, declared: Iterable[Any], timeout: float) -> None:
        """Publish the message of ``draft``.

        Arguments:
            declared: what was declared for it.
            timeout: how long that may take, seconds.

        Raises what :meth:`Confirms.publish` raises.
        """
        self._confirms.declared = declared
        message, info = message_of(draft)
        try:
            self._confirms.publish(message, **info, timeout=timeout)
        except Exception:
            self._confirms.forget_declared(declared)
            raise


def text_of(message: Any, info: dict[str, Any]) -> str:
    """Return a message of py-amqp as a draft; ``info``: the other arguments of its publish."""
    properties = dict(message.properties)
    headers, body = properties.pop("application_headers", None), message.body
    encoding = "base64" if isinstance(body, bytes) else None
    if encoding:
        body = base64.b64encode(body).decode("ascii")
    properties |= {_ENCODING: encoding, _TAG: str(uuid.uuid4()), _INFO: info}
    return json.dumps({"body": body, "headers": headers, "properties": properties})


def message_of(draft: str) -> tuple[Any, dict[str, Any]]:
    """Return the message of a draft, and the other arguments of its publish."""
    parts = json.loads(draft)
    body, properties = parts["body"], parts["properties"]
    del properties[_TAG]
    info = properties.pop(_INFO)
    if properties.pop(_ENCODING):
        body = base64.b64decode(body)
    return Message(body, application_headers=parts["headers"], **properties), info
