"""Publishing on RabbitMQ: publisher confirms, and drafts for templates.

RabbitMQ numbers the messages of a channel from 1. It confirms them by these numbers (delivery tags), one by
one or many at once, in any order. One that a queue refuses it confirms negatively (nack). One that no queue
takes comes back first, and is confirmed after that. A mistake, such as an exchange that is missing, closes
the channel, or the connection: then no more confirms come, and what wasn't confirmed may have arrived or not.

::

    publish  ->  written together with others  ->  confirmed, or failed
                                               ->  lost: the channel has ended before

Invariants: an outcome belongs to its own message; a message that may close the channel, as far as that can
be known before, is sent when all others are confirmed, and is waited for by itself. A draft that was
made of a message is published as that message, byte by byte.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from struct import Struct
from types import SimpleNamespace
from typing import Any, NamedTuple

from amqp import spec
from amqp.basic_message import Message
from amqp.exceptions import MessageNacked, RecoverableConnectionError
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from redbeat.delivery.outbox import no_queue
from redbeat.delivery.placeholders import RunValues
from redbeat.log.logger import logger
from redbeat.store.records import Push

#: how many messages may be unconfirmed at a time: what may arrive twice when a connection is lost
MAX_UNCONFIRMED = 500

#: a longer message is waited for by itself: it gains nothing, and may be more than RabbitMQ takes, which ends
#: the connection if its headers alone are longer than a frame
LARGE_BYTES = 32 * 1024

#: in frames that templates are made of, the id and the due time of a run
MARKS = RunValues(str(uuid.uuid4()), uuid.uuid4().hex, None, None)
_ID, _DUE = MARKS.task_id.encode(), MARKS.due.encode()
#: what templates fill a frame with at most: each broker takes 4,096 bytes, with what is around it
MAX_FRAME = 4_000
#: what is before properties: type, channel, size, class, weight, size of the body; and before a body
_PROPERTIES, _BODY, _LENGTH = Struct(">BHIHHQ"), Struct(">BHI"), Struct(">I")
_END = b"\xce"


@dataclass(slots=True)
class Publication:
    """What one run has published.

    Attributes:
        pushes: list writes that are left to be done, on a Redis broker.
        unconfirmed: how many of its messages have no confirm yet.
        failure: why one of them didn't arrive; None: none is known to.
        is_lost: the channel has ended before all of them were confirmed.
    """

    pushes: Sequence[Push] = ()
    unconfirmed: int = 0
    failure: Exception | None = None
    is_lost: bool = False

    @property
    def is_confirmed(self) -> bool:
        """Whether all of its messages have arrived."""
        return not self.unconfirmed and not self.is_lost and self.failure is None


class Frames(NamedTuple):
    """A message as it is written.

    Attributes:
        address: its exchange and its routing key.
        message_id: its correlation id, by which it is known if it comes back.
        is_immediate: it is to be returned if no worker waits for it, for which RabbitMQ ends the connection.
        declared: what was declared for it.
    """

    frames: bytes
    address: tuple[str, str]
    message_id: Any
    is_immediate: bool
    declared: Iterable[Any]


class Confirms:
    """Publishes the messages of one channel of py-amqp, and listens for their confirms.

    For templates it takes the place of an outbox: it makes drafts of samples.

    Arguments:
        channel: of a connection with ``confirm_publish``; nothing was published on it.
        forget_declared: called with what was declared for a message that has failed.

    Attributes:
        declared: what was declared for the next message.
        publication: what the next messages belong to, and are confirmed later; None: each is waited for.
        is_first: the next message is waited for alone: its connection may have ended since the batch before,
            or be blocked by an alarm.
    """

    def __init__(self, channel: Any, forget_declared: Callable[[Iterable[Any]], None]) -> None:
        self._channel = channel
        self._forget_declared = forget_declared
        self._open_now = channel.open
        self.publication: Publication | None = None
        self._drafts: list[Push] | None = None  # messages of samples
        self.declared: Iterable[Any] = ()
        self._written: list[bytes] = []
        # py-amqp's, but it keeps the frames, so that several messages are written together
        collecting = SimpleNamespace(write=lambda frames: self._written.append(bytes(frames)))
        self._make_frames = frame_writer(channel.connection, collecting)
        self._begin()
        channel.events["basic_ack"].add(partial(self._note_confirmed, None))
        channel.events["basic_nack"].add(partial(self._note_confirmed, MessageNacked))
        channel.events["basic_return"].add(self._note_returned)
        # whatever is published on the channel has a number
        channel.basic_publish = channel.basic_publish_confirm = channel._basic_publish = self.publish  # noqa: SLF001
        channel.open = self._open

    def _begin(self) -> None:
        """Begin anew, on a channel that is new or was opened again."""
        self._is_selected = False
        self._unwritten: list[tuple[Publication, Frames]] = []  # they wait to be written together
        self._unconfirmed: dict[int, tuple[Publication, Frames]] = {}  # by their numbers, in this order
        self._last_tag = 0
        self._returned: dict[int, Exception] = {}
        self._present = {""}  # exchanges
        self.is_first = True

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
        ``confirm_timeout``: how long to wait, seconds; None: for ever. Raises what :meth:`send` raises.
        """
        flags = {"mandatory": bool(mandatory), "immediate": bool(immediate)}
        info = {"exchange": exchange, "routing_key": routing_key, **flags}
        if self._drafts is not None:
            self._drafts.append(Push("lpush", routing_key, text_of(message, info)))
        else:
            frames = self._frames_of(message, info, self.declared)
            self.send(frames, self.publication, timeout, confirm_timeout)
            self.write(timeout)

    def _frames_of(self, message: Any, info: Mapping[str, Any], declared: Iterable[Any]) -> Frames:
        self._written.clear()
        exchange, routing_key, is_immediate = info["exchange"], info["routing_key"], info["immediate"]
        arguments = dumps("Bssbb", (0, exchange, routing_key, info["mandatory"], is_immediate))
        self._make_frames(1, self._channel.channel_id, spec.Basic.Publish, arguments, message)
        message_id, address = message.properties.get("correlation_id"), (exchange, routing_key)
        return Frames(b"".join(self._written), address, message_id, is_immediate, declared)

    def send(
        self,
        message: Frames,
        publication: Publication | None,
        timeout: float | None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Publish a message as one of ``publication``, to be confirmed later; None: wait for its confirm.

        It is written by the next :meth:`write`.

        Raises:
            MessageNacked: a queue refuses it.
            LookupError: no queue takes it.
            Exception: whatever py-amqp raises. Messages before it may then be lost.
        """
        if not self._is_selected:
            self._channel.confirm_select()
            self._is_selected = True
        exchange = message.address[0]
        is_alone = (
            publication is None
            or self.is_first
            or message.is_immediate
            or exchange not in self._present
            or len(message.frames) > LARGE_BYTES
        )
        publication = publication or Publication()
        if is_alone:
            self.settle(timeout)
        publication.unconfirmed += 1
        self._unwritten.append((publication, message))
        if is_alone:
            self.settle(confirm_timeout or timeout)
            if publication.failure is not None:
                raise publication.failure
            self.is_first = False
            self._present.add(exchange)

    def write(self, timeout: float | None) -> None:
        """Write what was sent, as soon as there is room for it."""
        if self._unwritten:
            self._wait(self._has_room, timeout)
            self._write(timeout)

    def read(self) -> None:
        """Read the confirms that have come."""
        with suppress(TimeoutError):
            while self._unconfirmed:
                self._connection().drain_events(timeout=0)

    def settle(self, timeout: float | None) -> None:
        """Wait until no message is unconfirmed, ``timeout`` seconds at most; None: for ever.

        Raises TimeoutError, and what py-amqp raises.
        """
        self._write(timeout)
        self._wait(lambda: not self._unconfirmed, timeout)

    def lose(self) -> None:
        """Record that no more confirms come, as the channel has ended or is not used any more."""
        for publication, _ in [*self._unconfirmed.values(), *self._unwritten]:
            publication.is_lost = True
        self._begin()

    def _open(self) -> Any:
        self.lose()  # py-amqp opens a channel again that the broker has closed
        return self._open_now()

    def _has_room(self) -> bool:
        return len(self._unconfirmed) + len(self._unwritten) <= MAX_UNCONFIRMED

    def _wait(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not is_done():
            seconds_left = None if deadline is None else deadline - time.monotonic()
            if seconds_left is not None and seconds_left <= 0:
                raise TimeoutError("RabbitMQ doesn't confirm messages in time")
            self._connection().drain_events(timeout=seconds_left)

    def _write(self, timeout: float | None) -> None:
        if not self._unwritten:
            return
        connection = self._connection()
        unwritten, self._unwritten = self._unwritten, []
        for number, one in enumerate(unwritten, start=self._last_tag + 1):
            self._unconfirmed[number] = one
        self._last_tag += len(unwritten)
        try:
            with connection.transport.having_timeout(timeout):
                connection.transport.write(b"".join([message.frames for _, message in unwritten]))
        except BaseException:  # a signal's, too: it is unknown how much was written
            self.lose()
            connection.collect()
            raise

    def _connection(self) -> Any:
        connection = self._channel.connection
        if connection is None or not connection.connected:
            raise RecoverableConnectionError("the connection to RabbitMQ has ended")
        return connection

    # -- templates

    @contextmanager
    def sampling(self) -> Iterator[list[Push]]:
        """Yield a list of the drafts of the messages in the block, which are not sent."""
        self._drafts = drafts = list[Push]()
        try:
            yield drafts
        finally:
            self._drafts = None

    def find_queues(self, _exchange: str, _routing_key: str) -> list[str]:
        """Return no queues: messages do not depend on them."""
        return []

    def frames_of_draft(self, draft: str, declared: Iterable[Any]) -> Frames:
        """Return the message of a draft."""
        return self._frames_of(*message_of(draft), declared)

    def template_of(
        self, draft: str, own_marks: Sequence[str], declared: Iterable[Any]
    ) -> FrameTemplate | None:
        """Return the template of a draft with marks; None: there is none."""
        try:
            return FrameTemplate(message_of(draft)[0], self.frames_of_draft(draft, declared), own_marks)
        except (ValueError, AttributeError) as exc:  # a body that is no text, say
            logger.debug("beat: Frames have no template: %r", exc)
            return None

    # -- what the broker says

    def _note_confirmed(self, error: type[Exception] | None, tag: int, is_multiple: bool) -> None:
        for number in [*takewhile(tag.__ge__, self._unconfirmed)] if is_multiple else [tag]:
            if number not in self._unconfirmed:
                continue
            publication, message = self._unconfirmed.pop(number)
            publication.unconfirmed -= 1
            reason = error() if error is not None else self._returned.pop(number, None)
            if reason is not None:
                publication.failure = publication.failure or reason
                self._forget_declared(message.declared)

    def _note_returned(self, _exc: Any, exchange: str, routing_key: str, returned: Any) -> None:
        # not raised here, as its confirm is still to come; equal messages come back in their order
        identity = (exchange, routing_key), returned.properties.get("correlation_id")
        for tag, (_, message) in self._unconfirmed.items():
            if tag not in self._returned and (message.address, message.message_id) == identity:
                self._returned[tag] = no_queue(exchange, routing_key)
                return


class FrameTemplate:
    """The frames of messages whose entries differ in texts of their headers and in the body.

    From run to run only the id and the due time differ, and these always have the same length.

    Arguments:
        message: a message with ``MARKS``, and with ``own_marks`` in the place of what differs.
        sample: the same as py-amqp writes it.

    Raises:
        ValueError: py-amqp writes it in an unexpected way.
    """

    def __init__(self, message: Any, sample: Frames, own_marks: Sequence[str]) -> None:
        self._sample, frames = sample, sample.frames
        table, body = dumps("F", (message.headers,)), message.body.encode()
        # frames of a method, of properties and of a body: type, channel, size, payload, end
        properties_at = 8 + int.from_bytes(frames[3:7], "big")
        table_at = frames.index(table)
        table_end = table_at + len(table)
        self._method, self._channel_id = frames[:properties_at], int.from_bytes(frames[1:3], "big")
        self._before = frames[properties_at + _PROPERTIES.size : table_at]
        self._after = frames[table_end : frames.index(_END + b"\x03", table_end)]
        marks = {_text(mark.encode()): number for number, mark in enumerate(own_marks)}
        self._body: bytes | int = marks.pop(_text(body), body)
        self._texts: list[tuple[bytes, int]] = []  # what is before each text in the headers, and its number
        self._last = table[4:]
        for mark in sorted(marks, key=table.index):
            before, _, self._last = self._last.partition(mark)
            self._texts.append((before, marks[mark]))
        if self.fill([json.dumps(mark) for mark in own_marks], MARKS.task_id, MARKS.due) != sample:
            raise ValueError("py-amqp writes frames in an unexpected way")

    def fill(self, own: Sequence[str], task_id: str, due: str) -> Frames | None:
        """Return the message of one run; None: only py-amqp can make them.

        Arguments:
            own: the JSON of what differs from entry to entry.
        """
        values = [json.loads(text).encode() if text.startswith('"') else b"" for text in own]
        if not all(values) or (len(task_id), len(due)) != (len(MARKS.task_id), len(MARKS.due)):
            return None
        pieces = list[bytes]()
        for before, number in self._texts:
            pieces += before, _text(values[number])
        headers = b"".join([*pieces, self._last])
        body = values[self._body] if isinstance(self._body, int) else self._body
        properties = b"".join((self._before, _text(headers), self._after))
        if max(len(body), len(properties)) > MAX_FRAME:
            return None
        header = _PROPERTIES.pack(2, self._channel_id, 12 + len(properties), 60, 0, len(body))
        before_body = _BODY.pack(3, self._channel_id, len(body))
        frames = b"".join((self._method, header, properties, _END, before_body, body, _END))
        frames = frames.replace(_ID, task_id.encode()).replace(_DUE, due.encode())
        return self._sample._replace(frames=frames, message_id=task_id)


def _text(value: bytes) -> bytes:
    """Return a text, or the items of a table, with its length before it."""
    return _LENGTH.pack(len(value)) + value


# -- drafts: messages as JSON texts, in the form of messages on Redis, so that templates apply

#: keys among the properties of a draft that are not AMQP's
_INFO = "delivery_info"
_ENCODING = "body_encoding"
_TAG = "delivery_tag"


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
