"""How a beat starts, and how it fails to: clearly, before anything is written, and without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler, Service
from celery.signals import beat_init

from redbeat import RedBeatScheduler
from redbeat.errors import ConfigurationError
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.processes import Process
from tests.support.schedule import LOCK
from tests.support.servers import Server

STATIC = {"often": {"task": "echo", "schedule": 0.2}}


PASSWORD = "s3cr3t/p@ss:wörd"


def write(tmp_path: Path, server: Server, **settings: Any) -> None:
    defaults = {"redbeat_redis_url": server.url(1), "beat_schedule": STATIC}
    write_app(tmp_path, "module", server.url(0), **{**defaults, **settings})


def start(tmp_path: Path, server: Server, **settings: Any) -> Process:
    write(tmp_path, server, **settings)
    return celery_beat(tmp_path, "module")


def test_banner_shows_redis_and_the_lock(valkey: Server, tmp_path: Path) -> None:
    with start(tmp_path, valkey) as beat:
        beat.wait_for("beat: Acquired lock")
        assert f". redis -> {valkey.url(1)}" in beat.output()
        assert re.search(r"\. lock -> `redbeat::lock` 25\.00 minutes \(1500s\)", beat.output())
        assert ". retry_period -> unset: beat ends if Redis is away" in beat.output()


def test_start_without_redis_ends_with_one_error(second: Server, tmp_path: Path) -> None:
    second.kill()
    with start(tmp_path, second) as beat:
        assert beat.wait() not in (0, None)
        critical = [line for line in beat.output().splitlines() if "CRITICAL" in line]
        assert f"Redis at {second.url(1)} can't be used" in critical[0]
        # what else is printed is Celery's own traceback; redis-py's three would come on top of it
        assert "redis/connection.py" not in beat.output()
        assert "Acquired lock" not in beat.output()


def test_start_with_a_retry_period_waits_for_redis(second: Server, tmp_path: Path) -> None:
    second.kill()
    with start(tmp_path, second, redbeat_redis_options={"retry_period": -1}) as beat:
        beat.wait_for("Retrying Redis connection in")
        assert beat.is_running
        second.restart()
        beat.wait_for("Sending due task often")
        with second.client(db=1) as client:
            assert client.get(LOCK)
        assert beat.output().count("Retrying Redis connection in") <= 2, "once for each outage"


@pytest.mark.slow
def test_error_while_taking_the_lock_never_leaves_beat_without_it(second: Server, tmp_path: Path) -> None:
    with second.client(db=1) as client:
        client.replicaof("127.0.0.1", 1)  # it reads, and refuses to write
        with start(tmp_path, second, redbeat_redis_options={"retry_period": -1}) as beat:
            beat.wait_for("Retrying Redis connection in")
            assert "Acquired lock" not in beat.output()
            assert "Sending" not in beat.output()
            client.replicaof("NO", "ONE")
            beat.wait_for("Sending due task often")
            assert client.get(LOCK)


WRONG = {
    "redbeat_lock_timeout": -1,
    "redbeat_redis_url": "http://127.0.0.1/",
    "redbeat_redis_options": {"retry_period": "soon"},
}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_setting_ends_beat_before_anything_is_written(
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


@pytest.mark.slow
def test_no_password_is_shown(guarded: Server, tmp_path: Path) -> None:
    write(tmp_path, guarded, redbeat_redis_options={"retry_period": -1, "socket_connect_timeout": 2})
    with celery_beat(tmp_path, "module", "-l", "DEBUG") as beat:
        beat.wait_for("Sending due task often")
        guarded.kill()
        beat.wait_for("Retrying Redis connection")
        guarded.restart()
        beat.stop()
        assert ". redis -> redis://:**@127.0.0.1" in beat.output()
        for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), "s3cr3t"):
            assert secret not in beat.output()


def test_unknown_setting_is_one_warning_with_the_nearest_name(valkey: Server, tmp_path: Path) -> None:
    with start(tmp_path, valkey, redbeat_lock_timout=60) as beat:
        beat.wait_for("Sending due task often")
        lines = [line for line in beat.output().splitlines() if "redbeat_lock_timout" in line]
        assert len(lines) == 1, lines
        assert "WARNING" in lines[0]
        assert "did you mean redbeat_lock_timeout?" in lines[0]


# -- redbeat_key_expiry_check: a server that may evict the schedule


@pytest.fixture
def policy(client: redis.Redis) -> Iterator[Callable[[str], None]]:
    """Set the server's maxmemory-policy; it is noeviction again after the test."""

    def set_policy(name: str, limit: int = 10**9) -> None:
        client.config_set("maxmemory-policy", name)
        client.config_set("maxmemory", limit)

    yield set_policy
    set_policy("noeviction", 0)


