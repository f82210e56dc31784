"""The spans themselves, as OpenTelemetry's API makes them; imported only where a process records some.

Names and attributes are those of the semantic conventions for messaging; what is RedBeat's own begins with
``redbeat.``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from redbeat.config.masking import mask_secrets
from redbeat.delivery.broker import Peer
from redbeat.delivery.failures import reason_of
from redbeat.delivery.placeholders import TraceHeaders
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory

#: which version of the conventions the names are from
SCHEMA = "https://opentelemetry.io/schemas/1.38.0"

#: of how many messages one span tells at most: the SDK keeps 128 links by default
MAX_LINKS = 100

#: how long a value may be, characters
_MAX_VALUE = 250

_PRODUCER, _CLIENT = trace.SpanKind.PRODUCER, trace.SpanKind.CLIENT
_TRACEPARENT = "traceparent"
_write_ids = "00-{:032x}-{:016x}-{:02x}".format

#: runs are no part of whatever is going on in the process of beat
_ROOT = Context()

#: the trace state of nearly all spans; most others with nothing in them are equal, and few are this one
_NO_STATE = trace.INVALID_SPAN_CONTEXT.trace_state


class RunSpan:
    """The span of one run that is to be sent.

    Attributes:
        span: the API's.
        headers: what the run's message carries of it.
        queue: the name of the run's queue; '': it isn't known yet.
        task_id: the run's.
        ended_at: when its message was on its queue, or couldn't be sent, UNIX seconds; 0: neither.
        error: why it couldn't be sent.
    """

    __slots__ = (
        "_due_at",
        "_known_queue",
        "_note",
        "ended_at",
        "error",
        "headers",
        "queue",
        "span",
        "task_id",
    )

    def __init__(
        self,
        span: trace.Span,
        headers: Mapping[str, str],
        task_id: str,
        due_at: float,
        queue: str,
        note: Callable[[RunSpan], float],
    ) -> None:
        self.span = span
        self.headers = headers
        self.task_id = task_id
        self._due_at = due_at
        self.queue = self._known_queue = queue
        self.ended_at = 0.0
        self.error: BaseException | None = None
        self._note = note

    def note_sent(self) -> None:
        """Note that the message is on its queue now."""
        if not self.ended_at and self.span.is_recording():
            # not before it was due: where Redis' clock was set back, say
            self.ended_at = max(self._note(self), self._due_at)

    def note_failed(self, exc: BaseException) -> None:
        """Note that the message couldn't be sent because of ``exc``."""
        self.error = exc
        self.note_sent()

    def end(self, ended_ns: int) -> None:
        """Tell of it; ``ended_ns`` is ``ended_at`` in nanoseconds."""
        span, error = self.span, self.error
        span.set_attribute("redbeat.lateness_seconds", round(self.ended_at - self._due_at, 6))
        if self.queue != self._known_queue:
            span.update_name(f"create {_value(self.queue)}")
            span.set_attribute("messaging.destination.name", _value(self.queue))
        if error is not None:
            kind = type(error)
            name = kind.__qualname__
            span.set_attribute(
                "error.type", name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
            )
            span.set_status(trace.Status(trace.StatusCode.ERROR, _reason(error)))
        span.end(ended_ns)


