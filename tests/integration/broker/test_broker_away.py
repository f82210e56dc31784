"""A broker that goes away: runs wait for it, beat keeps its lock, and the log stays readable."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.broker.connection import Broker
from redbeat.broker.outbox import Outbox
from redbeat.schedulers import acquire_distributed_beat_lock
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.logs import AWAY, BACK
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, score_of, sent_dues, sent_names, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app


@pytest.fixture
def beat_without_its_broker(valkey: Server, second: Server, tmp_path: Path) -> Iterator[Process]:
    """A beat that has waited for its broker since its start, with one run due."""
    write_app(tmp_path, "module", second.url(), redbeat_redis_url=valkey.url(1))
    second.kill()
    with valkey.client(db=1) as client, celery_beat(tmp_path, "module") as beat:
        write_raw(client, "entry", score=1)
        beat.wait_for(AWAY)
        yield beat


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("lock", ["lock", "no lock"])
def test_runs_wait_for_the_broker_and_go_out_oldest_first(
    valkey: Server, second: Server, tmp_path: Path, lock: str
) -> None:
    settings = {} if lock == "lock" else {"redbeat_lock_key": None}
    write_app(tmp_path, "module", second.url(), redbeat_redis_url=valkey.url(1), **settings)
    with celery_beat(tmp_path, "module") as beat, valkey.client(db=1) as client:
        write_raw(client, "first")
        with second.client() as broker:
            eventually(lambda: sent_names(broker) == ["first"])
        token = client.get(LOCK)
        second.kill()
        due = server_now(client) - 0.5
        names = [f"entry-{number}" for number in range(6)]
        for number, name in enumerate(names):
            write_raw(client, name, score=due + number / 100)
        beat.wait_for(AWAY)
        retried = server_now(client) + 2.5
        eventually(lambda: server_now(client) > retried)  # several attempts later
        assert client.get(LOCK) == token
        assert beat.output().count(AWAY) == 1
        assert beat.output().count("Traceback") == 0
        assert [client.hget(f"redbeat:{name}", "error") for name in names] == [None] * 6

        second.restart()
        with second.client() as broker:
            eventually(lambda: len(sent_names(broker)) >= 6)
            assert sent_names(broker) == names
            dues = sent_dues(broker)
        expected = [due + number / 100 for number in range(6)]
        assert [moment.timestamp() for moment in dues] == pytest.approx(expected, abs=1e-4)
        beat.wait_for(BACK)
        eventually(lambda: client.zcount(SCHEDULE, "-inf", server_now(client) + 60) == 0)
        assert beat.output().count(BACK) == 1
        lines = beat.output().count("\n")
        print(f"{lines} lines of log in all")
        assert lines < 40


def test_a_beat_that_starts_without_its_broker_waits_for_it(
    beat_without_its_broker: Process, second: Server
) -> None:
    second.restart()
    with second.client() as broker:
        eventually(lambda: sent_names(broker) == ["entry"])


def test_a_beat_whose_broker_is_away_ends_at_once_and_releases_its_lock(
    beat_without_its_broker: Process, valkey: Server
) -> None:
    assert beat_without_its_broker.stop() == 0
    with valkey.client(db=1) as client:
        assert client.get(LOCK) is None
        assert client.zscore(SCHEDULE, "redbeat:entry") == 1


def test_a_broker_that_breaks_off_when_it_is_asked_who_it_is_gets_its_runs_later(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(outbox: Outbox) -> str | None:
        monkeypatch.undo()
        raise redis.ConnectionError("Connection reset by peer")

    monkeypatch.setattr(Outbox, "server_id", break_off)
    write_raw(client, "entry", score=1.5)
    scheduler.tick()
    assert (sent_names(broker), score_of(client, "entry")) == ([], 1.5)
    scheduler.tick()
    assert sent_names(broker) == ["entry"]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(
    ("lock_timeout", "is_woken"), [(1, False), (3, False), (None, True)], ids=["1-s", "3-s", "woken"]
)
def test_a_broker_that_is_away_is_tried_once_a_second_however_short_the_lock(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lock_timeout: float | None,
    is_woken: bool,
) -> None:
    app = make_app_without_broker(client, redbeat_lock_timeout=lock_timeout)
    scheduler = make_scheduler(app)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler, stop=lambda: None), signal=None)
    tried_at: list[float] = []
    is_back = Broker.is_back

    def note_try(broker: Broker) -> bool:
        tried_at.append(time.monotonic())
        return is_back(broker)

    monkeypatch.setattr(Broker, "is_back", note_try)
    write_raw(client, "entry", score=1.5)
    ticks = 0
    while len(tried_at) < 3:
        if is_woken:
            client.publish("redbeat::wake", "")
        assert scheduler.tick() == 0, "it waits by itself"
        ticks += 1
    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    print(f"{ticks} ticks, pauses of {', '.join(f'{pause:.2f}' for pause in pauses)} s")
    assert min(pauses) > 0.9
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert sum(AWAY in line for line in lines) == 1
    assert len(lines) < 10, lines


def make_app_without_broker(client: redis.Redis, **settings: Any) -> Celery:
    options = client.connection_pool.connection_kwargs
    url = f"redis://{options['host']}:{options['port']}/{options['db']}"
    return memory_app(broker_url="redis://127.0.0.1:1", redbeat_redis_url=url, **settings)
