"""RabbitMQ that is silent, blocked by an alarm or killed: runs wait, the lock is kept, beat can be ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from tests.integration.conftest import MakeScheduler
from tests.support.apps import run_beat
from tests.support.deadlines import patience
from tests.support.logs import AWAY, BACK, errors_in
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import LOCK, field, score_of, server_now, write_burst
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.ticks import names_of, take_messages


def is_due(client: redis.Redis, *names: str) -> bool:
    now = server_now(client)
    return all((score_of(client, name) or 0) < now for name in names)


#: how it begins, and how it ends
TROUBLES = {
    "paused": (RabbitMQ.pause, RabbitMQ.resume),
    "alarm": (RabbitMQ.set_memory_alarm, RabbitMQ.clear_memory_alarm),
    "killed": (RabbitMQ.kill, RabbitMQ.restart),
}


@contextmanager
def trouble_of(rabbitmq: RabbitMQ, kind: str) -> Iterator[None]:
    begin, end = TROUBLES[kind]
    begin(rabbitmq)
    try:
        yield
    finally:
        end(rabbitmq)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_runs_wait_for_a_broker_in_trouble_and_the_lock_is_renewed(
    make_scheduler: MakeScheduler,
    app: Celery,
    client: redis.Redis,
    rabbitmq: RabbitMQ,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    app.conf.update(redbeat_publish_timeout=0.5, redbeat_lock_timeout=60)
    scheduler = make_scheduler(app)
    write_burst(client, ["before"])
    scheduler.tick()
    token = client.get(LOCK)
    names = write_burst(client, 5)
    with trouble_of(rabbitmq, trouble):
        for _ in range(3):
            client.pexpire(LOCK, 30_000)
            with Stopwatch() as watch:
                assert scheduler.tick() == 1.0
            assert watch.asleep_seconds < 2.5
            assert client.pttl(LOCK) > 30_000, "it isn't renewed"
        assert is_due(client, *names)
        assert [client.hget(f"redbeat:{name}", "error") for name in names] == [None] * 5
        assert client.get(LOCK) == token
    eventually(lambda: scheduler.tick() > 1)
    sent = names_of(take_messages(app))
    assert list(dict.fromkeys(sent)) == ["before", *names]
    assert len(sent) <= len(names) + 2, "only the message that was on its way may arrive twice"
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}
    away, back = errors_in(caplog)
    assert AWAY in away
    assert back.endswith(BACK)


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
            assert took < patience(4)
            assert client.get(LOCK) is None
            assert is_due(client, "waits")
