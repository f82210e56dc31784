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

from redbeat.broker.connection import Peer, reason_of
from redbeat.broker.holes import TraceHeaders
from redbeat.config.masking import mask_secrets
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

#: runs are no part of whatever is going on in the process of beat
_ROOT = Context()


class RunSpan:
    """The span of one run that is to be sent.

    Attributes:
        span: the API's.
        headers: what the run's message carries of it.
        queue: the name of the run's queue; '': it isn't known yet.
    """

    __slots__ = (
        "_due_at",
        "_ended_at",
        "_error",
        "_is_named",
        "_note",
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
        self.span, self.headers, self.task_id, self.queue = span, headers, task_id, queue
        self._is_named = bool(queue)
        self._due_at, self._ended_at = due_at, 0.0
        self._error: BaseException | None = None
        self._note = note

    def note_sent(self) -> None:
        """Note that the message is on its queue now."""
        if not self._ended_at and self.span.is_recording():
            # not before it was due: where Redis' clock was set back, say
            self._ended_at = max(self._note(self), self._due_at)

    def note_failed(self, exc: BaseException) -> None:
        """Note that the message couldn't be sent because of ``exc``."""
        self._error = exc
        self.note_sent()

    @property
    def is_sent(self) -> bool:
        """Whether the message is on its queue."""
        return self._error is None

    @property
    def ended_ns(self) -> int:
        """When it ended, UNIX nanoseconds."""
        return _nanoseconds(self._ended_at)

    def end(self) -> None:
        """Tell of it."""
        span, error = self.span, self._error
        span.set_attribute("redbeat.lateness_seconds", round(self._ended_at - self._due_at, 6))
        if self.queue and not self._is_named:
            span.update_name(f"create {_value(self.queue)}")
            span.set_attribute("messaging.destination.name", _value(self.queue))
        if error is not None:
            kind = type(error)
            name = kind.__qualname__
            span.set_attribute(
                "error.type", name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
            )
            span.set_status(trace.Status(trace.StatusCode.ERROR, _reason(error)))
        span.end(self.ended_ns)


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
        self._in_general = Memory[tuple[str, str], tuple[str, dict[str, Any]]](1_000)
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
        name, in_general = self._in_general.get((system, queue)) or self._find_general(system, queue)
        attributes = {
            **in_general,
            "messaging.message.id": _value(task_id),
            "celery.task_name": _value(task),
            "redbeat.entry": _value(entry),
            "redbeat.due": due,
        }
        span = self._tracer.start_span(name, _ROOT, _PRODUCER, attributes, start_time=_nanoseconds(due_at))
        context = span.get_span_context()
        if not context.is_valid:
            return None
        if self._is_w3c and not context.trace_state:  # what the propagator writes, in a third of the time
            ids = f"{context.trace_id:032x}-{context.span_id:016x}"
            headers = {_TRACEPARENT: f"00-{ids}-{context.trace_flags:02x}"}
        else:
            headers = self._inject(span)
            if len(headers) != len(self.headers.names):
                headers = _ordered(headers, self.headers.names)
        return RunSpan(span, headers, task_id, due_at, queue, note)

    def _find_general(self, system: str, queue: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the attributes that the spans of all runs to one queue have."""
        attributes = _operation("create", system)
        if queue:
            attributes["messaging.destination.name"] = _value(queue)
        found = self._in_general[system, queue] = f"create {_value(queue)}".rstrip(), attributes
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
        for run in runs:
            run.end()
        sent = [run for run in runs if run.is_sent]
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
        ended_ns = max(run.ended_ns for run in sent)
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
    return shorten(printable(text), _MAX_VALUE)


def _reason(exc: BaseException) -> str:
    return shorten(printable(mask_secrets(reason_of(exc))))
