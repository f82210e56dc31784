"""What a span of each run costs it: bursts with spans, unsampled ones and none, in turn, in one process.

Options: `due`, `db`, `rounds` of each, `limit_seconds`, `server_pid`. Beside each burst as many spans as
those of its runs are made with nothing but the SDK, with and without what messages carry of them. Ended spans
go to the SDK's batch processor, and are thrown away there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from again import let_be_due, save
from fill import TASK
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from subject import QUEUE, connect, lead, make_app, measure, read_options, report, send_due

NONE, UNSAMPLED, SAMPLED = "none", "unsampled", "recorded"

options = read_options()
app = make_app(options.server, options.db)
broker, schedule = connect(options)


class Nowhere(SpanExporter):
    """Throws spans away, and counts those of runs."""

    count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += sum([span.name.startswith("create") for span in spans])
        return SpanExportResult.SUCCESS


def make_provider(sampler: Sampler) -> TracerProvider:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(nowhere, max_queue_size=2 * options.due + 1000))
    return provider


nowhere = Nowhere()
providers = {NONE: None, UNSAMPLED: make_provider(ALWAYS_OFF), SAMPLED: make_provider(ALWAYS_ON)}


def turn(which: str) -> None:
    trace._TRACER_PROVIDER = providers[which]  # noqa: SLF001 - the API lets it be set once


def flushed(which: str, send: Callable[[], None]) -> Callable[[], None]:
    """Let whoever takes the spans be done, too."""
    provider = providers[which]

    def send_all() -> None:
        send()
        if provider is not None:
            provider.force_flush()

    return send_all


def make_spans(*, is_injected: bool) -> None:
    """Make spans as those of runs, and what messages carry of them."""
    tracer, nowhere, kind = trace.get_tracer("bench"), Context(), trace.SpanKind.PRODUCER
    for number in range(options.due):
        attributes = {
            "messaging.system": "redis",
            "messaging.operation.name": "create",
            "messaging.operation.type": "create",
            "messaging.destination.name": QUEUE,
            "messaging.message.id": f"01234567-89ab-5cde-8f01-2345{number:08}",
            "celery.task_name": TASK,
            "redbeat.entry": f"{TASK}-{number}",
            "redbeat.due": "2030-01-01T00:00:00.123456+00:00",
        }
        span = tracer.start_span(f"create {QUEUE}", nowhere, kind, attributes, start_time=number)
        if is_injected:
            propagate.inject({}, trace.set_span_in_context(span, nowhere))
        span.set_attribute("redbeat.lateness_seconds", 0.5)
        span.end(number + 1)


def run_burst(which: str) -> dict[str, Any]:
    turn(which)
    broker.delete(QUEUE)
    let_be_due(schedule, options.due)
    nowhere.count = 0
    taken = measure(flushed(which, partial(send_due, leader)), options)
    sent = broker.llen(QUEUE)
    assert nowhere.count == (sent if which == SAMPLED else 0), f"{nowhere.count} of {sent} have spans"
    assert (b'"traceparent"' in broker.lindex(QUEUE, 0)) is (which != NONE)
    return {**taken, "sent": sent}


def run_alone(which: str, *, is_injected: bool) -> dict[str, Any]:
    turn(which)
    return {
        **measure(flushed(which, partial(make_spans, is_injected=is_injected)), options),
        "sent": options.due,
    }


def run_round() -> dict[str, Any]:
    """Bursts and spans of each kind; messages are compiled anew where there are spans, or none any more."""
    run_burst(NONE)
    taken = {NONE: run_burst(NONE)}
    run_burst(UNSAMPLED)
    for which in (UNSAMPLED, SAMPLED):
        taken[which] = run_burst(which)
        taken[f"{which} alone"] = run_alone(which, is_injected=False)
        taken[f"{which} alone with context"] = run_alone(which, is_injected=True)
    return taken


leader = lead(app)
save(app, options.due)
run_round()
report(rounds=[run_round() for _ in range(options.rounds)])
