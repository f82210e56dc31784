"""RabbitMQ as the broker: confirmed messages, and each kind of trouble that it has of its own."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.runs import task_id_of
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import LOCK, SCHEDULE, SELDOM, field, score_of, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import Message, take_messages

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

AWAY = "can't be reached, due runs wait for it"
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def app(make_app: MakeApp, rabbitmq: RabbitMQ) -> Celery:
    queues = [kombu.Queue("celery"), kombu.Queue("full", queue_arguments=FULL)]
    return make_app(broker_url=rabbitmq.url(), task_queues=queues)


@pytest.fixture
def scheduler(app: Celery, make_scheduler: MakeScheduler) -> RedBeatScheduler:
    return make_scheduler(app)


@pytest.fixture
def proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    with Proxy((rabbitmq.host, rabbitmq.port)) as proxy:
        yield proxy


def write_entries(client: redis.Redis, *names: str, **fields: Any) -> None:
    """Entries that are due since long ago, in this order, once."""
    for number, name in enumerate(names):
        write_raw(client, name, score=1 + number, schedule=SELDOM, **fields)


def write_seldom(client: redis.Redis, name: str, due: int, **fields: Any) -> None:
    write_raw(client, name, score=due, schedule=SELDOM, **fields)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def retry_now(client: redis.Redis, name: str) -> None:
    """Let the pause of an entry that failed be over."""
    error = field(client, name, "error")
    error["retry_at"] = "1.000000"
    client.hset(f"redbeat:{name}", "error", json.dumps(error))
    client.zadd(SCHEDULE, {f"redbeat:{name}": 1})


def names_of(messages: list[Message]) -> list[str]:
    return [message.entry for message in messages]


def ids_of(messages: list[Message]) -> dict[str, str]:
    return {message.entry: message.id for message in messages}


def expected_id(name: str, due: int) -> str:
    moment = datetime.fromtimestamp(due, timezone.utc).isoformat(timespec="microseconds")
    return task_id_of(f"redbeat:{name}", moment)


def is_due(client: redis.Redis, *names: str) -> bool:
    now = server_now(client)
    return all((score_of(client, name) or 0) < now for name in names)


def test_runs_arrive_once_in_order_and_survive_a_crash_of_the_broker(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    names = [f"entry-{number}" for number in range(20)]
    write_entries(client, *names)
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
    write_entries(client, "fills", "refused", options={"queue": "full"})
    write_seldom(client, "other", due=3)
    assert scheduler.tick() > 0
    assert names_of(take_messages(app)) == ["other"]
    assert score_of(client, "fills") == pytest.approx(1 + 1e9 * 2, abs=1e9)
    error = field(client, "refused", "error")
    assert (error["attempts"], error["reason"]) == (1, "MessageNacked")
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
    write_entries(client, "fills", "dropped", options={"queue": "full"})
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
    names = [f"entry-{number}" for number in range(10)]
    write_entries(client, *names)
    for name in ("entry-0", "entry-4", "entry-5"):
        write_raw(client, name, score=None, schedule=SELDOM, options=options)
    scheduler = make_scheduler(app)
    began = time.monotonic()
    assert scheduler.tick() > 0
    print(f"a batch with 3 such in {time.monotonic() - began:.3f} s")
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
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    app = make_app(broker_url=proxy.url(rabbitmq.url()))
    scheduler = make_scheduler(app)
    write_entries(client, "before")
    scheduler.tick()
    if how == "reset":
        proxy.drop()
    elif how == "closed by the broker":
        close = '[rabbit_networking:close_connection(P, "bye") || P <- rabbit_networking:connections()].'
        rabbitmq.evaluate(close)
    else:
        rabbitmq.evaluate("[exit(P, kill) || P <- rabbit_networking:connections()].")
        eventually(lambda: rabbitmq.evaluate("length(rabbit_networking:connections()).") == "0")
    write_entries(client, "first", "second")
    assert scheduler.tick() > 1
    assert names_of(take_messages(app)) == ["before", "first", "second"]
    assert [client.hget(f"redbeat:{name}", "error") for name in ("first", "second")] == [None, None]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_connection_cut_amid_a_publish_loses_nothing(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    loss: Any,
) -> None:
    app = make_app(broker_url=proxy.url(rabbitmq.url()))
    names = [f"entry-{number}" for number in range(5)]
    write_entries(client, *names)
    cut = proxy.cut_on(expected_id("entry-2", 3).encode(), loss)
    scheduler = make_scheduler(app)
    assert scheduler.tick() > 1
    assert cut.is_set()
    messages = take_messages(app)
    assert len(ids_of(messages)) == 5
    expected = [*names[:3], *names[2:]] if loss == "reply" else names
    assert names_of(messages) == expected
    assert {(message.entry, message.id) for message in messages} == set(ids_of(messages).items())
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}
    assert errors_in(caplog) == []


def test_a_silent_broker_is_not_waited_for_longer_than_the_timeout(
    make_scheduler: MakeScheduler, app: Celery, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    app.conf.redbeat_publish_timeout = 1.0
    scheduler = make_scheduler(app)
    write_entries(client, "before")
    scheduler.tick()
    token = client.get(LOCK)
    names = [f"entry-{number}" for number in range(5)]
    write_entries(client, *names)
    rabbitmq.pause()
    for what in ("while it sends", "when it tries to connect", "again"):
        began = time.monotonic()
        assert scheduler.tick() == 1.0
        took = time.monotonic() - began
        print(f"redbeat_publish_timeout is 1 s, a tick took {took:.2f} s {what}")
        assert took < 3
    assert is_due(client, *names)
    assert client.get(LOCK) == token
    rabbitmq.resume()
    eventually(lambda: scheduler.tick() > 1)
    sent = names_of(take_messages(app))
    assert list(dict.fromkeys(sent)) == ["before", *names]
    print(f"sent after it went on: {sent}")
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}


def test_a_batch_ends_in_a_third_of_the_locks_timeout(
    make_scheduler: MakeScheduler, app: Celery, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    app.conf.redbeat_lock_timeout = 3
    scheduler = make_scheduler(app)
    write_entries(client, "before")
    scheduler.tick()
    write_entries(client, "entry")
    rabbitmq.pause()
    rests = []
    for _ in range(3):
        scheduler.tick()
        rests.append(client.pttl(LOCK))
    print(f"redbeat_lock_timeout is 3 s, what was left of it after a tick: {rests} ms")
    assert all(rest > 500 for rest in rests)


@contextmanager
def memory_alarm(rabbitmq: RabbitMQ) -> Iterator[None]:
    """In this block the broker has no memory to spare, and reads nothing from those who publish."""
    # what is asked after it is answered after it: by then each connection knows of the alarm
    rabbitmq.evaluate("""
        rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}),
        [_ | _] = rabbit_alarm:get_alarms(),
        [rabbit_networking:connection_info(Pid, [state]) || Pid <- rabbit_networking:connections()].
    """)
    try:
        yield
    finally:
        rabbitmq.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")


def test_a_memory_alarm_makes_runs_wait(
    make_scheduler: MakeScheduler,
    app: Celery,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app.conf.redbeat_publish_timeout = 0.5
    scheduler = make_scheduler(app)
    write_entries(client, "before")
    scheduler.tick()
    names = [f"entry-{number}" for number in range(5)]
    write_entries(client, *names)
    with memory_alarm(rabbitmq):
        for _ in range(5):
            began = time.monotonic()
            assert scheduler.tick() == 1.0
            print(f"redbeat_publish_timeout is 0.5 s, a tick took {time.monotonic() - began:.2f} s")
            assert time.monotonic() - began < 2
        assert is_due(client, *names)
        assert [client.hget(f"redbeat:{name}", "error") for name in names] == [None] * 5
        assert len(errors_in(caplog)) == 1
        assert AWAY in errors_in(caplog)[0]
    eventually(lambda: scheduler.tick() > 1)
    sent = names_of(take_messages(app))
    print(f"sent when the alarm was over: {sent}")
    assert list(dict.fromkeys(sent)) == ["before", *names]
    assert len(sent) <= 7  # one was on its way
    assert len(errors_in(caplog)) == 1


@contextmanager
def trouble_of(rabbitmq: RabbitMQ, kind: str) -> Iterator[None]:
    if kind == "alarm":
        with memory_alarm(rabbitmq):
            yield
    elif kind == "paused":
        rabbitmq.pause()
        try:
            yield
        finally:
            rabbitmq.resume()
    else:
        rabbitmq.kill()
        yield
        rabbitmq.restart()


@pytest.mark.parametrize("trouble", ["paused", "alarm", "killed"])
def test_a_running_beat_lives_through_it_and_keeps_its_lock(
    app: Celery, client: redis.Redis, server: Server, rabbitmq: RabbitMQ, tmp_path: Path, trouble: str
) -> None:
    write_app(
        tmp_path,
        "module",
        rabbitmq.url(),
        redbeat_redis_url=server.url(1),
        redbeat_publish_timeout=1.5,
        redbeat_lock_timeout=6,
    )
    names = [f"entry-{number}" for number in range(6)]
    with celery_beat(tmp_path, "module") as beat:
        write_entries(client, "before")
        eventually(lambda: not is_due(client, "before"), 20)
        token = client.get(LOCK)
        with trouble_of(rabbitmq, trouble):
            write_entries(client, *names)
            interval = {"__type__": "interval", "every": 0.5}
            write_raw(client, "often", score=server_now(client) - 1, schedule=interval)
            beat.wait_for(AWAY)
            until = server_now(client) + 2.5
            while server_now(client) < until:
                assert client.get(LOCK) == token
                assert client.pttl(LOCK) > 1000
            assert is_due(client, *names, "often")
        eventually(lambda: not is_due(client, names[-1]), 20)
        eventually(lambda: "total_run_count" in (client.hget("redbeat:often", "meta") or ""), 20)
        assert client.get(LOCK) == token
        assert beat.output().count(AWAY) == 1, beat.output()
        assert "Traceback" not in beat.output()
        beat.wait_for("The broker is back.")
    messages = take_messages(app)
    sent = names_of(messages)
    print(f"sent: {sent}")
    assert list(dict.fromkeys(name for name in sent if name != "often")) == ["before", *names]
    assert len({message.id for message in messages if message.entry != "often"}) == 7
    runs = field(client, "often", "meta")["total_run_count"]
    assert len({message.id for message in messages if message.entry == "often"}) == runs
    assert runs < 8  # those of the outage were one


@pytest.mark.parametrize("trouble", ["paused", "alarm"])
def test_sigterm_ends_a_beat_that_waits_for_the_broker(
    client: redis.Redis, server: Server, rabbitmq: RabbitMQ, tmp_path: Path, trouble: str
) -> None:
    write_app(tmp_path, "module", rabbitmq.url(), redbeat_redis_url=server.url(1))
    with celery_beat(tmp_path, "module") as beat:
        write_entries(client, "before")
        eventually(lambda: not is_due(client, "before"), 20)
        with trouble_of(rabbitmq, trouble):
            write_entries(client, "waits")
            beat.wait_for("Sending due task waits")
            began = time.monotonic()
            beat.signal(signal.SIGTERM)
            assert beat.wait(timeout=15) == 0, beat.output()
            took = time.monotonic() - began
            print(f"{trouble}: it ended in {took:.2f} s")
            assert took < 4
            assert client.get(LOCK) is None
            assert is_due(client, "waits")


class Killed(BaseException):
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
    names = [f"entry-{number}" for number in range(25)]
    write_entries(client, *names)
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
        write_seldom(client, f"large-{number}", due=1 + 2 * number, args=[f"{number:07}" * 150_000])
        write_seldom(client, f"small-{number}", due=2 + 2 * number)
    ticks = 1
    while scheduler.tick() == 0:
        ticks += 1
    messages = take_messages(app)
    print(f"30 times 1 MB and 30 small ones in {ticks} ticks")
    assert names_of(messages) == [f"{size}-{n}" for n in range(30) for size in ("large", "small")]
    assert all(message.args == [f"{n:07}" * 150_000] for n, message in enumerate(messages[::2]))
