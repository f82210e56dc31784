"""Compiled messages: made from a text with holes instead of by ``apply_async``, and the same byte by byte.

The text of a shape is the message that Celery and kombu make in a rehearsal. Invariant: only what was proved
equal is compiled. A shape must return the messages of two rehearsals of its first entry, and one of its
second entry; and it is dropped as soon as what it rests on has changed.

Whether anybody else takes part in making messages isn't found out here, but by ``originals``: it is asked
before.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from sys import getsizeof
from typing import Any

from celery.backends.base import Backend

from redbeat.broker import holes
from redbeat.broker.connection import reason_of
from redbeat.broker.drafts import Drafts
from redbeat.broker.ground import Sources, options_of_task, read_common_ground, read_ground, route_options
from redbeat.broker.holes import NO_HEADERS, Body, Call, RunHole, TraceHeaders, Values
from redbeat.broker.originals import Originals
from redbeat.broker.outbox import Outbox, UnknownWriteError
from redbeat.broker.rehearsal import Rehearsed, rehearse
from redbeat.broker.shapes import DifferenceError, Message, Shape
from redbeat.errors import EntryError
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.containment import let_through
from redbeat.process.memory import Allowance, Memory

__all__ = ["Call", "Compiler", "Message", "Values"]

#: how many shapes are known at a time; messages of others aren't compiled
MAX_SHAPES = 1_000

#: what a shape takes in memory besides its texts, about; bytes
SHAPE_BYTES = 4_500

#: when there are too many, they are dropped and made anew, but not again before so many batches
KEPT_BATCHES = 1_000

#: how many shapes are made in one batch, as each of them takes as long as some messages
NEW_SHAPES = 100

#: after how long the messages of rehearsals expire: not at once, as Celery would warn of it
_REHEARSAL_LIFETIME = timedelta(hours=1)

#: args, kwargs, and what is run after the task
_BODY_PARTS = 3

#: sends a run of an entry, with these values, by the scheduler's ``apply_async``
Send = Callable[[Values], Any]


class Compiler:
    """Compiles the messages of an app's entries, and remembers their shapes.

    Arguments:
        app: the Celery app.
        allowance: how much memory they may take, half of it at most; others take the rest.
    """

    def __init__(self, app: Any, allowance: Allowance) -> None:
        self._app = app
        self._allowance = allowance
        self._bytes = 0
        self._originals = Originals(app)
        self._producer: Any = None
        self._outbox: Any = None
        self._trace: TraceHeaders | None = None
        self._common: tuple[Any, ...] = ()
        self._describe: holes.Describe | None = None
        self._obstacle = "no batch has begun"
        self._batch = self._dropped_in = self._found = 0
        #: key to shape, or to why there is none
        self._shapes: dict[Any, Shape | str] = {}
        #: the same for what may be otherwise in the next batch
        self._failed: dict[Any, str] = {}
        self._said = Memory[tuple[str, str], bool](MAX_SHAPES)

    def begin_batch(
        self, producer: Any, outbox: Outbox | Drafts | None, trace: TraceHeaders | None = None
    ) -> None:
        """Begin a batch: what messages rest on is compared anew, as soon as one of them is used.

        Arguments:
            producer: what runs are sent with.
            outbox: where their messages are collected, or drafted; None: they aren't.
            trace: what messages carry of their runs' spans; None: nothing.
        """
        self._batch += 1
        self._found = 0
        self._failed.clear()
        try:
            common = (*read_common_ground(self._app), None if trace is None else trace.names)
            self._trace = trace
            if producer is not self._producer or outbox is not self._outbox or common != self._common:
                self._drop_all()
                self._producer, self._outbox, self._common = producer, outbox, common
                self._describe = holes.find_description(self._app)
        except BaseException as exc:  # noqa: BLE001 - settings may be wrong: apply_async will raise it for each run
            let_through(exc)
            self._obstacle = reason_of(exc)
        else:
            self._obstacle = self._find_obstacle()

    @property
    def obstacle(self) -> str:
        """Why no message of this batch is compiled; '': they may be."""
        return self._obstacle

    def compile(self, call: Call, rehearse: Send) -> Message | str:
        """Return the message of ``call``, to be used in this batch; a str: why ``apply_async`` must make it.

        Raises EntryError if ``rehearse`` does: that is about the entry, and not about messages of its shape.

        ``rehearse`` is called for the first entries of a shape, in a way that nothing is sent or declared.
        Then the queues of the shape are declared, once a batch, as ``apply_async`` does it.
        """
        for _ in range(2):  # anew, as a queue that is declared may be another one
            message = self._compile(call, rehearse)
            if isinstance(message, str):
                self._tell(call.task, message)
                return message
            if self.is_current(message):
                return message
        return "what its message depends on is changing"

    def _tell(self, task: str, reason: str) -> None:
        """Log, once for each task and reason, why messages aren't compiled; not what concerns all of them."""
        if reason != self.obstacle and self._said.is_news((task, reason), True):
            reason = reason.removesuffix(".")  # an error's text may be a sentence
            logger.info("beat: Messages of the task %s aren't compiled: %s.", printable(task), reason)

    def is_current(self, message: Message) -> bool:
        """Tell whether ``message`` may be used in this batch: what it rests on is as it was.

        What its messages need to be declared is declared then, once a batch. If that fails, the answer is no,
        and ``apply_async`` will raise it.
        """
        shape = message.shape
        if shape.is_dropped or self._obstacle:
            return False
        if shape.batch == self._batch and shape.bindings == self._outbox.bindings:
            return True
        try:
            for declaration in shape.declarations:
                self._producer.repeat(declaration)
            ground = shape.read_ground()
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            logger.debug("beat: Compiled messages are dropped: %r", exc)
            ground = ()
        if ground != shape.ground:
            self._drop(shape)
            return False
        shape.batch, shape.bindings = self._batch, self._outbox.bindings
        return True

    def _compile(self, call: Call, send: Send) -> Message | str:
        if self._obstacle:
            return self._obstacle
        key = holes.key_of(call)
        if isinstance(key, str):
            return key
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._find_shape(key, call, send)
        if isinstance(shape, str):
            return shape
        try:
            message = shape.compile(call)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            return reason_of(exc)
        if message.is_unproved():
            return self._prove(shape, message, call, send)
        return message

    def _find_obstacle(self) -> str:
        """Return why no message is compiled; '': they may be."""
        if self._outbox is None:
            return "the broker is neither Redis nor RabbitMQ"
        if self._app.conf.task_send_sent_event:
            return "task_send_sent_event is set"
        if self._describe is None:
            return "this version of Celery describes arguments in a way that RedBeat doesn't know"
        return ""

    def _drop(self, shape: Shape) -> None:
        if self._shapes.pop(shape.key, None) is not None:
            self._take(-_size_of(shape.key, shape))
        shape.drop()

    def _drop_all(self) -> None:
        for shape in self._shapes.values():
            if isinstance(shape, Shape):
                shape.drop()
        self._shapes.clear()
        self._take(-self._bytes)
        self._dropped_in = self._batch

    def _keep(self, key: Any, shape: Shape | str) -> None:
        self._shapes[key] = shape
        self._take(_size_of(key, shape))

    def _take(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._allowance.left_bytes -= size_bytes

    @property
    def _is_full(self) -> bool:
        return len(self._shapes) >= MAX_SHAPES or self._bytes > self._allowance.max_bytes / 2

    # -- shapes

    def _find_shape(self, key: Any, call: Call, send: Send) -> Shape | str:
        """Return a new shape made from ``call``, or why there is none; both are remembered."""
        if key in self._failed:
            return self._failed[key]
        if self._found >= NEW_SHAPES:
            return f"there are more than {NEW_SHAPES} kinds of messages that are new"
        self._found += 1
        if self._is_full:
            if self._batch < self._dropped_in + KEPT_BATCHES:
                return f"there are more than {len(self._shapes)} kinds of messages"
            self._drop_all()
        reason = self._originals.find_task_obstacle(self._app.tasks.get(call.task))
        if reason:  # its code isn't called for a rehearsal
            self._failed[key] = reason
            return reason
        try:
            self._keep(key, self._make_shape(key, call, send))
        except (_UnfitError, DifferenceError) as exc:
            self._note_unfit(key, exc)
        except EntryError:
            raise
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            if not _is_caused_by(UnknownWriteError, exc):
                self._failed[key] = reason_of(exc)
                return self._failed[key]
            self._note_unfit(key, _UnfitError("its messages aren't written to a list"))
        return self._shapes[key]

    def _prove(self, shape: Shape, message: Message, call: Call, send: Send) -> Message | str:
        """Compare ``message``, which is that of a shape's second entry; return it, or why it isn't used."""
        try:
            self._compare(message, call, send)
        except (_UnfitError, DifferenceError) as exc:
            key = shape.key
            self._drop(shape)
            self._note_unfit(key, exc)
            return str(exc)
        except EntryError:
            raise
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            return reason_of(exc)
        shape.first = None
        return message

    def _note_unfit(self, key: Any, exc: Exception) -> None:
        """Remember why messages of a shape are never compiled."""
        self._keep(key, shorten(printable(str(exc))))

    def _make_shape(self, key: Any, call: Call, send: Send) -> Shape:
        describe = self._describe
        assert describe is not None  # noqa: S101 - else there is an obstacle
        of_run = [*holes.OF_RUN, *self._holes_of_expiry(call)]
        trace = self._trace if holes.is_traced(call, self._trace) else None
        if trace is not None:
            of_run += holes.holes_of_trace(trace.names)
        values = _values_of(call, NO_HEADERS if trace is None else trace.examples[0])
        rehearsed = self._rehearse(values, send)
        body = self._body_of(rehearsed)
        of_call = holes.holes_of(call, body, describe)
        shape = Shape(key, call, rehearsed.pushes, values, of_run, of_call)
        task = self._app.tasks.get(call.task)
        if getattr(task, "typing", False):
            shape.check = getattr(task, "__header__", None)
        shape.declarations = rehearsed.declarations
        shape.is_traced = trace is not None
        shape.destination = _destination_of(rehearsed, shape.routing_key)
        if not self._producer.is_redis and not all(one.is_lasting for one in shape.declarations):
            raise _UnfitError("its queue may delete itself, and is declared for each message")
        shape.on_call = self._find_on_call(task, rehearsed)
        shape.expires_seconds = None if call.is_expiring else self._expires_option(call)
        shape.read_ground = partial(
            read_ground,
            self._app,
            self._outbox,
            Sources(
                call.task,
                route_options(call.options),
                body.serializer,
                shape.exchange,
                shape.routing_key,
                has_backend=rehearsed.is_told_backend,
            ),
        )
        shape.ground = shape.read_ground()
        message = shape.compile(call)
        message.compare(values, rehearsed.pushes)
        self._compare(message, call, send)  # with other values
        return shape

    def _compare(self, message: Message, call: Call, send: Send) -> None:
        is_traced = self._trace is not None and message.shape.is_traced
        values = _values_of(call, self._trace.examples[1] if self._trace and is_traced else NO_HEADERS)
        message.compare(values, self._rehearse(values, send).pushes)

    def _rehearse(self, values: Values, send: Send) -> Rehearsed:
        """Return what Celery and kombu make of a run, if it is one message to one queue."""
        seconds = values.expiration_seconds
        rehearsed = rehearse(self._app, self._producer, self._outbox, seconds, partial(send, values))
        commands = [push.command for push in rehearsed.pushes]
        if len(rehearsed.runs) != 1 or commands[:1] != ["lpush"] or "lpush" in commands[1:]:
            raise _UnfitError("a run isn't one message to one queue")
        return rehearsed

    def _body_of(self, rehearsed: Rehearsed) -> Body:
        """Return how bodies are made, from that of a run."""
        body, serializer, compression = rehearsed.runs[0]
        if compression:
            raise _UnfitError(f"its messages are compressed with {compression!r}")
        reason = self._originals.find_serializer_obstacle(str(serializer))
        if reason:
            raise _UnfitError(reason)
        if not isinstance(body, tuple) or len(body) != _BODY_PARTS:
            raise _UnfitError("its body isn't that of Celery's protocol 2")
        encoding = json.loads(str(rehearsed.pushes[0].value))["properties"].get("body_encoding")
        # those of an entry aren't kept with its shape: they may be long
        return Body(str(serializer), encoding, () if body[0] else body[0], body[2])

    def _holes_of_expiry(self, call: Call) -> Sequence[RunHole]:
        if call.lifetime_seconds is not None:
            return holes.OF_LIFETIME
        seconds = self._expires_option(call)
        if seconds is not None and (not holes.is_number(seconds) or seconds < 0):
            raise _UnfitError("'expires' isn't a number of seconds from now")
        if call.is_expiring:
            return holes.OF_LIFETIME
        return () if seconds is None else [holes.hole_of_expires(self._app, seconds)]

    def _expires_option(self, call: Call) -> Any:
        of_task = options_of_task(self._app.tasks.get(call.task))
        return call.options.get("expires", of_task.get("expires"))

    def _find_on_call(self, task: Any, rehearsed: Rehearsed) -> Callable[[str], Any] | None:
        """Return what Celery does with its result backend for each run besides publishing; None: nothing."""
        if not rehearsed.is_told_backend:
            return None
        backend, producer = self._app.backend, self._producer
        names = ("on_task_call", "remove_pending_result")
        of_class = [getattr(type(backend), name, None) for name in names]
        if not vars(backend).keys().isdisjoint(names) or not all(map(_is_celerys, of_class)):
            raise _UnfitError(f"the result backend {type(backend).__name__} isn't one of Celery's")
        if of_class[0] is Backend.on_task_call:
            return None
        result_of = self._app.AsyncResult if task is None else task.AsyncResult

        def on_call(task_id: str) -> None:
            backend.on_task_call(producer, task_id)
            result_of(task_id)  # apply_async returns it, and nobody keeps it: that ends what has begun

        return on_call


class _UnfitError(Exception):
    """Messages of a shape aren't compiled. Its text says why."""


def _size_of(key: Any, shape: Shape | str) -> int:
    """Return how much memory a shape takes, or the reason why there is none, with its key; bytes."""
    size_bytes = getsizeof(shape) if isinstance(shape, str) else SHAPE_BYTES + shape.size_bytes
    return size_bytes + len(repr(key))


def _values_of(call: Call, trace: Mapping[str, str]) -> Values:
    """Return values of a run for a rehearsal, others each time but for ``trace``."""
    now = datetime.now(timezone.utc)
    due = now.isoformat(timespec="microseconds")
    if not call.is_expiring:
        return Values(str(uuid.uuid4()), due, None, None, trace)
    lifetime = _REHEARSAL_LIFETIME + timedelta(microseconds=now.microsecond)
    return Values(str(uuid.uuid4()), due, now + lifetime, lifetime.total_seconds(), trace)


def _destination_of(rehearsed: Rehearsed, routing_key: str) -> str:
    """Return the name of the queue that was declared for a message, else its routing key."""
    queues = [one.entity for one in rehearsed.declarations if hasattr(one.entity, "routing_key")]
    return str(queues[0].name) if queues else routing_key


def _is_celerys(function: Any) -> bool:
    """Tell whether ``function`` is of Celery's own code, and hasn't been wrapped."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return str(module).partition(".")[0] == "celery"


def _is_caused_by(kind: type[BaseException], exc: BaseException | None) -> bool:
    while exc is not None and not isinstance(exc, kind):
        exc = exc.__cause__ or exc.__context__
    return exc is not None
