"""RabbitMQ as the broker: confirmed messages, errors of one entry, lost connections."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish
from kombu.common import Broadcast

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.logs import errors_in, warnings_in
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    counts_of,
    expected_id,
    field,
    is_waiting,
    retry_now,
    score_of,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.ticks import Message, make_due, names_of, take_messages


def test_runs_arrive_once_in_order_and_survive_a_crash_of_the_broker(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    names = write_burst(client, 20)
    assert ". delivery -> at least once, each run with one task id" in scheduler.info
    assert scheduler.tick() > 0
    rabbitmq.kill()
    rabbitmq.restart()
    messages = take_messages(app)
    assert names_of(messages) == names
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}


def test_run_is_recorded_when_its_message_is_confirmed(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_burst(client, ["fills", "refused"], options={"queue": "full"})
    write_raw(client, "other", score=3, schedule=SELDOM)
    scheduler.tick()
    assert names_of(take_messages(app)) == ["other"]
    assert score_of(client, "fills") == pytest.approx(1 + 1e10)
    error = field(client, "refused", "error")
    assert (error["attempts"], error["reason"]) == (1, "MessageNacked")
    assert is_waiting(client, "refused", error)
    [logged] = errors_in(caplog)
    assert "refused" in logged
    assert names_of(take_messages(app, "full")) == ["fills"]
    retry_now(client, "refused")
    scheduler.tick()
    [message] = take_messages(app, "full")
    assert (message.entry, message.id) == ("refused", expected_id("refused", 2))
    assert client.hget("redbeat:refused", "error") is None


@pytest.mark.parametrize(
    ("options", "confirm", "reason"),
    [
        ({"exchange": "nowhere", "routing_key": "key"}, True, "NotFound"),
        ({"queue": "declared-otherwise"}, True, "PreconditionFailed"),
        ({"queue": "declared-otherwise"}, False, "PreconditionFailed"),
        ({"queue": "amq.reserved"}, True, "AccessRefused"),
    ],
    ids=str,
)
def test_error_that_closes_the_channel_fails_one_entry(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, str],
    confirm: bool,
    reason: str,
) -> None:
    app.conf.broker_transport_options = {"confirm_publish": confirm}
    with app.connection_for_write() as connection:
        kombu.Queue("declared-otherwise", durable=False, channel=connection.default_channel).declare()
    names, bad = write_burst(client, 10), ["entry-0", "entry-4", "entry-5"]
    for name in bad:
        write_raw(client, name, score=None, schedule=SELDOM, options=options)
    scheduler = make_scheduler(app)
    scheduler.tick()
    assert names_of(take_messages(app)) == [name for name in names if name not in bad]
    for name in bad:
        assert field(client, name, "error")["reason"].startswith(reason)
        retry_now(client, name)
    scheduler.tick()
    assert take_messages(app) == []
    assert field(client, "entry-0", "error")["attempts"] == 2
    assert len(errors_in(caplog)) == 3


def test_headers_longer_than_a_frame_fail_one_entry(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    names = write_burst(client, 100)  # RabbitMQ closes the connection (501) at such a message
    write_raw(client, "entry-50", score=None, schedule=SELDOM, options={"headers": {"x": "x" * 150_000}})
    scheduler.tick()
    assert names_of(take_messages(app)) == [name for name in names if name != "entry-50"]
    assert field(client, "entry-50", "error")["reason"].startswith("FrameError")


@pytest.mark.parametrize("how", ["reset", "closed by the broker"])
def test_connection_lost_while_idle_costs_no_run(
    proxied_app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    scheduler = make_scheduler(proxied_app)
    write_burst(client, ["before"])
    scheduler.tick()
    if how == "reset":
        proxy.drop()
    else:
        rabbitmq.close_connections()
    write_burst(client, ["first", "second"])
    assert scheduler.tick() > 1
    assert names_of(take_messages(proxied_app)) == ["before", "first", "second"]
    assert [client.hget(f"redbeat:{name}", "error") for name in ("first", "second")] == [None, None]
    assert warnings_in(caplog) == []


def test_at_most_once_ended_connection_loses_no_other_run(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.conf.redbeat_delivery = "at_most_once"
    scheduler = make_scheduler(app)
    write_burst(client, ["before"])
    scheduler.tick()
    rabbitmq.close_connections()
    names = write_burst(client, 10)
    to_nobody = {"exchange": "missing", "routing_key": "x"}  # which ends the channel
    write_raw(client, "entry-5", score=None, schedule=SELDOM, options=to_nobody)
    scheduler.tick()
    assert names_of(take_messages(app)) == ["before", *(name for name in names if name != "entry-5")]
    [lost] = errors_in(caplog)
    assert "Lost a run of entry-5 " in lost


def test_entry_behind_a_hundred_that_end_the_connection_is_sent_and_goes_first_from_then_on(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    # RabbitMQ closes the connection (540) at such a message
    names = [f"bad-{number}" for number in range(100)]
    write_burst(client, names, options={"immediate": True})
    write_raw(client, "good", score=1000, schedule=SELDOM)
    began = time.monotonic()
    eventually(lambda: scheduler.tick() > 0)
    print(f"a hundred connections: {time.monotonic() - began:.2f} s")
    assert names_of(take_messages(app)) == ["good"]
    tried: list[str] = []

    @before_task_publish.connect
    def note(headers: Any = None, **_: Any) -> None:
        tried.append(headers["redbeat_entry"])

    for name in names:
        retry_now(client, name)
    client.zadd(SCHEDULE, {"redbeat:good": server_now(client) - 1})
    scheduler.tick()
    before_task_publish.disconnect(note)
    assert tried[0] == "good"
    assert names_of(take_messages(app)) == ["good"]


COUNT = 100
#: in the middle of a batch, where confirms are in flight
MIDDLE = 50
NEWS = kombu.Exchange("news", type="topic")


@contextmanager
def when_published(name: str, act: Callable[[], Any]) -> Iterator[None]:
    """Do it once, just before the entry's message is published."""
    left = [act]

    @before_task_publish.connect
    def note(headers: Any = None, **_: Any) -> None:
        if headers["redbeat_entry"] == name and left:
            left.pop()()

    try:
        yield
    finally:
        before_task_publish.disconnect(note)


