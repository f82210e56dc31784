"""A schedule behind Sentinel, with passwords on servers and sentinels, through a failover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import RedisError

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import StoreUnavailable
from redbeat.schedulers import get_redis
from redbeat.store.notifier import WakeChannel
from tests.support import topologies
from tests.support.polling import eventually
from tests.support.ticks import assert_entry_runs, leader, make_due, memory_app, take_messages

Topology = topologies.SentinelTopology


MakeApp = Callable[[Topology], Celery]


PASSWORD = "p@ss:w/rd#%"


SENTINEL_PASSWORD = "sentinels:p@ss"


@pytest.fixture(scope="module")
def guarded_session() -> Iterator[Topology]:
    with topologies.sentinel(password=PASSWORD, sentinel_password=SENTINEL_PASSWORD) as topology:
        yield topology


@pytest.fixture
def guarded(guarded_session: Topology) -> Topology:
    guarded_session.make_ready()
    return guarded_session


def options_of(topology: Topology, **more: Any) -> dict[str, Any]:
    """Return options as celery-redbeat 2.x documents them."""
    return {
        "sentinels": topology.addresses,
        "service_name": topology.service_name,
        "password": topology.password,
        "db": 3,
        "sentinel_kwargs": {"password": topology.sentinel_password},
        **more,
    }


def by_sentinel(topology: Topology) -> Celery:
    return memory_app(redbeat_redis_url="sentinel://", redbeat_redis_options=options_of(topology))


def by_celery(topology: Topology) -> Celery:
    """Make an app with the settings of its broker only."""
    return memory_app(
        broker_url=topology.url(db=3),
        broker_transport_options={
            "master_name": topology.service_name,
            "sentinel_kwargs": {"password": topology.sentinel_password},
        },
    )


def test_retry_period_bridges_a_failover(guarded: Topology) -> None:
    app = memory_app(
        redbeat_redis_url="sentinel://", redbeat_redis_options=options_of(guarded, retry_period=20)
    )
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert get_redis(app).wait(1, 5000) == 1
    guarded.fail_over()
    assert_entry_runs(app, "another")
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).name == "report"


def test_sentinels_without_passwords_need_none(sentinel: Topology) -> None:
    app = memory_app(
        redbeat_redis_url=sentinel.url(), redbeat_redis_options={"service_name": sentinel.service_name}
    )
    assert_entry_runs(app)


def test_unknown_service_is_an_error_that_names_the_sentinels(guarded: Topology) -> None:
    app = memory_app(
        redbeat_redis_url=guarded.url(), redbeat_redis_options=options_of(guarded, service_name="nobody")
    )
    with pytest.raises(StoreUnavailable, match="nobody") as caught:
        RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert all(str(port) in str(caught.value) for _, port in guarded.addresses)
    assert "p@ss" not in str(caught.value)
    assert "p%40ss" not in str(caught.value)


@pytest.mark.parametrize("make_app", [by_sentinel, by_celery])
def test_schedule_goes_on_after_a_failover(guarded: Topology, make_app: MakeApp) -> None:
    app = make_app(guarded)
    with leader(app) as scheduler:
        for name in ("before", "after"):
            RedBeatSchedulerEntry(name, "tasks.report", 10**10, app=app).save()
        assert guarded.master().client(db=3).exists("redbeat:before")
        make_due(app, "before")
        scheduler.tick()
        assert [message.entry for message in take_messages(app)] == ["before"]
        assert get_redis(app).wait(1, 5000) == 1, "the replica has all that the master has"
        guarded.fail_over()
        eventually(lambda: make_due(app, "after") is None, retry_on=(RedisError, StoreUnavailable))
        eventually(lambda: scheduler.tick() > 0, retry_on=(RedisError, StoreUnavailable))
    assert [message.entry for message in take_messages(app)] == ["after"]
    assert RedBeatSchedulerEntry.from_key("redbeat:before", app=app).total_run_count == 1


def test_save_wakes_a_beat_through_sentinel(guarded: Topology) -> None:
    app = by_sentinel(guarded)
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert channel.wait(5)
    channel.close()
