"""Ticks and the lock: who hasn't got it sends nothing and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import LockNotOwnedError

from redbeat import RedBeatScheduler
from redbeat.config import timing
from redbeat.errors import LockLost, LockNotAcquired
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import LOCK, messages, score_of, sent_names, write_burst, write_raw
from tests.support.servers import Server
from tests.support.ticks import take_messages


def test_a_tick_without_the_lock_says_how_to_get_it(
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


def test_who_lost_the_lock_writes_nothing_more(
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


def test_a_lock_lost_between_claim_and_commit_records_nothing(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    class Robbed(RedBeatScheduler):
        def apply_async(self, entry: Any, **kwargs: Any) -> Any:
            client.set(LOCK, "another")
            return super().apply_async(entry, **kwargs)

    scheduler = make_scheduler(scheduler=Robbed)
    write_raw(client, "entry", score=1)
    with pytest.raises(LockLost):
        scheduler.tick()
    assert (score_of(client, "entry"), client.hkeys("redbeat:entry")) == (1, ["definition"])


def test_a_lock_deleted_by_hand_is_taken_back(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    token = client.get(LOCK)
    client.delete(LOCK)
    write_raw(client, "entry")
    scheduler.tick()
    assert (client.get(LOCK), sent_names(broker)) == (token, ["entry"])
    assert client.pttl(LOCK) == pytest.approx(scheduler.lock_timeout * 1000, abs=60_000)


def test_closing_releases_the_lock_of_a_server_that_is_full(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    scheduler = make_scheduler()
    client.config_set("maxmemory", 1)
    try:
        scheduler.close()
        assert not client.exists(LOCK)
    finally:
        client.config_set("maxmemory", 0)


def test_closing_releases_the_lock_for_the_next(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    first = make_scheduler()
    second = make_scheduler()
    assert first.lock is not None
    assert second.lock is None
    first.close()
    assert client.get(LOCK) is None
    assert second.stand_for_leader()


def test_a_standby_leads_since_it_got_the_lock_and_not_since_it_was_started(
    make_app: Callable[..., Celery], scheduler: RedBeatScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = RedBeatScheduler(make_app())
    assert not standby.stand_for_leader()
    later = datetime(2033, 5, 18, 3, 33, 20, tzinfo=timezone.utc)
    monkeypatch.setattr("time.time", later.timestamp)
    scheduler.close()
    assert standby.stand_for_leader()
    leader = RedBeatScheduler.leader(make_app())
    standby.close()
    assert leader.since == later


# -- a leader that is replaced amid a batch: test_fences is about what a script refuses


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
def test_it_looks_at_the_lock_before(make_replaced: Any, last_act: str, acts: list[str], sent: int) -> None:
    scheduler = make_replaced(last_act, "memory://")
    assert scheduler.acts == acts
    assert len(take_messages(scheduler.app)) == sent


def test_it_looks_at_the_lock_before_a_pipeline_of_messages(make_replaced: Any, other: Server) -> None:
    scheduler = make_replaced("send second", other.url(0))
    assert scheduler.acts == ["connect", "send first", "connect", "send second"]
    with other.client() as broker:
        assert messages(broker, "a queue") == []
