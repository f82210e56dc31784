"""Signals that end a beat, whatever it is doing, and commands that arrive after it has released its lock."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redbeat import RedBeatScheduler
from redbeat.config.timing import Timing
from redbeat.errors import StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.lock import TAKEN_MS, LeaderLock
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.schedule import fetch_due
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.apps import GREENLETS, celery_beat, patched_beat, run_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, calls_of, server_now, write_raw
from tests.support.scripts import SCRIPTS
from tests.support.servers import Server

KEYS = Keys()


STATIC = {"often": {"task": "echo", "schedule": 0.2}}


ENTRIES = 2_000


def write_burst(client: redis.Redis, every: float = 1.0) -> None:
    """Entries that are due all the time, at fractions of the second that are RedBeat's own."""
    start = int(server_now(client)) + 0.5
    with client.pipeline(transaction=False) as pipeline:
        for number in range(ENTRIES):
            interval = {"__type__": "interval", "every": every}
            write_raw(pipeline, f"entry-{number}", schedule=interval, score=start + number / (4 * ENTRIES))
        pipeline.execute()


@pytest.fixture
def way(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as proxy:
        yield proxy


@pytest.mark.parametrize("trouble", ["away", "frozen"])
def test_sigterm_ends_a_beat_whose_redis_does_not_answer(
    server: Server, way: Proxy, tmp_path: Path, trouble: str
) -> None:
    settings = {
        "redbeat_redis_url": way.url(server.url(1)),
        "redbeat_redis_options": {"retry_period": -1},
        "beat_schedule": STATIC,
    }
    with run_beat(tmp_path, way.url(server.url(0)), **settings) as beat:
        beat.wait_for("Sending due task often")
        if trouble == "away":
            way.refuse()
            way.drop()
            beat.wait_for("Retrying Redis connection in")
        else:
            frozen = way.freeze_on(b"EVALSHA")
            eventually(frozen.is_set)
        took = beat.seconds_to_end()
        print(f"it ended in {took:.2f} s")
        assert (beat.returncode, took < patience(8)) == (0, True)
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.parametrize("library", ["", "gevent"])
def test_sigterm_ends_a_beat_that_has_found_no_redis_yet(
    server: Server, way: Proxy, tmp_path: Path, library: str
) -> None:
    way.refuse()
    options = {"retry_period": -1}
    write_app(
        tmp_path,
        "module",
        server.url(0),
        redbeat_redis_url=way.url(server.url(1)),
        redbeat_redis_options=options,
    )
    beat = patched_beat(tmp_path, "module", library) if library else celery_beat(tmp_path, "module")
    with beat:
        beat.wait_for("Retrying Redis connection in")
        took = beat.seconds_to_end()
        assert (beat.returncode, took < patience(3)) == (0, True), beat.output()
        assert not has_traceback(beat.output()), beat.output()


def test_two_sigterms_leave_no_lock(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_burst(client)
    for _ in range(3):
        sent = broker.llen("celery")
        with celery_beat(tmp_path, "module") as beat:
            eventually(lambda sent=sent: broker.llen("celery") > sent)
            assert client.get(LOCK)
            beat.signal(signal.SIGTERM)
            time.sleep(0.001)  # what this test is about
            beat.signal(signal.SIGTERM)
            beat.wait()
            assert client.get(LOCK) is None, beat.output()


LATE: dict[str, Callable[[Store, Fence], Any]] = {
    "renewal": lambda store, fence: store.renew_lock(fence),
    "claim": lambda store, fence: fetch_due(store, fence, limit=1).run(),
    "taking": lambda store, fence: LockKey(store, LOCK).take(fence.token, TAKEN_MS, fence.mark),
}


@pytest.mark.parametrize("send", LATE.values(), ids=LATE)
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "free"])
def test_commands_that_arrive_after_the_release_leave_the_lock_free(
    make_app: MakeApp,
    server: Server,
    client: redis.Redis,
    way: Proxy,
    send: Callable[[Store, Fence], Any],
    is_taken: bool,
) -> None:
    """The second would give a lock that the first had taken its full time to live."""
    app = make_app(redbeat_redis_url=way.url(server.url(1)))
    lock = LeaderLock(Store(make_app()), LOCK, Timing(600))
    assert lock.acquire()
    with Store.hasty(app, 0.2) as one, Store.hasty(app, 0.2) as other:
        for store in (one, other):
            send(store, lock.fence)
        way.freeze()
        for store in (one, other):
            with pytest.raises(StoreUnavailable):
                send(store, lock.fence)
    if not is_taken:  # as when the command that takes it is the late one
        client.delete(LOCK)
    assert lock.give_up(lock.fence.mark) is is_taken
    calls = calls_of(client, "evalsha")
    way.thaw()
    eventually(lambda: calls_of(client, "evalsha") == calls + 2)
    assert client.get(LOCK) is None


def test_released_lock_is_taken_again_by_the_same_beat(make_app: MakeApp, client: redis.Redis) -> None:
    """Only a command that was sent before that doesn't: its token is another one."""
    scheduler = RedBeatScheduler(make_app())
    for _ in range(2):
        assert scheduler.stand_for_leader()
        scheduler.close()
    assert 0 < client.pttl(KEYS.released) <= 60_000
    assert scheduler.stand_for_leader()
    scheduler.lock.release()
    assert scheduler.stand_for_leader()
    scheduler.close()
    assert client.get(LOCK) is None


def test_lock_whose_taking_was_not_answered_is_released(
    make_app: MakeApp, server: Server, client: redis.Redis, way: Proxy
) -> None:
    once = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}  # else the client asks again
    app = make_app(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=once)
    cut = way.cut_on(SCRIPTS["take_lock"].sha1.encode(), "reply")
    scheduler = RedBeatScheduler(app)
    with pytest.raises(StoreUnavailable):
        scheduler.stand_for_leader()
    assert cut.is_set()
    assert client.get(LOCK)
    scheduler.close()
    assert client.get(LOCK) is None


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


@pytest.mark.slow
def test_sigterm_swallowed_by_a_handler_ends_beat(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_raw(client, "hourly")
    with run_beat(tmp_path, server.url(0), extra=SWALLOW, redbeat_redis_url=server.url(1)) as beat:
        beat.wait_for("the handler begins")
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "has swallowed it" in beat.output()
        assert client.get(LOCK) is None, beat.output()


def _is_idle(client: redis.Redis) -> bool:
    """Whether the beat listens: it waits."""
    return bool(client.pubsub_numsub("redbeat::wake")[0][1])


@pytest.mark.slow
@pytest.mark.few_cases(2)
@pytest.mark.parametrize("every", [0.5, 3600], ids=["busy", "idle"])
@pytest.mark.parametrize("library", GREENLETS)
def test_beat_with_greenlets_ends_at_sigterm_and_releases_the_lock(
    server: Server, tmp_path: Path, library: str, every: float
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    schedule = {"often": {"task": "echo", "schedule": every}}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule=schedule)
    with server.client(db=1) as client, patched_beat(tmp_path, "module", library) as beat:
        beat.wait_for("Sending due task often" if every < 1 else "beat: Acquired lock")
        eventually(lambda: _is_idle(client))
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert "beat: Releasing lock" in beat.output()
        assert not has_traceback(beat.output()), beat.output()
        assert client.get(LOCK) is None, f"it lives {client.pttl(LOCK)} ms more:\n{beat.output()}"
