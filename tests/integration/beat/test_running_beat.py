"""A real `celery beat` that runs: how soon it notices what changes, and what its waiting costs."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import celery.beat
import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.connection import get_redis
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.support.apps import STOP_SECONDS, celery_beat, celery_command, celery_worker, runs, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    STATICS,
    Seen,
    messages,
    monitored,
    monitoring,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    server_time,
    write_raw,
)
from tests.support.scripts import SCRIPTS
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.ticks import memory_app

HOUR = timedelta(hours=1)
ANSWERS_PINGS = pytest.mark.skipif(
    not hasattr(celery.beat, "BeatPidbox"), reason="this Celery's beat answers no ping"
)


@pytest.fixture
def beat(server: Server, tmp_path: Path) -> Iterator[Process]:
    """A beat with default settings that has nothing to do but wait."""
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    with celery_beat(tmp_path, "module") as process, server.client(db=1) as client:
        write_raw(client, "far", score=4e9)
        process.wait_for("beat: Acquired lock")
        write_raw(client, "first")
        with server.client() as broker:
            eventually(lambda: sent_names(broker) == ["first"])
            broker.delete("celery")
        eventually(lambda: score_of(client, "first"), message="its run was not recorded")
        yield process


def seconds_until_sent(broker: redis.Redis, name: str) -> float:
    began = time.perf_counter()
    eventually(lambda: name in sent_names(broker), interval=0.002)
    return time.perf_counter() - began


def summary(seconds: list[float]) -> str:
    return ", ".join(f"{value * 1000:.0f}" for value in sorted(seconds)) + " ms"


def test_a_saved_entry_that_is_due_is_on_its_queue_within_250_ms(
    beat: Process, server: Server, app: Celery, broker: redis.Redis
) -> None:
    seconds = []
    with monitored(server) as commands:
        for number in range(10):
            due = datetime.now(timezone.utc) - HOUR
            Entry(f"entry-{number}", "echo", HOUR, last_run_at=due, app=app).save()
            seconds.append(seconds_until_sent(broker, f"entry-{number}"))
    print(f"save() to queue: {summary(seconds)}")
    assert woken(commands) >= 8, "two of ten may meet a look that was on its way"
    assert sorted(seconds)[7] <= patience(0.25), "two of ten may meet a busy machine"
    assert beat.is_running


def woken(commands: list[Seen]) -> int:
    """How often a wake-up was followed by a claim, before any look that beat has once a second."""
    claim = f"EVALSHA {SCRIPTS['claim_due'].sha1}"
    told = re.compile(rf"(PUBLISH redbeat::wake)|({claim})|(ZRANGEBYSCORE)", re.IGNORECASE)
    steps = [found.lastindex for seen in commands if (found := told.match(seen.command))]
    return sum(pair == (1, 2) for pair in pairwise(steps))


def test_a_raw_zadd_is_on_its_queue_within_1_2_s(
    beat: Process, client: redis.Redis, broker: redis.Redis
) -> None:
    seconds = []
    for number in range(3):
        time.sleep(0.3 * number)  # at different points of the beat's second
        write_raw(client, f"entry-{number}", score=server_now(client))
        seconds.append(seconds_until_sent(broker, f"entry-{number}"))
    print(f"raw zadd to queue: {summary(seconds)}")
    assert sorted(seconds)[1] <= patience(1.2), "one of three may meet a busy machine"
    assert beat.is_running


def test_a_run_goes_out_when_it_is_due_and_not_before(
    beat: Process, client: redis.Redis, broker: redis.Redis
) -> None:
    due = server_now(client) + 1.5
    write_raw(client, "soon", score=due)
    eventually(lambda: sent_names(broker) == ["soon"], interval=0.002)
    lateness = server_now(client) - due
    print(f"sent {lateness * 1000:.0f} ms after it was due")
    assert 0 <= lateness < patience(1)
    assert beat.is_running


def test_changes_and_deletion_count_from_the_next_run(
    beat: Process, client: redis.Redis, broker: redis.Redis, app: Celery
) -> None:
    fast: dict[str, Any] = {"schedule": {"__type__": "interval", "every": 0.2}, "score": server_now(client)}
    for name in ("changed", "deleted", "witness"):
        write_raw(client, name, args=["old"], **fast)
    eventually(lambda: {"changed", "deleted", "witness"} <= set(sent_names(broker)))

    write_raw(client, "changed", args=["new"], **{**fast, "score": None})
    before = sent_names(broker).count("changed")
    eventually(lambda: sent_names(broker).count("changed") >= before + 3)
    changed = [body_args(run) for run in messages(broker) if run["headers"]["redbeat_entry"] == "changed"]
    assert changed[before + 1 :] == [["new"]] * len(changed[before + 1 :]), "one may have been on its way"

    Entry.from_key("redbeat:deleted", app=app).delete()
    before = sent_names(broker).count("deleted")
    seen = sent_names(broker).count("witness")
    eventually(lambda: sent_names(broker).count("witness") >= seen + 4)
    assert sent_names(broker).count("deleted") <= before + 1, "one may have been on its way"
    assert client.keys("redbeat:deleted") == []
    assert client.zscore(SCHEDULE, "redbeat:deleted") is None


def body_args(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))[0]


def calls(client: redis.Redis, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def looks_at_the_lock(client: redis.Redis) -> int:
    return calls(client, "pttl")


def is_only_waiting(client: redis.Redis) -> bool:
    """Whether the leader looked at the schedule and at deadlines twice without storing anything."""
    stored, looks = calls(client, "zadd"), calls(client, "zrangebyscore")
    eventually(lambda: calls(client, "zrangebyscore") >= looks + 4)
    return calls(client, "zadd") == stored


def test_waiting_costs_under_two_commands_a_second(
    beat: Process, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    window = 4.0

    def commands_per_second() -> float:
        with Stopwatch() as watch, monitoring(server) as commands:
            time.sleep(window)
        return len(commands) / watch.seconds

    eventually(lambda: client.hexists(NAMES.totals, ":led"), message="it takes no figures")
    eventually(lambda: is_only_waiting(client), message="its start is not over")
    leader = commands_per_second()
    with celery_beat(tmp_path, "module") as standby:
        standby.wait_for("beat: Acquiring lock...")
        looks = looks_at_the_lock(client)
        eventually(lambda: looks_at_the_lock(client) >= looks + 2, message="its start is not over")
        both = commands_per_second()
    print(f"commands a second: leader {leader:.2f}, standby {both - leader:.2f}")
    assert leader < 2
    assert both - leader < 2
    assert beat.is_running


def test_a_pause_ends_at_its_time_whoever_has_written_it(
    beat: Process, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    often = {"__type__": "interval", "every": 0.5}
    Entry("python", "echo", 0.5, app=app).save()
    write_raw(client, "raw", schedule=often)
    eventually(lambda: {"python", "raw"} <= set(sent_names(broker)))
    until = server_time(client) + timedelta(seconds=4)
    Entry.get("python", app).pause("repairs", until=until)
    client.hset("redbeat:raw", "policy", json.dumps({"paused": True, "paused_until": until.isoformat()}))
    write_raw(client, "raw", schedule=often, enabled=False, score=None)
    paused_at = server_time(client)

    def dues_of(name: str) -> list[datetime]:
        return [due for due in sent_dues(broker, name) if due > paused_at + timedelta(seconds=1)]

    # it was a minute once
    eventually(lambda: len(dues_of("python")) > 1 and len(dues_of("raw")) > 1, timeout=30)
    for name in ("python", "raw"):
        assert timedelta() <= dues_of(name)[0] - until < timedelta(seconds=0.5), name
    assert beat.is_running


# -- one that stood still as a whole, and goes on


LOCK_SECONDS = 5

#: in steps: a sleep goes on through a pause, and this has most of its way to go when the pause is over
SLOW = """
from celery.signals import before_task_publish

