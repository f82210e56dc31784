"""Messages that RabbitMQ would drop without a word: they are errors of their entries, and tried again."""

from __future__ import annotations

import kombu
import pytest
import redis
from celery import Celery
from kombu.common import Broadcast

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import field, is_waiting, retry_now, write_burst
from tests.support.ticks import make_due, names_of, take_messages

FAR = 10**10
NEWS = kombu.Exchange("news", type="topic")
TO_NOBODY = {"exchange": "news", "exchange_type": "topic", "routing_key": "usa.weather"}


@pytest.fixture
def app(make_app: MakeApp, rabbitmq: RabbitMQ) -> Celery:
    queues = [
        kombu.Queue("celery"),
        kombu.Queue("norway", NEWS, routing_key="norway.#"),
        Broadcast("everybody"),
    ]
    app = make_app(broker_url=rabbitmq.url(), task_queues=queues)
    with app.connection_for_write() as connection:
        for queue in queues[:2]:
            queue(connection.default_channel).declare()
    return app


def test_a_message_for_no_queue_fails_its_entry_alone_and_arrives_when_the_queue_is_bound(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    scheduler = make_scheduler(app)
    names = write_burst(client, 8)
    for name in ("entry-2", "entry-3", "entry-7"):
        Entry(name, "tasks.report", FAR, options=TO_NOBODY, app=app).save()
    make_due(app, *names)
    scheduler.tick()
    good = [name for name in names if name not in ("entry-2", "entry-3", "entry-7")]
    assert sorted(names_of(take_messages(app))) == good, "each confirm is that of its own message"
    for name in ("entry-2", "entry-3", "entry-7"):
        error = field(client, name, "error")
        assert (
            error["reason"]
            == "LookupError: no queue is bound to the exchange 'news' for the routing key 'usa.weather'"
        )
        assert is_waiting(client, name, error)

    with app.connection_for_write() as connection:
        kombu.Queue("usa", NEWS, routing_key="usa.#")(connection.default_channel).declare()
    for name in ("entry-2", "entry-3", "entry-7"):
        retry_now(client, name)
    scheduler.tick()
    assert sorted(names_of(take_messages(app, "usa"))) == ["entry-2", "entry-3", "entry-7"]


def test_a_queue_that_is_away_is_told(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    Entry("entry", "tasks.report", FAR, options={"queue": "celery", "declare": []}, app=app).save()
    scheduler = make_scheduler(app)
    with app.connection_for_write() as connection:
        kombu.Queue("celery")(connection.default_channel).delete()
    make_due(app, "entry")
    scheduler.tick()
    assert field(client, "entry", "error")["reason"] == "LookupError: there is no queue 'celery'"


@pytest.mark.parametrize(
    "options", [{"queue": "everybody"}, {**TO_NOBODY, "mandatory": False}], ids=["broadcast", "not mandatory"]
)
def test_who_asks_for_no_queue_needs_none(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, options: dict[str, object]
) -> None:
    Entry("entry", "tasks.report", FAR, options=options, app=app).save()
    with app.connection_for_write() as connection:
        kombu.Exchange("everybody", type="fanout")(connection.default_channel).declare()
    make_due(app, "entry")
    make_scheduler(app).tick()
    assert client.hget("redbeat:entry", "error") is None
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_the_events_of_messages_need_no_listener(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    app.conf.task_send_sent_event = True
    write_burst(client, ["one", "two"])
    make_scheduler(app).tick()
    assert names_of(take_messages(app)) == ["one", "two"]
    assert client.hget("redbeat:one", "error") is None


def test_without_confirms_nobody_is_told(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    app.conf.broker_transport_options = {"confirm_publish": False}
    Entry("entry", "tasks.report", FAR, options=TO_NOBODY, app=app).save()
    make_due(app, "entry")
    make_scheduler(app).tick()
    assert field(client, "entry", "meta")["total_run_count"] == 1


@pytest.mark.parametrize("gone", ["queue", "binding", "exchange"])
def test_what_was_deleted_under_a_connected_beat_is_declared_again_at_the_next_try(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, gone: str
) -> None:
    Entry(
        "entry", "tasks.report", FAR, options={"queue": "norway", "routing_key": "norway.x"}, app=app
    ).save()
    scheduler = make_scheduler(app)
    make_due(app, "entry")
    scheduler.tick()
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if gone == "queue":
            channel.queue_delete("norway")
        elif gone == "binding":
            channel.queue_unbind("norway", "news", "norway.#")
        else:
            channel.exchange_delete("news")
    make_due(app, "entry")
    scheduler.tick()
    assert field(client, "entry", "error")["attempts"] == 1
    retry_now(client, "entry")
    scheduler.tick()
    assert client.hget("redbeat:entry", "error") is None
    assert len(take_messages(app, "norway")) == (1 if gone == "queue" else 2)


def test_without_confirms_what_comes_back_is_no_other_runs_error(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    app.conf.broker_transport_options = {"confirm_publish": False}
    names = write_burst(client, 40)
    write_burst(client, names[::2], options={**TO_NOBODY, "mandatory": True})
    make_scheduler(app).tick()
    assert [name for name in names if client.hget(f"redbeat:{name}", "error")] == []
    assert sorted(names_of(take_messages(app))) == sorted(names[1::2])


def test_a_fanout_exchange_that_a_route_brings_along_needs_no_listener(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    fan = kombu.Exchange("fan", type="fanout")
    app.conf.task_routes = {
        "tasks.report": {"exchange": fan, "exchange_type": "fanout", "routing_key": "any"}
    }
    with app.connection_for_write() as connection:
        fan(connection.default_channel).declare()
    Entry("entry", "tasks.report", FAR, app=app).save()
    make_due(app, "entry")
    make_scheduler(app).tick()
    assert client.hget("redbeat:entry", "error") is None
