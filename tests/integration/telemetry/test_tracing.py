"""OpenTelemetry: one span for each run, from due to sent, on every sink; its message carries the context."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.propagators.textmap import Setter, default_setter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    Decision,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from redbeat import RedBeatScheduler
from redbeat.store.executor import CALL_ROWS
from redbeat.telemetry.spans import MAX_LINKS
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, celery_worker, write_app
from tests.support.logs import errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, SELDOM, field, messages, server_now, write_burst, write_raw
from tests.support.servers import Server
from tests.support.spans import (
    Spans,
    attributes_of,
    links_of,
    traceparent_of,
)
from tests.support.ticks import prepare, take_messages

DOCS = Path(__file__).parents[3] / "docs"
COMPILED = "beat: Messages: compiled."
UNROUTABLE = {"exchange": "nobody", "exchange_type": "direct", "routing_key": "knows"}


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "celery.beat")
    return caplog


UseProvider = Callable[[Any], None]


@pytest.fixture
def use_provider(monkeypatch: pytest.MonkeyPatch) -> UseProvider:
    """Return a function that replaces the provider, of which OpenTelemetry allows one in a process."""
    return lambda provider: monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)


@pytest.fixture
def spans(use_provider: UseProvider) -> Spans:
    """The spans of this process."""
    recorded = Spans()
    use_provider(recorded.provider())
    return recorded


def tick_all(scheduler: RedBeatScheduler) -> None:
    while scheduler.tick() <= 0:
        pass


def headers_of(broker: redis.Redis) -> dict[str, dict[str, Any]]:
    """Return the headers of the messages on the queue, by entry."""
    return {one["headers"]["redbeat_entry"]: one["headers"] for one in messages(broker)}


Send = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def send(scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis, broker: redis.Redis) -> Send:
    """Return a function that sends a run of each entry, and returns the headers of the messages, by entry."""

    def run(entries: int | list[str] = 3, **fields: Any) -> dict[str, dict[str, Any]]:
        spans.clear()
        broker.delete("celery")
        write_burst(client, entries, **fields)
        tick_all(scheduler)
        return headers_of(broker)

    return run


def contexts_in(headers: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["traceparent"] for name, one in headers.items()}


def traceparents_of(found: dict[str, ReadableSpan]) -> dict[str, str]:
    return {name: traceparent_of(span) for name, span in found.items()}


def test_run_has_a_span_from_its_due_time_until_it_is_queued(
    scheduler: RedBeatScheduler,
    spans: Spans,
    client: redis.Redis,
    broker: redis.Redis,
    server: Server,
    log: pytest.LogCaptureFixture,
) -> None:
    due = round(server_now(client) - 3, 6)
    write_raw(client, "é", score=due, options={"queue": "reports"})
    before = server_now(client)
    scheduler.tick()
    after = server_now(client)
    assert COMPILED in log.messages
    [message] = messages(broker, "reports")
    create, send = spans.named("create")[0], spans.named("send")[0]
    assert len(spans.all()) == 2
    assert (create.name, create.kind, create.parent) == ("create reports", SpanKind.PRODUCER, None)
    found = attributes_of(create)
    lateness = found.pop("redbeat.lateness_seconds")
    assert found == {
        "messaging.system": "redis",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "reports",
        "messaging.message.id": message["headers"]["id"],
        "celery.task_name": "echo",
        "redbeat.entry": "é",
        "redbeat.due": message["headers"]["redbeat_due"],
    }
    assert create.start_time == round(due * 1e6) * 1000
    assert before <= create.end_time / 1e9 <= after
    assert lateness == pytest.approx((create.end_time - create.start_time) / 1e9)
    assert create.status.status_code is StatusCode.UNSET
    assert message["headers"]["traceparent"] == traceparent_of(create)
    assert create.instrumentation_scope.name == "redbeat"
    # a single message was sent: in the trace of its run
    assert (send.name, send.kind) == ("send reports", SpanKind.CLIENT)
    assert send.parent.span_id == create.context.span_id
    assert links_of(send) == {create.context.span_id}
    assert attributes_of(send) == {
        "messaging.system": "redis",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "reports",
        "messaging.message.id": message["headers"]["id"],
        "server.address": server.host,
        "server.port": server.port,
    }
    assert before <= send.start_time / 1e9 <= send.end_time / 1e9 == create.end_time / 1e9


def test_large_batch_has_several_send_spans_and_drops_no_link(
    scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis
) -> None:
    count = 2 * CALL_ROWS + 3
    for number, name in enumerate(write_burst(client, count)):
        if number % 2:
            write_raw(client, name, schedule=SELDOM, score=1 + number, options={"queue": "other"})
    tick_all(scheduler)
    sends = spans.named("send")
    assert len(spans.of_entries()) == count
    assert sum(attributes_of(send)["messaging.batch.message_count"] for send in sends) == count
    assert all(len(send.links) <= MAX_LINKS and not send.dropped_links for send in sends)
    assert {span_id for send in sends for span_id in links_of(send)} == {
        span.context.span_id for span in spans.named("create")
    }
    assert {send.name for send in sends} == {"send"}, "they went to two queues"
    assert {send.parent for send in sends} == {None}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("same", {"redbeat_message_cache_bytes": 0}),
        ("same", {"redbeat_lock_key": None}),
        ("same", {"redbeat_delivery": "at_most_once"}),
        ("another", {}),
        ("rabbitmq", {}),
        ("rabbitmq", {"redbeat_message_cache_bytes": 0}),
    ],
)
def test_runs_have_spans_on_every_sink(
    make_scheduler: MakeScheduler,
    spans: Spans,
    other: Server,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    kind: str,
    settings: dict[str, Any],
) -> None:
    if kind == "another":
        settings = {**settings, "broker_url": other.url(0)}
    elif kind == "rabbitmq":
        settings = {**settings, "broker_url": request.getfixturevalue("rabbitmq").url()}
    scheduler = make_scheduler(**settings)
    names = write_burst(client, 30)
    tick_all(scheduler)
    found = spans.of_entries()
    sent = take_messages(scheduler.app, "celery")
    assert sorted(message.entry for message in sent) == sorted(found) == sorted(names)
    for message in sent:
        attributes = attributes_of(found[message.entry])
        assert message.headers["traceparent"] == traceparent_of(found[message.entry])
        assert attributes["messaging.message.id"] == message.id
        assert attributes["redbeat.due"] == message.due
        assert attributes["messaging.destination.name"] == "celery"
        assert attributes["messaging.system"] == ("rabbitmq" if kind == "rabbitmq" else "redis")
    linked = {span_id for send in spans.named("send") for span_id in links_of(send)}
    assert linked == {span.context.span_id for span in found.values()}
    assert len({traceparent_of(span).split("-")[1] for span in found.values()}) == 30, "each has a trace"


@pytest.mark.parametrize("kind", ["redis", "at_most_once", "rabbitmq"])
def test_run_that_could_not_be_sent_has_a_span_with_the_error(
    make_scheduler: MakeScheduler,
    spans: Spans,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    settings: dict[str, Any] = {"redbeat_delivery": kind} if kind == "at_most_once" else {}
    if kind == "rabbitmq":
        settings["broker_url"] = request.getfixturevalue("rabbitmq").url()
    scheduler = make_scheduler(**settings)
    write_burst(client, ["good"])
    write_raw(client, "bad", schedule=SELDOM, score=2, options=UNROUTABLE)
    scheduler.tick()
    good, bad = (spans.of_entries()[name] for name in ("good", "bad"))
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert attributes_of(bad)["error.type"]
    if kind != "at_most_once":
        assert bad.status.description == field(client, "bad", "error")["reason"]
    [send] = spans.named("send")
    assert links_of(send) == {good.context.span_id}
    documented = re.findall(r"``([a-z]+\.[a-z_.]+)``", (DOCS / "monitoring.rst").read_text("utf-8"))
    assert {name for span in spans.all() for name in attributes_of(span)} <= {*documented}


def test_prepared_run_has_the_span_that_its_message_names(
    scheduler: RedBeatScheduler, send: Send, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    send(["first"])
    broker.delete("celery")
    due = round(server_now(client) + 0.5, 6)
    for number in range(3):
        write_raw(client, f"entry-{number}", score=due)
    assert prepare(scheduler) == 3
    spans.clear()

    def are_sent() -> bool:
        scheduler.tick()
        return broker.llen("celery") == 3

    eventually(are_sent, interval=0.005, retry_on=())
    found = spans.of_entries()
    assert contexts_in(headers_of(broker)) == traceparents_of(found)
    assert all(span.start_time == round(due * 1e6) * 1000 <= span.end_time for span in found.values())


def test_run_that_is_not_sent_has_no_span(
    scheduler: RedBeatScheduler, send: Send, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    send(["first"])
    due = round(server_now(client) + 1, 6)
    for name in ("changed", "held", "sent"):
        write_raw(client, name, score=due)
    client.hset("redbeat:held", "policy", '{"overlap": "skip", "max_runtime": 600}')
    assert prepare(scheduler) == 3
    client.zadd(SCHEDULE, {"redbeat:held": 1})
    scheduler.tick()
    assert "held" in spans.of_entries()
    spans.clear()
    broker.delete("celery")
    client.zadd(SCHEDULE, {"redbeat:held": due, "redbeat:changed": due + 1000})
    eventually(lambda: scheduler.tick() and broker.llen("celery"), interval=0.005, retry_on=())
    assert [*spans.of_entries()] == [*headers_of(broker)] == ["sent"]


# -- sampling, trace state, propagators


class Failing(StaticSampler):
    """Raises with a secret in the error."""

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        raise RuntimeError("no spans today: https://me:secret@collector")


class Forwarding(TraceContextTextMapPropagator):
    """Writes other headers, as B3 does; none: writes nothing."""

    def __init__(self, *headers: str) -> None:
        self._headers = headers

    def inject(
        self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter
    ) -> None:
        known = trace.get_current_span(context).get_span_context()
        for header in self._headers:
            setter.set(carrier, header, f"{known.trace_id:032x}/{known.span_id:016x}")


def is_sampled(header: str) -> bool:
    return bool(int(header.rpartition("-")[2], 16) & 1)


def test_unsampled_run_has_no_span_and_its_context_says_so(
    send: Send, spans: Spans, use_provider: UseProvider, log: pytest.LogCaptureFixture
) -> None:
    use_provider(spans.provider(sampler=ALWAYS_OFF))
    contexts = contexts_in(send(5))
    assert len(contexts) == 5
    assert not any(map(is_sampled, contexts.values()))
    assert not spans.all()
    use_provider(spans.provider(sampler=TraceIdRatioBased(0.5)))
    sampled = {name for name, header in contexts_in(send(60)).items() if is_sampled(header)}
    assert sampled == set(spans.of_entries())
    assert 0 < len(sampled) < 60
    assert log.messages.count(COMPILED) == 1


@pytest.mark.parametrize("headers", [("x-b3-ids", "x-b3-more"), ()], ids=["two headers", "none"])
def test_propagator_that_is_replaced_while_beat_runs_writes_the_next_messages(
    send: Send,
    spans: Spans,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    headers: tuple[str, ...],
) -> None:
    assert len(contexts_in(send())) == 3
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Forwarding(*headers))
    sent = send()
    found = traceparents_of(spans.of_entries())
    assert found.keys() == sent.keys()
    for name, one in sent.items():
        _, trace_id, span_id, _ = found[name].split("-")
        carried = {key: value for key, value in one.items() if key.startswith(("x-b3", "trace"))}
        assert carried == dict.fromkeys(headers, f"{trace_id}/{span_id}")
    assert log.messages.count(COMPILED) == 1


def test_traceparent_among_the_entrys_own_headers_is_kept(send: Send, spans: Spans) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for more in ({}, {"expires": "2999-01-01T00:00:00"}):
        sent = send(["own"], options={"headers": {"traceparent": own}, **more})
        assert contexts_in(sent) == {"own": own}
        assert not spans.all()


# -- without OpenTelemetry, and where it fails


def test_spans_that_fail_are_one_error_and_runs_are_sent_without_them(
    send: Send, spans: Spans, use_provider: UseProvider, log: pytest.LogCaptureFixture
) -> None:
    use_provider(spans.provider(sampler=Failing(Decision.DROP)))
    for _ in range(2):
        sent = send(5)
        assert len(sent) == 5
        assert not any("traceparent" in one for one in sent.values())
    [error] = errors_in(log)
    assert "RuntimeError" in error
    assert "secret" not in error


@pytest.mark.parametrize("provider", [None, trace.NoOpTracerProvider()], ids=["none", "no-op"])
def test_messages_carry_no_context_without_a_provider(
    send: Send, use_provider: UseProvider, log: pytest.LogCaptureFixture, provider: Any
) -> None:
    use_provider(provider)
    assert not any("traceparent" in one for one in send().values())
    assert COMPILED in log.messages


# -- beside Celery's instrumentor


@pytest.fixture
def instrumented(spans: Spans, nobody_listens: None) -> Any:
    """Instrument Celery in this process."""
    CeleryInstrumentor().instrument(skip_dep_check=True)
    yield
    CeleryInstrumentor().uninstrument()


def listen(**_: Any) -> None:
    pass


@pytest.mark.parametrize("is_quick", [True, False], ids=["compiled", "one-by-one"])
def test_instrumented_beat_makes_one_publish_span_for_a_run(
    app: Celery,
    make_scheduler: MakeScheduler,
    spans: Spans,
    instrumented: None,
    client: redis.Redis,
    broker: redis.Redis,
    log: pytest.LogCaptureFixture,
    is_quick: bool,
) -> None:
    app.task(name="echo")(listen)
    if not is_quick:
        before_task_publish.connect(listen)
    scheduler = make_scheduler(app)
    write_burst(client, ["first", "second"])
    write_burst(client, ["unknown"], task="nobody.knows")
    tick_all(scheduler)
    found = spans.of_entries()
    assert len(spans.all()) == len(found) + len(spans.named("send"))
    assert contexts_in(headers_of(broker)) == traceparents_of(found)
    assert found.keys() == {"first", "second", "unknown"}
    assert (COMPILED in log.messages) is is_quick
    assert not trace.get_current_span().get_span_context().is_valid
    # what is published otherwise has the instrumentor's span, as ever
    broker.delete("celery")
    spans.clear()
    app.tasks["echo"].apply_async()
    [message] = messages(broker)
    [span] = spans.all()
    assert span.name == "apply_async/echo"
    assert message["headers"]["traceparent"] == traceparent_of(span)


def test_receivers_of_the_application_see_the_span_of_the_run(
    send: Send, spans: Spans, nobody_listens: None
) -> None:
    seen = []

    def note(headers: dict[str, Any], **_: Any) -> None:
        seen.append((headers["traceparent"], trace.get_current_span().get_span_context().span_id))

    before_task_publish.connect(note)
    sent = send()
    assert seen == [(traceparent_of(span), span.context.span_id) for span in spans.named("create")]
    assert [*contexts_in(sent).values()] == [header for header, _ in seen]


# -- a worker


RECIPE = DOCS / "recipes" / "tracing.py"
#: replaces the exporter to a collector by a file for each process, and instruments beat's process too
TO_FILE = """
import os
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