@before_task_publish.connect
def take_a_while(**kwargs):
    print("the handler begins")
    for _ in range(80):
        time.sleep(0.01)
"""


def test_a_beat_that_was_paused_does_not_say_that_its_scheduler_hangs(server: Server, tmp_path: Path) -> None:
    settings = {
        "beat_schedule": {"often": {"task": "echo", "schedule": 0.2}},
        "redbeat_lock_timeout": LOCK_SECONDS,
    }
    write_app(tmp_path, "module", server.url(0), extra=SLOW, redbeat_redis_url=server.url(1), **settings)
    with server.client(db=1) as client, server.client() as broker, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("the handler begins")
        token = client.get(LOCK)
        beat.signal(signal.SIGSTOP)
        time.sleep(LOCK_SECONDS + 1.5)  # what this test is about
        assert client.get(LOCK) is None
        sent = broker.llen("celery")
        beat.signal(signal.SIGCONT)
        eventually(lambda: client.get(LOCK) == token)
        eventually(lambda: broker.llen("celery") > sent + 3, message="it didn't go on")
        assert "has done nothing for" not in beat.output()
        assert client.get(LOCK) == token


# -- pings reach the leader and the standby


#: a beat whose last tick is older keeps silent; seconds
MAX_TICK_AGE = 6.0

NODES = {"celerybeat@first", "celerybeat@second"}


def answering(app: Celery, timeout: float = 5.0) -> set[str]:
    """The beats that answer a ping within so many seconds, on a quiet machine; asked by a new connection."""
    with app.connection_for_write() as connection:
        asked = app.control.inspect(
            destination=sorted(NODES), timeout=patience(timeout), limit=len(NODES), connection=connection
        )
        return set(asked.ping() or ())


@ANSWERS_PINGS
def test_leader_and_standby_answer_pings_while_nothing_is_due(
    server: Server, tmp_path: Path, make_app: MakeApp
) -> None:
    settings = {
        "redbeat_redis_url": server.url(1),
        "beat_enable_remote_control": True,
        "beat_remote_control_max_tick_age": MAX_TICK_AGE,
    }
    write_app(tmp_path, "module", server.url(0), **settings)
    app = make_app()
    with celery_beat(tmp_path, "module", "--hostname", "celerybeat@first") as first:
        first.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module", "--hostname", "celerybeat@second") as second:
            second.wait_for("Standing by")
            eventually(lambda: answering(app) == NODES)
            end = time.monotonic() + 2 * MAX_TICK_AGE
            while time.monotonic() < end:
                assert answering(app) == NODES, first.output() + second.output()
                time.sleep(0.5)  # to ask now and then, not to wait for something
            assert "Sending due task" not in first.output(), "nothing was due all the time"

            ping = ["inspect", "--timeout", "20", "--destination", "celerybeat@first", "ping"]
            with celery_command(tmp_path, "module", *ping) as process:
                assert process.wait(60) == 0, process.output()
                assert "pong" in process.output()
            in_vain = ["inspect", "--timeout", "1", "--destination", "celerybeat@third", "ping"]
            with celery_command(tmp_path, "module", *in_vain) as process:
                assert process.wait(60) == os.EX_UNAVAILABLE, process.output()


@ANSWERS_PINGS
def test_a_beat_that_hangs_answers_no_ping(server: Server, tmp_path: Path, make_app: MakeApp) -> None:
    settings = {
        "redbeat_redis_url": server.url(1),
        "beat_enable_remote_control": True,
        "beat_remote_control_max_tick_age": MAX_TICK_AGE,
        "beat_schedule": {"often": {"task": "echo", "schedule": 1.0}},
    }
    hanging = """
