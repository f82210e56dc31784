"""Spans of this process: recorded, and told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass
class Spans:
    """What the process's provider has recorded, but for what others than RedBeat and Celery did."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def provider(self, **options: Any) -> TracerProvider:
        """A provider whose spans come here; the options are the SDK's."""
        made = TracerProvider(**options)
        made.add_span_processor(SimpleSpanProcessor(self.exporter))
        return made

    def all(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, word: str) -> list[ReadableSpan]:
        """Those whose name begins with the word, in the order of their ends."""
        return [span for span in self.all() if span.name.split()[0] == word]

    def of_entries(self) -> dict[str, ReadableSpan]:
        """Those of runs, by their entries; there is one of each."""
        found = {str(attributes_of(span)["redbeat.entry"]): span for span in self.named("create")}
        assert len(found) == len(self.named("create")), self.named("create")
        return found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def traceparent_of(span: ReadableSpan) -> str:
    """The W3C header of the span's context."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def links_of(span: ReadableSpan) -> set[int]:
    """The ids of the spans that it is linked with."""
    return {link.context.span_id for link in span.links}


def span_id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert isinstance(context, trace.SpanContext)
    return context.span_id
