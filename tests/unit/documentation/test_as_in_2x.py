"""What programs and tests of celery-redbeat 2.x do with a configuration, a scheduler and its lock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.schedules import schedule
from redis.exceptions import LockError, LockNotOwnedError

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.config import ensure_conf
from redbeat.connection import get_redis
from redbeat.errors import ConfigurationError
from redbeat.schedulers import acquire_distributed_beat_lock
from tests.support.schedule import LOCK
from tests.support.ticks import leader, make_due


@pytest.fixture
def scheduler(fake_app: Celery) -> Iterator[RedBeatScheduler]:
    with leader(fake_app) as leading:
        yield leading


@pytest.mark.parametrize("url", ["memory://", "", "amqp://a//;amqp://b//"])
def test_everything_but_connecting_works_without_a_redis_url(url: str) -> None:
    app = Celery("users-tests", broker=url, set_as_current=False)
    assert ensure_conf(app).schedule_key == "redbeat::schedule"
    entry = RedBeatSchedulerEntry("x", "t", 60, app=app)
    assert (entry.key, entry.score > 0) == ("redbeat:x", True)
    scheduler = RedBeatScheduler(app, lazy=True)
    assert "lock -> `redbeat::lock`" in scheduler.info
    of_schedulers = (lambda: RedBeatScheduler(app), lambda: scheduler.schedule)
    for connect in (lambda: get_redis(app), entry.save, *of_schedulers):
        with pytest.raises(ConfigurationError, match=r"redbeat_redis_url isn't set, .* is not a Redis URL"):
            connect()


def test_configuration_attributes_of_2x_can_be_set(fake_app: Celery) -> None:
    config, client = ensure_conf(fake_app), fake_app.redbeat_redis
    config.key_prefix, config.schedule_key, config.statics_key = "mine:", "mine:schedule", "mine:statics"
    config.lock_key, config.lock_timeout = "mine:lock", 30
    config.schedule = {"static": {"task": "t", "schedule": 60}}
    assert fake_app.conf.beat_schedule == config.schedule == {"static": {"task": "t", "schedule": 60}}
    RedBeatSchedulerEntry("x", "t", 60, app=fake_app).save()
    with leader(fake_app) as scheduler:
        assert (scheduler.lock_key, scheduler.lock_timeout) == ("mine:lock", 30)
        assert 20_000 < client.pttl("mine:lock") <= 30_000
        assert set(client.zrange("mine:schedule", 0, -1)) == {"mine:x", "mine:static"}
        assert client.smembers("mine:statics") == {"static"}
        client.zadd("mine:schedule", {"mine:x": 1})
        scheduler.tick()
    assert RedBeatSchedulerEntry.get("x", fake_app).total_run_count == 1
    config.redis_url = "redis://127.0.0.1:1/7"
    fake_app.redbeat_redis = None
    options = get_redis(fake_app).connection_pool.connection_kwargs
    assert (options["db"], options["decode_responses"]) == (7, True)


def test_lock_is_owned_extended_and_released_as_in_redis_py(
    fake_app: Celery, scheduler: RedBeatScheduler
) -> None:
    client, lock = fake_app.redbeat_redis, scheduler.lock
    assert (lock.owned(), lock.locked(), lock.name, lock.timeout) == (True, True, LOCK, 1500)
    assert lock.extend(30) is True
    assert 20_000 < client.pttl(LOCK) <= 30_000, "2.x: so long from now on"
    assert lock.extend(30, replace_ttl=False) is True
    assert 50_000 < client.pttl(LOCK) <= 60_000
    assert lock.reacquire() is True
    assert 1_400_000 < client.pttl(LOCK) <= 1_500_000
    assert lock.acquire(blocking=False) is True, "it is ours already"
    assert lock.release() is None
    assert (lock.owned(), lock.locked()) == (False, False)
    for call in (lock.release, lambda: lock.extend(5), lock.reacquire):
        with pytest.raises(LockError):
            call()


def test_maybe_due_before_the_due_time_returns_the_seconds_until_then(
    fake_app: Celery, scheduler: RedBeatScheduler
) -> None:
    seconds = scheduler.maybe_due(RedBeatSchedulerEntry("x", "t", 60, app=fake_app).save())
    assert seconds is not None
    assert 0 < seconds <= 60


def test_stored_fields_are_loaded_by_their_key(fake_app: Celery) -> None:
    entry = RedBeatSchedulerEntry("x", "t", 60, app=fake_app).save()
    assert entry.load_definition(entry.key, app=fake_app)["task"] == "t"
    assert entry.load_meta(entry.key, app=fake_app)["total_run_count"] == 0
    entry.delete()
    with pytest.raises(KeyError):
        entry.load_definition(entry.key, app=fake_app)


def test_lock_of_another_holder_is_not_extended_or_released(
    fake_app: Celery, scheduler: RedBeatScheduler
) -> None:
    lock = scheduler.lock
    fake_app.redbeat_redis.set(LOCK, "another")
    assert (lock.owned(), lock.locked()) == (False, True)
    for call in (lock.release, lambda: lock.extend(5), lock.reacquire):
        with pytest.raises(LockNotOwnedError):
            call()
    assert fake_app.redbeat_redis.get(LOCK) == "another"


def test_lock_released_by_hand_stops_sending_until_it_is_acquired_again(
    fake_app: Celery, scheduler: RedBeatScheduler
) -> None:
    RedBeatSchedulerEntry("x", "t", 60, app=fake_app).save()
    make_due(fake_app, "x")
    scheduler.lock.release()
    with pytest.raises(AttributeError, match="A tick without the lock"):
        scheduler.tick()
    acquire_distributed_beat_lock(Mock(scheduler=scheduler))
    assert scheduler.lock.owned()
    scheduler.tick()
    assert RedBeatSchedulerEntry.get("x", fake_app).total_run_count == 1


def test_lock_given_to_the_scheduler_is_extended_by_ticks_and_released(fake_app: Celery) -> None:
    scheduler = RedBeatScheduler(fake_app)
    scheduler.lock = lock = Mock()
    RedBeatSchedulerEntry("x", "t", 60, app=fake_app).save()
    make_due(fake_app, "x")
    scheduler.tick()
    lock.extend.assert_called_once_with(1500)
    assert RedBeatSchedulerEntry.get("x", fake_app).total_run_count == 1
    scheduler.close()
    lock.release.assert_called_once_with()
    assert scheduler.lock is None


def test_lock_of_redis_py_fences_the_scheduler(fake_app: Celery) -> None:
    client = fake_app.redbeat_redis
    scheduler = RedBeatScheduler(fake_app)
    scheduler.lock = client.lock(LOCK, timeout=30)
    assert scheduler.lock.acquire(blocking=False)
    scheduler.tick()
    assert client.pttl(LOCK) > 1_400_000, "a tick renews it to the scheduler's own time"
    client.set(LOCK, "another")
    with pytest.raises(LockNotOwnedError):
        scheduler.tick()


class Minutes(schedule):
    """A schedule with another constructor."""

    def __init__(self, minutes: int) -> None:
        super().__init__(timedelta(minutes=minutes))


def test_subclass_of_schedule_is_stored_as_its_interval(fake_app: Celery) -> None:
    entry = RedBeatSchedulerEntry("x", "t", Minutes(1), app=fake_app).save().save()
    found = RedBeatSchedulerEntry.get("x", fake_app)
    assert type(found.schedule) is schedule
    assert found.schedule.run_every == timedelta(minutes=1)
    assert entry.next_runs(1)
