"""How a real beat starts, and how it fails to: clearly, before anything is written, and without secrets."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from tests.support.apps import celery_beat, run_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, STATICS, messages, sent_names
from tests.support.servers import Server

STATIC = {"often": {"task": "echo", "schedule": 0.2}}
PASSWORD = "s3cr3t/p@ss:wörd"


def write(tmp_path: Path, server: Server, **settings: Any) -> None:
    defaults = {"redbeat_redis_url": server.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", server.url(0), **{**defaults, **settings})


def start(tmp_path: Path, server: Server, **settings: Any) -> Process:
    write(tmp_path, server, **settings)
    return celery_beat(tmp_path, "module")


def test_the_banner_shows_redis_and_the_lock(valkey: Server, tmp_path: Path) -> None:
    with start(tmp_path, valkey) as beat:
        beat.wait_for("beat: Acquired lock")
        assert f". redis -> {valkey.url(1)}" in beat.output()
        assert re.search(r"\. lock -> `redbeat::lock` 25\.00 minutes \(1500s\)", beat.output())
        assert ". warning" not in beat.output()
        assert ". retry_period -> unset: beat ends if Redis is away" in beat.output()


@pytest.mark.parametrize("retry_period", [None, 1])
def test_without_redis_beat_ends_and_says_why_and_no_cause_follows(
    second: Server, tmp_path: Path, retry_period: int | None
) -> None:
    second.kill()
    with start(tmp_path, second, redbeat_redis_options={"retry_period": retry_period}) as beat:
        assert beat.wait() not in (0, None)
        critical = [line for line in beat.output().splitlines() if "CRITICAL" in line]
        assert f"Redis at {second.url(1)} can't be used" in critical[0]
        # what else is printed is Celery's own traceback; redis-py's three would come on top of it
        assert "redis/connection.py" not in beat.output()
        assert "CONFIG can't be read" not in beat.output()
        assert "Acquired lock" not in beat.output()


def test_with_a_retry_period_beat_waits_for_redis(second: Server, tmp_path: Path) -> None:
    second.kill()
    with start(tmp_path, second, redbeat_redis_options={"retry_period": -1}) as beat:
        beat.wait_for("Retrying Redis connection in")
        assert beat.is_running
        second.restart()
        beat.wait_for("Sending due task often")
        with second.client(db=1) as client:
            assert client.get(LOCK)
        assert beat.output().count("Retrying Redis connection in") <= 2, "once for each outage"


@pytest.mark.parametrize("retry_period", [None, -1])
def test_an_error_while_it_takes_the_lock_never_leaves_beat_running_without_it(
    second: Server, tmp_path: Path, retry_period: int | None
) -> None:
    with second.client(db=1) as client:
        client.replicaof("127.0.0.1", 1)  # it reads, and refuses to write
        with start(tmp_path, second, redbeat_redis_options={"retry_period": retry_period}) as beat:
            beat.wait_for("beat: Acquiring lock...")
            if retry_period is None:
                assert beat.wait() not in (0, None)
                return
            beat.wait_for("Retrying Redis connection in")
            assert "Acquired lock" not in beat.output()
            assert "Sending" not in beat.output()
            client.replicaof("NO", "ONE")
            beat.wait_for("Sending due task often")
            assert client.get(LOCK)


def test_redis_lost_under_a_running_beat_is_waited_for(
    second: Server, tmp_path: Path, valkey: Server
) -> None:
    write_app(
        tmp_path,
        "module",
        valkey.url(0),
        redbeat_redis_url=second.url(1),
        redbeat_redis_options={"retry_period": -1},
        beat_schedule=STATIC,
    )
    with celery_beat(tmp_path, "module") as beat, valkey.client() as broker:
        beat.wait_for("Sending due task often")
        second.restart()  # it comes back empty: the statics are gone
        with second.client(db=1) as client:
            eventually(lambda: client.get(LOCK))
        assert beat.is_running
        assert sent_names(broker)[0] == "often"


WRONG = {
    "redbeat_lock_timeout": -1,
    "redbeat_key_prefix": "",
    "redbeat_redis_url": "http://127.0.0.1/",
    "redbeat_key_expiry_check": "maybe",
    "redbeat_batch_size": "many",
    "redbeat_redis_options": {"retry_period": "soon"},
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_ends_beat_before_anything_is_written(
    valkey: Server, tmp_path: Path, name: str
) -> None:
    with start(tmp_path, valkey, **{name: WRONG[name]}) as beat, valkey.client() as client:
        assert beat.wait() == 78
        assert f"Error: {name}: " in beat.output()
        assert not has_traceback(beat.output())
        assert not {"db0", "db1"} & client.info("keyspace").keys()


@pytest.fixture
def guarded() -> Iterator[Server]:
    with Server(requirepass=PASSWORD, maxmemory_policy="allkeys-lru") as server:
        yield server


def assert_no_secret(text: str) -> None:
    for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), "s3cr3t"):
        assert secret not in text


@pytest.mark.parametrize("retry_period", [None, -1])
def test_no_password_is_shown_from_the_start_to_the_end(
    guarded: Server, tmp_path: Path, retry_period: int | None
) -> None:
    options = {"retry_period": retry_period, "socket_connect_timeout": 2}
    write(tmp_path, guarded, redbeat_redis_options=options)
    with celery_beat(tmp_path, "module", "-l", "DEBUG") as beat:
        beat.wait_for("Sending due task often")
        guarded.kill()
        if retry_period is None:
            assert beat.wait() not in (0, None)
        else:
            beat.wait_for("Retrying Redis connection")
            guarded.restart()
            beat.stop()
        assert ". redis -> redis://:**@127.0.0.1" in beat.output()
        assert_no_secret(beat.output())


def test_a_wrong_password_is_refused_and_not_shown(guarded: Server, tmp_path: Path) -> None:
    url = f"redis://:s3cr3t-wrong@127.0.0.1:{guarded.port}/1"
    write(tmp_path, guarded, redbeat_redis_url=url, redbeat_redis_options={"retry_period": -1})
    with celery_beat(tmp_path, "module", "-l", "DEBUG") as beat:
        assert beat.wait() not in (0, None)
        assert re.search("WRONGPASS|invalid", beat.output())
        assert_no_secret(beat.output())


def test_a_missing_password_is_asked_for_in_words_that_name_the_setting(
    guarded: Server, tmp_path: Path
) -> None:
    url = f"redis://127.0.0.1:{guarded.port}/1"
    with start(tmp_path, guarded, redbeat_redis_url=url) as beat:
        assert beat.wait() not in (0, None)
        assert f"StoreRefused('Redis at {url} refused the connection: it needs a password." in beat.output()
        assert "redbeat_redis_url (redis://:password@host)" in beat.output()
        assert "HELLO" not in beat.output()


def received(client: redis.Redis) -> int:
    """How many connections the server has seen so far."""
    return int(client.info("stats")["total_connections_received"])


def refused(client: redis.Redis, command: str) -> int:
    """How often the server has refused the command for want of a right."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"rejected_calls": 0})["rejected_calls"])


