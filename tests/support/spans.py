"""Spans that this process records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans(InMemorySpanExporter):
    """The spans of the providers that it has made."""

    def provider(self, **options: Any) -> TracerProvider:
        made = TracerProvider(**options)
        made.add_span_processor(SimpleSpanProcessor(self))
        return made

    def all(self) -> Sequence[ReadableSpan]:
        return self.get_finished_spans()

    def named(self, word: str) -> list[ReadableSpan]:
        """Return the spans whose names begin with the word, in the order of their ends."""
        return [span for span in self.all() if span.name.split()[0] == word]

    def of_entries(self) -> dict[str, ReadableSpan]:
        """Return the spans of runs by entry; there is one of each."""
        found = {str(attributes_of(span)["redbeat.entry"]): span for span in self.named("create")}
        assert len(found) == len(self.named("create")), self.named("create")
        return found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def traceparent_of(span: ReadableSpan) -> str:
    """Return the W3C header of the span's context."""
    known = span.context
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"


def links_of(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}