def queued(rabbitmq: RabbitMQ, queue: str = "celery") -> int:
    """How many messages wait on the queue."""
    with kombu.Connection(rabbitmq.url()) as connection:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def assert_each_arrived(client: redis.Redis, messages: list[Message], names: list[str]) -> None:
    """All are there, those that arrived twice with one id, and each run is recorded once."""
    assert set(names_of(messages)) == set(names)
    assert len({(message.entry, message.id) for message in messages}) == len(names)
    assert counts_of(client, names) == {1: len(names)}
    assert not any(client.hexists(f"redbeat:{name}", "error") for name in names)


def test_batch_is_published_before_its_first_confirm_is_read(
    proxied_app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    proxy: Proxy,
    rabbitmq: RabbitMQ,
) -> None:
    scheduler = make_scheduler(proxied_app)
    names, seen = [f"of-the-batch-{number}" for number in range(500)], []

    def answer_when_all_have_arrived() -> None:
        try:
            eventually(lambda: queued(rabbitmq) == len(names))
        finally:
            seen.append(queued(rabbitmq))
            proxy.thaw()

    # it waits for the first one only
    thread = threading.Thread(target=answer_when_all_have_arrived)
    # from the start: a sender of Celery's may not see receivers that come later, once another one has gone
    with when_published(names[1], lambda: (proxy.withhold_answers(), thread.start())):
        write_burst(client, 1)
        scheduler.tick()
        assert len(take_messages(proxied_app)) == 1
        write_burst(client, names)
        scheduler.tick()
    thread.join()
    assert seen == [len(names)]
    assert_each_arrived(client, take_messages(proxied_app), names)


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_connection_cut_with_unconfirmed_messages_loses_no_run(
    proxied_app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    loss: Any,
) -> None:
    names = write_burst(client, COUNT)
    cut = proxy.cut_on(expected_id(names[MIDDLE], MIDDLE + 1).encode(), loss)
    make_scheduler(proxied_app).tick()
    assert cut.is_set()
    messages = take_messages(proxied_app)
    assert_each_arrived(client, messages, names)
    twice = [name for name, count in Counter(names_of(messages)).items() if count > 1]
    assert set(twice) <= set(names[1:]), "the first had been confirmed"
    assert errors_in(caplog) == []


