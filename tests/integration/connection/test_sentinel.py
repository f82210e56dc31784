"""A schedule behind Sentinel, with passwords on the servers and on the sentinels, through a failover."""

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
from tests.support.stopwatch import Stopwatch
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
    """What celery-redbeat 2.x documents: all in the options, the URL says only what it is."""
    return {
        "sentinels": topology.addresses,
        "service_name": topology.service_name,
        "password": topology.password,
        "db": 3,
        "sentinel_kwargs": {"password": topology.sentinel_password},
        **more,
    }


def by_redis_sentinel(topology: Topology) -> Celery:
    return memory_app(
        redbeat_redis_url="redis-sentinel://redis-sentinel:26379/0",
        redbeat_redis_options=options_of(topology),
    )


def by_sentinel(topology: Topology) -> Celery:
    return memory_app(redbeat_redis_url="sentinel://", redbeat_redis_options=options_of(topology))


def by_redis_url_with_sentinels(topology: Topology) -> Celery:
    return memory_app(redbeat_redis_url="redis://ignored:6379/0", redbeat_redis_options=options_of(topology))


def by_celery(topology: Topology) -> Celery:
    """The broker's own settings and none of RedBeat's; the tasks' messages go through Sentinel, too."""
    return memory_app(
        broker_url=topology.url(db=3),
        broker_transport_options={
            "master_name": topology.service_name,
            "sentinel_kwargs": {"password": topology.sentinel_password},
        },
    )


FORMS = pytest.mark.parametrize(
    "make_app", [by_redis_sentinel, by_sentinel, by_redis_url_with_sentinels, by_celery]
)


@FORMS
def test_each_form_reaches_the_database_of_the_master(guarded: Topology, make_app: MakeApp) -> None:
    assert_entry_runs(make_app(guarded))
    assert guarded.master().client(db=3).exists("redbeat:report")


@pytest.mark.few_cases(2)
@FORMS
def test_the_schedule_goes_on_after_a_failover(guarded: Topology, make_app: MakeApp) -> None:
    app = make_app(guarded)
    with leader(app) as scheduler:
        for name in ("before", "after"):
            RedBeatSchedulerEntry(name, "tasks.report", 10**10, app=app).save()
        make_due(app, "before")
        scheduler.tick()
        assert [message.entry for message in take_messages(app)] == ["before"]
        assert get_redis(app).wait(1, 5000) == 1, "the replica has all that the master has"
        guarded.fail_over()
        eventually(lambda: make_due(app, "after") is None, retry_on=(RedisError, StoreUnavailable))
        eventually(lambda: scheduler.tick() > 0, retry_on=(RedisError, StoreUnavailable))
    assert [message.entry for message in take_messages(app)] == ["after"]
    assert RedBeatSchedulerEntry.from_key("redbeat:before", app=app).total_run_count == 1


def test_a_retry_period_bridges_a_failover(guarded: Topology) -> None:
    app = memory_app(
        redbeat_redis_url="sentinel://", redbeat_redis_options=options_of(guarded, retry_period=20)
    )
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert get_redis(app).wait(1, 5000) == 1
    guarded.fail_over()
    assert_entry_runs(app, "another")
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).name == "report"


def test_the_password_in_the_url_is_the_servers(guarded: Topology) -> None:
    app = memory_app(
        redbeat_redis_url=guarded.url(db=3),
        redbeat_redis_options={
            "master_name": guarded.service_name,
            "sentinel_kwargs": {"password": SENTINEL_PASSWORD},
        },
    )
    assert_entry_runs(app)


def test_sentinels_without_passwords_need_none(sentinel: Topology) -> None:
    app = memory_app(
        redbeat_redis_url=sentinel.url(), redbeat_redis_options={"service_name": sentinel.service_name}
    )
    assert_entry_runs(app)


def test_a_sentinel_that_is_down_is_passed_over_at_once(guarded: Topology) -> None:
    guarded.sentinels[0].kill()
    with Stopwatch() as watch:
        assert_entry_runs(by_sentinel(guarded))
    assert watch.asleep_seconds < 2


def test_sentinels_that_know_no_such_service_are_named_without_a_password(guarded: Topology) -> None:
    app = memory_app(
        redbeat_redis_url=guarded.url(), redbeat_redis_options=options_of(guarded, service_name="nobody")
    )
    with pytest.raises(StoreUnavailable, match="nobody") as caught:
        RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert all(str(port) in str(caught.value) for _, port in guarded.addresses)
    assert "p@ss" not in str(caught.value)
    assert "p%40ss" not in str(caught.value)


def test_a_save_wakes_a_waiting_beat_through_sentinel(guarded: Topology) -> None:
    app = by_sentinel(guarded)
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    assert channel.wait(5)
    channel.close()
