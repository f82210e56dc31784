"""A schedule in a Redis Cluster: one slot for all of its keys, and errors that name hash tag and option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule
from redis.cluster import RedisCluster

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.diagnostics.doctor import examine
from redbeat.errors import ConfigurationError, StoreRefused
from redbeat.process.exit_codes import CONFIG
from redbeat.schedulers import RedBeatScheduler, get_redis
from redbeat.store.notifier import WakeChannel
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, leader, make_due, memory_app, take_messages
from tests.support.topologies import ClusterTopology, cluster

MakeApp = Callable[..., Celery]


def by_startup_nodes(cluster: ClusterTopology, **settings: Any) -> Celery:
    nodes = [{"host": host, "port": port} for host, port in cluster.startup_nodes]
    options = {"startup_nodes": nodes}
    return memory_app(redbeat_redis_url="redis-cluster://", redbeat_redis_options=options, **settings)


def by_url(cluster: ClusterTopology, **settings: Any) -> Celery:
    host, port = cluster.startup_nodes[0]
    return memory_app(redbeat_redis_url=f"redis-cluster://{host}:{port}", **settings)


def by_option(cluster: ClusterTopology, **settings: Any) -> Celery:
    return memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True}, **settings)


@pytest.fixture
def app(cluster: ClusterTopology) -> Celery:
    return by_startup_nodes(cluster)


@pytest.mark.parametrize("make_app", [by_startup_nodes, by_url, by_option])
def test_each_form_runs_entries_under_a_prefix_with_a_hash_tag(
    cluster: ClusterTopology, make_app: MakeApp
) -> None:
    assert_entry_runs(make_app(cluster))
    assert cluster.client().exists("{redbeat}:report")
    assert cluster.client().zscore("{redbeat}::schedule", "{redbeat}:report")


def test_prefix_without_a_hash_tag_is_refused(cluster: ClusterTopology) -> None:
    app = by_option(cluster, redbeat_key_prefix="redbeat:")
    with pytest.raises(ConfigurationError, match=r"redbeat_key_prefix: 'redbeat:'.*'\{redbeat\}:'"):
        RedBeatScheduler(app)
    assert not cluster.client().keys(target_nodes="all")


def test_calendars_work_in_a_cluster(cluster: ClusterTopology, app: Celery) -> None:
    names = ("holidays", "closed")
    for name in names:
        Calendar(name, ["1970-01-01/9999-12-31"], app=app).save()
        RedBeatSchedulerEntry(name, "tasks.report", schedule(60), exclude=name, app=app).save()
    make_due(app, *names)
    with leader(app) as scheduler:
        scheduler.tick()
        assert take_messages(app) == []
        assert cluster.client().zcount("{redbeat}::schedule", -1, -1) == 2
        Calendar("holidays", app=app).save()
        assert cluster.client().zcount("{redbeat}::schedule", 1, "+inf") == 1
    assert cluster.client().hgetall("{redbeat}::calendar:holidays") == {"about": ""}


def test_many_entries_are_saved_and_deleted_at_once(cluster: ClusterTopology, app: Celery) -> None:
    names = [f"report-{number}" for number in range(1_100)]
    entries = [RedBeatSchedulerEntry(name, "tasks.report", 60, app=app) for name in names]
    assert len(RedBeatSchedulerEntry.save_many(entries).new) == 1_100
    assert cluster.client().zcard("{redbeat}::schedule") == 1_100
    for entry in entries[600:]:
        entry.args = [1]
    result = RedBeatSchedulerEntry.save_many(entries)
    assert (result.new, len(result.changed), len(result.same)) == ((), 500, 600)
    assert RedBeatSchedulerEntry.delete_many([*names[:-1], "{redbeat}:report-1099"], app) == 1_100
    assert not cluster.client().keys(target_nodes="all")


def test_bare_member_in_another_slot_gets_its_prefix(cluster: ClusterTopology, app: Celery) -> None:
    for name in ("good", "bare"):
        RedBeatSchedulerEntry(name, "tasks.report", schedule(60), app=app).save()
    make_due(app, "good")
    outside = cluster.client()
    outside.zrem("{redbeat}::schedule", "{redbeat}:bare")
    outside.zadd("{redbeat}::schedule", {"bare": 0})
    with leader(app) as scheduler:
        scheduler.tick()
    assert {message.entry for message in take_messages(app)} == {"good", "bare"}
    assert set(outside.zrange("{redbeat}::schedule", 0, -1)) == {"{redbeat}:good", "{redbeat}:bare"}


def test_save_wakes_a_waiting_beat(cluster: ClusterTopology, app: Celery) -> None:
    channel = WakeChannel(get_redis(app), "{redbeat}::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=by_url(cluster)).save()
    assert channel.wait(5)
    channel.close()


@pytest.mark.parametrize(
    ("user", "rights", "error"),
    [("nobody", None, "refused the connection"), ("guest", "-cluster", r"permissions.*'?cluster")],
)
def test_cluster_that_refuses_the_user_is_not_waited_for(
    cluster: ClusterTopology, user: str, rights: str | None, error: str
) -> None:
    if rights:
        for node in cluster.nodes:
            node.client().execute_command("ACL", "SETUSER", user, "on", ">s3cret", "~*", "+@all", rights)
    app = by_startup_nodes(cluster)
    app.conf.redbeat_redis_options.update(username=user, password="s3cret", retry_period=-1)
    with pytest.raises(StoreRefused, match=error) as caught:
        RedBeatScheduler(app)
    assert "s3cret" not in str(caught.value)


def test_single_server_is_not_waited_for_as_a_cluster(valkey: Server) -> None:
    url = valkey.url().replace("redis:", "redis-cluster:")
    app = memory_app(redbeat_redis_url=url, redbeat_redis_options={"retry_period": -1})
    with pytest.raises(StoreRefused, match="not a node of a cluster") as caught:
        RedBeatScheduler(app)
    assert caught.value.__suppress_context__


def test_nodes_that_come_back_within_the_retry_period_are_waited_for(cluster: ClusterTopology) -> None:
    app = by_startup_nodes(cluster)
    app.conf.redbeat_redis_options["retry_period"] = 20
    assert_entry_runs(app, "before")
    for node in cluster.nodes:
        node.kill()
    cluster.heal()
    assert_entry_runs(app, "after")


class Wrapper:
    """A client behind a proxy of the application's own."""

    def __init__(self, client: RedisCluster) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize("prefix", [None, "{mine}:"])