@pytest.fixture
def secretive_url(server: Server, client: redis.Redis) -> Iterator[str]:
    """A URL with a user who may do everything but read CONFIG."""
    client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
    yield f"redis://limited:pw@{server.host}:{server.port}/1"
    client.execute_command("ACL", "DELUSER", "limited")


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [(level, message) for level, message in found if "evict" in message]


@pytest.mark.parametrize(
    ("level", "name", "expected"),
    [
        ("warn", "allkeys-lru", logging.WARNING),
        ("error", "allkeys-random", logging.ERROR),
        ("ignore", "allkeys-lru", None),
        ("raise", "volatile-ttl", None),
    ],
)
def test_policy_that_evicts_the_schedule_is_reported_as_the_setting_says(
    make_app: MakeApp,
    policy: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    level: str,
    name: str,
    expected: int | None,
) -> None:
    policy(name)
    scheduler = RedBeatScheduler(make_app(redbeat_key_expiry_check=level))
    found = reports(caplog)
    assert [one for one, _ in found] == ([expected] if expected else [])
    assert all(f"maxmemory-policy is {name}" in message for _, message in found)
    scheduler.close()


def test_raise_refuses_to_start_before_anything_is_written(
    make_app: MakeApp, policy: Callable[[str], None], client: redis.Redis
) -> None:
    policy("allkeys-lru")
    for settings in ({}, {"redbeat_lock_key": None}):
        app = make_app(redbeat_key_expiry_check="raise", beat_schedule={"a": {"task": "b", "schedule": 9}})
        app.conf.update(settings)
        with pytest.raises(ConfigurationError, match="allkeys-lru") as caught:
            RedBeatScheduler(app)
        assert caught.value.setting == "redbeat_key_expiry_check"
    assert client.keys() == []


@pytest.mark.parametrize("level", ["warn", "error"])
def test_unreadable_config_is_a_warning(
    make_app: MakeApp, secretive_url: str, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    app = make_app(redbeat_redis_url=secretive_url, redbeat_key_expiry_check=level)
    RedBeatScheduler(app).close()
    ((found, message),) = reports(caplog)
    assert found == logging.WARNING
    assert "'config|get'" in message
    assert "pw" not in message


# -- another scheduler although RedBeat is configured


URL = "redis://127.0.0.1:1/0"


class Other(Scheduler):
    """One of another package."""


class Ours(RedBeatScheduler):
    """A subclass."""


OLD_STYLE = {"BROKER_URL": URL, "CELERY_RESULT_SERIALIZER": "json", "REDBEAT_REDIS_URL": URL}
IN_NAMESPACE = {"CELERY_BROKER_URL": URL, "CELERY_REDBEAT_REDIS_URL": URL}


@pytest.mark.parametrize(
    ("scheduler", "settings", "named"),
    [
        (Other, {"broker_url": URL, "redbeat_key_prefix": "x:"}, ("redbeat_key_prefix", "beat_scheduler")),
        (Other, IN_NAMESPACE, ("CELERY_REDBEAT_REDIS_URL", "CELERY_BEAT_SCHEDULER")),
        (PersistentScheduler, OLD_STYLE, ("REDBEAT_REDIS_URL", "CELERYBEAT_SCHEDULER")),
        # a setting that RedBeat would refuse is one all the same
        (Other, {"redbeat_redis_url": URL, "redbeat_lock_timeout": "x"}, ("redbeat_redis_url",)),
        (Ours, {"redbeat_redis_url": URL}, ()),
        (PersistentScheduler, {"broker_url": URL}, ()),
        (PersistentScheduler, {"redbeat_redis_url": None, "redbeat_celery_app": "x"}, ()),
    ],
)
def test_another_scheduler_is_reported_where_redbeat_is_configured(
    caplog: pytest.LogCaptureFixture, scheduler: Any, settings: Any, named: tuple[str, ...]
) -> None:
    app = Celery("app", set_as_current=False)
    app.config_from_object(settings, namespace="CELERY" if settings is IN_NAMESPACE else None)
    service = Service(app, scheduler_cls=scheduler)
    service.scheduler = object.__new__(scheduler)  # what its constructor does doesn't matter
    beat_init.send(sender=service)
    found = [message for message in caplog.messages if "RedBeat is not running" in message]
    assert len(found) == bool(named)
    for said in found:
        assert all(name in said for name in (*named, scheduler.__qualname__, "-S redbeat.RedBeatScheduler"))
