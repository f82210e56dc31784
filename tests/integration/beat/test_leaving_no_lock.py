"""A beat that has ended leaves no lock behind: whatever was on its way to Redis, and however it was ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import RedBeatScheduler
from redbeat.errors import StoreUnavailable
from redbeat.leadership.lock import TAKEN_MS, LeaderLock
from redbeat.store import scripts as lua
from redbeat.store.records import Commit, LockStatus
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, SCHEDULE, write_raw
from tests.support.servers import Server

pytestmark = ONE_SERVER

STATIC = {"often": {"task": "echo", "schedule": 0.2}}


@pytest.fixture
def way(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


def test_a_commit_that_arrives_after_the_release_keeps_nobody_waiting(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_raw(client, "entry", score=1)
    fence = scheduler.lock.fence
    [claimed] = scheduler.store.claim_due(fence, 1).rows
    scheduler.close()
    assert client.get(LOCK) is None
    late = lua.commit_runs(client, SCHEDULE, fence, [Commit(claimed, "-1")])
    assert late.status is LockStatus.RETAKEN
    assert client.pttl(LOCK) <= TAKEN_MS


def test_a_lock_that_is_taken_and_not_renewed_soon_ends(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = LeaderLock(Store(make_app()), LOCK, timeout_seconds=600)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "renew_lock", lambda _store, _fence: None)
        assert leadership.acquire()
    assert client.pttl(LOCK) <= TAKEN_MS
    leadership.release()
    assert leadership.acquire()
    assert client.pttl(LOCK) > 500_000


def test_a_lock_whose_taking_was_not_answered_is_released(
    make_app: MakeApp, server: Server, client: redis.Redis, way: Proxy
) -> None:
    once = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}  # else the client asks again
    app = make_app(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=once)
    cut = way.cut_on(b"redbeat:3:", "reply")
    scheduler = RedBeatScheduler(app)
    with pytest.raises(StoreUnavailable):
        scheduler.stand_for_leader()
    assert cut.is_set()
    assert client.get(LOCK)
    scheduler.close()
    assert client.get(LOCK) is None


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.3])
def test_four_sigterms_to_a_beat_whose_redis_is_far_away_leave_no_lock(
    server: Server, client: redis.Redis, way: Proxy, tmp_path: Path, moment: float
) -> None:
    write_app(
        tmp_path, "module", server.url(0), redbeat_redis_url=way.url(server.url(1)), beat_schedule=STATIC
    )
    way.delay_seconds = 0.05  # each way
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task often")
        assert client.get(LOCK)
        time.sleep(moment)  # what this test is about, like the pauses between the signals
        for _ in range(4):
            beat.signal(signal.SIGTERM)
            time.sleep(0.06)
        beat.wait()  # not for 0: the last of them may come when Python has no handler any more
        assert client.get(LOCK) is None, beat.output()


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1])
def test_a_sigterm_to_a_beat_that_is_taking_the_lock_leaves_none(
    server: Server, client: redis.Redis, way: Proxy, tmp_path: Path, moment: float
) -> None:
    write_app(
        tmp_path, "module", server.url(0), redbeat_redis_url=way.url(server.url(1)), beat_schedule=STATIC
    )
    way.delay_seconds = 0.05
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquiring lock...")
        eventually(lambda: client.get(LOCK), interval=0.001)
        time.sleep(moment)
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert client.get(LOCK) is None, beat.output()


SWALLOW = """
from celery.signals import before_task_publish

@before_task_publish.connect
def swallow(**kwargs):
    print("the handler begins")
    try:
        time.sleep(2)
    except BaseException:
        print("the handler has swallowed it")
"""


def test_a_sigterm_whose_exit_is_swallowed_by_a_handler_ends_beat_all_the_same(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), extra=SWALLOW, redbeat_redis_url=server.url(1))
    write_raw(client, "hourly")
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("the handler begins")
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "has swallowed it" in beat.output()
        assert client.get(LOCK) is None, beat.output()
