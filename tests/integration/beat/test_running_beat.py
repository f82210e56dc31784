"""A real `celery beat` that runs: how soon it notices changes, what it costs, and what it survives."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import celery.beat
import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import STOP_SECONDS, celery_beat, celery_worker, runs, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    STATICS,
    messages,
    monitoring,
    score_of,
    sent_names,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import memory_app

HOUR = timedelta(hours=1)
OFTEN = {"often": {"task": "echo", "schedule": 0.2}}


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


def test_waiting_beat_sends_new_entries_in_time_and_two_commands_a_second(
    beat: Process, server: Server, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    seconds = []
    for number in range(10):
        due = datetime.now(timezone.utc) - HOUR
        Entry(f"entry-{number}", "echo", HOUR, last_run_at=due, app=app).save()
        seconds.append(seconds_until_sent(broker, f"entry-{number}"))
    assert sorted(seconds)[7] <= patience(0.25), "two of ten may meet a busy machine"
    raw_seconds = []
    for name in ("raw-0", "raw-1", "raw-2"):
        write_raw(client, name)
        raw_seconds.append(seconds_until_sent(broker, name))
    assert sorted(raw_seconds)[1] <= patience(1.2), "one of three may meet a busy machine"

    def is_quiet() -> bool:
        began = time.monotonic()
        with monitoring(server) as commands:
            eventually(lambda: time.monotonic() > began + 2)
        return len(commands) <= 2 * (time.monotonic() - began) + 1  # one may be at each end

    eventually(is_quiet)  # it connects once for each of its threads before
    assert beat.is_running


#: a beat whose last tick is older keeps silent; seconds
MAX_TICK_AGE = 3.0


NODES = {"celerybeat@first", "celerybeat@second"}


def answering(app: Celery) -> set[str]:
    """The beats that answer a ping, asked by a new connection."""
    with app.connection_for_write() as connection:
        asked = app.control.inspect(
            destination=sorted(NODES), timeout=patience(5), limit=len(NODES), connection=connection
        )
        return set(asked.ping() or ())


@pytest.mark.slow
@ANSWERS_PINGS
def test_leader_and_standby_answer_pings(server: Server, tmp_path: Path, make_app: MakeApp) -> None:
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
            began = time.monotonic()
            eventually(lambda: answering(app) == NODES)
            eventually(lambda: time.monotonic() > began + 2 * MAX_TICK_AGE)
            assert answering(app) == NODES, "nothing was due, and they were idle for so long"


#: the application talks to Redis before the worker forks, as many do
SAVES_AT_IMPORT = """
from redbeat import RedBeatSchedulerEntry
RedBeatSchedulerEntry("at-import", "echo", 0.3, app=app).save()
"""


@pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "1"]], ids=lambda pool: pool[1])
def test_worker_with_b_runs_entries(server: Server, tmp_path: Path, pool: list[str]) -> None:
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
        # a pool takes 30 s to stop where the result of a task is on its way
        client.zrem(SCHEDULE, "redbeat:static", "redbeat:at-import")
        eventually(lambda: noted.llen("celery") == 0)
        assert worker.stop(STOP_SECONDS) == 0
        assert not has_traceback(worker.output())
        eventually(lambda: client.get(LOCK) is None, message="the lock was not released")


#: every helper that beat can do without raises, and no thread of RedBeat's starts at its first try
BROKEN_HELPERS = """
import threading
from redbeat.leadership import membership
from redbeat.scheduler import feed
from redbeat.telemetry import gathering

def broken(*args, **kwargs):
    raise IndexError("broken")

redis.client.PubSub.get_message = redis.client.PubSub.reset = broken
membership.leave_beats = broken
gathering.read_labels = gathering.take_figures = feed.read_events = broken
start, begun = threading.Thread.start, []

