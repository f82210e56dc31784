"""RabbitMQ that is silent, blocked by an alarm or killed: runs wait, the lock is kept, beat can be ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from tests.integration.conftest import MakeScheduler
from tests.support.apps import run_beat
from tests.support.deadlines import patience
from tests.support.logs import AWAY, BACK, errors_in, has_traceback
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import LOCK, field, score_of, server_now, write_burst, write_raw
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.ticks import names_of, take_messages


def is_due(client: redis.Redis, *names: str) -> bool:
    now = server_now(client)
    return all((score_of(client, name) or 0) < now for name in names)


def make_connected(
    make_scheduler: MakeScheduler, app: Celery, client: redis.Redis, **settings: float
) -> RedBeatScheduler:
    """A scheduler that has its connection to the broker: a run, `before`, has been sent."""
    app.conf.update(settings)
    scheduler = make_scheduler(app)
    write_burst(client, ["before"])
    scheduler.tick()
    return scheduler


@contextmanager
def memory_alarm(rabbitmq: RabbitMQ) -> Iterator[None]:
    """In this block the broker has no memory to spare, and reads nothing from those who publish."""
    rabbitmq.set_memory_alarm()
    try:
        yield
    finally:
        rabbitmq.clear_memory_alarm()


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


@pytest.mark.parametrize("trouble", ["paused", "alarm"])
def test_silent_broker_is_waited_for_until_the_timeout(
    make_scheduler: MakeScheduler,
    app: Celery,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    scheduler = make_connected(make_scheduler, app, client, redbeat_publish_timeout=0.5)
    token = client.get(LOCK)
    names = write_burst(client, 5)
    with trouble_of(rabbitmq, trouble):
        for _ in range(3):
            with Stopwatch() as watch:
                assert scheduler.tick() == 1.0
            print(f"redbeat_publish_timeout is 0.5 s, a tick took {watch}")
            assert watch.asleep_seconds < 2.5
        assert is_due(client, *names)
        assert [client.hget(f"redbeat:{name}", "error") for name in names] == [None] * 5
        assert client.get(LOCK) == token
    eventually(lambda: scheduler.tick() > 1)
    sent = names_of(take_messages(app))
    assert list(dict.fromkeys(sent)) == ["before", *names]
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}
    away, back = errors_in(caplog)
    assert AWAY in away
    assert back.endswith(BACK)


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("trouble", ["paused", "alarm", "killed"])
def test_beat_process_in_broker_trouble_keeps_its_lock_and_sends_later(
    app: Celery, client: redis.Redis, server: Server, rabbitmq: RabbitMQ, tmp_path: Path, trouble: str
) -> None:
    names = [f"entry-{number}" for number in range(6)]
    with run_beat(
        tmp_path,
        rabbitmq.url(),
        redbeat_redis_url=server.url(1),
        redbeat_publish_timeout=1.5,
        redbeat_lock_timeout=20,
    ) as beat:
        write_burst(client, ["before"])
        eventually(lambda: not is_due(client, "before"))
        token = client.get(LOCK)
        with trouble_of(rabbitmq, trouble):
            write_burst(client, names)
            interval = {"__type__": "interval", "every": 0.5}
            write_raw(client, "often", score=server_now(client) - 1, schedule=interval)
            beat.wait_for(AWAY)
            for _ in range(2):
                client.pexpire(LOCK, 10_000)
                eventually(lambda: client.pttl(LOCK) > 10_000, message="the lock isn't renewed")
                assert client.get(LOCK) == token
            assert is_due(client, *names, "often")
            ended = server_now(client)
        eventually(lambda: not is_due(client, names[-1]))
        eventually(lambda: "total_run_count" in (client.hget("redbeat:often", "meta") or ""))
        assert client.get(LOCK) == token
        assert beat.output().count(AWAY) == 1, beat.output()
        assert not has_traceback(beat.output())
        beat.wait_for(BACK)
    messages = take_messages(app)
    sent = names_of(messages)
    print(f"sent: {sent}")
    assert list(dict.fromkeys(name for name in sent if name != "often")) == ["before", *names]
    assert len({message.id for message in messages if message.entry != "often"}) == 7
    often = {
        message.id: datetime.fromisoformat(message.due) for message in messages if message.entry == "often"
    }
    assert len(often) == field(client, "often", "meta")["total_run_count"]
    assert sum(due.timestamp() < ended for due in often.values()) <= 2, "those of the outage were one"


TELLING = """
from celery.signals import before_task_publish

@before_task_publish.connect
def tell(headers=None, **_):
    print(f"publishing {headers['redbeat_entry']}")
"""


@pytest.mark.parametrize("trouble", ["paused", "alarm"])
def test_sigterm_ends_a_beat_process_that_waits_for_the_broker(
    client: redis.Redis, server: Server, rabbitmq: RabbitMQ, tmp_path: Path, trouble: str
) -> None:
    with run_beat(tmp_path, rabbitmq.url(), TELLING, redbeat_redis_url=server.url(1)) as beat:
        write_burst(client, ["before"])
        eventually(lambda: not is_due(client, "before"))
        with trouble_of(rabbitmq, trouble):
            write_burst(client, ["waits"])
            beat.wait_for("publishing waits")
            took = beat.seconds_to_end()
            assert beat.returncode == 0, beat.output()
            print(f"{trouble}: it ended in {took:.2f} s")
            assert took < patience(4)
            assert client.get(LOCK) is None
            assert is_due(client, "waits")
