"""Ticks and the lock: who hasn't got it sends nothing and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import LockNotOwnedError

from redbeat import RedBeatScheduler
from redbeat.errors import LockLost, LockNotAcquired
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import LOCK, messages, score_of, sent_names, write_raw


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
    with pytest.raises(LockLost, match="another") as caught:
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
    assert leader is not None
    assert leader.since == later
