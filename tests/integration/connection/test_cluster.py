"""A schedule in a Redis Cluster: all of its keys in one slot, everything else as elsewhere."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.errors import ConfigurationError, StoreRefused, StoreUnavailable
from redbeat.schedulers import RedBeatScheduler, get_redis
from redbeat.store.notifier import WakeChannel
from tests.support.servers import Server
from tests.support.ticks import assert_entry_runs, leader, make_due, memory_app, take_messages
from tests.support.topologies import ClusterTopology

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
def test_each_form_runs_entries_under_the_prefix_with_a_hash_tag(
    cluster: ClusterTopology, make_app: MakeApp
) -> None:
    assert_entry_runs(make_app(cluster))
    assert cluster.client().exists("{redbeat}:report")
    assert cluster.client().zscore("{redbeat}::schedule", "{redbeat}:report")


def test_calendars_are_read_and_written_as_elsewhere(cluster: ClusterTopology, app: Celery) -> None:
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


def test_a_prefix_of_its_own_with_a_hash_tag_is_used(cluster: ClusterTopology) -> None:
    assert_entry_runs(by_option(cluster, redbeat_key_prefix="shop-{eu}-beat:"))
    assert cluster.client().exists("shop-{eu}-beat:report")


@pytest.mark.parametrize("make_app", [by_startup_nodes, by_url, by_option])
def test_a_prefix_without_a_hash_tag_is_refused_and_nothing_written(
    cluster: ClusterTopology, make_app: MakeApp
) -> None:
    app = make_app(cluster, redbeat_key_prefix="redbeat:")
    with pytest.raises(ConfigurationError, match=r"redbeat_key_prefix: 'redbeat:'.*'\{redbeat\}:'"):
        RedBeatScheduler(app)
    assert not cluster.client().keys(target_nodes="all")


def test_a_save_and_a_delete_and_a_reschedule_are_seen_by_others(
    cluster: ClusterTopology, app: Celery
) -> None:
    entry = RedBeatSchedulerEntry("report", "tasks.report", crontab(minute=5), kwargs={"x": 1}, app=app)
    entry.save()
    other = RedBeatSchedulerEntry.from_key("{redbeat}:report", app=by_url(cluster))
    assert (other.schedule, other.kwargs) == (crontab(minute=5), {"x": 1})
    entry.reschedule()
    assert other.rank == 0
    other.delete()
    with pytest.raises(KeyError):
        RedBeatSchedulerEntry.from_key("{redbeat}:report", app=app)


def test_many_are_saved_and_deleted_at_once(cluster: ClusterTopology, app: Celery) -> None:
    def entries(**fields: Any) -> list[RedBeatSchedulerEntry]:
        return [
            RedBeatSchedulerEntry(f"report-{number}", "tasks.report", 60, app=app, **fields)
            for number in range(1_100)
        ]

    assert len(RedBeatSchedulerEntry.save_many(entries()).new) == 1_100
    assert cluster.client().zcard("{redbeat}::schedule") == 1_100
    result = RedBeatSchedulerEntry.save_many([*entries()[:600], *entries(args=[1])[600:]])
    assert (result.new, len(result.changed), len(result.same)) == ((), 500, 600)
    names = [*(f"report-{number}" for number in range(1_099)), "{redbeat}:report-1099"]
    assert RedBeatSchedulerEntry.delete_many(names, app) == 1_100
    assert not cluster.client().keys(target_nodes="all")


def test_statics_come_and_go_with_the_configuration(cluster: ClusterTopology, app: Celery) -> None:
    app.conf.beat_schedule = {
        f"static-{number}": {"task": "tasks.report", "schedule": 60} for number in range(1_100)
    }
    with leader(app):
        assert cluster.client().scard("{redbeat}::statics") == 1_100
        assert cluster.client().zcard("{redbeat}::schedule") == 1_100
    app.conf.beat_schedule = {"static-7": {"task": "tasks.report", "schedule": 60}}
    with leader(app):
        assert cluster.client().smembers("{redbeat}::statics") == {"static-7"}
        assert cluster.client().zrange("{redbeat}::schedule", 0, -1) == ["{redbeat}:static-7"]


def test_many_due_entries_are_claimed_and_committed(app: Celery) -> None:
    names = [f"report-{number}" for number in range(50)]
    for name in names:
        RedBeatSchedulerEntry(name, "tasks.report", schedule(60), app=app).save()
    make_due(app, *names)
    with leader(app) as scheduler:
        assert set(scheduler.schedule) == set(names)
        scheduler.tick()
        assert scheduler.tick() > 0
    assert sorted(message.entry for message in take_messages(app)) == sorted(names)


def test_two_schedulers_without_a_lock_share_the_work(cluster: ClusterTopology) -> None:
    apps = [by_startup_nodes(cluster, redbeat_lock_key=None) for _ in range(2)]
    names = [f"report-{number}" for number in range(20)]
    for name in names:
        RedBeatSchedulerEntry(name, "tasks.report", schedule(60), app=apps[0]).save()
    first, second = (RedBeatScheduler(app) for app in apps)
    make_due(apps[0], *names)
    first.tick()
    second.tick()
    sent = [message.entry for app in apps for message in take_messages(app)]
    assert sorted(sent) == sorted(names)


def test_a_member_in_another_slot_is_given_its_prefix_and_stops_nobody(
    cluster: ClusterTopology, app: Celery
) -> None:
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


def test_one_leader_keeps_another_waiting(cluster: ClusterTopology, app: Celery) -> None:
    with leader(app) as scheduler:
        assert scheduler.lock
        assert not RedBeatScheduler(by_url(cluster)).stand_for_leader()
    assert not cluster.client().exists("{redbeat}::lock")


def test_a_save_wakes_a_waiting_beat(cluster: ClusterTopology, app: Celery) -> None:
    channel = WakeChannel(get_redis(app), "{redbeat}::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=by_url(cluster)).save()
    assert channel.wait(5)
    channel.close()


def test_a_cluster_that_is_away_is_named_without_a_password(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url="redis-cluster://:s3cret@127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9") as caught:
        RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert "s3cret" not in str(caught.value)


def test_a_cluster_that_refuses_the_password_is_not_waited_for(cluster: ClusterTopology) -> None:
    app = by_startup_nodes(cluster)
    app.conf.redbeat_redis_options.update(username="nobody", password="s3cret", retry_period=-1)
    with pytest.raises(StoreRefused, match="refused the connection") as caught:
        RedBeatScheduler(app)
    assert "s3cret" not in str(caught.value)


def test_a_user_without_the_right_to_the_cluster_is_refused_by_that_right(cluster: ClusterTopology) -> None:
    for node in cluster.nodes:
        node.client().execute_command("ACL", "SETUSER", "guest", "on", ">s3cret", "~*", "+@all", "-cluster")
    app = by_startup_nodes(cluster)
    app.conf.redbeat_redis_options.update(username="guest", password="s3cret", retry_period=-1)
    with pytest.raises(StoreRefused, match=r"permissions.*'?cluster"):
        RedBeatScheduler(app)


def test_a_single_server_is_no_cluster_and_not_waited_for(valkey: Server) -> None:
    app = memory_app(
        redbeat_redis_url=valkey.url().replace("redis:", "redis-cluster:"),
        redbeat_redis_options={"retry_period": -1},
    )
    with pytest.raises(StoreRefused, match="no node of a cluster") as caught:
        RedBeatScheduler(app)
    assert caught.value.__suppress_context__
    assert len(list(traceback.walk_tb(caught.tb))) <= 3, "the sentence at the end says it all"


def test_a_node_that_comes_back_within_the_retry_period_is_waited_for(cluster: ClusterTopology) -> None:
    app = by_startup_nodes(cluster)
    app.conf.redbeat_redis_options["retry_period"] = 20
    assert_entry_runs(app, "before")
    for node in cluster.nodes:
        node.kill()
    cluster.heal()
    assert_entry_runs(app, "after")