def starting(thread):
    if thread.name.startswith("redbeat-") and thread.name not in begun:
        begun.append(thread.name)
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = starting
"""


def test_beat_whose_optional_helpers_raise_keeps_its_lock_and_hands_it_over(
    server: Server, broker: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_http": "127.0.0.1:0", "redbeat_lock_timeout": 3}
    write_app(tmp_path, "module", server.url(0), extra=BROKEN_HELPERS, beat_schedule=OFTEN, **settings)
    with celery_beat(tmp_path, "module") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as standby:
            standby.wait_for("beat: Acquiring lock...")
            sent = len(messages(broker))
            eventually(lambda: len(messages(broker)) > sent + 20)  # for longer than the lock lives
            assert "beat: Acquired lock" not in standby.output()
            assert leader.stop() == 0
            standby.wait_for("Sending due task often")
        assert standby.returncode == 0
        assert "raised exception" not in leader.output() + standby.output()


# -- a Redis that is away, full, or comes back empty


@pytest.mark.parametrize("options", [{"retry_period": -1}, {}], ids=["waits", "does not wait"])
def test_full_redis_is_waited_out_and_no_run_is_doubled(
    second: Server, valkey: Server, tmp_path: Path, options: dict[str, int]
) -> None:
    settings = {"redbeat_redis_url": second.url(1), "redbeat_redis_options": options, "beat_schedule": OFTEN}
    write_app(tmp_path, "module", valkey.url(0), **settings)
    with celery_beat(tmp_path, "module") as beat, second.client(db=1) as client, valkey.client() as broker:
        beat.wait_for("Sending due task often")
        client.config_set("maxmemory", 1)
        beat.wait_for(re.compile("OOM|maxmemory"))
        sent = len(messages(broker))
        client.config_set("maxmemory", 0)
        eventually(lambda: len(messages(broker)) >= sent + 5)
        assert beat.is_running
        dues = [message["headers"]["redbeat_due"] for message in messages(broker)]
        assert len(dues) == len(set(dues))


#: a receiver that records what was lost
RECORDS = """
from redbeat import RedBeatSchedulerEntry
from redbeat.signals import schedule_lost


@schedule_lost.connect
def record(sender, shards, **kwargs):
    runs_client().rpush("lost", json.dumps(shards))
"""


#: and restores what was dynamic
RESTORES = f"""{RECORDS}
    RedBeatSchedulerEntry("restored", "echo", 0.5, app=sender).save()
