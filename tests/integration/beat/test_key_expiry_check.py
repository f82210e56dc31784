"""``redbeat_key_expiry_check``: a server that may evict the schedule, or doesn't tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.beat.startup import eviction_warning
from redbeat.errors import ConfigurationError, StoreUnavailable
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology


@pytest.fixture
def policy(client: redis.Redis) -> Iterator[Callable[[str], None]]:
    """Set the server's maxmemory-policy; it is noeviction again after the test."""

    def set_policy(name: str) -> None:
        client.config_set("maxmemory-policy", name)

    yield set_policy
    set_policy("noeviction")


@pytest.fixture
def secretive_url(server: Server, client: redis.Redis) -> Iterator[str]:
    """A URL with a user who may do everything but read CONFIG."""
    client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
    yield f"redis://limited:pw@{server.host}:{server.port}/1"
    client.execute_command("ACL", "DELUSER", "limited")


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [(level, message) for level, message in found if "evict" in message]


@pytest.mark.parametrize(("level", "expected"), [("warn", logging.WARNING), ("error", logging.ERROR)])
@pytest.mark.parametrize("name", ["allkeys-lru", "allkeys-random", "allkeys-lfu"])
def test_a_policy_that_evicts_any_key_is_reported(
    make_app: MakeApp,
    policy: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    level: str,
    expected: int,
    name: str,
) -> None:
    policy(name)
    scheduler = RedBeatScheduler(make_app(redbeat_key_expiry_check=level))
    ((found, message),) = reports(caplog)
    assert found == expected
    assert f"maxmemory-policy is {name}" in message
    assert f". warning -> Redis may evict the schedule: its maxmemory-policy is {name}" in scheduler.info
    scheduler.close()


def test_the_nodes_of_a_cluster_that_may_evict_a_schedule_in_shards_are_named(
    cluster: ClusterTopology, make_app: MakeApp
) -> None:
    """Each of them is asked, not only that of the first shard."""
    app = make_app(
        redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True}, redbeat_shards=16
    )
    first = Store(app).node_of(Store(app).parts[0].keys)
    others = [node for node in cluster.nodes if f"{node.host}:{node.port}" != first]
    try:
        for node in others:
            with node.client() as admin:
                admin.config_set("maxmemory-policy", "allkeys-lru")
        named = ", ".join(sorted(f"{node.host}:{node.port}" for node in others))
        assert eviction_warning(Store(app)) == (
            f"Redis may evict the schedule: the maxmemory-policy is allkeys-lru on {named}. "
            "Use noeviction (or one of volatile-*), or a server of its own."
        )
    finally:
        for node in others:
            with node.client() as admin:
                admin.config_set("maxmemory-policy", "noeviction")


def test_error_is_the_default(
    make_app: MakeApp, policy: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    policy("allkeys-lru")
    RedBeatScheduler(make_app()).close()
    assert [level for level, _ in reports(caplog)] == [logging.ERROR]


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


def test_ignore_neither_reports_nor_asks(
    make_app: MakeApp, policy: Callable[[str], None], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    policy("allkeys-lru")
    client.config_resetstat()
    scheduler = RedBeatScheduler(make_app(redbeat_key_expiry_check="ignore"))
    assert "warning" not in scheduler.info
    assert reports(caplog) == []
    assert "cmdstat_config|get" not in client.info("commandstats")
    scheduler.close()


@pytest.mark.parametrize("name", ["noeviction", "volatile-lru", "volatile-ttl"])
@pytest.mark.parametrize("level", ["warn", "error", "raise"])
def test_a_policy_that_keeps_the_schedule_is_no_news(
    make_app: MakeApp, policy: Callable[[str], None], caplog: pytest.LogCaptureFixture, level: str, name: str
) -> None:
    policy(name)
    scheduler = RedBeatScheduler(make_app(redbeat_key_expiry_check=level))
    assert "warning" not in scheduler.info
    assert reports(caplog) == []
    scheduler.close()


@pytest.mark.parametrize("level", ["warn", "error"])
def test_a_config_that_cannot_be_read_is_a_warning(
    make_app: MakeApp, secretive_url: str, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    app = make_app(redbeat_redis_url=secretive_url, redbeat_key_expiry_check=level)
    RedBeatScheduler(app).close()
    ((found, message),) = reports(caplog)
    assert found == logging.WARNING
    assert "CONFIG can't be read" in message
    assert "pw" not in message


def test_a_config_that_cannot_be_read_is_an_error_under_raise(make_app: MakeApp, secretive_url: str) -> None:
    app = make_app(redbeat_redis_url=secretive_url, redbeat_key_expiry_check="raise")
    with pytest.raises(ConfigurationError, match="CONFIG can't be read"):
        RedBeatScheduler(app)


@pytest.mark.parametrize("level", ["warn", "error", "raise"])
def test_a_server_that_is_away_is_not_called_secretive(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    app = make_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_key_expiry_check=level)
    with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1:1/0"):
        RedBeatScheduler(app)
    assert reports(caplog) == []
    assert "redis://127.0.0.1:1/0" in RedBeatScheduler(app, lazy=True).info
