"""Applications that move an entry's last run: the next run moves with it; a score of 0 still means now."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.store.records import Commit, Fence
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.schedule import SCHEDULE, messages, score_of, sent_names, server_now

UTC = timezone.utc
HOUR = timedelta(hours=1)


def now_on_server(client: redis.Redis) -> datetime:
    return datetime.fromtimestamp(server_now(client), UTC)


def move_last_run(client: redis.Redis, to: datetime) -> None:
    """What an application does that knows the hash, and nothing else."""
    meta = json.loads(client.hget("redbeat:entry", "meta") or "{}")
    client.hset("redbeat:entry", "meta", json.dumps({**meta, "last_run_at": to}, cls=RedBeatJSONEncoder))


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("ahead_seconds", [-1800, -6, 86_400])
@pytest.mark.parametrize("fraction", [0, 0.25])
def test_a_last_run_moved_in_meta_moves_the_next_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, ahead_seconds: int, fraction: float
) -> None:
    now = now_on_server(client).replace(microsecond=0)
    ran_at = now - HOUR - timedelta(seconds=5 - fraction)
    Entry("entry", "t", HOUR, app=scheduler.app, last_run_at=ran_at).save()  # due five seconds ago
    moved_to = now + timedelta(seconds=ahead_seconds, microseconds=123)
    move_last_run(client, moved_to)
    scheduler.tick()
    assert messages(broker) == []
    assert score_of(client, "entry") == pytest.approx((moved_to + HOUR).timestamp(), abs=1e-5)
    assert Entry.from_key("redbeat:entry", app=scheduler.app).last_run_at == moved_to


@EVERY_KIND_OF_LOCK
def test_a_score_of_0_runs_it_now_whatever_its_last_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("entry", "t", HOUR, app=scheduler.app).save()
    move_last_run(client, now_on_server(client) + HOUR)
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert sent_names(broker) == ["entry"]
    assert set(client.hkeys("redbeat:entry")) == {"definition", "meta", "meta_sha1"}


@pytest.mark.parametrize(("settings", "lease_ms"), [({}, 0), ({"redbeat_lock_key": None}, 1)])
def test_a_run_asked_for_with_a_score_of_0_outlives_the_beat_that_saw_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, lease_ms: int
) -> None:
    Entry("entry", "t", HOUR, app=scheduler.app).save()
    move_last_run(client, now_on_server(client))
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    [claimed] = Store(scheduler.app).claim_due(Fence(), 10, lease_ms).rows  # by a beat that dies then
    assert claimed.is_asked
    while server_now(client) <= float(claimed.score):
        pass  # until its lease of a millisecond is over
    scheduler.tick()
    [message] = messages(broker)
    due = datetime.fromisoformat(message["headers"]["redbeat_due"]).timestamp()
    assert due == pytest.approx(float(claimed.nominal), abs=1e-5)


def test_a_run_asked_for_that_is_given_back_is_still_asked_for(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app = make_scheduler(redbeat_lock_key=None).app
    Entry("entry", "t", HOUR, app=app).save()
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    store = Store(app)
    [first] = store.claim_due(Fence(), 10, lease_ms=60_000).rows
    store.commit_runs(Fence(), [Commit(first, first.nominal)])
    assert score_of(client, "entry") == float(first.nominal)
    [again] = store.claim_due(Fence(), 10, lease_ms=60_000).rows
    assert (again.is_asked, again.nominal) == (True, first.nominal)
    store.commit_runs(Fence(), [Commit(again, "4000000000.5")])
    assert set(client.hkeys("redbeat:entry")) == {"definition", "meta", "meta_sha1"}