@pytest.mark.parametrize("login", ["", ":wrong@"], ids=["no password", "a wrong password"])
@pytest.mark.parametrize("retry_period", [None, -1])
def test_beat_tries_once_to_get_in_without_the_password(
    guarded: Server, second: Server, tmp_path: Path, login: str, retry_period: int | None
) -> None:
    with guarded.client() as client:
        before = received(client)
        with run_beat(
            tmp_path,
            second.url(0),
            redbeat_redis_url=f"redis://{login}127.0.0.1:{guarded.port}/1",
            redbeat_redis_options={"retry_period": retry_period},
        ) as beat:
            assert beat.wait() not in (0, None)
            assert "refused the connection" in beat.output()
        assert received(client) - before == 3, "for two lines of the banner, and beat's own"


@pytest.mark.parametrize("retry_period", [None, -1])
def test_beat_tries_once_what_it_has_no_right_to(
    second: Server, tmp_path: Path, retry_period: int | None
) -> None:
    with second.client() as client:
        client.execute_command(
            "ACL SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", "-pttl"
        )
        with start(
            tmp_path,
            second,
            redbeat_redis_url=f"redis://limited:secret@127.0.0.1:{second.port}/1",
            redbeat_redis_options={"retry_period": retry_period},
        ) as beat:
            assert beat.wait() not in (0, None)
            assert re.search(r"refused a command: its user limited lacks .* needs: \+pttl\.", beat.output())
        assert refused(client, "pttl") == 2, "as beat needs it, and to name all that are missing"


