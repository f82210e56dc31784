"""A lock of one second: all that is done in time for the lock is done four times as often.

The broker is another server, where no script can refuse a message: what a paused beat publishes late is a run
that another has published already, and has the same task id.
"""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redbeat.errors import ConfigurationError
from redbeat.schedulers import RedBeatScheduler
from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, messages, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app

pytestmark = ONE_SERVER

NAMES = [f"entry-{number}" for number in range(5)]
EVERY = 0.5


@pytest.fixture
def other() -> Iterator[Server]:
    with Server("valkey") as running:
        yield running


def leader_of(beats: list[Process], client: redis.Redis) -> Process | None:
    token = client.get(LOCK) or ""
    return next((beat for beat in beats if f":{beat.pid}:" in token and beat.is_running), None)


def test_no_run_is_lost_and_none_doubled_but_with_its_id_when_the_leader_is_paused(
    server: Server, other: Server, tmp_path: Path
) -> None:
    write_app(
        tmp_path,
        "module",
        other.url(0),
        redbeat_redis_url=server.url(1),
        redbeat_lock_timeout=1,
        redbeat_misfire="all",
        redbeat_lock_lost="standby",
    )
    with server.client(db=1) as client, other.client() as broker:
        for name in NAMES:
            schedule = {"__type__": "interval", "every": EVERY}
            write_raw(client, name, score=time.time(), schedule=schedule, args=[name])
        with celery_beat(tmp_path, "module") as first, celery_beat(tmp_path, "module") as second:
            beats = [first, second]
            for beat in beats:
                beat.wait_for("beat: Acquir")
            for _ in range(4):
                leader = eventually(lambda: leader_of(beats, client))
                [standby] = [beat for beat in beats if beat is not leader]
                sent = broker.llen("celery")
                eventually(lambda sent=sent: broker.llen("celery") > sent + len(NAMES))
                leader = eventually(lambda: leader_of(beats, client))
                [standby] = [beat for beat in beats if beat is not leader]
                leader.signal(signal.SIGSTOP)
                eventually(lambda standby=standby: leader_of([standby], client), 30)
                sent = broker.llen("celery")
                eventually(lambda sent=sent: broker.llen("celery") > sent + len(NAMES))
                leader.signal(signal.SIGCONT)
            assert first.is_running, first.output()
            assert second.is_running, second.output()
            for beat in beats:
                assert beat.stop() == 0
                assert not has_traceback(beat.output()), beat.output()
                assert "has done nothing for" not in beat.output()
        ids: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        doubled = 0
        for message in messages(broker):
            headers = message["headers"]
            known = ids[headers["redbeat_entry"]][headers["redbeat_due"]]
            doubled += bool(known)
            known.add(headers["id"])
        print(f"{sum(map(len, ids.values()))} runs, {doubled} doubled with the same id")
        assert ids.keys() == set(NAMES)
        for name, runs in ids.items():
            assert all(len(found) == 1 for found in runs.values()), (name, runs)
            count = json.loads(client.hget(f"redbeat:{name}", "meta") or "")["total_run_count"]
            assert len(runs) == count, f"{name}: a run was lost, or sent and not recorded"


def test_a_leader_that_only_waits_keeps_a_lock_of_one_second(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_lock_timeout=1)
    with server.client(db=1) as client, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        token = client.get(LOCK)
        renewals, before = 0, client.pttl(LOCK)

        def has_renewed_often() -> bool:
            nonlocal renewals, before
            assert client.get(LOCK) in (token, None), (
                "a busy machine may let it run out, but it is taken back"
            )
            left = client.pttl(LOCK)
            renewals, before = renewals + (left > before), left
            return renewals >= 20

        eventually(has_renewed_often, 60, retry_on=())
        assert beat.is_running
        assert "has done nothing for" not in beat.output()


def test_a_killed_leader_of_a_short_lock_is_followed_as_soon_as_it_has_run_out(
    server: Server, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_lock_timeout=1)
    with server.client(db=1) as client, celery_beat(tmp_path, "module") as first:
        first.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as second:
            second.wait_for("beat: Acquiring lock...")
            leader = eventually(lambda: leader_of([first, second], client))
            [standby] = [beat for beat in (first, second) if beat is not leader]
            leader.kill()
            killed = time.monotonic()
            eventually(lambda: leader_of([standby], client), 30)
            print(f"taken over {time.monotonic() - killed:.2f} s after the kill")


@pytest.mark.parametrize("seconds", [0.99, 0.001, -1])
def test_less_than_a_second_is_refused_in_a_sentence(server: Server, seconds: float) -> None:
    app = memory_app(redbeat_redis_url=server.url(1), redbeat_lock_timeout=seconds)
    with pytest.raises(
        ConfigurationError, match=r"redbeat_lock_timeout: .* use a number of seconds, 1 or more"
    ):
        RedBeatScheduler(app)
