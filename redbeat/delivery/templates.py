"""Message templates: the messages that ``apply_async`` makes, byte by byte, in a fraction of the time.

A template is made per kind of message, from a sample that Celery and kombu make. Its entries share it, and
each adds the texts of its own values. Invariant: only messages that were proved equal come from templates:

- a template returns two samples of its first entry, with other values of the run, and one of its second one;
- it is dropped when its fingerprint changes: settings, the task, the route and queues, read once a batch;
- it is compared with a new sample every :data:`CHECK_SECONDS`, for all that is not in the fingerprint.

Whether other code looks on is the question of the ``guard``.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from itertools import repeat
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from sys import getsizeof
from typing import Any, NamedTuple

from celery.app import amqp as celery_amqp
from celery.backends.base import Backend

from redbeat.config.config import ensure_conf
from redbeat.delivery import guard
from redbeat.delivery.amqp import Confirms
from redbeat.delivery.failures import reason_of
from redbeat.delivery.outbox import Outbox
from redbeat.delivery.placeholders import (
    NO_HEADERS,
    Call,
    CallPlaceholders,
    Describe,
    Path,
    RunValues,
    TraceHeaders,
    UnfitError,
    find_description,
    find_difference,
    has_own_context,
    is_number,
    json_text,
    kind_of,
)
from redbeat.delivery.producer import Sample, Send, replacing, take_sample
from redbeat.delivery.tracers import find_monitoring
from redbeat.errors import EntryError
from redbeat.log.logger import logger
from redbeat.log.text import joined, printable, shorten
from redbeat.process.memory import Allowance, Memory
from redbeat.process.signals import let_through
from redbeat.store.records import Push

#: a template that was not compared with a sample for so long is compared again, and a kind of messages that
#: has no template is tried again
CHECK_SECONDS = 60.0

MAX_KINDS = 1_000
#: memory of a kind besides its texts, about
KIND_BYTES = 4_500
#: new kinds in one batch, as the samples of each take as long as some messages
MAX_NEW_KINDS = 100

#: lifetime of the messages of samples: Celery warns of those that have expired
_SAMPLE_LIFETIME = timedelta(hours=1)

_NOT_BEGUN = "the batch has not begun"

#: attributes of a task that its messages depend on
_TASK_ATTRIBUTES = (
    *("name", "ignore_result", "priority", "serializer", "soft_time_limit", "time_limit", "expires"),
    *("typing", "__header__", "__v2_compat__", "_backend"),
)


class TextTemplate:
    """A JSON text in which the values at some paths are replaced.

    Arguments:
        text: a JSON object.
        paths: where its placeholders are.

    Raises:
        UnfitError: ``text`` is not written as ``json.dumps`` writes it.
    """

    def __init__(self, text: str, paths: Iterable[Path]) -> None:
        document = json.loads(text)
        if json.dumps(document) != text:
            raise UnfitError("kombu writes JSON in an unexpected way")
        mark, order = uuid.uuid4().hex, []
        for number, (*parents, last) in enumerate(paths):
            place = document
            for step in parents:
                place = place[step]
            place[last] = f"{mark}{number}{mark}"
        # constant, number, constant, number, ..., constant
        parts = json.dumps(document).replace(f'"{mark}', mark).replace(f'{mark}"', mark).split(mark)
        self._constants = tuple(parts[::2])
        numbers = list(map(int, parts[1::2]))
        order = [len(numbers)]
        for position, number in enumerate(numbers, start=1 + len(numbers)):
            order += [number, position]
        self._arrange = itemgetter(*order)

    @property
    def size_bytes(self) -> int:
        """Memory of its texts."""
        return sum(map(getsizeof, self._constants))

    def fill(self, values: tuple[str, ...]) -> str:
        """Return the text with ``values``, which are JSON texts, in place of the placeholders."""
        return "".join(self._arrange(values + self._constants))


class RunPlaceholders(NamedTuple):
    """The placeholders for values of a run.

    Attributes:
        is_expiring: messages expire by the policy.
        expires_seconds: the option ``expires``, if they do not.
        trace_names: headers that carry the context of a run's span.
    """

    app: Any
    is_expiring: bool
    expires_seconds: float | None
    trace_names: Sequence[str]

    @property
    def paths(self) -> list[Path]:
        """Where the values are."""
        paths: list[Path] = [("headers", name) for name in ("id", "root_id", "redbeat_due")]
        paths += [("properties", "correlation_id"), ("properties", "delivery_tag")]
        if self.is_expiring:
            paths += [("headers", "expires"), ("properties", "expiration")]
        elif self.expires_seconds is not None:
            paths.append(("headers", "expires"))
        return [*paths, *(("headers", name) for name in self.trace_names)]

    def texts(self, values: RunValues, delivery_tag: str) -> tuple[str, ...]:
        """Return the JSON of the values, in the order of ``paths``."""
        task_id = encode_basestring_ascii(values.task_id)
        due, tag = encode_basestring_ascii(values.due), encode_basestring_ascii(delivery_tag)
        texts = [task_id, task_id, due, task_id, tag]
        if self.is_expiring:
            milliseconds = int((values.expiration_seconds or 0) * 1000)
            texts += [json_text(values.expires and values.expires.isoformat()), f'"{milliseconds}"']
        elif self.expires_seconds is not None:
            texts.append(f'"{self._expires_at(values, self.expires_seconds).isoformat()}"')
        if self.trace_names:
            texts += [encode_basestring_ascii(values.trace[name]) for name in self.trace_names]
            for name, value in list(values.trace.items())[len(self.trace_names) :]:
                texts[-1] += f", {json_text(name)}: {json_text(value)}"
        return tuple(texts)

    def _expires_at(self, values: RunValues, seconds: float) -> datetime:
        # a message that is made early is sent at its due time
        sent_at = max(self.app.now(), datetime.fromisoformat(values.due).astimezone(self.app.timezone))
        add = getattr(celery_amqp, "add_seconds_to_datetime", None)  # since Celery 5.6
        expires: datetime = sent_at + timedelta(seconds=seconds) if add is None else add(sent_at, seconds)
        return expires


class _Kind:
    """What messages of one kind share.

    Attributes:
        destination: the name of its queue.
        declarations: what is declared before one of its messages is sent.
        on_call: function to call with the task id of each run that is sent.
        expires_seconds: lifetime of its messages after they are sent, by an option.
        is_traced: its messages carry the context of their runs' spans.
        text, run_texts, queue, pexpires: what its messages are made of.
        proved_for: texts of the first entry; None: a second entry was compared, too.
        example: an entry for later samples.
        checked_at: when it was compared with a sample, monotonic.
        batch, bindings: when its fingerprint was compared.
        is_dropped: it must not be used any more.
    """

    is_dropped = False
    batch = bindings = 0
    check_arguments: Callable[..., Any] | None = None
    on_call: Callable[[str], Any] | None = None
    is_traced = False
    fingerprint: Any = None
    checked_at = 0.0

    def __init__(
        self, key: Any, call: Call, send: Send, sample: Sample, of_run: RunPlaceholders, describe: Describe
    ) -> None:
        self.key, self.task, self.options = key, call.task, call.options
        properties = json.loads(sample.text)["properties"]
        info = properties["delivery_info"]
        self.exchange, self.routing_key = info["exchange"], info["routing_key"]
        self.declarations, self.calls_backend = sample.declarations, sample.calls_backend
        queues = [one.entity for one in sample.declarations if hasattr(one.entity, "routing_key")]
        self.destination = str(queues[0].name) if queues else self.routing_key
        self.expires_seconds = of_run.expires_seconds
        body, self.serializer = sample.bodies[0], str(sample.serializer)
        encoding, no_args = properties.get("body_encoding"), () if body[0] else body[0]
        self._of_call = CallPlaceholders(self.serializer, encoding, no_args, body[2], describe)
        own = self._of_call.texts(call)
        self.queue, self.pexpires = sample.pushes[0].queue, sample.pushes[1:]
        self.text: TextTemplate | None = TextTemplate(sample.text, [*of_run.paths, *own])
        self.run_texts = of_run.texts
        self.proved_for: tuple[str, ...] | None = tuple(own.values())
        self.example = (MessageTemplate(self, self.proved_for), call, send)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        of_text = 0 if self.text is None else self.text.size_bytes
        return KIND_BYTES + of_text + len(repr(self.key)) + 2 * self.example[0].size_bytes

    def template_of(self, call: Call) -> MessageTemplate:
        """Return the template of a call of this kind.

        Raises:
            Exception: the task does not take its arguments, or they cannot be encoded.
        """
        if self.check_arguments is not None:
            self.check_arguments(*call.args, **call.kwargs)
        return MessageTemplate(self, tuple(self._of_call.texts(call).values()))

    def drop(self) -> None:
        """Let it be used no more, and forget its texts, as its entries' templates may be kept for long."""
        self.is_dropped = True
        self.text = None
        del self.example, self.fingerprint


