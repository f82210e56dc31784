"""RabbitMQ as the broker: confirmed messages, errors of one entry, lost connections."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.logs import errors_in, warnings_in
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    expected_id,
    field,
    is_waiting,
    retry_now,
    score_of,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.ticks import Message, names_of, take_messages


def write_seldom(client: redis.Redis, name: str, due: int, **fields: Any) -> None:
    write_raw(client, name, score=due, schedule=SELDOM, **fields)


def ids_of(messages: list[Message]) -> dict[str, str]:
    return {message.entry: message.id for message in messages}


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


def test_a_message_counts_as_sent_when_it_is_confirmed(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_burst(client, ["fills", "refused"], options={"queue": "full"})
    write_seldom(client, "other", due=3)
    scheduler.tick()
    assert names_of(take_messages(app)) == ["other"]
    assert score_of(client, "fills") == pytest.approx(1 + 1e10)
    error = field(client, "refused", "error")
    assert (error["attempts"], error["reason"]) == (1, "MessageNacked")
    assert is_waiting(client, "refused", error)
    retry_now(client, "refused")
    scheduler.tick()
    assert field(client, "refused", "error")["attempts"] == 2
    assert len(errors_in(caplog)) == 1
    assert "refused" in errors_in(caplog)[0]

    assert names_of(take_messages(app, "full")) == ["fills"]
    retry_now(client, "refused")
    scheduler.tick()
    [message] = take_messages(app, "full")
    assert (message.entry, message.id) == ("refused", expected_id("refused", 2))
    assert client.hget("redbeat:refused", "error") is None


def test_who_turns_confirms_off_gets_none(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.conf.broker_transport_options = {"confirm_publish": False}
    write_burst(client, ["fills", "dropped"], options={"queue": "full"})
    make_scheduler(app).tick()
    assert names_of(take_messages(app, "full")) == ["fills"]
    assert field(client, "dropped", "meta")["total_run_count"] == 1


UNSENDABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no exchange": ({"exchange": "nowhere", "routing_key": "key"}, "NotFound"),
    "another queue": ({"queue": "declared-otherwise"}, "PreconditionFailed"),
    "forbidden name": ({"queue": "amq.reserved"}, "AccessRefused"),
}


@pytest.mark.parametrize("confirm", [True, False], ids=["confirms", "no confirms"])
@pytest.mark.parametrize("kind", UNSENDABLE)
def test_an_error_that_closes_the_channel_is_one_entrys(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    confirm: bool,
) -> None:
    if not confirm:
        if kind == "no exchange":
            pytest.skip("nobody is told")
        app.conf.broker_transport_options = {"confirm_publish": False}
    with app.connection_for_write() as connection:
        kombu.Queue("declared-otherwise", durable=False, channel=connection.default_channel).declare()
    options, reason = UNSENDABLE[kind]
    write_burst(client, 10)
    for name in ("entry-0", "entry-4", "entry-5"):
        write_raw(client, name, score=None, schedule=SELDOM, options=options)
    scheduler = make_scheduler(app)
    began = time.monotonic()
    pause = scheduler.tick()
    print(f"a batch with 3 such in {time.monotonic() - began:.3f} s")
    tries = [float(field(client, f"entry-{number}", "error")["retry_at"]) for number in (0, 4, 5)]
    assert pause > 0 or server_now(client) >= min(tries), "nothing else is due before one is tried again"
    good = [f"entry-{number}" for number in (1, 2, 3, 6, 7, 8, 9)]
    assert names_of(take_messages(app)) == good
    for name in ("entry-0", "entry-4", "entry-5"):
        assert field(client, name, "error")["reason"].startswith(reason)
        retry_now(client, name)
    scheduler.tick()
    assert take_messages(app) == []
    assert field(client, "entry-0", "error")["attempts"] == 2
    assert len(errors_in(caplog)) == 3


@pytest.mark.parametrize("how", ["reset", "closed by the broker", "ended"])
def test_a_connection_lost_while_idle_costs_nothing(
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
    elif how == "closed by the broker":
        rabbitmq.close_connections()
    else:
        rabbitmq.evaluate("[exit(P, kill) || P <- rabbit_networking:connections()].")
        eventually(lambda: rabbitmq.evaluate("length(rabbit_networking:connections()).") == "0")
    write_burst(client, ["first", "second"])
    assert scheduler.tick() > 1
    assert names_of(take_messages(proxied_app)) == ["before", "first", "second"]
    assert [client.hget(f"redbeat:{name}", "error") for name in ("first", "second")] == [None, None]
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_connection_cut_amid_a_publish_loses_nothing(
    proxied_app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    loss: Any,
) -> None:
    names = write_burst(client, 5)
    cut = proxy.cut_on(expected_id("entry-2", 3).encode(), loss)
    scheduler = make_scheduler(proxied_app)
    assert scheduler.tick() > 1
    assert cut.is_set()
    messages = take_messages(proxied_app)
    assert len(ids_of(messages)) == 5
    expected = [*names[:3], *names[2:]] if loss == "reply" else names
    assert names_of(messages) == expected
    assert {(message.entry, message.id) for message in messages} == set(ids_of(messages).items())
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}
    assert errors_in(caplog) == []


class Killed(KeyboardInterrupt):
    """Stands for SIGKILL: nothing of the scheduler's runs after it."""


