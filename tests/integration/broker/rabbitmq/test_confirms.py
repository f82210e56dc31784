"""Confirms in flight: a batch is published before they come, and each is told to the run that it is about."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import kombu
import pytest
import redis
from amqp.exceptions import MessageNacked
from celery import Celery
from celery.beat import SchedulingError
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat.broker import confirms
from tests.conftest import MakeApp
from tests.integration.broker.rabbitmq.conftest import FULL
from tests.integration.conftest import MakeScheduler
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, counts_of, expected_id, field, retry_now, write_burst, write_raw
from tests.support.ticks import Message, names_of, take_messages

COUNT = 100
#: in the middle of a batch, where confirms are in flight
MIDDLE = 50
NEWS = kombu.Exchange("news", type="topic")
TO_NOBODY = {"exchange": "news", "routing_key": "usa.weather"}


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is waited for by itself only because its channel is new."""
    monkeypatch.setattr(confirms, "FIRST_ALONE", 0)


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


# -- how many waits


def test_a_whole_batch_is_published_before_the_first_of_its_confirms_is_read(
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
        write_burst(client, confirms.FIRST_ALONE)
        scheduler.tick()
        assert len(take_messages(proxied_app)) == confirms.FIRST_ALONE
        write_burst(client, names)
        scheduler.tick()
    thread.join()
    assert seen == [len(names)]
    assert_each_arrived(client, take_messages(proxied_app), names)


def test_no_more_than_the_limit_are_unconfirmed_at_a_time(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirms, "MAX_UNCONFIRMED", 20)
    most, write = [0], vars(confirms.Confirms)["_write"]

    def note(self: Any, timeout: float | None) -> None:
        write(self, timeout)
        most[0] = max(most[0], len(self._unconfirmed))

    monkeypatch.setattr(confirms.Confirms, "_write", note)  # how many are in flight then
    names = write_burst(client, COUNT)
    make_scheduler(app).tick()
    assert 1 < most[0] <= 20 + confirms.MAX_WRITTEN
    assert names_of(take_messages(app)) == names


# -- one of them fails


def test_of_a_batch_those_that_a_full_queue_refuses_are_told_from_the_others(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, trusting: None
) -> None:
    room, names = 10, write_burst(client, COUNT)
    app.amqp.queues["full"].queue_arguments = {**FULL, "x-max-length": room}
    for name in names[::3]:
        write_raw(client, name, score=None, schedule=SELDOM, options={"queue": "full"})
    make_scheduler(app).tick()
    others = [name for name in names if name not in names[::3]]
    assert names_of(take_messages(app)) == others
    assert counts_of(client, others) == {1: len(others)}
    held = names_of(take_messages(app, "full"))
    refused = [name for name in names[::3] if client.hexists(f"redbeat:{name}", "error")]
    assert set(held).isdisjoint(refused)
    assert sorted(held + refused) == sorted(names[::3])
    assert len(held) >= room
    assert {field(client, name, "error")["reason"] for name in refused} == {"MessageNacked"}


def test_of_a_batch_those_that_come_back_are_told_from_the_others_also_with_equal_ids(
    make_app: MakeApp, make_scheduler: MakeScheduler, client: redis.Redis, rabbitmq: RabbitMQ, trusting: None
) -> None:
    queues = [kombu.Queue("celery"), kombu.Queue("norway", NEWS, routing_key="norway.#")]
    app = make_app(broker_url=rabbitmq.url(), task_queues=queues)
    names = write_burst(client, COUNT, options={"task_id": "the-same"})
    for number, name in enumerate(names):
        if number % 3:
            key = "norway.x" if number % 3 == 1 else TO_NOBODY["routing_key"]
            options = {"exchange": "news", "routing_key": key, "task_id": "the-same"}
            write_raw(client, name, score=None, schedule=SELDOM, options=options)
    with app.connection_for_write() as connection:
        queues[1](connection.default_channel).declare()
    make_scheduler(app).tick()
    assert names_of(take_messages(app)) == names[::3]
    assert names_of(take_messages(app, "norway")) == names[1::3]
    reasons = {field(client, name, "error")["reason"] for name in names[2::3]}
    assert reasons == {
        "LookupError: no queue is bound to the exchange 'news' for the routing key 'usa.weather'"
    }
    assert not any(client.hexists(f"redbeat:{name}", "error") for name in names[::3] + names[1::3])


def test_an_exchange_that_vanishes_amid_a_batch_fails_its_entries_alone(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    trusting: None,
) -> None:
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        exchange = kombu.Exchange("brief", type="direct")(channel)
        kombu.Queue("brief", exchange, routing_key="key")(channel).declare()
        names = write_burst(client, COUNT)
        to_it = [names[number] for number in (3, MIDDLE, MIDDLE + 1, 80)]
        options = {"exchange": "brief", "routing_key": "key"}
        for name in to_it:
            write_raw(client, name, score=None, schedule=SELDOM, options=options)
        with when_published(names[40], exchange.delete):
            make_scheduler(app).tick()
        app.amqp.queues.add(kombu.Queue("brief"))
        assert names_of(take_messages(app, "brief")) == to_it[:1]
    assert_each_arrived(client, take_messages(app), [name for name in names if name not in to_it])
    for name in to_it[1:]:
        assert field(client, name, "error")["reason"].startswith("NotFound")
    assert len(errors_in(caplog)) == 3


def test_a_message_that_ends_the_connection_amid_a_batch_fails_alone(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, trusting: None
) -> None:
    names = write_burst(client, COUNT)
    headers = {"long": "x" * 150_000}  # RabbitMQ takes no header frame that is longer than 128 KiB
    write_raw(client, names[MIDDLE], score=None, schedule=SELDOM, options={"headers": headers})
    make_scheduler(app).tick()
    good = [name for name in names if name != names[MIDDLE]]
    assert_each_arrived(client, take_messages(app), good)
    assert field(client, names[MIDDLE], "error")["attempts"] == 1


# -- the connection


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_connection_that_is_cut_with_confirms_in_flight_loses_nothing(
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
    print(f"{len(twice)} arrived twice")
    assert set(twice) <= set(names[confirms.FIRST_ALONE :]), "those had been confirmed"
    assert errors_in(caplog) == []


def test_a_connection_that_the_broker_closes_amid_a_batch_loses_nothing(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    names = write_burst(client, COUNT)
    with when_published(names[MIDDLE], rabbitmq.close_connections):
        make_scheduler(app).tick()
    assert_each_arrived(client, take_messages(app), names)


def test_an_alarm_amid_a_batch_makes_the_rest_wait(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.conf.redbeat_publish_timeout = 1.0
    scheduler = make_scheduler(app)
    names = write_burst(client, COUNT)
    with when_published(names[MIDDLE], rabbitmq.set_memory_alarm):
        assert scheduler.tick() == 1.0
    sent = counts_of(client, names)[1]
    print(f"{sent} were recorded when the alarm came")
    assert 0 < sent < COUNT
    assert len(errors_in(caplog)) == 1
    rabbitmq.clear_memory_alarm()
    eventually(lambda: scheduler.tick() > 1)
    assert_each_arrived(client, take_messages(app), names)


def test_what_never_gets_a_confirm_is_waited_for_until_the_timeout_and_the_others_are_recorded(
    proxied_app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, proxy: Proxy
) -> None:
    proxied_app.conf.redbeat_publish_timeout = 5.0
    scheduler = make_scheduler(proxied_app)
    names = write_burst(client, COUNT)
    with when_published(names[MIDDLE], proxy.withhold_answers):
        assert scheduler.tick() == 1.0
    assert 0 < counts_of(client, names)[1] <= MIDDLE
    proxy.drop()
    proxy.thaw()
    eventually(lambda: scheduler.tick() > 1)
    assert_each_arrived(client, take_messages(proxied_app), names)


def test_a_channel_that_has_lost_its_connection_is_replaced(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    """Kombu may have connected again meanwhile, and takes the lost channel's connection for none at all."""
    scheduler = make_scheduler(app)
    write_burst(client, 10)
    scheduler.tick()
    scheduler.producer.channel.connection.collect()
    names = write_burst(client, [f"again-{number}" for number in range(10)])
    eventually(lambda: scheduler.tick() > 1)
    messages = [message for message in take_messages(app) if message.entry in names]
    assert_each_arrived(client, messages, names)


# -- a signal


def test_what_was_published_when_a_signal_ends_beat_is_recorded(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    class Ended(KeyboardInterrupt):
        pass

    class Ending(RedBeatScheduler):
        @confirms.deferrable
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if entry.name == f"entry-{MIDDLE}":
                raise Ended
            return super().apply_async(entry, *args, **kwargs)

    names = write_burst(client, COUNT)
    with pytest.raises(Ended):
        make_scheduler(app, scheduler=Ending).tick()
    assert names_of(take_messages(app)) == names[:MIDDLE]
    assert counts_of(client, names) == {1: MIDDLE, 0: COUNT - MIDDLE}


# -- code of the user's on the way


def test_an_apply_async_of_a_subclass_still_gets_the_error_of_its_own_message(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, trusting: None
) -> None:
    class Choosing(RedBeatScheduler):
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().apply_async(entry, *args, **kwargs)
            except SchedulingError:
                entry.options["queue"] = "celery"
                return super().apply_async(entry, *args, **kwargs)

    names = write_burst(client, 10, options={"queue": "full"})
    make_scheduler(app, scheduler=Choosing).tick()
    assert sorted(names_of(take_messages(app)) + names_of(take_messages(app, "full"))) == names
    assert counts_of(client, names) == {1: 10}


def test_a_producer_of_the_apps_own_still_gets_the_error_of_its_own_message(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, trusting: None
) -> None:
    class Choosing(kombu.Producer):
        def publish(self, body: Any, **options: Any) -> Any:
            try:
                return super().publish(body, **options)
            except MessageNacked:
                return super().publish(body, **{**options, "routing_key": "celery", "exchange": ""})

    app.amqp.Producer = Choosing
    names = write_burst(client, 10, options={"queue": "full"})
    with app.connection_for_write() as connection:
        app.amqp.queues["celery"](connection.default_channel).declare()
    app.amqp.queues["celery"](app.connection_for_write().channel()).declare()
    make_scheduler(app).tick()
    assert sorted(names_of(take_messages(app)) + names_of(take_messages(app, "full"))) == names
    assert counts_of(client, names) == {1: 10}


@pytest.mark.parametrize("is_swallowed", [True, False], ids=["error swallowed", "error raised"])
def test_a_channel_that_user_code_has_the_broker_close_loses_nothing(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, is_swallowed: bool
) -> None:
    scheduler = make_scheduler(app)
    names = write_burst(client, COUNT)

    def probe() -> None:
        with pytest.raises(Exception, match="NOT_FOUND") if is_swallowed else nullcontext():
            scheduler.producer.channel.queue_declare("not-there", passive=True)

    with when_published(names[MIDDLE], probe):
        scheduler.tick()
    assert_each_arrived(client, take_messages(app), names)


def test_a_value_that_no_header_can_hold_costs_no_other_run_its_confirm(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, trusting: None
) -> None:
    names = write_burst(client, COUNT)
    for number in (MIDDLE, MIDDLE + 7):
        options = {"headers": {"too-large": 2**70}}
        write_raw(client, names[number], score=None, schedule=SELDOM, options=options)
    make_scheduler(app).tick()
    good = [name for number, name in enumerate(names) if number not in (MIDDLE, MIDDLE + 7)]
    assert names_of(take_messages(app)) == good
    assert counts_of(client, good) == {1: len(good)}
    assert field(client, names[MIDDLE], "error")["attempts"] == 1
    retry_now(client, names[MIDDLE])


def test_events_of_messages_are_confirmed_like_them(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.conf.task_send_sent_event = True
    names = write_burst(client, COUNT)
    began = time.monotonic()
    make_scheduler(app).tick()
    print(f"{COUNT} with their events in {time.monotonic() - began:.3f} s")
    assert names_of(take_messages(app)) == names
    assert counts_of(client, names) == {1: COUNT}