import os, time
from celery.signals import before_task_publish

@before_task_publish.connect
def hang(**kwargs):
    if os.path.exists("hang"):
        time.sleep(3600)
"""
    write_app(tmp_path, "module", server.url(0), extra=hanging, **settings)
    app = make_app()
    with celery_beat(tmp_path, "module", "--hostname", "celerybeat@first") as beat:
        beat.wait_for("Sending due task")
        eventually(lambda: answering(app, timeout=1.0) == {"celerybeat@first"})
        (tmp_path / "hang").touch()
        eventually(lambda: answering(app, timeout=1.0) == set())
        beat.kill()


# -- celery worker -B: beat inside a worker, in a process of its own


#: the application talks to Redis before the worker forks, as many do
SAVES_AT_IMPORT = """
from redbeat import RedBeatSchedulerEntry
RedBeatSchedulerEntry("at-import", "echo", 0.3, app=app).save()
"""


@pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "1"]], ids=lambda pool: pool[1])
def test_a_worker_with_b_runs_entries(server: Server, tmp_path: Path, pool: list[str]) -> None:
    write_app(
        tmp_path,
        "module",
        server.url(0),
        extra=SAVES_AT_IMPORT,
        redbeat_redis_url=server.url(1),
        beat_schedule={"static": {"task": "echo", "schedule": 0.3, "args": ("static",)}},
    )
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(tmp_path / "none"), *pool]
    with (
        server.client(db=1) as client,
        server.client() as noted,
        celery_worker(tmp_path, "module", *arguments) as worker,
    ):
        eventually(lambda: {run.headers["redbeat_entry"] for run in runs(noted)} == {"static", "at-import"})
        write_raw(client, "raw")
        eventually(lambda: "raw" in {run.headers["redbeat_entry"] for run in runs(noted)})
        assert client.smembers(STATICS) == {"static"}
        assert client.get(LOCK)
        assert worker.stop(STOP_SECONDS) == 0
        assert not has_traceback(worker.output())
        eventually(lambda: client.get(LOCK) is None, message="the lock was not released")


def test_a_forked_process_gets_a_client_of_its_own_unless_one_was_injected(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    inherited = get_redis(app)
    injected = memory_app(redbeat_redis_url=valkey.url(1))
    injected.redbeat_redis = valkey.client(db=1)

    def check() -> None:
        assert get_redis(app) is not inherited
        assert get_redis(app) is get_redis(app)
        assert get_redis(injected) is injected.redbeat_redis
        assert get_redis(app).ping()

    assert run_child(check) == 0
    assert get_redis(app) is inherited
