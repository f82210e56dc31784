"""The spans themselves, as OpenTelemetry's API makes them; imported only where a process records some.

Names and attributes are those of the semantic conventions for messaging; RedBeat's own begin with
``redbeat.``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

#: which version of the conventions the names are from
SCHEMA = "https://opentelemetry.io/schemas/1.38.0"

#: of how many messages one span tells at most: the SDK keeps 128 links by default
MAX_LINKS = 100

#: how long a value may be, characters
_MAX_VALUE = 250

#: runs are not part of other work in the process of beat
_ROOT = Context()

_write_ids = "00-{:032x}-{:016x}-{:02x}".format


@dataclass(slots=True, eq=False)
class RunSpan:
    """The span of one run that is to be sent.

    Attributes:
        span: the API's.
        headers: the headers of the run's message that carry its context.
        task_id: the run's.
        due_at: when the run is due, UNIX seconds.
        queue: the name of the run's queue; '': it isn't known yet.
        note: called when the message was sent, or couldn't be; returns the time, UNIX seconds.
        is_queue_known: the queue was known when the span began.
        ended_at: that time; 0: neither.
        error: why it couldn't be sent.
    """

    span: trace.Span
    headers: Mapping[str, str]
    task_id: str
    due_at: float
    queue: str
    note: Callable[[RunSpan], float]
    is_queue_known: bool
    ended_at: float = 0.0
    error: BaseException | None = None

    def note_sent(self) -> None:
        """Record that the message is on its queue now."""
        if not self.ended_at and self.span.is_recording():
            # not before it was due: where Redis' clock was set back, say
            self.ended_at = max(self.note(self), self.due_at)

    def note_failed(self, exc: BaseException) -> None:
        """Record that the message couldn't be sent because of ``exc``."""
        self.error = exc
        self.note_sent()

    def end(self) -> None:
        """End the span, which exports it."""
        span, error = self.span, self.error
        span.set_attribute("redbeat.lateness_seconds", round(self.ended_at - self.due_at, 6))
        if self.queue and not self.is_queue_known:
            span.update_name(f"create {_value(self.queue)}")
            span.set_attribute("messaging.destination.name", _value(self.queue))
        if error is not None:
            kind = type(error)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            span.set_attribute("error.type", f"{module}{kind.__qualname__}")
            reason = shorten(printable(mask_secrets(reason_of(error))))
            span.set_status(trace.Status(trace.StatusCode.ERROR, reason))
        span.end(_nanoseconds(self.ended_at))


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
            note: called when the run was sent, or couldn't be; returns the time.
        """
        attributes = {
            **_operation("create", system, queue),
            "celery.task_name": _value(task),
            "messaging.message.id": _value(task_id),
            "redbeat.entry": _value(entry),
            "redbeat.due": due,
        }
        span = self._tracer.start_span(
            f"create {_value(queue)}".rstrip(),
            _ROOT,
            trace.SpanKind.PRODUCER,
            attributes,
            (),
            _nanoseconds(due_at),
        )
        context = span.get_span_context()
        if not context.is_valid:
            return None
        if self._is_w3c and not context.trace_state:
            # what the propagator writes, in a fifth of the time
            headers = {"traceparent": _write_ids(context.trace_id, context.span_id, context.trace_flags)}
        else:
            headers = self._inject(span)
            if len(headers) != len(self.headers.names):
                headers = _ordered(headers, self.headers.names)
        return RunSpan(span, headers, task_id, due_at, queue, note, bool(queue))

    def _inject(self, span: trace.Span) -> dict[str, str]:
        headers: dict[str, str] = {}
        self.propagator.inject(headers, trace.set_span_in_context(span, _ROOT))
        return headers

    def end(self, runs: Sequence[RunSpan], began_at: float, peer: Peer) -> None:
        """End the spans of ``runs``, which were sent together, and make the spans of their sending.

        Arguments:
            began_at: when beat began to send them, UNIX seconds.
        """
        for run in runs:
            run.end()
        sent = [run for run in runs if run.error is None]
        for first in range(0, len(sent), MAX_LINKS):
            self._make_send_span(sent[first : first + MAX_LINKS], began_at, peer)

    def _make_send_span(self, sent: Sequence[RunSpan], began_at: float, peer: Peer) -> None:
        queues = {run.queue for run in sent}
        queue = queues.pop() if len(queues) == 1 else ""
        attributes: dict[str, Any] = _operation("send", peer.system, queue)
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
        ended_at = max(run.ended_at for run in sent)
        span = self._tracer.start_span(
            f"send {_value(queue)}".rstrip(),
            context,
            trace.SpanKind.CLIENT,
            attributes,
            [trace.Link(run.span.get_span_context()) for run in sent],
            _nanoseconds(min(began_at, ended_at)),
        )
        span.end(_nanoseconds(ended_at))


def current_propagator() -> Any:
    """Return the propagator that the process is configured to write contexts with."""
    return propagate.get_global_textmap()


def _is_w3c(propagator: Any) -> bool:
    """Return True if ``propagator`` writes nothing of a span but the headers of W3C's specification."""
    kinds = {type(part) for part in getattr(propagator, "_propagators", [propagator])}
    own = {TraceContextTextMapPropagator, W3CBaggagePropagator}
    return TraceContextTextMapPropagator in kinds and kinds <= own


def _operation(name: str, system: str, queue: str) -> dict[str, Any]:
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": name,
        "messaging.operation.type": name,
    }
    if queue:
        attributes["messaging.destination.name"] = _value(queue)
    return attributes


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
