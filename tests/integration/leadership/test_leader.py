"""One beat leads, the others stand by: without the lock a beat sends nothing and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import Celery
from redis.exceptions import LockNotOwnedError

from redbeat import RedBeatScheduler
from redbeat.config import timing
from redbeat.config.timing import Timing
from redbeat.errors import LockLost, LockNotAcquired
from redbeat.keys import Keys
from redbeat.leadership.election import Election
from redbeat.leadership.status import read_status
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import LOCK, messages, score_of, sent_names, write_burst, write_raw
from tests.support.servers import Server
from tests.support.shards import announce, election_in
from tests.support.ticks import memory_app, take_messages


def test_tick_without_the_lock_raises_lock_not_acquired(
    make_app: Callable[..., Celery], client: redis.Redis
) -> None:
    scheduler = RedBeatScheduler(make_app())
    write_raw(client, "entry")
    with pytest.raises(LockNotAcquired, match="acquire_distributed_beat_lock") as caught:
        scheduler.tick()
    assert isinstance(caught.value, AttributeError)
    assert caught.value.lock_key == LOCK
    assert score_of(client, "entry") == 0
    scheduler.close()


def test_beat_that_lost_the_lock_writes_nothing(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "entry")
    client.set(LOCK, "another")
    with pytest.raises(LockLost, match="a program other than RedBeat 3") as caught:
        scheduler.tick()
    assert isinstance(caught.value, LockNotOwnedError)
    assert (caught.value.lock_key, caught.value.holder) == (LOCK, "another")
    scheduler.close()
    assert (messages(broker), score_of(client, "entry"), client.get(LOCK)) == ([], 0, "another")
    assert client.hkeys("redbeat:entry") == ["definition"]


def test_lock_deleted_by_hand_is_taken_back(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    token = client.get(LOCK)
    client.delete(LOCK)
    write_raw(client, "entry")
    scheduler.tick()
    assert (client.get(LOCK), sent_names(broker)) == (token, ["entry"])
    assert client.pttl(LOCK) == pytest.approx(scheduler.lock_timeout * 1000, abs=60_000)


def test_scheduler_whose_lock_a_program_released_does_not_lead(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "entry")
    scheduler.lock.release()
    with pytest.raises(LockNotAcquired):
        scheduler.tick()
    assert (client.get(LOCK), messages(broker)) == (None, [])
    scheduler.stand_for_leader()
    scheduler.tick()
    assert sent_names(broker) == ["entry"]


def test_closing_releases_the_lock_of_a_full_server(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    scheduler = make_scheduler()
    client.config_set("maxmemory", 1)
    try:
        scheduler.close()
        assert not client.exists(LOCK)
    finally:
        client.config_set("maxmemory", 0)


def test_standby_reads_no_events_to_signal(make_scheduler: MakeScheduler) -> None:
    leading, waiting = make_scheduler(), make_scheduler()
    assert [one.fence for one in leading._election.leading] == [leading.lock.fence]  # noqa: SLF001
    assert waiting._election.leading == ()  # noqa: SLF001 - else receivers were called by both


# -- a schedule that Redis has lost, with its lock


@pytest.mark.parametrize("who", ["leader", "standby"])
def test_lost_schedule_ends_a_beat_that_is_to_exit(
    make_app: Callable[..., Celery], client: redis.Redis, who: str
) -> None:
    settings = {"redbeat_lock_lost": "exit", "redbeat_lock_timeout": 60, "beat_max_loop_interval": 0.1}
    leading, waiting = beats = [RedBeatScheduler(make_app(**settings)) for _ in range(2)]
    write_raw(client, "entry", score=4e9)
    for beat in beats:
        beat.run_under(Mock(_is_stopped=None, _is_shutdown=None))
        beat.tick()
    if who == "standby":  # the leader is paused
        leading._election.heartbeat.stop()  # noqa: SLF001
    client.flushdb()
    ends = leading if who == "leader" else waiting
    with pytest.raises(LockLost, match="'exit'"):
        eventually(ends.tick, retry_on=())
    for beat in beats:
        beat.close()


# -- a leader that is replaced amid a batch


NAMES = ["first", "second"]


class Replaced(RedBeatScheduler):
    """Another beat takes the lock as soon as this one has done ``last_act``."""

    client: redis.Redis
    last_act: str

    def act(self, name: str, result: Any) -> Any:
        self.acts = [*getattr(self, "acts", []), name]
        if self.acts.count(self.last_act) == 1:
            self.client.set(LOCK, "another")
        return result

    @property
    def producer(self) -> Any:
        return self.act("connect", super().producer)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        return self.act(f"send {entry.name}", super().apply_async(entry, *args, **kwargs))


@pytest.fixture
def make_replaced(make_scheduler: MakeScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Any:
    # what it knows of its lock is out of date at once, as after a pause
    monkeypatch.setattr(timing, "FRESH_SECONDS", -1)

    def make(last_act: str, broker_url: str) -> Replaced:
        kind = type("Replaced", (Replaced,), {"client": client, "last_act": last_act})
        scheduler = make_scheduler(scheduler=kind, broker_url=broker_url, task_default_queue="a queue")
        assert isinstance(scheduler, Replaced)
        scheduler.run_under(SimpleNamespace())  # it has a heartbeat only under a beat
        scheduler.stand_for_leader()
        write_burst(client, NAMES)
        with pytest.raises(LockLost):
            scheduler.tick()
        assert [score_of(client, name) for name in NAMES] == [1, 2]  # nothing is recorded, either
        return scheduler

    return make


@pytest.mark.parametrize(
    ("last_act", "acts", "sent"),
    [("connect", ["connect"], 0), ("send first", ["connect", "send first", "connect"], 1)],
    ids=["the-first-message", "each-later-one"],
)
def test_leader_checks_its_lock_before_each_message(
    make_replaced: Any, last_act: str, acts: list[str], sent: int
) -> None:
    scheduler = make_replaced(last_act, "memory://")
    assert [act for act, _ in groupby(scheduler.acts)] == acts
    assert len(take_messages(scheduler.app)) == sent


def test_leader_checks_its_lock_before_a_pipeline_of_messages(make_replaced: Any, other: Server) -> None:
    scheduler = make_replaced("send second", other.url(0))
    acts = [act for act, _ in groupby(scheduler.acts)]
    assert acts == ["connect", "send first", "connect", "send second"]
    with other.client() as broker:
        assert messages(broker, "a queue") == []


# -- standbys


BEATS = Keys().beats


@pytest.fixture
def standby(app: Celery, client: redis.Redis) -> Iterator[Election]:
    """One that has looked at the lock of another beat."""
    client.set(LOCK, "somebody", px=60_000)
    election = election_in(app, Timing(60))
    assert not election.look()
    yield election
    election.resign()


def test_standby_is_listed_until_it_leads_or_ends(
    standby: Election, app: Celery, client: redis.Redis
) -> None:
    assert len(read_status(app).standbys) == 1
    client.delete(LOCK)
    assert standby.look()
    assert not read_status(app).standbys
    standby.leaderships[0].forget()  # it was lost
    client.set(LOCK, "somebody", px=60_000)
    assert not standby.look()
    assert len(read_status(app).standbys) == 1
    standby.resign()
    assert not client.exists(BEATS)


def test_leader_of_an_unsharded_schedule_keeps_it_whoever_stands_by(app: Celery, client: redis.Redis) -> None:
    announce(app, *(f"host:1:{number:08x}" for number in range(50)))
    election = election_in(app, Timing(60))
    assert election.look(), "a free lock is anyone's"
    assert len(election.members.live) == 51
    assert not election.hand_over(lambda _leadership: None)
    assert election.is_leader
    election.resign()


def test_list_of_beats_of_wrong_type_stops_nobody(app: Celery, client: redis.Redis) -> None:
    client.set(LOCK, "somebody", px=60_000)
    client.set(BEATS, "somebody's own")
    election = election_in(app, Timing(60))
    assert not election.look()
    found = read_status(app)
    assert (found.leader is not None, found.beats, found.standbys) == (True, None, [])
    client.delete(LOCK)
    assert election.look()
    election.resign()
    assert (client.get(BEATS), client.ttl(BEATS)) == ("somebody's own", -1)


def test_slow_answer_is_logged_once(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler.tick()
    monkeypatch.setattr("redbeat.store.store.SLOW_SECONDS", 0.3)
    client.client_pause(400)
    for _ in range(3):
        scheduler.tick()
    [record] = caplog.records
    said = record.__dict__["redbeat"]
    assert (said["event"], 0.3 <= said["seconds"] < 60) == ("redbeat.redis.slow", True)


# -- real beats


OFTEN = {"often": {"task": "echo", "schedule": 0.2}}


def test_standby_takes_over_when_the_leader_ends(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": OFTEN}
    write_app(tmp_path, "module", server.url(0), **settings)
    with celery_beat(tmp_path, "module") as first:
        first.wait_for("beat: Acquired lock")
        token = client.get(LOCK)
        with celery_beat(tmp_path, "module") as second:
            second.wait_for("beat: Acquiring lock...")
            sent = len(sent_names(broker))
            eventually(lambda: len(sent_names(broker)) > sent + 5)
            assert client.get(LOCK) == token
            assert "Sending due task" not in second.output()
            [standby] = read_status(memory_app(**settings)).standbys
            assert standby.pid == second.pid
            assert first.stop() == 0
            ended = time.monotonic()
            second.wait_for("beat: Acquired lock")
            assert time.monotonic() - ended <= patience(1)
            second.wait_for("Sending due task often")
            assert client.get(LOCK) not in (None, token)
            assert not read_status(memory_app(**settings)).standbys, "who leads doesn't stand by"


# -- a server that takes no writes: the leader stays, as no other beat could lead


@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
def test_standby_leaves_a_leader_whose_server_takes_no_writes(
    make_app: Callable[..., Celery], client: redis.Redis, setting: str
) -> None:
    timing = Timing(60.0, 0.5)
    leading, waiting = (election_in(make_app(), timing) for _ in range(2))
    assert leading.look()
    leading.keep_alive()
    assert not waiting.look()
    client.config_set(setting, 1)
    try:
        until = time.monotonic() + 1.5  # longer than a takeover takes

        def is_over() -> bool:
            assert not waiting.look()
            return time.monotonic() > until

        eventually(is_over, retry_on=())
    finally:
        client.config_set(setting, 0)
    eventually(lambda: client.pttl(str(leading.lock_key)) > 59_000)  # the leader has renewed it again
    assert not waiting.look()
    leading.check()
    assert leading.is_leader
    for one in (waiting, leading):
        one.resign()