@pytest.mark.parametrize("given", ["at first", "late", "behind a proxy"])
def test_injected_cluster_client_works_or_names_the_hash_tag(
    cluster: ClusterTopology, given: str, prefix: str | None
) -> None:
    settings = {} if prefix is None else {"redbeat_key_prefix": prefix}
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", **settings)
    with cluster.client() as client:
        if given == "late":
            RedBeatSchedulerEntry("report", "t", 60, app=app)  # reads the settings
        app.redbeat_redis = Wrapper(client) if given == "behind a proxy" else client
        entry = RedBeatSchedulerEntry("report", "t", 60, app=app)
        if prefix is None and given != "at first":
            with pytest.raises(ConfigurationError, match=r"use '\{redbeat\}:'"):
                entry.save()
        else:
            entry.save()
            assert client.exists(f"{prefix or '{redbeat}:'}report")


# -- a cluster of one node, as MemoryDB and ElastiCache have it


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis", marks=pytest.mark.services)])
def node_session(request: pytest.FixtureRequest) -> Iterator[ClusterTopology]:
    with cluster(request.param, size=1) as topology:
        yield topology


@pytest.fixture
def node(node_session: ClusterTopology) -> Server:
    """Return the node with all slots."""
    node_session.flush()
    return node_session.nodes[0]


@pytest.mark.parametrize("settings", [{}, {"redbeat_shards": 2}], ids=["unsharded", "sharded"])
def test_one_node_cluster_with_the_default_prefix_is_an_error_that_names_the_hash_tag(
    node: Server, settings: dict[str, Any]
) -> None:
    for call in (
        lambda app: RedBeatSchedulerEntry("report", "t", 60, app=app).save(),
        RedBeatSchedulerEntry.count,
        lambda app: [*RedBeatSchedulerEntry.list(app)],
    ):
        with pytest.raises(ConfigurationError, match=r"has no hash tag, and .*use '\{redbeat\}:'"):
            call(memory_app(redbeat_redis_url=node.url(), **settings))
    assert node.client().dbsize() == 0
    [finding] = examine(memory_app(redbeat_redis_url=node.url(), **settings)).findings
    assert "hash tag" in json.dumps(finding.to_dict())
    assert finding.severity.name == "ERROR"


@pytest.mark.slow
@pytest.mark.parametrize("has_entries", [True, False])
def test_beat_and_commands_on_a_one_node_cluster_end_with_one_error(
    node: Server, tmp_path: Path, has_entries: bool
) -> None:
    write_app(tmp_path, "module", "memory://", redbeat_redis_url=node.url())
    if has_entries:  # copied there, or written by another language
        node.client().zadd("redbeat::schedule", {"redbeat:report": 1.0})
    commands = [["list"], ["reshard", "--to", "4", "--yes"]]
    beat = celery_beat(tmp_path, "module")
    called = [celery_command(tmp_path, "module", "redbeat", *words) for words in commands]
    for process in [beat, *called]:
        assert process.wait() == CONFIG, process.output()
        [line] = [line for line in process.output().splitlines() if "hash tag" in line]
        assert "use '{redbeat}:'" in line
        assert "Traceback" not in process.output()
    assert not node.client().exists("redbeat::layout")


def test_one_node_cluster_with_a_hash_tag_works_and_doctor_recommends_the_option(node: Server) -> None:
    app = memory_app(redbeat_redis_url=node.url(), redbeat_key_prefix="{redbeat}:")
    assert_entry_runs(app)
    [finding] = [one for one in examine(app).findings if one.kind == "cluster"]
    assert finding.severity.name == "WARNING"
    app = memory_app(redbeat_redis_url=node.url(), redbeat_redis_options={"cluster": True})
    assert_entry_runs(app, "another")
    assert not [one for one in examine(app).findings if one.kind == "cluster"]


def test_node_of_a_cluster_without_the_option_is_an_error_that_names_it(cluster: ClusterTopology) -> None:
    for node in cluster.nodes:
        app = memory_app(redbeat_redis_url=node.url(), redbeat_key_prefix="{redbeat}:")
        if node is cluster.owner("{redbeat}"):
            continue
        with pytest.raises(ConfigurationError, match=r"set redbeat_redis_options = \{'cluster': True\}"):
            RedBeatSchedulerEntry("report", "t", 60, app=app).save()
