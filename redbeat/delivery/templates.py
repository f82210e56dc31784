"""Message templates: the messages that ``apply_async`` makes, byte by byte, in a fraction of the time.

A template is made per kind of message, from a sample that Celery and kombu make. Its entries share it, and
each adds the texts of its own values. Invariant: only messages that were proved equal come from templates:

- a template returns a second sample of its first entry, with other values of the run, and one of its second
  entry;
- it is dropped when its fingerprint changes: settings, the task, the route and queues, read once a batch;
- every :data:`CHECK_SECONDS` it is compared with a sample of the next entry, for all that is not in the
  fingerprint.

A sample is sent as a run is, and collected by the outbox: its queue is declared, and nothing leaves. Whether
other code looks on is the question of the ``guard``.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta, timezone
from itertools import repeat
from operator import itemgetter
from threading import RLock
from typing import Any

from redbeat.delivery import guard
from redbeat.delivery.amqp import MARKS, Confirms, Frames, FrameTemplate
from redbeat.delivery.failures import reason_of
from redbeat.delivery.outbox import Outbox
from redbeat.delivery.placeholders import (
    NO_HEADERS,
    Call,
    Path,
    RunPlaceholders,
    RunValues,
    TraceHeaders,
    UnfitError,
    find_difference,
    has_own_context,
    is_number,
    kind_of,
    texts_of_call,
)
from redbeat.delivery.tracers import bypassing_sentry
from redbeat.errors import EntryError
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory
from redbeat.process.signals import let_through
from redbeat.store.records import Push

#: sends a run of an entry with these values by the scheduler's ``apply_async``
Send = Callable[[RunValues], Any]

#: a template that was not compared with a sample for so long is compared again, and a kind of messages that
#: has no template is tried again
CHECK_SECONDS = 60.0

#: more are forgotten, and made anew
MAX_KINDS = 1_000
#: what messages of a kind may have in common, characters: a thousand kinds are remembered
MAX_TEXT = 16_384

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
        if sum(map(len, self._constants)) > MAX_TEXT:
            raise UnfitError("its options are too long")
        numbers = list(map(int, parts[1::2]))
        order = [len(numbers)]
        for position, number in enumerate(numbers, start=1 + len(numbers)):
            order += [number, position]
        self._arrange = itemgetter(*order)

    def fill(self, values: tuple[str, ...]) -> str:
        """Return the text with ``values``, which are JSON texts, in place of the placeholders."""
        return "".join(self._arrange(values + self._constants))


class Kind:
    """What messages of one kind share.

    Arguments:
        pushes: what sending a sample of ``call`` writes, its message first.
        producer: has sent that sample.
        confirms: publishes its messages, on RabbitMQ; None: the broker is Redis.

    Attributes:
        frames: makes the frames of most messages on RabbitMQ; None: py-amqp makes them.
        declared: the queues and exchanges that its messages need.
        destination: the name of its queue.
        first_own: texts of its first entry; None: a second entry was compared, too.
        checked_at: when it was compared with a sample, monotonic.
        fingerprint, batch: what its messages depend on, and in which batch that was compared.
    """

    checked_at = 0.0
    batch = 0
    fingerprint: Any

    def __init__(
        self,
        key: Any,
        call: Call,
        run: RunPlaceholders,
        serializer: str,
        pushes: tuple[Push, ...],
        producer: Any,
        confirms: Confirms | None,
    ) -> None:
        self.key, self.task, self.options = key, call.task, call.options
        self.run, self.serializer = run, serializer
        text, self.queue, self.pexpires = str(pushes[0].value), pushes[0].queue, pushes[1:]
        properties = json.loads(text)["properties"]
        info = properties["delivery_info"]
        self.exchange, self.routing_key = info["exchange"], info["routing_key"]
        self._encoding = properties.get("body_encoding")
        own = texts_of_call(run.app, call, serializer, self._encoding)
        self.first_own: tuple[str, ...] | None = tuple(own.values())
        self.text = TextTemplate(text, [*run.paths, *own])
        self.declared, self.destination = tuple(producer.declaring), str(producer.destination)
        self.frames: FrameTemplate | None = None
        if confirms is not None and run.is_plain and self._encoding is None:
            marks = [uuid.uuid4().hex for _ in self.first_own]
            sample = self.text.fill(run.texts(MARKS, "") + tuple(map(json.dumps, marks)))
            self.frames = confirms.template_of(sample, marks, self.declared)

    def template_of(self, call: Call) -> MessageTemplate:
        """Return the template of a call of this kind; raises whatever encoding its values raises."""
        own = texts_of_call(self.run.app, call, self.serializer, self._encoding)
        return MessageTemplate(self, tuple(own.values()))


@dataclass(slots=True)
class MessageTemplate:
    """The message of one entry, except for the values of its runs.

    Attributes:
        kind: what it shares with other entries.
        own: the texts of its entry's values.
    """

    kind: Kind
    own: tuple[str, ...]

    def fill(self, values: RunValues, delivery_tag: str) -> tuple[Push, ...]:
        """Return the list writes of one run, its message first; ``delivery_tag``: a new UUID."""
        kind = self.kind
        text = kind.text.fill(kind.run.texts(values, delivery_tag) + self.own)
        return (Push("lpush", kind.queue, text), *kind.pexpires)

    def frames(self, confirms: Confirms, values: RunValues) -> Frames:
        """Return the message of one run on RabbitMQ."""
        kind = self.kind
        found = None if kind.frames is None else kind.frames.fill(self.own, values.task_id, values.due)
        return found or confirms.frames_of_draft(str(self.fill(values, "")[0].value), kind.declared)


class Templates:
    """The message templates of an app's entries.

    Arguments:
        app: the Celery app.
        scheduler: the one that sends; None: none does.

    Attributes:
        obstacle: why Celery makes all messages of this batch; '': templates may be used.
    """

    def __init__(self, app: Any, scheduler: Any = None) -> None:
        self._app = app
        self._scheduler = scheduler
        self._producer: Any = None
        self._outbox: Any = None
        self._trace: TraceHeaders | None = None
        self._state: Any = None
        self.obstacle = _NOT_BEGUN
        self._batch = 0
        self._kinds = Memory[Any, Kind](MAX_KINDS)  # those in use
        self._refused = Memory[Any, tuple[str, float]](MAX_KINDS)  # kind to reason, and when to try again
        self._said = Memory[tuple[str, str], bool](MAX_KINDS)

    def begin_batch(
        self,
        producer: Any,
        outbox: Outbox | Confirms | None,
        trace: TraceHeaders | None = None,
    ) -> None:
        """Begin a batch: find ``obstacle``, and drop all templates if what they depend on has changed.

        Arguments:
            producer: sends the runs of this batch; it is a ``BoundedProducer``.
            outbox: collects their messages; None: it cannot, with this broker.
            trace: headers of messages that carry the context of their runs' spans.

        Raises:
            Exception: whatever Celery raises of settings, or the transport. ``apply_async`` raises it, too.
        """
        self._batch += 1
        obstacle, self.obstacle = self.obstacle, _NOT_BEGUN
        self._producer, self._outbox, self._trace = producer, outbox, trace
        of_code = guard.read_state(self._app, self._scheduler, producer)
        state = producer, outbox, trace and trace.names, of_code
        if obstacle or state != self._state:
            obstacle = guard.find_obstacle(self._app, self._scheduler, producer)
            if not obstacle and outbox is None:
                obstacle = guard.find_broker_obstacle(self._app) or guard.NOT_COLLECTED
            self._refused.clear()
            self._kinds.clear()
            self._state = state
        self.obstacle = obstacle

    def find(self, call: Call, send: Send) -> MessageTemplate | str:
        """Return the template of ``call`` for this batch; a str: why Celery must make its messages.

        Arguments:
            send: called for samples, in a way that nothing is sent.

        Raises:
            EntryError: ``send`` has raised it. It concerns this entry, not messages of its kind.
        """
        key = self.obstacle or kind_of(call)
        found = key if isinstance(key, str) else self._find(key, call, send)
        if isinstance(found, str) and not self.obstacle and self._said.is_news((call.task, found), True):
            reason = found.removesuffix(".")  # the text of an error may be a sentence
            logger.info("beat: Messages of the task %s aren't compiled: %s.", printable(call.task), reason)
        return found

    def is_current(self, template: MessageTemplate, max_age_seconds: float = math.inf) -> bool:
        """Return True if ``template`` may be used in this batch.

        ``max_age_seconds``: how long ago it was compared with a sample at most; :meth:`find` does that.
        """
        kind = template.kind
        if kind.batch == self._batch:
            return True
        return self._is_current(kind) and time.monotonic() < kind.checked_at + max_age_seconds

    def _is_current(self, kind: Kind) -> bool:
        if self.obstacle or self._kinds.get(kind.key) is not kind:
            return False
        try:
            is_same = bool(self._fingerprint_of(kind) == kind.fingerprint)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            logger.debug("beat: A message template is dropped: %r", exc)
            is_same = False
        kind.batch = self._batch if is_same else 0
        if not is_same:
            del self._kinds[kind.key]
        return is_same

    def _find(self, key: Any, call: Call, send: Send) -> MessageTemplate | str:
        reason, retry_at = self._refused.get(key, ("", 0.0))
        if time.monotonic() < retry_at:
            return reason
        task, kind = self._app.tasks.get(call.task), self._kinds.get(key)
        if kind is not None and kind.batch != self._batch and not self._is_current(kind):
            kind = None
        try:
            if getattr(task, "typing", False) and hasattr(task, "__header__"):  # only functions have one
                task.__header__(*call.args, **call.kwargs)
        except BaseException as exc:  # noqa: BLE001 - of this entry; apply_async will raise it
            let_through(exc)
            return reason_of(exc)
        is_old = kind is not None and time.monotonic() >= kind.checked_at + CHECK_SECONDS
        try:
            if kind is None:
                kind = self._kinds[key] = self._make_kind(key, call, task, send)
            template = kind.template_of(call)
            if is_old or kind.first_own not in (None, template.own):
                self._prove(template, call, send)
                kind.first_own = None
            return template
        except EntryError:
            raise
        except UnfitError as exc:
            reason = shorten(printable(str(exc)))
            if kind is not None:
                kind.batch = 0
                del self._kinds[key]
            if is_old:  # what is not in the fingerprint has changed
                return self._find(key, call, send)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: apply_async will raise it
            let_through(exc)
            reason = reason_of(exc)
            if kind is not None:
                return reason
        self._refused[key] = reason, time.monotonic() + CHECK_SECONDS
        return reason

    # -- samples

    def _make_kind(self, key: Any, call: Call, task: Any, send: Send) -> Kind:
        trace, producer = self._trace, self._producer
        if trace is not None and has_own_context(call.options.get("headers"), trace.names):
            trace = None
        route = self._route_of(call.task, call.options)
        serializer = str(route.get("serializer") or self._app.conf.task_serializer)
        reason = guard.find_task_obstacle(task) or guard.find_serializer_obstacle(serializer)
        if route.get("compression"):
            reason = f"its messages are compressed with {route['compression']!r}"
        if reason:
            raise UnfitError(reason)
        seconds = _expires_option(call, task)
        run = RunPlaceholders(self._app, call.is_expiring, seconds, None if trace is None else trace.names)
        with self._sampling(call, send, NO_HEADERS if trace is None else trace.examples[0]) as (_, pushes):
            confirms = self._outbox if isinstance(self._outbox, Confirms) else None
            kind = Kind(key, call, run, serializer, pushes, producer, confirms)
        kind.fingerprint = self._fingerprint_of(kind)
        if not kind.fingerprint[0]:
            raise UnfitError("its queue may delete itself, and is declared for each message")
        kind.batch = self._batch
        self._prove(kind.template_of(call), call, send)
        return kind

    def _prove(self, template: MessageTemplate, call: Call, send: Send) -> None:
        """Compare a template with a new sample.

        Raises:
            UnfitError: they differ.
        """
        is_traced = self._trace is not None and template.kind.run.trace_names is not None
        trace = self._trace.examples[1] if self._trace is not None and is_traced else NO_HEADERS
        with self._sampling(call, send, trace) as (values, pushes):
            document = json.loads(str(pushes[0].value))
            filled = template.fill(values, document["properties"]["delivery_tag"])
        if filled[0].value != pushes[0].value:
            field = find_difference(json.loads(str(filled[0].value)), document)
            raise UnfitError(f"Celery makes another {field} from run to run, or from entry to entry")
        if filled != pushes:
            raise UnfitError("kombu writes to another queue from run to run, or from entry to entry")
        template.kind.checked_at = time.monotonic()

    @contextmanager
    def _sampling(
        self, call: Call, send: Send, trace: Mapping[str, str]
    ) -> Iterator[tuple[RunValues, tuple[Push, ...]]]:
        """Yield the values of a sample, which no other one has, and what sending it would have written.

        The app's clock stands still in the block, as messages depend on it. No result backend is called.

        Raises:
            UnfitError: a run is not one message to one queue.
            Exception: whatever ``send`` raises.
        """
        now, backend, calls = self._app.now(), self._app.backend, list[Any]()
        of_class = getattr(type(backend), "on_task_call", None)
        is_celerys = "on_task_call" not in vars(backend) and guard.root_of(of_class) == "celery"
        at = now.astimezone(timezone.utc)
        values = RunValues(str(uuid.uuid4()), at.isoformat(timespec="microseconds"), None, None, trace)
        if call.is_expiring:
            lifetime = _SAMPLE_LIFETIME + timedelta(microseconds=at.microsecond)
            values = values._replace(expires=at + lifetime, expiration_seconds=lifetime.total_seconds())
        self._producer.expiration_seconds = values.expiration_seconds
        with _replacing(self._app, now=lambda: now):
            muted = _replacing(backend, on_task_call=lambda *_: calls.append(_), remove_pending_result=repr)
            with self._outbox.sampling() as pushes, muted, bypassing_sentry():
                send(values)
            if calls and not is_celerys:
                raise UnfitError(f"the result backend {type(backend).__name__} isn't one of Celery's")
            commands = [push.command for push in pushes]
            if commands[:1] != ["lpush"] or "lpush" in commands[1:]:
                raise UnfitError("a run isn't one message to one queue")
            yield values, tuple(pushes)

    # -- the fingerprint

    def _route_of(self, name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        task = self._app.tasks.get(name)
        asked = {**options_of_task(task), **options}
        route: Mapping[str, Any] = self._app.amqp.router.route(asked, name, (), {}, task)
        return route

    def _fingerprint_of(self, kind: Kind) -> tuple[Any, ...]:
        """Return what messages of a kind depend on, first of all whether what they need is declared.

        Raises:
            Exception: whatever Celery raises if the queue is missing.
        """
        task, declared = self._app.tasks.get(kind.task), self._producer.declared
        return (
            all(declared.get(id(one)) is one for one in kind.declared),
            *(task, *map(getattr, repeat(task), _TASK_ATTRIBUTES, repeat(None))),
            guard.find_task_obstacle(task),
            self._route_of(kind.task, kind.options),
            self._outbox.find_queues(kind.exchange, kind.routing_key) if kind.exchange else kind.routing_key,
            guard.codec_of(kind.serializer),
        )


def options_of_task(task: Any) -> Mapping[str, Any]:
    """Return the options that a task brings itself; none if it is not registered."""
    options: Mapping[str, Any] = {} if task is None else task._get_exec_options()  # noqa: SLF001
    return options


def _expires_option(call: Call, task: Any) -> float | None:
    """Return the option ``expires`` of a call or a task; None if the policy says when messages expire."""
    seconds = {**options_of_task(task), **call.options}.get("expires")
    if call.lifetime_seconds is not None or seconds is None:
        return None
    if not is_number(seconds) or seconds < 0:
        raise UnfitError("'expires' isn't a number of seconds from now")
    return None if call.is_expiring else seconds


#: held while attributes are replaced, as several beats may run in threads of one process
_REPLACING = RLock()


@contextmanager
def _replacing(subject: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Give an object other functions in this context."""
    with _REPLACING:
        attributes = vars(subject)
        before = {name: attributes[name] for name in functions if name in attributes}
        attributes.update(functions)
        try:
            yield
        finally:
            for name in functions:
                attributes.pop(name, None)
            attributes.update(before)
