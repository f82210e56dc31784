"""Real beats that share one schedule: one leads, the others stand by, and the lock says who."""

from __future__ import annotations

import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, STATICS, sent_names, server_now, write_raw
from tests.support.servers import Server

pytestmark = ONE_SERVER

STATIC = {"often": {"task": "echo", "schedule": 0.2}}


@pytest.fixture
def module(server: Server, tmp_path: Path) -> str:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule=STATIC)
    return "module"


def test_a_standby_takes_over_when_the_leader_ends(server: Server, tmp_path: Path, module: str) -> None:
    with server.client(db=1) as client, server.client(db=0) as broker, celery_beat(tmp_path, module) as first:
        first.wait_for("beat: Acquired lock")
        token = client.get(LOCK)
        with celery_beat(tmp_path, module) as second:
            second.wait_for("beat: Acquiring lock...")
            sent = len(sent_names(broker))
            eventually(lambda: len(sent_names(broker)) > sent + 5)
            assert client.get(LOCK) == token
            assert "Sending due task" not in second.output()
            assert "Acquired" not in second.output()

            began = time.monotonic()
            assert first.stop() == 0
            ended = time.monotonic()
            second.wait_for("beat: Acquired lock")
            taken = time.monotonic()
            second.wait_for("Sending due task often")
            print(f"the first ended in {ended - began:.2f} s, taken over {taken - ended:.2f} s later")
            assert "beat: Releasing lock" in first.output()
            assert client.get(LOCK) not in (None, token)


def test_a_beat_that_ends_leaves_no_lock_and_exits_0(server: Server, tmp_path: Path, module: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with server.client(db=1) as client, celery_beat(tmp_path, module) as beat:
            beat.wait_for("Sending due task")
            assert client.get(LOCK)
            beat.signal(number)
            assert beat.wait() == 0
            assert client.get(LOCK) is None
            assert not has_traceback(beat.output()), beat.output()


def test_a_standby_that_ends_takes_no_lock_with_it(server: Server, tmp_path: Path, module: str) -> None:
    with server.client(db=1) as client:
        client.set(LOCK, "somebody")
        with celery_beat(tmp_path, module) as standby:
            standby.wait_for("beat: Acquiring lock...")
            assert standby.stop() == 0
        assert client.get(LOCK) == "somebody"
        assert (client.zcard(SCHEDULE), client.scard(STATICS)) == (0, 0)


def test_a_killed_leader_is_followed_when_its_lock_has_timed_out(server: Server, tmp_path: Path) -> None:
    settings = {"beat_schedule": STATIC, "redbeat_lock_timeout": 3}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    with celery_beat(tmp_path, "module") as first, celery_beat(tmp_path, "module") as second:
        leader, other = (first, second)
        eventually(lambda: "Acquired lock" in first.output() + second.output())
        if "Acquired lock" in second.output():
            leader, other = second, first
        other.wait_for("beat: Acquiring lock...")
        leader.kill()
        killed = time.monotonic()
        other.wait_for("beat: Acquired lock")
        print(f"taken over {time.monotonic() - killed:.2f} s after the kill")


def test_an_idle_leader_renews_its_lock_in_time(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_lock_timeout=6)
    with server.client(db=1) as client, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        token = client.get(LOCK)
        acquired_at = time.monotonic()
        ends: list[int] = []  # of the lock: it rises whenever it is renewed

        def has_outlived_its_timeout() -> bool:
            assert client.get(LOCK) == token
            ends.append(client.pttl(LOCK))
            return time.monotonic() > acquired_at + 8

        eventually(has_outlived_its_timeout, retry_on=())
        renewals = sum(later > earlier for earlier, later in pairwise(ends))
        print(f"{renewals} renewals in 8 s")
        assert renewals >= 2
        assert beat.is_running


def test_a_beat_whose_lock_was_taken_ends_and_sends_nothing_more(
    server: Server, tmp_path: Path, module: str
) -> None:
    with server.client(db=1) as client, server.client() as broker, celery_beat(tmp_path, module) as beat:
        beat.wait_for("Sending due task")
        client.set(LOCK, "another")
        sent = len(sent_names(broker))
        assert beat.wait() != 0
        assert "Another beat holds the lock" in beat.output()
        assert len(sent_names(broker)) <= sent + 1, "one may have been on its way"
        assert client.get(LOCK) == "another"


def test_two_beats_without_a_lock_share_what_is_due(server: Server, tmp_path: Path) -> None:
    settings = {"redbeat_lock_key": None, "redbeat_batch_size": 5}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    with (
        server.client(db=1) as client,
        server.client() as broker,
        celery_beat(tmp_path, "module") as first,
        celery_beat(tmp_path, "module") as second,
    ):
        for beat in (first, second):
            beat.wait_for("beat: Starting...")
        names = [f"entry-{number}" for number in range(200)]
        for name in names:
            write_raw(client, name)
        eventually(lambda: len(sent_names(broker)) >= 200)
        in_a_minute = server_now(client) + 60  # beyond it are those that were sent, a lease ends before
        eventually(lambda: client.zcount(SCHEDULE, in_a_minute, "+inf") == 200)
        assert sorted(sent_names(broker)) == sorted(names)
        assert first.is_running
        assert second.is_running