"""


STATIC = {"static": {"task": "echo", "schedule": 3600}}


LOST = "beat: Redis has lost the schedule"


@pytest.fixture
def schedule_server() -> Any:
    """A server of its own for the schedule, which keeps nothing on disk."""
    with Server() as server:
        yield server


@pytest.mark.parametrize(
    ("loss", "statics"),
    [
        ("FLUSHALL", {}),
        ("FLUSHALL and a save", STATIC),
        pytest.param("restart", STATIC, marks=pytest.mark.slow),
    ],
)
def test_lost_schedule_is_reported_once_and_what_a_receiver_restores_runs(
    valkey: Server, schedule_server: Server, tmp_path: Path, loss: str, statics: dict[str, Any]
) -> None:
    options = {"redbeat_redis_url": schedule_server.url(0), "redbeat_redis_options": {"retry_period": -1}}
    write_app(tmp_path, "module", valkey.url(0), extra=RESTORES, beat_schedule=statics, **options)
    app = memory_app(**options)
    Entry("dynamic", "echo", 0.5, app=app).save()
    with valkey.client() as broker, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        eventually(lambda: broker.llen("celery"))
        if loss == "restart":
            schedule_server.kill()
            schedule_server.restart()
        else:
            schedule_server.flush()
        if loss == "FLUSHALL and a save":
            Entry("another", "echo", 3600, app=app).save()
        eventually(lambda: broker.llen("lost") == 1)
        sent = int(broker.llen("celery"))  # type: ignore[arg-type]
        eventually(lambda: int(broker.llen("celery")) > sent + 1)  # type: ignore[arg-type]
        assert broker.lrange("lost", 0, -1) == ["[]"]
        if statics:
            assert schedule_server.client().exists("redbeat:static")
    assert beat.returncode == 0
    assert beat.output().count(LOST) == 1


@pytest.mark.slow  # two real beats, and a takeover
@pytest.mark.parametrize(("loss", "shards"), [("FLUSHALL", None), ("restart", 3)])
def test_standby_that_takes_over_after_a_loss_reports_it(
    valkey: Server, schedule_server: Server, tmp_path: Path, loss: str, shards: int | None
) -> None:
    options: dict[str, Any] = {
        "redbeat_redis_url": schedule_server.url(0),
        "redbeat_redis_options": {"retry_period": -1},
        "redbeat_shards": shards,
    }
    write_app(tmp_path, "module", valkey.url(0), extra=RECORDS, **options)
    app = memory_app(**options)
    Entry.save_many([Entry(f"dynamic-{number}", "echo", 1, app=app) for number in range(20)])
    with (
        valkey.client() as broker,
        schedule_server.client() as client,
        celery_beat(tmp_path, "module") as leader,
    ):

        def lost() -> list[int]:
            """Numbers of the shards that receivers were told; -1 for an unsharded schedule."""
            return sorted(
                number for text in broker.lrange("lost", 0, -1) for number in json.loads(text) or [-1]
            )

        leader.wait_for("beat: Acquired")
        with celery_beat(tmp_path, "module") as standby:
            # it has looked at the leader's locks then, and led a shard long enough to know its entries
            eventually(
                lambda: (
                    "Sending due task" in standby.output() if shards else client.zcard("redbeat::beats") > 1
                )
            )
            if loss == "restart":
                leader.kill()
                schedule_server.kill()
                schedule_server.restart()
            else:
                leader.signal(signal.SIGSTOP)
                schedule_server.flush()
            try:
                eventually(lambda: lost() == (list(range(shards)) if shards else [-1]))
            finally:
                if loss == "FLUSHALL":
                    leader.signal(signal.SIGCONT)
            if loss == "FLUSHALL":
                leader.wait_for("Another beat holds the lock")
                assert LOST not in leader.output()


def wait_for_commands(client: Any, seconds: float) -> None:
    """Wait for some seconds and until beat has sent scripts since then, however slow the machine is."""

    def count() -> int:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    ends_at = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > ends_at)
    calls = count()
    eventually(lambda: count() > calls + 1)


@pytest.mark.slow  # beat looks for a loss some seconds after each change
def test_deleted_entries_and_a_deleted_lock_are_not_a_loss(
    valkey: Server, schedule_server: Server, tmp_path: Path
) -> None:
    url = schedule_server.url(0)
    write_app(tmp_path, "module", valkey.url(0), extra=RECORDS, redbeat_redis_url=url)
    entry = Entry("only", "echo", 0.5, app=memory_app(redbeat_redis_url=url))
    with (
        schedule_server.client() as client,
        valkey.client() as broker,
        celery_beat(tmp_path, "module") as beat,
    ):
        for has_entries in (True, False):
            if has_entries:
                entry.save()
                eventually(lambda: broker.llen("celery"))
            else:
                entry.delete()
            beat.wait_for("beat: Acquired lock")
            # entries that go less than NOTICED_SECONDS before the lock count as lost with it
            wait_for_commands(client, 3)
            client.delete(LOCK)
            eventually(lambda: client.get(LOCK))
            wait_for_commands(client, 3)
        assert beat.is_running
        assert broker.llen("lost") == 0
    assert LOST not in beat.output()


# -- many due runs


IS_LONG = os.environ.get("REDBEAT_FAULTS") == "long"


DUE_RUNS = 100_000 if IS_LONG else 20_000


FEW_RUNS = 2_000


SHORT_LOCK_SECONDS = 5


def peak_mb(beat: Process) -> float:
    """The most memory that the process has had so far."""
    status = Path(f"/proc/{beat.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@pytest.mark.slow  # twenty thousand runs
def test_backlog_drains_in_order_with_bounded_memory_under_one_lock(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_lock_timeout": SHORT_LOCK_SECONDS, "redbeat_message_cache_bytes": 1_000_000}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    peaks: dict[int, float] = {}
    for count in (FEW_RUNS, DUE_RUNS):
        server.flush()
        names = write_burst(client, count)
        # due again all the time
        write_raw(client, "often", score=0.5, schedule={"__type__": "interval", "every": 0.2})
        holders, shortest_ms = set[str](), SHORT_LOCK_SECONDS * 1000
        with celery_beat(tmp_path, "module") as beat:
            eventually(lambda: broker.llen("celery"))
            ends_at = time.monotonic() + patience(20 + count / 500)
            while client.zcount(SCHEDULE, 0, 1e9):  # whatever else has become due
                holders.add(client.get(LOCK))
                shortest_ms = min(shortest_ms, client.pttl(LOCK))
                assert time.monotonic() < ends_at, beat.output()[-2000:]
            peaks[count] = peak_mb(beat)
            assert beat.stop() == 0
        print(f"{count} due runs: {peaks[count]:.1f} MB; of the lock's time {shortest_ms} ms were left")
        assert len(holders) == 1
        assert shortest_ms > 500
        sent = sent_names(broker)
        assert [name for name in sent if name != "often"] == names
        assert sent.count("often") > 1
    assert peaks[DUE_RUNS] - peaks[FEW_RUNS] < 8