def test_a_brokers_missing_password_is_asked_for_so_too(
    guarded: Server, second: Server, tmp_path: Path
) -> None:
    broker_url = f"redis://127.0.0.1:{guarded.port}/0"
    with run_beat(tmp_path, broker_url, redbeat_redis_url=second.url(1), beat_schedule=STATIC) as beat:
        beat.wait_for("due runs wait for it: AuthenticationError: it needs a password (broker_url)")
        assert "HELLO" not in beat.output()


def test_a_server_that_may_evict_is_reported_in_the_banner_and_the_log(
    guarded: Server, tmp_path: Path
) -> None:
    with start(tmp_path, guarded) as beat:
        beat.wait_for("beat: Acquired lock")
        assert re.search(r"\. warning -> .*maxmemory-policy is allkeys-lru", beat.output())
        assert re.search(r"ERROR.*maxmemory-policy is allkeys-lru", beat.output())


# -- what the log says when something is not as it should be: one line each


HOURLY = {"hourly": {"task": "echo", "schedule": 3600}}


def test_an_unknown_setting_is_one_warning_with_the_nearest_name(valkey: Server, tmp_path: Path) -> None:
    with start(tmp_path, valkey, redbeat_lock_timout=60) as beat:
        beat.wait_for("Sending due task often")
        lines = [line for line in beat.output().splitlines() if "redbeat_lock_timout" in line]
        assert len(lines) == 1, lines
        assert "WARNING" in lines[0]
        assert "did you mean redbeat_lock_timeout?" in lines[0]


def test_a_standby_says_who_it_is_standing_by_for(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write(tmp_path, server)
    with celery_beat(tmp_path, "module") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as standby:
            who = f"process {leader.pid} on {socket.gethostname()}"
            standby.wait_for(f"beat: Standing by: {who} holds the lock")
            assert client.get(LOCK) not in standby.output()
        assert "Standing by" not in leader.output()


@pytest.mark.parametrize("schedule", [STATIC | HOURLY, HOURLY], ids=["busy", "idle"])
def test_statics_come_back_and_run_after_a_flush(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, schedule: dict[str, Any]
) -> None:
    with start(tmp_path, server, beat_schedule=schedule, redbeat_lock_timeout=6) as beat:
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry_period": -1}, "Retrying Redis connection in"),
        ({}, "ERROR/MainProcess] beat: Nothing can be sent"),
    ],
)
def test_a_full_memory_is_waited_out_and_nothing_is_doubled(
    second: Server, valkey: Server, tmp_path: Path, options: dict[str, int], said: str
) -> None:
    write(tmp_path, valkey, redbeat_redis_url=second.url(1), redbeat_redis_options=options)
    with celery_beat(tmp_path, "module") as beat, second.client(db=1) as client, valkey.client() as broker:
        beat.wait_for("Sending due task often")
        client.config_set("maxmemory", 1)
        beat.wait_for(said)
        sent = len(messages(broker))
        assert beat.is_running
        assert re.search(rf"{re.escape(said)}.*(OOM|maxmemory)", beat.output()), beat.output()
        client.config_set("maxmemory", 0)
        eventually(lambda: len(messages(broker)) >= sent + 5)
        assert beat.is_running
        dues = [message["headers"]["redbeat_due"] for message in messages(broker)]
        assert len(dues) == len(set(dues))
        assert beat.output().count(said) <= 2, "once for each outage"
