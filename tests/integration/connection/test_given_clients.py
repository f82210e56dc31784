"""The client that an application gives is used by beat, by saving and by the commands, and no other one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.cluster import RedisCluster

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, memory_app
from tests.support.topologies import ClusterTopology

REPLACED = """
import redbeat.schedulers

given = redis.Redis(host={host!r}, port={port}, db=3)
redbeat.schedulers.get_redis = lambda app=None: given
Scheduler = redbeat.schedulers.RedBeatScheduler
"""

WRAPPED = """
import redbeat.schedulers

original = redbeat.schedulers.get_redis


def get_redis(app=None):
    original  # a replacement may call it for another app
    return redis.Redis(host={host!r}, port={port}, db=3)


redbeat.schedulers.get_redis = get_redis
Scheduler = redbeat.schedulers.RedBeatScheduler
"""

CHOSEN = """
from redbeat import RedBeatScheduler


class Scheduler(RedBeatScheduler):
    def setup_schedule(self):
        self.app.redbeat_redis = redis.Redis(host={host!r}, port={port}, db=3)
        super().setup_schedule()
        self.update_from_dict({{"own": {{"task": "echo", "schedule": 60}}}})
"""


@pytest.fixture
def unwanted() -> Iterator[socket.socket]:
    """The address that the settings name; nobody is to connect there."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        yield listening


@pytest.mark.parametrize("source", [REPLACED, WRAPPED, CHOSEN], ids=["replaced", "a new one", "chosen"])
def test_beat_uses_the_given_client_and_connects_by_no_other(
    server: Server, tmp_path: Path, unwanted: socket.socket, source: str
) -> None:
    extra = source.format(host=server.host, port=server.port) + (
        "app.conf.beat_schedule = {'often': {'task': 'echo', 'schedule': 0.5}}"
    )
    url = f"redis://127.0.0.1:{unwanted.getsockname()[1]}/0"
    write_app(
        tmp_path, "module", server.url(0), extra=extra, redbeat_redis_url=url, redbeat_http="127.0.0.1:0"
    )
    with server.client() as broker, server.client(db=3) as schedule:
        with celery_beat(tmp_path, "module", scheduler="module.Scheduler") as beat:
            eventually(lambda: int(broker.llen("celery")) > 3)  # type: ignore[arg-type]
            assert schedule.get("redbeat::lock")
            if source is CHOSEN:
                eventually(lambda: schedule.exists("redbeat:own"))
            else:
                listed = celery_command(tmp_path, "module", "redbeat", "list")
                assert listed.wait() == 0, listed.output()
                assert "often" in listed.output()
        assert beat.returncode == 0, beat.output()
    with pytest.raises(BlockingIOError):
        unwanted.accept()


def test_a_replaced_get_redis_serves_entries_and_schedulers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    with server.client(db=3) as given:
        asked: list[Celery] = []

        def get_redis(app: Any = None) -> redis.Redis:
            asked.append(app)
            return given

        monkeypatch.setattr("redbeat.schedulers.get_redis", get_redis)
        assert_entry_runs(app)
        assert given.exists("redbeat:report")
        assert asked
        assert asked[0] is app
        given.ping()  # it wasn't closed


@pytest.mark.parametrize("give", ["injected", "replaced"])
@pytest.mark.parametrize("prefix", [None, "{mine}:"])
def test_a_cluster_client_that_is_given_works_or_names_the_hash_tag(
    cluster: ClusterTopology, monkeypatch: pytest.MonkeyPatch, give: str, prefix: str | None
) -> None:
    app = memory_app(
        redbeat_redis_url="redis://127.0.0.1:1/0",
        redbeat_redis_options={"retry_period": -1},
        **({} if prefix is None else {"redbeat_key_prefix": prefix}),
    )
    with cluster.client() as client:
        if give == "injected":
            app.redbeat_redis = client
        else:
            monkeypatch.setattr("redbeat.schedulers.get_redis", lambda app=None: client)
        if give == "replaced" and prefix is None:  # the settings were read before the client was known
            with pytest.raises(
                ConfigurationError, match=r"the client that was given is a cluster's.*\{redbeat\}:"
            ):
                RedBeatSchedulerEntry("report", "t", 60, app=app).save()
        else:
            assert_entry_runs(app)
            assert client.exists(f"{prefix or '{redbeat}:'}report")


def test_a_cluster_client_that_is_injected_late_names_the_hash_tag(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    entry = RedBeatSchedulerEntry("report", "t", 60, app=app)
    save: Callable[[], Any] = entry.save
    with cluster.client() as client:
        assert isinstance(client, RedisCluster)
        app.redbeat_redis = client
        with pytest.raises(ConfigurationError, match=r"use '\{redbeat\}:'"):
            save()


def test_a_cluster_client_behind_a_proxy_object_names_the_hash_tag(cluster: ClusterTopology) -> None:
    class Proxy:
        def __init__(self, client: RedisCluster) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_redis_options={"retry_period": -1})
    with cluster.client() as client:
        app.redbeat_redis = Proxy(client)
        with pytest.raises(ConfigurationError, match=r"use '\{redbeat\}:'"):
            RedBeatSchedulerEntry("report", "t", 60, app=app).save()