class Spans:
    """Makes spans with one tracer.

    Arguments:
        tracer: the API's.
        propagator: writes a span's context into headers.

    Attributes:
        headers: what it writes, in general.
    """

    def __init__(self, tracer: trace.Tracer, propagator: Any) -> None:
        self._tracer = tracer
        self.propagator = propagator
        self._is_w3c = _is_w3c(propagator)
        self._in_general = Memory[tuple[str, str, str], tuple[str, dict[str, Any]]](1_000)
        plain, stated = (
            self._inject(trace.NonRecordingSpan(_made_up(state)))
            for state in (trace.TraceState(), trace.TraceState([("redbeat", "example")]))
        )
        names = tuple(plain)
        self.headers = TraceHeaders(names, (plain, _ordered(stated, names)))

    def begin(
        self,
        system: str,
        entry: str,
        task: str,
        task_id: str,
        due: str,
        due_at: float,
        queue: str,
        note: Callable[[RunSpan], float],
    ) -> RunSpan | None:
        """Return the span of a run; None: this tracer makes none now.

        Arguments:
            system: which kind of broker it goes to.
            entry: the entry's name.
            due, due_at: when the run is due, as in its header, and in UNIX seconds.
            queue: '': it isn't known yet.
            note: is called when the run was sent, or couldn't be; returns what time it is.
        """
        name, in_general = self._in_general.get((system, queue, task)) or self._find_general(
            system, queue, task
        )
        attributes = {
            **in_general,
            "messaging.message.id": _value(task_id),
            "redbeat.entry": _value(entry),
            "redbeat.due": due,
        }
        span = self._tracer.start_span(name, _ROOT, _PRODUCER, attributes, (), _nanoseconds(due_at))
        context = span.get_span_context()
        if not context.is_valid:
            return None
        state = context.trace_state
        if self._is_w3c and (state is _NO_STATE or not state):
            # what the propagator writes, in a fifth of the time
            ids = _write_ids(context.trace_id, context.span_id, context.trace_flags)
            headers = {_TRACEPARENT: ids}
        else:
            headers = self._inject(span)
            if len(headers) != len(self.headers.names):
                headers = _ordered(headers, self.headers.names)
        return RunSpan(span, headers, task_id, due_at, queue, note)

    def _find_general(self, system: str, queue: str, task: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the attributes that the spans of all runs of a task to one queue have."""
        attributes = _operation("create", system)
        if queue:
            attributes["messaging.destination.name"] = _value(queue)
        attributes["celery.task_name"] = _value(task)
        found = f"create {_value(queue)}".rstrip(), attributes
        if len(queue) + len(task) <= _MAX_VALUE:  # else they would take much memory
            self._in_general[system, queue, task] = found
        return found

    def use(self, run: RunSpan) -> Any:
        """Return a context manager in which the span of ``run`` is the current one."""
        return trace.use_span(
            run.span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def _inject(self, span: trace.Span) -> dict[str, str]:
        headers: dict[str, str] = {}
        self.propagator.inject(headers, trace.set_span_in_context(span, _ROOT))
        return headers

    def tell(self, runs: Sequence[RunSpan], began_at: float, peer: Peer) -> None:
        """End the spans of ``runs``, which were sent together, and make those of their sending.

        Arguments:
            began_at: when beat began to send them, UNIX seconds.
        """
        ended_at, ended_ns = 0.0, 0
        for run in runs:
            if run.ended_at != ended_at:  # those that left in one step have the same
                ended_at, ended_ns = run.ended_at, _nanoseconds(run.ended_at)
            run.end(ended_ns)
        sent = [run for run in runs if run.error is None]
        for first in range(0, len(sent), MAX_LINKS):
            self._tell_of_sending(sent[first : first + MAX_LINKS], _nanoseconds(began_at), peer)

    def _tell_of_sending(self, sent: Sequence[RunSpan], began_ns: int, peer: Peer) -> None:
        queues = {run.queue for run in sent}
        queue = _value(queues.pop()) if len(queues) == 1 else ""
        attributes: dict[str, Any] = _operation("send", peer.system)
        if queue:
            attributes["messaging.destination.name"] = queue
        if peer.address:
            attributes["server.address"] = peer.address
        if peer.port:
            attributes["server.port"] = peer.port
        context = _ROOT
        if len(sent) == 1:
            attributes["messaging.message.id"] = _value(sent[0].task_id)
            context = trace.set_span_in_context(sent[0].span, _ROOT)
        else:
            attributes["messaging.batch.message_count"] = len(sent)
        ended_ns = _nanoseconds(max([run.ended_at for run in sent]))
        span = self._tracer.start_span(
            f"send {queue}".rstrip(),
            context,
            _CLIENT,
            attributes,
            [trace.Link(run.span.get_span_context()) for run in sent],
            min(began_ns, ended_ns),
        )
        span.end(ended_ns)


def current_propagator() -> Any:
    """Return what the process is configured to write contexts with."""
    return propagate.get_global_textmap()


def _is_w3c(propagator: Any) -> bool:
    """Tell whether ``propagator`` writes nothing of a span but what W3C's specification says."""
    parts = getattr(propagator, "_propagators", [propagator])
    kinds = {type(part) for part in parts}
    return TraceContextTextMapPropagator in kinds and kinds <= {
        TraceContextTextMapPropagator,
        W3CBaggagePropagator,
    }


def _operation(name: str, system: str) -> dict[str, Any]:
    return {"messaging.system": system, "messaging.operation.name": name, "messaging.operation.type": name}


def _made_up(state: trace.TraceState) -> trace.SpanContext:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    ids = secrets.randbits(127) + 1, secrets.randbits(63) + 1
    return trace.SpanContext(*ids, is_remote=False, trace_flags=flags, trace_state=state)


def _ordered(headers: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return ``headers`` with those called ``names`` first.

    Raises:
        KeyError: one of them is missing.
    """
    return {**{name: headers[name] for name in names}, **headers}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


def _value(text: str) -> str:
    """Return ``text``, which may be from elsewhere, as an attribute: exporters can't write surrogates."""
    if len(text) <= _MAX_VALUE and text.isprintable():  # as nearly all are
        return text
    return shorten(printable(text), _MAX_VALUE)


def _reason(exc: BaseException) -> str:
    return shorten(printable(mask_secrets(reason_of(exc))))