def OTLPSpanExporter():
    line_of = lambda span: span.to_json(indent=None) + "\\n"
    return ConsoleSpanExporter(out=open(f"{os.getpid()}.spans", "a"), formatter=line_of)

@beat_init.connect
def instrument_beat(**kwargs):
    CeleryInstrumentor().instrument()
"""


def spans_in(directory: Path, word: str) -> list[dict[str, Any]]:
    """Return the spans written so far whose names begin with the word."""
    texts = [path.read_text() for path in directory.glob("*.spans")]
    spans = [json.loads(line) for text in texts for line in text.split("\n")[:-1]]
    return [span for span in spans if span["name"].split()[0] == word]


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def test_span_of_a_worker_is_a_child_of_the_span_of_the_run(
    tmp_path: Path, server: Server, client: redis.Redis, request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue("rabbitmq").url() if kind == "rabbitmq" else server.url(0)
    lines = [line for line in RECIPE.read_text().splitlines() if "opentelemetry.exporter" not in line]
    extra = "\n".join([*lines, TO_FILE])
    write_app(tmp_path, "module", url, server.url(0), extra=extra, redbeat_redis_url=server.url(1))
    names = write_burst(client, 100)
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
    with celery_worker(tmp_path, "module", env=soon), celery_beat(tmp_path, "module", env=soon) as beat:
        eventually(lambda: len(spans_in(tmp_path, "run/echo")) >= len(names))
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0
    assert "beat: Messages: compiled." in beat.output()
    assert not has_traceback(beat.output()), beat.output()
    creates = {span["context"]["span_id"]: span for span in spans_in(tmp_path, "create")}
    for span in spans_in(tmp_path, "run/echo"):
        create = creates[span["parent_id"]]
        assert span["context"]["trace_id"] == create["context"]["trace_id"]
        # older instrumentors call it messaging.message_id
        own = {name.replace("message_id", "message.id"): one for name, one in span["attributes"].items()}
        assert own["messaging.message.id"] == create["attributes"]["messaging.message.id"]
    assert sorted(span["attributes"]["redbeat.entry"] for span in creates.values()) == sorted(names)
    linked = [link["context"]["span_id"] for span in spans_in(tmp_path, "send") for link in span["links"]]
    assert sorted(linked) == sorted(creates), "each run is sent once"
    assert not spans_in(tmp_path, "apply_async/echo"), "the instrumentor makes no second span"