def test_runs_published_before_a_signal_are_recorded(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    class Ended(KeyboardInterrupt):
        pass

    class Ending(RedBeatScheduler):
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if entry.name == f"entry-{MIDDLE}":
                raise Ended
            return super().apply_async(entry, *args, **kwargs)

        apply_async.is_deferrable = True  # type: ignore[attr-defined]

    names = write_burst(client, COUNT)
    with pytest.raises(Ended):
        make_scheduler(app, scheduler=Ending).tick()
    assert names_of(take_messages(app)) == names[:MIDDLE]
    assert counts_of(client, names) == {1: MIDDLE, 0: COUNT - MIDDLE}


FAR = 10**10
TO_NOBODY = {"exchange": "news", "exchange_type": "topic", "routing_key": "usa.weather"}


@pytest.fixture
def news_app(make_app: MakeApp, rabbitmq: RabbitMQ) -> Celery:
    queues = [
        kombu.Queue("celery"),
        kombu.Queue("norway", NEWS, routing_key="norway.#"),
        Broadcast("everybody"),
    ]
    news_app = make_app(broker_url=rabbitmq.url(), task_queues=queues)
    with news_app.connection_for_write() as connection:
        for queue in queues[:2]:
            queue(connection.default_channel).declare()
    return news_app


def test_message_for_no_queue_fails_its_entry_alone_until_a_queue_is_bound(
    news_app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    scheduler = make_scheduler(news_app)
    names, unroutable = write_burst(client, 8), ["entry-2", "entry-3", "entry-7"]
    for name in unroutable:
        Entry(name, "tasks.report", FAR, options=TO_NOBODY, app=news_app).save()
    make_due(news_app, *names)
    scheduler.tick()
    sent = sorted(names_of(take_messages(news_app)))
    assert sent == [name for name in names if name not in unroutable], "each gets its own confirm"
    for name in unroutable:
        error = field(client, name, "error")
        assert re.match("LookupError: .* 'news' .* 'usa.weather'", error["reason"])
        assert is_waiting(client, name, error)

    with news_app.connection_for_write() as connection:
        kombu.Queue("usa", NEWS, routing_key="usa.#")(connection.default_channel).declare()
    for name in unroutable:
        retry_now(client, name)
    scheduler.tick()
    assert sorted(names_of(take_messages(news_app, "usa"))) == unroutable


@pytest.mark.parametrize(
    "options", [{"queue": "everybody"}, {**TO_NOBODY, "mandatory": False}], ids=["broadcast", "not mandatory"]
)
def test_message_that_needs_no_queue_is_sent(
    news_app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, options: dict[str, object]
) -> None:
    Entry("entry", "tasks.report", FAR, options=options, app=news_app).save()
    with news_app.connection_for_write() as connection:
        kombu.Exchange("everybody", type="fanout")(connection.default_channel).declare()
    make_due(news_app, "entry")
    make_scheduler(news_app).tick()
    assert client.hget("redbeat:entry", "error") is None
    assert field(client, "entry", "meta")["total_run_count"] == 1


@pytest.mark.parametrize("gone", ["queue", "exchange"])
def test_queue_deleted_under_a_connected_beat_is_declared_again(
    news_app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, gone: str
) -> None:
    options = {"queue": "norway", "routing_key": "norway.x"}
    Entry("entry", "tasks.report", FAR, options=options, app=news_app).save()
    scheduler = make_scheduler(news_app)
    make_due(news_app, "entry")
    scheduler.tick()
    with news_app.connection_for_write() as connection:
        channel = connection.default_channel
        if gone == "queue":
            channel.queue_delete("norway")
        else:
            channel.exchange_delete("news")
    make_due(news_app, "entry")
    scheduler.tick()
    assert field(client, "entry", "error")["attempts"] == 1
    retry_now(client, "entry")
    scheduler.tick()
    assert client.hget("redbeat:entry", "error") is None
    assert len(take_messages(news_app, "norway")) == (1 if gone == "queue" else 2)
