"""Redis loses its data while beats run: one of them reports it, and none where users have deleted entries."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.ticks import memory_app

#: a receiver that restores what was dynamic
RESTORES = """
from redbeat import RedBeatSchedulerEntry
from redbeat.signals import schedule_lost


@schedule_lost.connect
def restore(sender, shards, **kwargs):
    runs_client().rpush("lost", json.dumps(shards))
    RedBeatSchedulerEntry("restored", "echo", 0.5, app=sender).save()
"""

#: a receiver that restores nothing
RECORDS = """
from redbeat.signals import schedule_lost


@schedule_lost.connect
def record(sender, shards, **kwargs):
    runs_client().rpush("lost", json.dumps(shards))
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
        ("FLUSHALL", STATIC),
        ("FLUSHALL and a save", STATIC),
        ("restart", {}),
        ("restart", STATIC),
    ],
)
def test_a_loss_is_told_once_and_what_a_receiver_restores_runs(
    valkey: Server, schedule_server: Server, tmp_path: Path, loss: str, statics: dict[str, Any]
) -> None:
    options = {"redbeat_redis_url": schedule_server.url(0), "redbeat_redis_options": {"retry_period": -1}}
    write_app(tmp_path, "module", valkey.url(0), extra=RESTORES, beat_schedule=statics, **options)
    app = memory_app(**options)
    RedBeatSchedulerEntry("dynamic", "echo", 0.5, app=app).save()
    with valkey.client() as broker, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        eventually(lambda: broker.llen("celery"))
        if loss == "restart":
            schedule_server.kill()
            schedule_server.restart()
        else:
            schedule_server.flush()
        if loss == "FLUSHALL and a save":
            RedBeatSchedulerEntry("another", "echo", 3600, app=app).save()
        eventually(lambda: broker.llen("lost") == 1)
        sent = int(broker.llen("celery"))  # type: ignore[arg-type]
        eventually(lambda: int(broker.llen("celery")) > sent + 1)  # type: ignore[arg-type]
        assert broker.lrange("lost", 0, -1) == ["[]"]
        if statics:
            assert schedule_server.client().exists("redbeat:static")
    assert beat.returncode == 0
    assert beat.output().count(LOST) == 1


@pytest.mark.parametrize(
    ("setting", "ends"),
    [({}, False), ({"redbeat_lock_lost": "standby"}, False), ({"redbeat_lock_lost": "exit"}, True)],
)
def test_an_explicit_exit_ends_beat_after_its_receivers_were_told(
    valkey: Server, schedule_server: Server, tmp_path: Path, setting: dict[str, str], ends: bool
) -> None:
    url = schedule_server.url(0)
    write_app(
        tmp_path,
        "module",
        valkey.url(0),
        extra=RESTORES,
        beat_schedule=STATIC,
        redbeat_redis_url=url,
        **setting,
    )
    with valkey.client() as broker, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        eventually(lambda: schedule_server.client().smembers("redbeat::statics"))
        schedule_server.flush()
        beat.wait_for(LOST)
        eventually(lambda: broker.llen("lost") == 1)
        if ends:
            assert beat.wait() != 0
            assert "redbeat_lock_lost = 'exit' ends this beat" in beat.output()
        else:
            eventually(lambda: int(broker.llen("celery")) > 1)  # type: ignore[arg-type]
            assert beat.is_running


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("is_exit_wanted", [False, True])
@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("loss", ["FLUSHALL", "restart"])
@pytest.mark.parametrize("statics", [{}, STATIC])
def test_standby_that_takes_over_after_a_loss_reports_it(
    valkey: Server,
    schedule_server: Server,
    tmp_path: Path,
    statics: dict[str, Any],
    loss: str,
    shards: int,
    is_exit_wanted: bool,
) -> None:
    options: dict[str, Any] = {
        "redbeat_redis_url": schedule_server.url(0),
        "redbeat_redis_options": {"retry_period": -1},
    }
    if shards:
        options["redbeat_shards"] = shards
    if is_exit_wanted:
        options["redbeat_lock_lost"] = "exit"
    write_app(tmp_path, "module", valkey.url(0), extra=RECORDS, beat_schedule=statics, **options)
    for number in range(20):
        RedBeatSchedulerEntry(f"dynamic-{number}", "echo", 1, app=memory_app(**options)).save()
    with (
        valkey.client() as broker,
        schedule_server.client() as client,
        celery_beat(tmp_path, "module") as leader,
    ):
        leader.wait_for("beat: Acquired")
        with celery_beat(tmp_path, "module") as standby:
            # it has looked at the leader's locks then, and led a shard long enough to know its entries
            eventually(
                lambda: (
                    "Sending due task" in standby.output() if shards else client.exists("redbeat::standbys")
                )
            )
            if loss == "restart":
                leader.kill()
                schedule_server.kill()
                schedule_server.restart()
            else:
                os.kill(leader.pid, signal.SIGSTOP)
                schedule_server.flush()
            try:
                standby.wait_for("beat: Redis has lost")
                if is_exit_wanted:
                    assert standby.wait() != 0
                    assert "redbeat_lock_lost = 'exit' ends this beat" in standby.output()
                else:
                    eventually(lambda: len(lost_shards(broker)) == (shards or 1))
                    assert sorted(lost_shards(broker)) == (list(range(shards)) or [None])
                    eventually(lambda: bool(statics) == bool(client.keys("*:static")))
            finally:
                if loss != "restart":
                    os.kill(leader.pid, signal.SIGCONT)
            if not is_exit_wanted and loss != "restart":
                leader.wait_for("Another beat holds the lock")
                assert "beat: Redis has lost" not in leader.output()


def lost_shards(broker: redis.Redis) -> list[int | None]:
    """What the receivers were told: the numbers of the shards; None for an unsharded schedule."""
    return [number for text in broker.lrange("lost", 0, -1) for number in json.loads(text) or [None]]


def test_entries_that_users_delete_and_a_lock_that_somebody_deletes_are_no_loss(
    valkey: Server, schedule_server: Server, tmp_path: Path
) -> None:
    url = schedule_server.url(0)
    write_app(tmp_path, "module", valkey.url(0), extra=RESTORES, redbeat_redis_url=url)
    app = memory_app(redbeat_redis_url=url)
    with (
        schedule_server.client() as client,
        valkey.client() as broker,
        celery_beat(tmp_path, "module") as beat,
    ):
        beat.wait_for("beat: Acquired lock")
        for _ in range(2):
            RedBeatSchedulerEntry("first", "echo", 0.5, app=app).save()
            RedBeatSchedulerEntry("second", "echo", 3600, app=app).save()
            sent = int(broker.llen("celery"))  # type: ignore[arg-type]
            eventually(lambda: int(broker.llen("celery")) > sent)  # type: ignore[arg-type]  # noqa: B023
            client.delete("redbeat::lock")
            eventually(lambda: client.get("redbeat::lock"))
            sent = int(broker.llen("celery"))  # type: ignore[arg-type]
            eventually(lambda: int(broker.llen("celery")) > sent + 1)  # type: ignore[arg-type]  # noqa: B023
            for name in ("first", "second"):
                RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).delete()
            ends_at = time.monotonic() + 3
            eventually(lambda: time.monotonic() > ends_at)  # noqa: B023
            client.delete("redbeat::lock")
            eventually(lambda: client.get("redbeat::lock"))
            ends_at = time.monotonic() + 3
            eventually(lambda: time.monotonic() > ends_at)  # noqa: B023
        assert beat.is_running
        assert broker.llen("lost") == 0
    assert "has lost" not in beat.output()