def test_at_most_once_a_crash_before_the_send_loses_and_never_doubles(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    class Dying(RedBeatScheduler):
        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            if entry.name == "entry-3":
                raise Killed
            return super().apply_async(entry, *args, **kwargs)

    app.conf.redbeat_delivery = "at_most_once"
    names = write_burst(client, 25)
    scheduler = make_scheduler(app, scheduler=Dying)
    with pytest.raises(Killed):
        scheduler.tick()
    scheduler.close()
    make_scheduler(app).tick()
    sent = names_of(take_messages(app))
    assert sent == [*names[:3], *names[20:]]
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
def test_large_arguments_arrive_whole(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, delivery: str
) -> None:
    app.conf.redbeat_delivery = delivery
    scheduler = make_scheduler(app)
    for number in range(30):
        write_seldom(client, f"large-{number}", due=1 + 2 * number, args=[f"{number:07}" * 140_000])
        write_seldom(client, f"small-{number}", due=2 + 2 * number)
    ticks = 1
    while scheduler.tick() == 0:
        ticks += 1
    messages = take_messages(app)
    print(f"30 times 1 MB and 30 small ones in {ticks} ticks")
    # small ones don't wait for large ones
    large, small = ([one for one in messages if one.entry.startswith(size)] for size in ("large", "small"))
    assert names_of(large) == [f"large-{number}" for number in range(30)]
    assert names_of(small) == [f"small-{number}" for number in range(30)]
    assert all(message.args == [f"{n:07}" * 140_000] for n, message in enumerate(large))


# -- messages that RabbitMQ answers by ending the connection: they go last, and hold nobody up


#: RabbitMQ knows no such messages, and closes the connection (540)
DISRUPTIVE: dict[str, Any] = {"options": {"immediate": True}}
BAD = [f"bad-{number}" for number in range(100)]


@pytest.fixture
def tried() -> Iterator[list[str]]:
    """The entries in the order in which they are published, or tried to be."""
    names: list[str] = []

    @before_task_publish.connect
    def note(headers: Any = None, **_: Any) -> None:
        names.append(headers["redbeat_entry"])

    yield names
    before_task_publish.disconnect(note)


def test_a_good_one_behind_a_hundred_that_end_the_connection_is_the_second_to_be_tried(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, tried: list[str]
) -> None:
    write_burst(client, BAD, **DISRUPTIVE)
    write_raw(client, "good", score=1000, schedule=SELDOM)
    scheduler.tick()
    assert list(dict.fromkeys(tried))[:2] == ["bad-0", "good"]
    assert names_of(take_messages(app)) == ["good"]


def test_those_that_did_it_go_last_at_each_later_try_and_each_has_its_turn(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, tried: list[str]
) -> None:
    bad = BAD[:20]  # they share a quarter of the time
    write_burst(client, bad, **DISRUPTIVE)

    def errors() -> list[Any]:
        return [field(client, name, "error") for name in bad]

    def all_have_had_a_turn() -> bool:
        scheduler.tick()
        return all(errors())

    eventually(all_have_had_a_turn, 60)
    assert {error["attempts"] for error in errors()} <= {1, 2, 3, 4, 5}
    for _ in range(3):
        client.zadd(SCHEDULE, dict.fromkeys((f"redbeat:{name}" for name in bad), 1))
        write_raw(client, "good", score=server_now(client), schedule=SELDOM)
        tried.clear()
        scheduler.tick()
        assert tried[0] == "good"
    assert names_of(take_messages(app)) == ["good"] * 3
    assert len([one for one in errors() if "540" in one["reason"]]) == len(bad)


@pytest.mark.parametrize("lock", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_another_beat_knows_from_the_entry_that_it_goes_last(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, lock: dict[str, Any]
) -> None:
    app.conf.update(lock)
    failure = {"reason": "it was refused", "since": "2026-01-01T00:00:00+00:00", "definition_sha1": "x"}
    failure.update({"attempts": 3, "due": "1", "retry_at": "1"})  # type: ignore[dict-item]
    write_raw(client, "failed", score=1, schedule=SELDOM)
    client.hset("redbeat:failed", "error", json.dumps(failure))
    write_burst(client, ["one", "two"])
    make_scheduler(app).tick()
    assert names_of(take_messages(app)) == ["one", "two", "failed"]
    assert not client.hexists("redbeat:failed", "error")


def test_with_at_most_once_the_second_batch_begins_with_the_good_ones(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, tried: list[str]
) -> None:
    app.conf.redbeat_delivery = "at_most_once"
    scheduler = make_scheduler(app)
    write_burst(client, BAD[:1], **DISRUPTIVE)
    scheduler.tick()
    tried.clear()
    write_burst(client, BAD[1:30], **DISRUPTIVE)
    write_raw(client, "good", score=1000, schedule=SELDOM)
    scheduler.tick()
    assert tried[0] == "good"
    assert names_of(take_messages(app)) == ["good"]
