"""Whoever takes the spans is never waited for; and without a provider nothing of OpenTelemetry is touched."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.signals import after_task_publish, before_task_publish
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from redbeat.broker.connection import Peer
from redbeat.broker.instrumentor import find_provider, is_idle
from redbeat.broker.originals import Originals
from redbeat.telemetry.tracing import tracing as module
from redbeat.telemetry.tracing.spans import RunSpan
from redbeat.telemetry.tracing.tracing import Tracing
from tests.support.spans import Spans, attributes_of

NOW = 1_000_000_000.25


def set_provider(monkeypatch: pytest.MonkeyPatch, provider: Any) -> None:
    """Let it be the provider of this process, for the test only."""
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    made = Tracing(lambda: NOW, lambda: Peer("redis", "localhost", 6379))
    yield made
    made.stop()


def begin(tracing: Tracing, entry: str = "entry", **changes: Any) -> RunSpan:
    values = {
        "task": "echo",
        "task_id": "id",
        "due": "2001-09-09T01:46:40.000000+00:00",
        "due_at": NOW - 0.25,
    }
    run = tracing.begin(entry, **{**values, **changes})
    assert run is not None
    return run


class Stuck(SpanProcessor):
    """Takes a span only when it is let to."""

    def __init__(self) -> None:
        self.is_free = threading.Event()
        self.taken: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        assert self.is_free.wait(60)
        self.taken.append(threading.current_thread().name)


def test_no_batch_waits_for_whoever_takes_the_spans(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    stuck, provider = Stuck(), TracerProvider()
    provider.add_span_processor(stuck)
    set_provider(monkeypatch, provider)
    tracing.refresh()
    tracing.look()
    threads = threading.active_count()
    for _ in range(4):
        tracing.look()
        tracing.begin_batch()
        for _ in range(5):
            begin(tracing).note_sent()
        tracing.end_batch()  # else this would never return
    assert threading.active_count() == threads
    errors = [one.getMessage() for one in caplog.records]
    assert errors == ["beat: OpenTelemetry: Spans are lost: TimeoutError: what takes them is slow"]
    tracing.stop()
    assert "isn't waited for" in caplog.records[-1].getMessage()
    stuck.is_free.set()


def test_the_spans_that_wait_are_ended_before_the_end(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, provider = Stuck(), TracerProvider()
    provider.add_span_processor(stuck)
    set_provider(monkeypatch, provider)
    tracing.refresh()
    tracing.look()
    for _ in range(3):
        begin(tracing).note_sent()
        tracing.end_batch()
    stuck.is_free.set()
    tracing.stop()
    assert stuck.taken == ["redbeat-spans"] * 6, "two of each batch"


def test_a_batch_that_comes_just_before_the_end_is_ended(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans()
    set_provider(monkeypatch, spans.provider())
    tracing.refresh()
    tracing._thread._thread = threading.current_thread()  # noqa: SLF001 - it is between two looks at what waits
    begin(tracing).note_sent()
    tracing.end_batch()
    tracing._thread.stop()  # noqa: SLF001
    tracing._run()  # noqa: SLF001
    assert len(spans.all()) == 2
    tracing._thread._thread = None  # noqa: SLF001


def test_text_from_elsewhere_can_be_exported(tracing: Tracing, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans()
    set_provider(monkeypatch, spans.provider())
    tracing.refresh()
    run = begin(tracing, "\ud800\n" + "x" * 10_000, task="\x1b[31m", task_id="\udcff", queue="q\u202e")
    run.note_failed(ConnectionError("amqp://me:secret@host \udcff"))
    tracing.end_batch()
    [span] = spans.all()
    texts = [span.name, str(span.status.description), *map(str, attributes_of(span).values())]
    for text in texts:
        assert text.isprintable()
        assert len(text) <= 260
        assert "secret" not in text
    assert attributes_of(span)["error.type"] == "ConnectionError"


def test_a_span_never_ends_before_it_begins_and_is_told_of_once(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans()
    set_provider(monkeypatch, spans.provider())
    tracing.refresh()
    run = begin(tracing, due_at=NOW + 5)  # Redis' clock was set back
    run.note_sent()
    run.note_sent()
    tracing.end_batch()
    [create] = spans.named("create")
    assert create.end_time == create.start_time
    assert attributes_of(create)["redbeat.lateness_seconds"] == 0


def test_a_tracer_that_makes_no_spans_leaves_runs_without(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Disabled(trace.TracerProvider):  # as the SDK's where OTEL_SDK_DISABLED is set
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return trace.NoOpTracer()

    set_provider(monkeypatch, Disabled())
    tracing.refresh()
    assert tracing.headers is None
    assert tracing.begin("entry", "echo", "id", "", NOW) is None

    class Off(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            class Tracer:
                def start_span(self, *args: Any, **kwargs: Any) -> Any:
                    return trace.INVALID_SPAN

            return Tracer()

    set_provider(monkeypatch, Off())
    tracing.refresh()
    assert tracing.headers is not None
    assert tracing.begin("entry", "echo", "id", "", NOW) is None
    tracing.refresh()
    assert tracing.headers is None, "it is tried again after a while"
    assert not caplog.records


WITHOUT = """
import sys
{block}
import redbeat
from redbeat.telemetry.tracing.tracing import Tracing
tracing = Tracing(lambda: 1.0, lambda: None)
for step in (tracing.refresh, tracing.look, tracing.begin_batch, tracing.end_batch, tracing.stop):
    step()
with tracing.sending():
    assert tracing.begin("entry", "echo", "id", "", 1.0) is None
assert "redbeat.telemetry.tracing.spans" not in sys.modules
print("done")
"""


@pytest.mark.parametrize("block", ["", "sys.modules['opentelemetry'] = None"], ids=["installed", "missing"])
def test_without_a_provider_nothing_is_made_of_opentelemetry(block: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(block=block)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


@pytest.fixture
def instrument(nobody_listens: None) -> Iterator[Any]:
    """Celery's instrumentor, which is gone after the test."""
    yield lambda **options: CeleryInstrumentor().instrument(skip_dep_check=True, **options)
    CeleryInstrumentor().uninstrument()


def obstacle() -> str:
    return Originals(Celery("test", set_as_current=False)).find_obstacle()


def test_the_instrumentor_is_no_obstacle_where_redbeat_makes_the_spans_or_nobody_does(
    monkeypatch: pytest.MonkeyPatch, instrument: Any
) -> None:
    instrument()
    assert [len(one.receivers) for one in (before_task_publish, after_task_publish)] == [1, 1]
    assert find_provider() is None
    assert obstacle() == "", "it records nothing"
    set_provider(monkeypatch, TracerProvider())
    assert obstacle() == "", "RedBeat makes the spans"


def test_the_instrumentor_is_an_obstacle_where_it_has_a_provider_of_its_own(instrument: Any) -> None:
    instrument(tracer_provider=TracerProvider())
    assert find_provider() is None
    assert obstacle() == (
        "a receiver of before_task_publish: "
        "opentelemetry.instrumentation.celery.CeleryInstrumentor._trace_before_publish"
    )


def test_other_receivers_of_such_a_name_are_no_instrumentors() -> None:
    def _trace_before_publish(**_: Any) -> None:
        pass

    assert not is_idle(_trace_before_publish)


def test_an_instrumentor_that_is_taken_away_while_beat_stands_in_is_gone(
    tracing: Tracing, monkeypatch: pytest.MonkeyPatch, instrument: Any, caplog: pytest.LogCaptureFixture
) -> None:
    set_provider(monkeypatch, TracerProvider())
    instrument()
    known = list(before_task_publish.receivers)
    tracing.refresh()
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
