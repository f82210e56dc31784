"""Real beats that share one schedule: one leads, the others stand by, and the lock says who."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
import redis

from redbeat.errors import ConfigurationError
from redbeat.keys import Keys
from redbeat.leadership.status import Standby, read_status
from redbeat.schedulers import RedBeatScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, STATICS, messages, sent_names, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app

STANDBYS = Keys().standbys
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
            [standby] = told_standbys(server)
            assert standby.pid == second.pid
            assert 0 < client.pttl(STANDBYS) <= 15_000

            began = time.monotonic()
            assert first.stop() == 0
            ended = time.monotonic()
            second.wait_for("beat: Acquired lock")
            taken = time.monotonic()
            second.wait_for("Sending due task often")
            print(f"the first ended in {ended - began:.2f} s, taken over {taken - ended:.2f} s later")
            assert "beat: Releasing lock" in first.output()
            assert client.get(LOCK) not in (None, token)
            assert not client.exists(STANDBYS), "who leads doesn't stand by"


def told_standbys(server: Server) -> list[Standby]:
    return list(read_status(memory_app(redbeat_redis_url=server.url(1))).standbys or ())


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
            eventually(lambda: client.exists(STANDBYS))
            assert standby.stop() == 0
        assert client.get(LOCK) == "somebody"
        assert not client.exists(STANDBYS)
        assert (client.zcard(SCHEDULE), client.scard(STATICS)) == (0, 0)


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


# -- a lock of one second: all that is done in time for it is done four times as often


NAMES = [f"entry-{number}" for number in range(5)]
EVERY = 0.5


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
