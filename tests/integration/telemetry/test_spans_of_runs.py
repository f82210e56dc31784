"""Each run has one span, from due to queue, whichever way its message goes, and its message knows it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import after_task_publish, before_task_publish
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.propagators.textmap import Setter, TextMapPropagator, default_setter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode, TraceState

from redbeat import RedBeatScheduler
from redbeat.beat.dispatcher import PIECE
from redbeat.telemetry.tracing.spans import MAX_LINKS
from tests.integration.conftest import MakeScheduler
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, SELDOM, field, messages, server_now, write_burst, write_raw
from tests.support.servers import Server
from tests.support.spans import (
    Spans,
    attributes_of,
    context_of,
    links_of,
    span_id_of,
    traceparent_of,
)
from tests.support.spikes import prepare
from tests.support.ticks import take_messages

DOCUMENTED = set(
    re.findall(
        r"``([a-z]+(?:\.[a-z_]+)+)``", (Path(__file__).parents[3] / "docs" / "monitoring.rst").read_text()
    )
)

COMPILED = "beat: Messages: compiled."


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "celery.beat")
    return caplog


def tick_all(scheduler: RedBeatScheduler) -> None:
    while scheduler.tick() <= 0:
        pass


def check_documented(spans: Spans) -> None:
    """Compare the attributes with the table of the documentation."""
    used = {name for span in spans.all() for name in attributes_of(span)}
    assert used <= DOCUMENTED, used - DOCUMENTED


def headers_of(broker: redis.Redis, queue: str = "celery") -> dict[str, dict[str, Any]]:
    """The headers of the messages on a queue, by their entries."""
    return {one["headers"]["redbeat_entry"]: one["headers"] for one in messages(broker, queue)}


def test_a_run_has_a_span_from_when_it_was_due_until_it_was_on_its_queue(
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
    assert send.parent.span_id == span_id_of(create)
    assert links_of(send) == {span_id_of(create)}
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


def test_a_batch_is_a_span_for_each_run_and_one_of_their_sending(
    scheduler: RedBeatScheduler,
    spans: Spans,
    client: redis.Redis,
    broker: redis.Redis,
    log: pytest.LogCaptureFixture,
) -> None:
    names = write_burst(client, 100)
    tick_all(scheduler)
    found = spans.of_entries()
    headers = headers_of(broker)
    assert set(found) == set(headers) == set(names)
    assert all(headers[name]["traceparent"] == traceparent_of(found[name]) for name in names)
    assert len({context_of(one["traceparent"])[0] for one in headers.values()}) == 100
    [send] = spans.named("send")
    assert send.parent is None
    assert attributes_of(send)["messaging.batch.message_count"] == 100
    assert attributes_of(send)["messaging.destination.name"] == "celery"
    assert links_of(send) == set(map(span_id_of, found.values()))
    assert COMPILED in log.messages
    check_documented(spans)


def test_a_batch_of_many_is_told_of_with_no_link_too_many(
    scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis
) -> None:
    count = 2 * PIECE + 3
    for number, name in enumerate(write_burst(client, count)):
        if number % 2:
            write_raw(client, name, schedule=SELDOM, score=1 + number, options={"queue": "other"})
    tick_all(scheduler)
    sends = spans.named("send")
    assert len(spans.of_entries()) == count
    assert sum(attributes_of(send)["messaging.batch.message_count"] for send in sends) == count
    assert all(len(send.links) <= MAX_LINKS and not send.dropped_links for send in sends)
    assert {span_id for send in sends for span_id in links_of(send)} == {
        span_id_of(span) for span in spans.named("create")
    }
    assert {send.name for send in sends} == {"send"}, "they went to two queues"


@pytest.mark.few_cases(4)
@pytest.mark.parametrize(
    "settings",
    [{"redbeat_message_cache_bytes": 0}, {"redbeat_lock_key": None}, {"redbeat_delivery": "at_most_once"}],
)
@pytest.mark.parametrize("kind", ["same", "another", "rabbitmq"])
def test_runs_whose_messages_are_made_one_by_one_have_spans_too(
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
    check_burst(make_scheduler(**settings), spans, client)


@pytest.mark.parametrize("kind", ["another", "rabbitmq"])
def test_runs_go_the_quick_way_to_any_broker(
    make_scheduler: MakeScheduler,
    spans: Spans,
    other: Server,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    log: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    url = other.url(0) if kind == "another" else request.getfixturevalue("rabbitmq").url()
    check_burst(make_scheduler(broker_url=url), spans, client)
    assert COMPILED in log.messages


def check_burst(scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis) -> None:
    """Send a burst, and compare its spans with its messages."""
    names = write_burst(client, 30)
    tick_all(scheduler)
    found = spans.of_entries()
    sent = take_messages(scheduler.app, "celery")
    assert sorted(message.entry for message in sent) == sorted(found) == sorted(names)
    for message in sent:
        span = found[message.entry]
        attributes = attributes_of(span)
        assert message.headers["traceparent"] == traceparent_of(span)
        assert attributes["messaging.message.id"] == message.id
        assert attributes["redbeat.due"] == message.due
        assert (span.name, attributes["messaging.destination.name"]) == ("create celery", "celery")
        is_amqp = scheduler.app.conf.broker_url.startswith("amqp")
        assert attributes["messaging.system"] == ("rabbitmq" if is_amqp else "redis")
    linked = {span_id for send in spans.named("send") for span_id in links_of(send)}
    assert linked == {span_id_of(span) for span in found.values()}
    assert {span.name for span in spans.named("send")} == {"send celery"}


# -- runs that aren't sent


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_run_that_could_not_be_sent_has_a_span_that_says_so(
    make_scheduler: MakeScheduler,
    spans: Spans,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    settings: dict[str, Any] = {}
    if kind == "rabbitmq":
        settings["broker_url"] = request.getfixturevalue("rabbitmq").url()
    scheduler = make_scheduler(**settings)
    write_burst(client, ["good"])
    options = {"exchange": "nobody", "exchange_type": "direct", "routing_key": "knows"}
    write_raw(client, "bad", schedule=SELDOM, score=2, options=options)
    scheduler.tick()
    found = spans.of_entries()
    assert found["good"].status.status_code is StatusCode.UNSET
    bad = found["bad"]
    assert bad.status.status_code is StatusCode.ERROR
    assert bad.status.description
    assert bad.status.description == field(client, "bad", "error")["reason"]
    assert attributes_of(bad)["error.type"]
    [send] = spans.named("send")
    assert links_of(send) == {span_id_of(found["good"])}
    check_documented(spans)


def test_a_lost_run_has_a_span_that_says_so(
    make_scheduler: MakeScheduler, spans: Spans, client: redis.Redis
) -> None:
    scheduler = make_scheduler(redbeat_delivery="at_most_once")
    options = {"exchange": "nobody", "exchange_type": "direct", "routing_key": "knows"}
    write_raw(client, "bad", schedule=SELDOM, score=2, options=options)
    scheduler.tick()
    assert spans.of_entries()["bad"].status.status_code is StatusCode.ERROR
    assert not spans.named("send")


def test_a_run_that_is_not_sent_has_no_span(
    make_scheduler: MakeScheduler, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    """One was prepared, and its entry changed; another is held back by the run before it."""
    scheduler = make_scheduler()
    write_burst(client, ["first"])
    scheduler.tick()
    due = round(server_now(client) + 1, 6)
    write_raw(client, "changed", score=due)
    write_raw(client, "held", score=due)
    client.hset("redbeat:held", "policy", '{"overlap": "skip", "max_runtime": 600}')
    write_raw(client, "sent", score=due)
    assert prepare(scheduler) == 3
    client.zadd(SCHEDULE, {"redbeat:held": 1})
    scheduler.tick()
    assert "held" in spans.of_entries()
    spans.exporter.clear()
    broker.delete("celery")
    client.zadd(SCHEDULE, {"redbeat:held": due})
    client.zadd(SCHEDULE, {"redbeat:changed": due + 1000})

    def is_sent() -> bool:
        scheduler.tick()
        return bool(broker.llen("celery"))

    eventually(is_sent, interval=0.005, retry_on=())
    assert list(spans.of_entries()) == list(headers_of(broker)) == ["sent"]


def test_a_prepared_run_has_the_span_that_its_message_names(
    scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    write_burst(client, ["first"])
    scheduler.tick()
    broker.delete("celery")
    due = round(server_now(client) + 0.5, 6)
    for number in range(3):
        write_raw(client, f"entry-{number}", score=due)
    assert prepare(scheduler) == 3
    spans.exporter.clear()

    def are_sent() -> bool:
        scheduler.tick()
        return broker.llen("celery") == 3

    eventually(are_sent, interval=0.005, retry_on=())
    found = spans.of_entries()
    assert {name: one["traceparent"] for name, one in headers_of(broker).items()} == {
        name: traceparent_of(span) for name, span in found.items()
    }
    assert all(span.start_time == round(due * 1e6) * 1000 <= span.end_time for span in found.values())


# -- what messages carry


class Stating(Sampler):
    """Gives every second span a trace state."""

    def __init__(self) -> None:
        self._count = 0

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> SamplingResult:
        self._count += 1
        state = TraceState([("vendor", '"x:1"')]) if self._count % 2 else None
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, state)

    def get_description(self) -> str:
        return "Stating"


class Forwarding(TextMapPropagator):
    """Writes three headers, as B3 does."""

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        return context or Context()

    def inject(
        self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter
    ) -> None:
        known = trace.get_current_span(context).get_span_context()
        setter.set(carrier, "x-b3-traceid", f"{known.trace_id:032x}")
        setter.set(carrier, "x-b3-spanid", f"{known.span_id:016x}")
        setter.set(carrier, "x-b3-sampled", str(int(known.trace_flags.sampled)))

    @property
    def fields(self) -> set[str]:
        return {"x-b3-traceid", "x-b3-spanid", "x-b3-sampled"}


class Silent(Forwarding):
    """Writes nothing."""

    def inject(
        self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter
    ) -> None:
        pass


@pytest.fixture
def use_sampler(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> Callable[[Sampler], None]:
    def use(sampler: Sampler) -> None:
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", spans.provider(sampler=sampler))

    return use


def test_what_is_not_sampled_has_no_span_and_a_context_that_says_so(
    scheduler: RedBeatScheduler,
    spans: Spans,
    client: redis.Redis,
    broker: redis.Redis,
    use_sampler: Callable[[Sampler], None],
    log: pytest.LogCaptureFixture,
) -> None:
    use_sampler(ALWAYS_OFF)
    names = write_burst(client, 5)
    tick_all(scheduler)
    assert not spans.all()
    flags = [int(one["traceparent"].rpartition("-")[2], 16) for one in headers_of(broker).values()]
    assert len(flags) == len(names)
    assert not any(flag & 1 for flag in flags)
    use_sampler(TraceIdRatioBased(0.5))
    broker.delete("celery")
    write_burst(client, 60)
    tick_all(scheduler)
    headers = headers_of(broker)
    sampled = {name for name, one in headers.items() if int(one["traceparent"].rpartition("-")[2], 16) & 1}
    assert sampled == set(spans.of_entries())
    assert 0 < len(sampled) < 60
    assert log.messages.count(COMPILED) == 1


def test_a_trace_state_goes_with_the_message_it_is_about(
    scheduler: RedBeatScheduler,
    spans: Spans,
    client: redis.Redis,
    broker: redis.Redis,
    use_sampler: Callable[[Sampler], None],
    log: pytest.LogCaptureFixture,
) -> None:
    use_sampler(Stating())
    write_burst(client, 10)
    tick_all(scheduler)
    headers, found = headers_of(broker), spans.of_entries()
    assert {name: one.get("tracestate", "") for name, one in headers.items()} == {
        name: span.get_span_context().trace_state.to_header() for name, span in found.items()
    }
    assert sum("tracestate" in one for one in headers.values()) == 5
    assert COMPILED in log.messages
    # one by one the headers are the same, in the same order
    broker.delete("celery")
    before_task_publish.connect(listen)
    try:
        write_burst(client, 10)
        tick_all(scheduler)
    finally:
        before_task_publish.disconnect(listen)
    assert any("one by one" in one for one in log.messages)
    assert {tuple(one) for one in headers_of(broker).values()} == {tuple(one) for one in headers.values()}


@pytest.mark.parametrize("propagator", [Forwarding(), Silent()], ids=["three headers", "none"])
def test_messages_carry_what_the_configured_propagator_writes(
    scheduler: RedBeatScheduler,
    spans: Spans,
    client: redis.Redis,
    broker: redis.Redis,
    log: pytest.LogCaptureFixture,
    propagator: TextMapPropagator,
) -> None:
    """It is replaced while beat runs: the next messages carry what it writes."""
    write_burst(client, 3)
    tick_all(scheduler)
    assert all("traceparent" in one for one in headers_of(broker).values())
    broker.delete("celery")
    spans.exporter.clear()
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(propagator)
    try:
        write_burst(client, 3)
        tick_all(scheduler)
    finally:
        propagate.set_global_textmap(before)
    headers, found = headers_of(broker), spans.of_entries()
    assert set(headers) == set(found)
    for name, one in headers.items():
        expected: dict[str, str] = {}
        propagator.inject(
            expected, trace.set_span_in_context(trace.NonRecordingSpan(found[name].get_span_context()))
        )
        carried = {key: value for key, value in one.items() if key.startswith(("x-b3", "trace"))}
        assert carried == expected
    assert log.messages.count(COMPILED) == 1


def test_a_context_that_an_entry_brings_itself_is_left_alone(
    scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    write_raw(client, "own", options={"headers": {"traceparent": own}})
    write_raw(client, "listed", options={"headers": {"traceparent": own}, "expires": "2999-01-01T00:00:00"})
    scheduler.tick()
    assert [one["traceparent"] for one in headers_of(broker).values()] == [own, own]
    assert not spans.all()


# -- without OpenTelemetry, and where it fails


class BrokenProvider(trace.TracerProvider):
    """One whose tracers raise."""

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        class Broken:
            def start_span(self, *args: Any, **kwargs: Any) -> Any:
                raise RuntimeError("no spans today: https://me:secret@collector")

        return Broken()


def test_where_the_provider_raises_runs_are_sent_without_spans(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", BrokenProvider())
    for _ in range(2):
        names = write_burst(client, 5)
        tick_all(scheduler)
    assert broker.llen("celery") == 2 * len(names)
    assert not any("traceparent" in one for one in headers_of(broker).values())
    errors = [one.getMessage() for one in log.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1
    said = "beat: OpenTelemetry: Runs are sent without spans now: RuntimeError: no spans today: https://"
    assert errors[0].startswith(said)
    assert "secret" not in errors[0]


@pytest.mark.parametrize("provider", [None, trace.NoOpTracerProvider()], ids=["none", "no-op"])
def test_without_a_provider_messages_carry_nothing(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    provider: Any,
) -> None:
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    write_burst(client, 3)
    tick_all(scheduler)
    assert not any("traceparent" in one for one in headers_of(broker).values())
    assert COMPILED in log.messages


# -- with Celery's own instrumentor in beat


@pytest.fixture
def instrumented(spans: Spans, nobody_listens: None) -> Any:
    """Celery, instrumented in this process."""
    CeleryInstrumentor().instrument(skip_dep_check=True)
    yield
    CeleryInstrumentor().uninstrument()
    assert not before_task_publish.receivers
    assert not after_task_publish.receivers


def listen(**_: Any) -> None:
    pass


@pytest.mark.parametrize("is_quick", [True, False], ids=["compiled", "one-by-one"])
def test_with_celerys_instrumentor_a_run_has_one_publish_span(
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
    scheduler = make_scheduler(app)
    names = write_burst(client, ["first", "second"])
    write_burst(client, ["unknown"], task="nobody.knows")
    if not is_quick:
        before_task_publish.connect(listen)
    try:
        tick_all(scheduler)
        found = spans.of_entries()
        assert set(found) == {*names, "unknown"}
        assert len(spans.all()) == len(found) + len(spans.named("send"))
        for name, one in headers_of(broker).items():
            assert one["traceparent"] == traceparent_of(found[name])
        assert any(one == COMPILED for one in log.messages) is is_quick
        assert not trace.get_current_span().get_span_context().is_valid
        # what is published otherwise has the instrumentor's span, as ever
        broker.delete("celery")
        spans.exporter.clear()
        app.tasks["echo"].apply_async()
        [message] = messages(broker)
        [span] = spans.all()
        assert span.name == "apply_async/echo"
        assert message["headers"]["traceparent"] == traceparent_of(span)
    finally:
        before_task_publish.disconnect(listen)


def test_the_instrumentor_has_its_place_back_when_beat_has_ended(
    make_scheduler: MakeScheduler, spans: Spans, instrumented: None, client: redis.Redis
) -> None:
    before = list(before_task_publish.receivers)
    scheduler = make_scheduler()
    write_burst(client, ["first"])
    scheduler.tick()
    assert before_task_publish.receivers != before
    scheduler.close()
    assert before_task_publish.receivers == before


def test_receivers_of_the_users_own_find_the_span_of_the_run(
    scheduler: RedBeatScheduler, spans: Spans, client: redis.Redis, broker: redis.Redis
) -> None:
    seen = []

    def note(headers: dict[str, Any], **_: Any) -> None:
        seen.append((headers["traceparent"], trace.get_current_span().get_span_context().span_id))

    before_task_publish.connect(note)
    try:
        write_burst(client, 3)
        tick_all(scheduler)
    finally:
        before_task_publish.disconnect(note)
    assert seen == [(traceparent_of(span), span_id_of(span)) for span in spans.named("create")]
    assert json.loads(broker.lrange("celery", -1, -1)[0])["headers"]["traceparent"] == seen[0][0]