class MessageTemplate:
    """The message of one entry, except for the values of its runs.

    Attributes:
        kind: what it shares with other entries.
        own: the texts of its entry's values.
    """

    __slots__ = ("kind", "own")

    def __init__(self, kind: _Kind, own: tuple[str, ...]) -> None:
        self.kind, self.own = kind, own

    @property
    def size_bytes(self) -> int:
        """Memory of what it does not share with other entries."""
        return sys.getsizeof(self) + sys.getsizeof(self.own) + sum(map(sys.getsizeof, self.own))

    def fill(self, values: RunValues, delivery_tag: str) -> tuple[Push, ...]:
        """Return the list writes of one run, its message first; ``delivery_tag``: a new UUID."""
        kind = self.kind
        assert kind.text is not None  # noqa: S101 - it is not dropped
        text = kind.text.fill(kind.run_texts(values, delivery_tag) + self.own)
        return (Push("lpush", kind.queue, text), *kind.pexpires)


class Templates:
    """The message templates of an app's entries.

    Arguments:
        app: the Celery app.
        allowance: memory that they share with other caches; they take half of it at most.
        scheduler: the one that sends; None: none does.

    Attributes:
        obstacle: why Celery makes all messages of this batch; '': templates may be used.
    """

    def __init__(self, app: Any, allowance: Allowance, scheduler: Any = None) -> None:
        self._app = app
        self._scheduler = scheduler
        self._allowance = allowance
        self._bytes = 0
        self._producer: Any = None
        self._outbox: Any = None
        self._trace: TraceHeaders | None = None
        self._state: Any = None
        self._describe: Describe = repr
        self.obstacle = _NOT_BEGUN
        self._batch = self._new_kinds = 0
        self._kinds: dict[Any, _Kind] = {}
        self._refused = Memory[Any, tuple[str, float]](MAX_KINDS)  # kind to reason, and when to try again
        self._failed: dict[Any, str] = {}  # kind to reason, in this batch
        self._said = Memory[tuple[str, str], bool](MAX_KINDS)

    def begin_batch(
        self,
        producer: Any,
        outbox: Outbox | Confirms | None,
        trace: TraceHeaders | None = None,
        provider: Any = None,
    ) -> str:
        """Begin a batch, and return ``obstacle``. Drop all templates if what they depend on has changed.

        Arguments:
            producer: sends the runs of this batch; it is a ``BoundedProducer``.
            outbox: collects their messages; None: it cannot, with this broker.
            trace: headers of messages that carry the context of their runs' spans.
            provider: of spans of OpenTelemetry.

        Raises:
            Exception: whatever Celery raises of settings, or the transport. ``apply_async`` raises it, too.
        """
        self._batch += 1
        self._new_kinds = 0
        self._failed.clear()
        is_known = not self.obstacle and producer is self._producer
        self.obstacle = _NOT_BEGUN
        self._producer, self._outbox, self._trace = producer, outbox, trace
        obstacle = "" if is_known else self._look()
        if not obstacle:
            of_broker = producer, outbox, outbox is not None and outbox.has_given_up
            of_batch = *of_broker, trace and trace.names, provider
            state = of_batch, guard.read_state(self._app, self._scheduler, producer.channel)
            if state != self._state:
                obstacle = self._look()  # after the state was read, so that no change comes between
                if not obstacle:
                    self._drop_all()
                    self._describe = find_description(self._app)
                    self._state = state
        self.obstacle = obstacle
        return obstacle

    def _look(self) -> str:
        """Return why Celery makes all messages; '': templates may be used."""
        app, outbox = self._app, self._outbox
        obstacle = joined(guard.find_setting_obstacle(ensure_conf(app)), find_monitoring())
        obstacle = obstacle or guard.find_obstacle(app, self._scheduler)
        if not obstacle and (outbox is None or outbox.has_given_up):
            obstacle = guard.find_broker_obstacle(app) or guard.NOT_COLLECTED
        return obstacle or guard.find_channel_obstacle(self._producer.channel)

    def find(self, call: Call, send: Send) -> MessageTemplate | str:
        """Return the template of ``call`` for this batch; a str: why Celery must make its messages.

        Arguments:
            send: called for samples, in a way that nothing is sent or declared. It is kept, and called again
                when a later batch compares the template.

        Raises:
            EntryError: ``send`` has raised it. It concerns this entry, not messages of its kind.
        """
        for _ in range(2):  # again, as the queue that is declared may be another one
            found = self._find(call, send)
            if isinstance(found, str):
                self._log_reason(call.task, found)
                return found
            if self.is_current(found):
                return found
        return "what its message depends on is changing"

    def is_current(self, template: MessageTemplate) -> bool:
        """Return True if ``template`` may be used in this batch.

        Declares its queues, once a batch. If that fails, the answer is no, and ``apply_async`` will raise it.
        """
        kind = template.kind
        if kind.is_dropped or self.obstacle:
            return False
        if kind.batch == self._batch and kind.bindings == self._outbox.bindings:
            return True
        is_same = False
        try:
            for declaration in kind.declarations:
                if self._producer.declared.get(id(declaration.entity)) is not declaration.entity:
                    self._producer.repeat(declaration)
            is_same = self._fingerprint_of(kind) == kind.fingerprint
            if is_same and time.monotonic() >= kind.checked_at + CHECK_SECONDS:
                self._compare(*kind.example)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            logger.debug("beat: A message template is dropped: %r", exc)
            is_same = False
        if not is_same:
            self._drop(kind)
            return False
        kind.batch, kind.bindings = self._batch, self._outbox.bindings
        return True

    def _find(self, call: Call, send: Send) -> MessageTemplate | str:
        if self.obstacle:
            return self.obstacle
        key = kind_of(call)
        if isinstance(key, str):
            return key
        kind = self._kinds.get(key)
        try:
            if kind is None:
                refusal = self._find_refusal(key, call)
                if refusal:
                    return refusal
                kind = self._make_kind(key, call, send)
            template = kind.template_of(call)
            if kind.proved_for not in (None, template.own):
                self._compare(template, call, send)
                kind.proved_for = None
            return template
        except EntryError:
            raise
        except UnfitError as exc:
            reason = shorten(printable(str(exc)))
            self._refused[key] = reason, time.monotonic() + CHECK_SECONDS
            if kind is not None:
                self._drop(kind)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            reason = reason_of(exc)
            if kind is None:
                self._failed[key] = reason
        return reason

    def _find_refusal(self, key: Any, call: Call) -> str:
        """Return why there is no new kind: a known reason, the task's own code, or a limit; '': no reason."""
        reason, retry_at = self._refused.get(key, ("", 0.0))
        if time.monotonic() < retry_at or key in self._failed:
            return self._failed.get(key, reason)
        reason = guard.find_task_obstacle(self._app.tasks.get(call.task))  # a sample must not call its code
        if reason:
            return reason
        if self._new_kinds >= MAX_NEW_KINDS:
            return f"there are more than {MAX_NEW_KINDS} kinds of messages that are new"
        if self._is_full:
            unused = time.monotonic() - 2 * CHECK_SECONDS  # those in use are checked more often
            for kind in [kind for kind in self._kinds.values() if kind.checked_at <= unused]:
                self._drop(kind)
        return f"there are more than {len(self._kinds)} kinds of messages" if self._is_full else ""

    def _log_reason(self, task: str, reason: str) -> None:
        """Log once for each task and reason why Celery makes messages, unless it concerns all of them."""
        if reason != self.obstacle and self._said.is_news((task, reason), True):
            reason = reason.removesuffix(".")  # the text of an error may be a sentence
            logger.info("beat: Messages of the task %s aren't compiled: %s.", printable(task), reason)

    @property
    def _is_full(self) -> bool:
        return len(self._kinds) >= MAX_KINDS or self._bytes > self._allowance.max_bytes / 2

    def _take(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._allowance.left_bytes -= size_bytes

    def _drop(self, kind: _Kind) -> None:
        if self._kinds.pop(kind.key, None) is not None:
            self._take(-kind.size_bytes)
        kind.drop()

    def _drop_all(self) -> None:
        self._refused.clear()
        for kind in list(self._kinds.values()):
            self._drop(kind)

    # -- samples

    def _make_kind(self, key: Any, call: Call, send: Send) -> _Kind:
        self._new_kinds += 1
        app, trace = self._app, self._trace
        task = app.tasks.get(call.task)
        if trace is not None and has_own_context(call.options.get("headers"), trace.names):
            trace = None
        names = () if trace is None else trace.names
        of_run = RunPlaceholders(app, call.is_expiring, self._expires_option(call, task), names)
        with self._standing_clock():
            sample = self._sample(call, send, NO_HEADERS if trace is None else trace.examples[0])
            self._require_plain_body(sample)
            kind = _Kind(key, call, send, sample, of_run, self._describe)
            _require_equal(kind.example[0], sample)
        kind.is_traced = trace is not None  # also if no header carries the context
        if getattr(task, "typing", False):
            kind.check_arguments = getattr(task, "__header__", None)
        if not self._producer.is_redis and not all(one.is_lasting for one in kind.declarations):
            raise UnfitError("its queue may delete itself, and is declared for each message")
        kind.on_call = self._find_on_call(task) if kind.calls_backend else None
        kind.fingerprint = self._fingerprint_of(kind)
        self._compare(*kind.example)
        self._kinds[key] = kind
        self._take(kind.size_bytes)
        return kind

    def _compare(self, template: MessageTemplate, call: Call, send: Send) -> None:
        """Compare a template with a new sample.

        Raises:
            UnfitError: they differ.
        """
        trace = self._trace.examples[1] if self._trace is not None and template.kind.is_traced else NO_HEADERS
        with self._standing_clock():
            _require_equal(template, self._sample(call, send, trace))
        template.kind.checked_at = time.monotonic()

    def _sample(self, call: Call, send: Send, trace: Mapping[str, str]) -> Sample:
        """Return a sample; its values differ from those of other samples, except for ``trace``."""
        now = self._app.now().astimezone(timezone.utc)
        due = now.isoformat(timespec="microseconds")
        values = RunValues(str(uuid.uuid4()), due, None, None, trace)
        if call.is_expiring:
            lifetime = _SAMPLE_LIFETIME + timedelta(microseconds=now.microsecond)
            values = RunValues(values.task_id, due, now + lifetime, lifetime.total_seconds(), trace)
        return take_sample(self._app, self._producer, self._outbox, values, send)

    def _standing_clock(self) -> AbstractContextManager[None]:
        """Return a context in which the app's clock stands still, as messages depend on it."""
        now = self._app.now()
        return replacing(self._app, now=lambda: now)

    def _require_plain_body(self, sample: Sample) -> None:
        if sample.compression:
            raise UnfitError(f"its messages are compressed with {sample.compression!r}")
        reason = guard.find_serializer_obstacle(str(sample.serializer))
        if reason:
            raise UnfitError(reason)

    def _expires_option(self, call: Call, task: Any) -> Any:
        """Return the option ``expires`` of a call or a task; None if the policy says when messages expire."""
        if call.lifetime_seconds is not None:
            return None
        seconds = call.options.get("expires", options_of_task(task).get("expires"))
        if seconds is not None and (not is_number(seconds) or seconds < 0):
            raise UnfitError("'expires' isn't a number of seconds from now")
        return None if call.is_expiring else seconds

    def _find_on_call(self, task: Any) -> Callable[[str], Any] | None:
        """Return what Celery does with its result backend for each run besides publishing; None: nothing."""
        backend, producer = self._app.backend, self._producer
        names = ("on_task_call", "remove_pending_result")
        of_class = [getattr(type(backend), name, None) for name in names]
        is_celerys = all(guard.root_of(function) == "celery" for function in of_class)
        if not is_celerys or not vars(backend).keys().isdisjoint(names):
            raise UnfitError(f"the result backend {type(backend).__name__} isn't one of Celery's")
        if of_class[0] is Backend.on_task_call:
            return None
        result_of = self._app.AsyncResult if task is None else task.AsyncResult

        def on_call(task_id: str) -> None:
            backend.on_task_call(producer, task_id)
            result_of(task_id)  # as of apply_async, it is garbage at once: that ends what has begun

        return on_call

    # -- the fingerprint

    def _fingerprint_of(self, kind: _Kind) -> tuple[Any, ...]:
        """Return what messages of a kind depend on.

        Raises:
            Exception: whatever Celery raises if the queue is missing.
        """
        app, outbox = self._app, self._outbox
        task = app.tasks.get(kind.task)
        asked = {**options_of_task(task), **kind.options}
        route = app.amqp.router.route(asked, kind.task, (), {}, task)
        queue = route.get("queue")
        exchange = getattr(queue, "exchange", None)
        queues = outbox.find_queues(kind.exchange, kind.routing_key) if kind.exchange else [kind.routing_key]
        backend = app.backend if kind.calls_backend else None
        return (
            *(task, *map(getattr, repeat(task), _TASK_ATTRIBUTES, repeat(None))),
            guard.find_task_obstacle(task),
            route,
            *(getattr(queue, "name", None), getattr(queue, "routing_key", None)),
            *map(getattr, repeat(exchange), ("name", "type", "delivery_mode"), repeat(None)),
            *(queues, list(map(outbox.expiries.get, queues))),
            guard.codec_of(kind.serializer),
            *(backend, vars(backend).get("on_task_call") if backend is not None else None),
        )


def options_of_task(task: Any) -> Mapping[str, Any]:
    """Return the options that a task brings itself; none if it is not registered."""
    options: Mapping[str, Any] = {} if task is None else task._get_exec_options()  # noqa: SLF001
    return options


def _require_equal(template: MessageTemplate, sample: Sample) -> None:
    document = json.loads(sample.text)
    filled = template.fill(sample.values, document["properties"]["delivery_tag"])
    if filled[0].value != sample.text:
        differing = find_difference(json.loads(str(filled[0].value)), document)
        field = differing or "the way it writes JSON"
        raise UnfitError(f"Celery makes another {field} from run to run, or from entry to entry")
    if filled != sample.pushes:
        raise UnfitError("kombu writes to another queue from run to run, or from entry to entry")
