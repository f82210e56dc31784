"""What a real beat's log says when something is not as it should be: one line each, with the name in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, STATICS, messages, sent_names
from tests.support.servers import Server

STATIC = {"often": {"task": "echo", "schedule": 0.2}, "hourly": {"task": "echo", "schedule": 3600}}


def write(tmp_path: Path, broker: Server, store: Server, **settings: Any) -> None:
    defaults = {"redbeat_redis_url": store.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", broker.url(0), **{**defaults, **settings})


def test_an_unknown_setting_is_one_warning_with_the_nearest_name(valkey: Server, tmp_path: Path) -> None:
    write(tmp_path, valkey, valkey, redbeat_lock_timout=60)
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task often")
        lines = [line for line in beat.output().splitlines() if "redbeat_lock_timout" in line]
        assert len(lines) == 1, lines
        assert "WARNING" in lines[0]
        assert "did you mean redbeat_lock_timeout?" in lines[0]


def test_without_redis_the_critical_line_says_why_and_no_cause_follows(
    second: Server, tmp_path: Path
) -> None:
    write(tmp_path, second, second)
    second.kill()
    with celery_beat(tmp_path, "module") as beat:
        assert beat.wait() not in (0, None)
        critical = [line for line in beat.output().splitlines() if "CRITICAL" in line]
        assert critical
        assert f"Redis at {second.url(1)} can't be used" in critical[0]
        # what else is printed is Celery's own traceback; redis-py's three would come on top of it
        assert "redis/connection.py" not in beat.output()


@ONE_SERVER
def test_a_standby_says_who_it_is_standing_by_for(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write(tmp_path, server, server)
    with celery_beat(tmp_path, "module") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as standby:
            said = standby.wait_for(re.compile(r"beat: Standing by: (\S+) holds (\S+), which ends in \d+ s"))
            assert said.groups() == (client.get(LOCK), LOCK)
            assert f":{leader.pid}:" in said[1]
        assert "Standing by" not in leader.output()


@ONE_SERVER
@pytest.mark.parametrize("schedule", [STATIC, {"hourly": STATIC["hourly"]}], ids=["busy", "idle"])
def test_statics_come_back_and_run_after_a_flush(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, schedule: dict[str, Any]
) -> None:
    write(tmp_path, server, server, beat_schedule=schedule, redbeat_lock_timeout=6)
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: client.scard(STATICS) == len(schedule))
        if "often" in schedule:
            beat.wait_for("Sending due task often")
        token = client.get(LOCK)
        client.flushall()
        eventually(lambda: client.scard(STATICS) == client.zcard(SCHEDULE) == len(schedule))
        assert client.get(LOCK) == token
        if "often" in schedule:
            eventually(lambda: "often" in sent_names(broker))
        assert beat.output().count("was gone and is taken back") <= 2


def test_a_full_memory_is_waited_out_and_nothing_is_doubled(
    second: Server, valkey: Server, tmp_path: Path
) -> None:
    write(tmp_path, valkey, second, redbeat_redis_options={"retry_period": -1})
    with celery_beat(tmp_path, "module") as beat, second.client(db=1) as client, valkey.client() as broker:
        beat.wait_for("Sending due task often")
        client.config_set("maxmemory", 1)
        beat.wait_for("Retrying Redis connection in")
        sent = len(messages(broker))
        assert beat.is_running
        client.config_set("maxmemory", 0)
        eventually(lambda: len(messages(broker)) >= sent + 5)
        assert beat.is_running
        dues = [message["headers"]["redbeat_due"] for message in messages(broker)]
        assert len(dues) == len(set(dues))
        assert beat.output().count("Retrying Redis connection in") <= 2, "once for each outage"


def test_a_full_memory_without_a_retry_period_ends_beat_with_a_sentence(
    second: Server, valkey: Server, tmp_path: Path
) -> None:
    write(tmp_path, valkey, second)
    with celery_beat(tmp_path, "module") as beat, second.client() as client:
        beat.wait_for("Sending due task often")
        client.config_set("maxmemory", 1)
        assert beat.wait() not in (0, None)
        assert re.search(r"CRITICAL.*(OOM|maxmemory)", beat.output()), beat.output()
