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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from amqp import spec
from amqp.basic_message import Message
from amqp.exceptions import MessageNacked, RecoverableConnectionError
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from redbeat.delivery.outbox import no_queue
from redbeat.delivery.placeholders import RunValues
from redbeat.store.records import Push

#: how many messages may be unconfirmed at a time, and their bytes: what may arrive twice when a connection is
#: lost
MAX_UNCONFIRMED = 500
MAX_BYTES = 4_000_000
#: how many messages are written together
MAX_WRITTEN = 32

#: in the frames of an entry, the id and the due time of a run
_MARKS = RunValues(str(uuid.uuid4()), uuid.uuid4().hex, None, None)
_ID, _DUE = _MARKS.task_id.encode(), _MARKS.due.encode()

#: a longer message is waited for by itself: it gains nothing, and may be more than RabbitMQ takes, which ends
#: the connection if its headers alone are longer than a frame
LARGE_BYTES = 128 * 1024


@dataclass(slots=True)
class Publication:
    """What one run has published.

    Attributes:
        unconfirmed: how many of its messages have no confirm yet.
        failure: why one of them didn't arrive; None: none is known to.
        is_lost: the channel has ended before all of them were confirmed.
    """

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
    """

    frames: bytes
    address: tuple[str, str]
    message_id: Any
    is_immediate: bool


class Confirms:
    """Publishes the messages of one channel of py-amqp, and listens for their confirms.

    For templates it takes the place of an outbox: it makes drafts of samples, and publishes filled ones.

    Arguments:
        channel: of a connection with ``confirm_publish``; nothing was published on it.
        forget_declared: called with what was declared for a message that has failed.

    Attributes:
        declared: what was declared for the next message.
    """

    def __init__(self, channel: Any, forget_declared: Callable[[Iterable[Any]], None]) -> None:
        self._channel = channel
        self._forget_declared = forget_declared
        self._open_now = channel.open
        self._publication: Publication | None = None  # of the run that is being sent
        self._drafts: list[Push] | None = None  # messages of samples
        self.declared: Iterable[Any] = ()
        self._written: list[bytes] = []
        # py-amqp's, but it keeps the frames, so that several messages are written together
        collecting = SimpleNamespace(write=lambda frames: self._written.append(bytes(frames)))
        self._make_frames = frame_writer(channel.connection, collecting)
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
        self._unwritten: list[bytes] = []  # frames that wait to be written together
        # by their numbers, in this order, with what was declared for them
        self._unconfirmed: dict[int, tuple[Publication, Frames, Iterable[Any]]] = {}
        self._bytes = 0  # of these
        self._last_tag = 0
        self._returned: dict[int, Exception] = {}
        self._present = {""}  # exchanges
        self._is_first = True

    @contextmanager
    def deferring(self) -> Iterator[Publication]:
        """Let the messages of the block be confirmed later; yield their publication."""
        self._publication = Publication()
        try:
            yield self._publication
        finally:
            self._publication = None

    def begin_batch(self) -> None:
        """Wait for the next message alone: its connection may have ended since, or be blocked by an alarm."""
        self._is_first = True

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
        if self._drafts is not None:
            info = {"mandatory": bool(mandatory), "immediate": bool(immediate)}
            text = text_of(message, {"exchange": exchange, "routing_key": routing_key, **info})
            self._drafts.append(Push("lpush", routing_key, text))
            return
        frames = self._frames_of(message, exchange, routing_key, mandatory, immediate)
        self._send(frames, timeout, confirm_timeout)

    def _frames_of(
        self, message: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool
    ) -> Frames:
        self._written.clear()
        arguments = dumps("Bssbb", (0, exchange, routing_key, mandatory, immediate))
        self._make_frames(1, self._channel.channel_id, spec.Basic.Publish, arguments, message)
        message_id = message.properties.get("correlation_id")
        return Frames(b"".join(self._written), (exchange, routing_key), message_id, immediate)

    def _send(self, message: Frames, timeout: float | None, confirm_timeout: float | None = None) -> None:
        if not self._is_selected:
            self._channel.confirm_select()
            self._is_selected = True
        exchange, size_bytes = message.address[0], len(message.frames)
        is_alone = (
            self._publication is None
            or self._is_first
            or message.is_immediate
            or exchange not in self._present
            or size_bytes > LARGE_BYTES
        )
        if is_alone:
            self.settle(timeout)
        elif not self._has_room():
            self._hear()
            self._wait(self._has_room, timeout)
        publication = self._publication or Publication()
        publication.unconfirmed += 1
        self._bytes += size_bytes
        self._last_tag += 1
        self._unconfirmed[self._last_tag] = publication, message, self.declared
        self._unwritten.append(message.frames)
        if is_alone:
            self.settle(confirm_timeout or timeout)
            if publication.failure is not None:
                raise publication.failure
            self._is_first = False
            self._present.add(exchange)
        elif len(self._unwritten) >= MAX_WRITTEN:
            self._write(timeout)
            self._hear()

    def settle(self, timeout: float | None) -> None:
        """Wait until no message is unconfirmed, ``timeout`` seconds at most; None: for ever.

        Raises TimeoutError, and what py-amqp raises.
        """
        if self._unconfirmed:
            self._wait(lambda: not self._unconfirmed, timeout)

    def lose(self) -> None:
        """Record that no more confirms come, as the channel has ended or is not used any more."""
        for publication, _, _ in self._unconfirmed.values():
            publication.is_lost = True
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
            frames, self._unwritten = b"".join(self._unwritten), []
            with connection.transport.having_timeout(timeout):
                connection.transport.write(frames)
        except BaseException:  # a signal's, too: it is unknown how much was written
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

    # -- drafts

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

    def publish_run(self, template: Any, draft: str, task_id: str, due: str, timeout: float) -> None:
        """Publish the message of a run from ``template``; raises what :meth:`publish` raises.

        Where only the id and the due time differ from run to run, an entry's frames are made once, with marks
        in their places.

        Arguments:
            draft: the message.
            timeout: how long that may take, seconds.
        """
        self.declared = template.kind.declared
        try:
            if template.frames is None and template.kind.run.is_plain:
                marked = template.fill(_MARKS, "")[0].value
                template.frames = self._frames_of_draft(marked)
            message, own_id, own_due = template.frames, task_id.encode(), due.encode()
            if message is None or (len(own_id), len(own_due)) != (len(_ID), len(_DUE)):
                message = self._frames_of_draft(draft)
            else:
                frames = message.frames.replace(_ID, own_id).replace(_DUE, own_due)
                message = Frames(frames, message.address, task_id, message.is_immediate)
            self._send(message, timeout)
        except Exception:
            self._forget_declared(self.declared)
            raise

    def _frames_of_draft(self, draft: str) -> Frames:
        message, info = message_of(draft)
        return self._frames_of(message, **info)

    # -- what the broker says

    def _note_ack(self, tag: int, is_multiple: bool) -> None:
        self._note_confirmed(tag, is_multiple, None)

    def _note_nack(self, tag: int, is_multiple: bool) -> None:
        self._note_confirmed(tag, is_multiple, MessageNacked())

    def _note_confirmed(self, tag: int, is_multiple: bool, failure: Exception | None) -> None:
        for number in [one for one in self._unconfirmed if one <= tag] if is_multiple else [tag]:
            if number not in self._unconfirmed:
                continue
            publication, message, declared = self._unconfirmed.pop(number)
            self._bytes -= len(message.frames)
            publication.unconfirmed -= 1
            reason = failure or self._returned.pop(number, None)
            if reason is not None:
                publication.failure = publication.failure or reason
                self._forget_declared(declared)

    def _note_returned(self, _exc: Any, exchange: str, routing_key: str, returned: Any) -> None:
        # not raised here, as its confirm is still to come; equal messages come back in their order
        identity = (exchange, routing_key), returned.properties.get("correlation_id")
        for tag, (_, message, _) in self._unconfirmed.items():
            if tag not in self._returned and (message.address, message.message_id) == identity:
                self._returned[tag] = no_queue(exchange, routing_key)
                return


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
