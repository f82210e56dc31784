"""How a real beat starts, and how it fails to: clearly, before anything is written, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, sent_names
from tests.support.servers import Server

STATIC = {"often": {"task": "echo", "schedule": 0.2}}
PASSWORD = "s3cr3t/p@ss:wörd"


def write(tmp_path: Path, server: Server, **settings: Any) -> None:
    defaults = {"redbeat_redis_url": server.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", server.url(0), **{**defaults, **settings})


def test_the_banner_shows_redis_and_the_lock(valkey: Server, tmp_path: Path) -> None:
    write(tmp_path, valkey)
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        assert f". redis -> {valkey.url(1)}" in beat.output()
        assert re.search(r"\. lock -> `redbeat::lock` 25\.00 minutes \(1500s\)", beat.output())
        assert ". warning" not in beat.output()


def test_without_redis_beat_ends_and_says_why(second: Server, tmp_path: Path) -> None:
    write(tmp_path, second)
    second.kill()
    with celery_beat(tmp_path, "module") as beat:
        assert beat.wait() not in (0, None)
        assert f"Redis at {second.url(1)} can't be used" in beat.output()
        assert "CONFIG can't be read" not in beat.output()
        assert "Acquired lock" not in beat.output()


def test_with_a_retry_period_beat_waits_for_redis(second: Server, tmp_path: Path) -> None:
    write(tmp_path, second, redbeat_redis_options={"retry_period": -1})
    second.kill()
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Retrying Redis connection in")
        assert beat.is_running
        second.restart()
        beat.wait_for("Sending due task often")
        with second.client(db=1) as client:
            assert client.get(LOCK)
        assert beat.output().count("Retrying Redis connection in") <= 2, "once for each outage"


def test_a_retry_period_that_is_over_ends_beat(second: Server, tmp_path: Path) -> None:
    write(tmp_path, second, redbeat_redis_options={"retry_period": 1})
    second.kill()
    with celery_beat(tmp_path, "module") as beat:
        assert beat.wait() not in (0, None)
        assert "can't be used" in beat.output()


@pytest.mark.parametrize("retry_period", [None, -1])
def test_an_error_while_it_takes_the_lock_never_leaves_beat_running_without_it(
    second: Server, tmp_path: Path, retry_period: int | None
) -> None:
    write(tmp_path, second, redbeat_redis_options={"retry_period": retry_period})
    with second.client(db=1) as client:
        client.replicaof("127.0.0.1", 1)  # it reads, and refuses to write
        with celery_beat(tmp_path, "module") as beat:
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


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_ends_beat_before_anything_is_written(
    valkey: Server, tmp_path: Path, name: str
) -> None:
    write(tmp_path, valkey, **{name: WRONG[name]})
    with celery_beat(tmp_path, "module") as beat, valkey.client() as client:
        assert beat.wait() == 78
        assert f"Error: {name}: " in beat.output()
        assert "Traceback" not in beat.output()
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
    write(tmp_path, guarded, redbeat_redis_url=url)
    with celery_beat(tmp_path, "module") as beat:
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
    write_app(
        tmp_path,
        "module",
        second.url(0),
        redbeat_redis_url=f"redis://{login}127.0.0.1:{guarded.port}/1",
        redbeat_redis_options={"retry_period": retry_period},
    )
    with guarded.client() as client:
        before = received(client)
        with celery_beat(tmp_path, "module") as beat:
            assert beat.wait() not in (0, None)
            assert "refused the connection" in beat.output()
        assert received(client) - before == 3, "for two lines of the banner, and beat's own"


@pytest.mark.parametrize("retry_period", [None, -1])
def test_beat_tries_once_what_it_has_no_right_to(
    second: Server, tmp_path: Path, retry_period: int | None
) -> None:
    write(
        tmp_path,
        second,
        redbeat_redis_url=f"redis://limited:secret@127.0.0.1:{second.port}/1",
        redbeat_redis_options={"retry_period": retry_period},
    )
    with second.client() as client:
        client.execute_command(
            "ACL SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", "-pttl"
        )
        with celery_beat(tmp_path, "module") as beat:
            assert beat.wait() not in (0, None)
            assert re.search("refused a command: .* no permissions", beat.output())
        assert refused(client, "pttl") == 1


def test_a_brokers_missing_password_is_asked_for_so_too(
    guarded: Server, second: Server, tmp_path: Path
) -> None:
    broker_url = f"redis://127.0.0.1:{guarded.port}/0"
    write_app(tmp_path, "module", broker_url, redbeat_redis_url=second.url(1), beat_schedule=STATIC)
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("due runs wait for it: AuthenticationError: it needs a password (broker_url)")
        assert "HELLO" not in beat.output()


def test_a_server_that_may_evict_is_reported_in_the_banner_and_the_log(
    guarded: Server, tmp_path: Path
) -> None:
    write(tmp_path, guarded)
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        assert re.search(r"\. warning -> .*maxmemory-policy is allkeys-lru", beat.output())
        assert re.search(r"ERROR.*maxmemory-policy is allkeys-lru", beat.output())
