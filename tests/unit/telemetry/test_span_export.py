"""OpenTelemetry: what spans say, and that Celery's instrumentor is left as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from redbeat.delivery.broker import Peer
from redbeat.delivery.guard import find_obstacle, find_provider
from redbeat.telemetry.spans import RunSpan
from redbeat.telemetry.tracing import Tracing
from tests.support.spans import Spans, attributes_of

NOW = 1_000_000_000.25


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    made = Tracing(lambda: NOW, lambda: Peer("redis", "localhost", 6379))
    yield made
    made.stop()


@pytest.fixture
def use_provider(monkeypatch: pytest.MonkeyPatch, tracing: Tracing) -> Callable[[Any], None]:
    """Give this process a provider, and let `tracing` find it."""

    def use(provider: Any) -> None:
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        tracing.refresh()

    return use


UseProvider = Callable[[Any], None]


@pytest.fixture
def spans(use_provider: UseProvider) -> Spans:
    recorded = Spans()
    use_provider(recorded.provider())
    return recorded


def begin(tracing: Tracing, entry: str = "entry", **changes: Any) -> RunSpan:
    due = {"due": "2001-09-09T01:46:40.000000+00:00", "due_at": NOW - 0.25}
    run = tracing.begin(entry, **{"task": "echo", "task_id": "id", **due, **changes})
    assert run is not None
    return run


def test_attributes_are_printable_short_and_without_passwords(tracing: Tracing, spans: Spans) -> None:
    run = begin(tracing, "\ud800\n" + "x" * 10_000, task="\x1b[31m", task_id="\udcff", queue="q\u202e")
    run.note_failed(ConnectionError("amqp://me:secret@host \udcff"))
    tracing.end_batch()
    [span] = spans.all()
    for text in (span.name, str(span.status.description), *map(str, attributes_of(span).values())):
        assert text.isprintable()
        assert len(text) <= 260
        assert "secret" not in text
    assert attributes_of(span)["error.type"] == "ConnectionError"


def test_span_of_a_run_sent_before_its_due_time_has_no_length_and_ends_once(
    tracing: Tracing, spans: Spans
) -> None:
    run = begin(tracing, due_at=NOW + 5)  # the clock of Redis was set back
    run.note_sent()
    run.note_sent()
    tracing.end_batch()
    [create] = spans.named("create")
    assert create.end_time == create.start_time
    assert attributes_of(create)["redbeat.lateness_seconds"] == 0
    assert [len(send.links) for send in spans.named("send")] == [1]


@pytest.fixture
def instrument(nobody_listens: None) -> Iterator[Any]:
    """Instrument Celery until the test ends."""
    yield lambda **options: CeleryInstrumentor().instrument(skip_dep_check=True, **options)
    CeleryInstrumentor().uninstrument()


def test_instrumentor_prevents_templates_only_with_a_provider_of_its_own(
    use_provider: UseProvider, instrument: Any
) -> None:
    def obstacle() -> str:
        return find_obstacle(Celery("test", set_as_current=False))

    instrument()
    assert (find_provider(), obstacle()) == (None, ""), "it records nothing"
    use_provider(TracerProvider())
    assert obstacle() == "", "RedBeat makes the spans"
    use_provider(None)
    CeleryInstrumentor().uninstrument()
    instrument(tracer_provider=TracerProvider())
    assert find_provider() is None
    assert "CeleryInstrumentor._trace_before_publish" in obstacle()


def test_instrumentor_that_is_removed_while_beat_runs_stays_removed(
    tracing: Tracing, use_provider: UseProvider, instrument: Any, caplog: pytest.LogCaptureFixture
) -> None:
    instrument()
    known = list(before_task_publish.receivers)
    use_provider(TracerProvider())
    tracing.refresh()
    assert before_task_publish.receivers != known
    CeleryInstrumentor().uninstrument()
    assert not before_task_publish.receivers
    instrument()
    tracing.refresh()
    tracing.stop()
    assert len(before_task_publish.receivers) == 1
    assert "StandIn" not in repr(before_task_publish.receivers)
    assert not [one for one in caplog.records if one.levelno > logging.INFO]
