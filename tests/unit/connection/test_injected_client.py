"""A fake injected as `app.redbeat_redis` is enough for the users' own tests: save, read, tick."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.errors import ConfigurationError, EntryError, EntryNotFound, LockNotAcquired
from tests.support.ticks import assert_entry_runs, leader, make_due, memory_app, take_messages


def save(app: Celery, name: str = "x", **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(**{"name": name, "task": "t", "schedule": 60, "app": app, **fields}).save()


def test_an_entry_is_saved_read_and_deleted(fake_app: Celery) -> None:
    saved = save(fake_app, args=[1], kwargs={"a": 2}, options={"queue": "q"}, schedule=crontab(hour={7, 13}))
    found = RedBeatSchedulerEntry.from_key("redbeat:x", app=fake_app)
    assert (found, found.args, found.kwargs, found.options) == (saved, [1], {"a": 2}, {"queue": "q"})
    assert (found.rank, RedBeatSchedulerEntry.load_meta(saved.key, fake_app)["total_run_count"]) == (0, 0)
    saved.delete()
    with pytest.raises(KeyError, match="there is no such entry"):
        RedBeatSchedulerEntry.from_key("redbeat:x", app=fake_app)


def test_next_counts_a_run_and_reschedule_does_not(fake_app: Celery) -> None:
    saved = save(fake_app)
    assert next(saved).total_run_count == 1
    assert saved.total_run_count == 0
    saved.reschedule()
    found = RedBeatSchedulerEntry.from_key(saved.key, app=fake_app)
    assert (found.total_run_count, found.last_run_at) == (1, saved.last_run_at)


@pytest.mark.parametrize("act", [lambda saved: saved.reschedule(), next], ids=["reschedule", "next"])
def test_a_deleted_entry_does_not_come_back(fake_app: Celery, act: Any) -> None:
    saved = save(fake_app)
    saved.delete()
    with pytest.raises(EntryNotFound):
        act(saved)
    assert not fake_app.redbeat_redis.exists(saved.key, "redbeat::schedule")


@pytest.mark.parametrize("decodes", [True, False])
def test_a_tick_sends_what_is_due(decodes: bool) -> None:
    app = memory_app()
    app.redbeat_redis = fakeredis.FakeRedis(decode_responses=decodes)
    assert_entry_runs(app)


def test_the_users_headers_are_the_same_after_a_run(fake_app: Celery) -> None:
    options = {"headers": {"mine": 1}}
    saved = save(fake_app, options=options)
    make_due(fake_app, "x")
    with leader(fake_app) as scheduler:
        scheduler.tick()
        scheduler.apply_async(saved, advance=False)
    assert options == {"headers": {"mine": 1}}
    assert [message.headers["mine"] for message in take_messages(fake_app)] == [1, 1]
    stored = RedBeatSchedulerEntry.from_key(saved.key, app=fake_app)
    assert stored.options == {"headers": {"mine": 1}}


def test_without_a_lock_configured_a_tick_needs_none(fake_app: Celery) -> None:
    fake_app.conf.redbeat_lock_key = None
    save(fake_app)
    make_due(fake_app, "x")
    RedBeatScheduler(fake_app).tick()
    assert [message.entry for message in take_messages(fake_app)] == ["x"]


def test_a_tick_without_the_configured_lock_is_refused_in_words(fake_app: Celery) -> None:
    with pytest.raises(LockNotAcquired, match="A tick without the lock redbeat::lock") as caught:
        RedBeatScheduler(fake_app).tick()
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        ({}, {}, ("redbeat::lock", 1500, 300)),
        ({"max_interval": 10}, {}, ("redbeat::lock", 50, 10)),
        ({}, {"beat_max_loop_interval": 7}, ("redbeat::lock", 35, 7)),
        ({}, {"redbeat_lock_timeout": 9}, ("redbeat::lock", 9, 300)),
        ({"lock_timeout": 8}, {"redbeat_lock_timeout": 9}, ("redbeat::lock", 8, 300)),
        ({"lock_timeout": 3}, {}, ("redbeat::lock", 3, 300)),
        ({"lock_timeout": None}, {"redbeat_lock_timeout": 9}, ("redbeat::lock", 9, 300)),
        ({"lock_timeout": 0}, {}, ("redbeat::lock", 1500, 300)),
        ({"lock_key": "mine"}, {}, ("redbeat:mine", 1500, 300)),
        ({"lock_key": "redbeat:mine"}, {"redbeat_lock_key": "other"}, ("redbeat:mine", 1500, 300)),
        ({}, {"redbeat_lock_key": None}, (None, 1500, 300)),
    ],
)
def test_the_locks_key_and_timeout_come_from_arguments_then_settings(
    fake_app: Celery, arguments: dict[str, Any], settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    fake_app.conf.update(settings)
    made = RedBeatScheduler(fake_app, lazy=True, **arguments)
    assert (made.lock_key, made.lock_timeout, made.max_interval) == expected


@pytest.mark.parametrize("lock_timeout", [0.9, -1, "soon", True, float("nan")])
def test_a_schedulers_timeout_is_refused_as_the_setting_is(fake_app: Celery, lock_timeout: Any) -> None:
    with pytest.raises(ConfigurationError) as given:
        RedBeatScheduler(fake_app, lock_timeout=lock_timeout)
    with pytest.raises(ConfigurationError) as configured:
        RedBeatScheduler(memory_app(redbeat_redis_url="redis://h", redbeat_lock_timeout=lock_timeout))
    assert str(given.value).startswith("lock_timeout: ")
    assert f"redbeat_{given.value}" == str(configured.value)
    assert "1 or more" in str(given.value)
    assert fake_app.redbeat_redis.keys() == []


def test_the_banner_shows_server_and_lock_without_a_password(fake_app: Celery) -> None:
    fake_app.conf.redbeat_redis_url = "redis://user:hunter2@h:1/0"
    info = RedBeatScheduler(fake_app, lazy=True).info
    assert "    . redis -> redis://user:**@h:1/0\n    . lock -> `redbeat::lock` " in info
    assert "hunter2" not in info


@pytest.mark.parametrize("name", [":schedule", ":statics", ":lock", ":wake"])
def test_a_name_whose_key_is_redbeats_own_is_neither_saved_nor_deleted(fake_app: Celery, name: str) -> None:
    RedBeatSchedulerEntry("kept", "t", 60, app=fake_app).save()
    before = sorted(fake_app.redbeat_redis.keys())
    for change in ("save", "delete"):
        with pytest.raises(EntryError, match=f"can't be called '{name}'"):
            getattr(RedBeatSchedulerEntry(name, "t", 60, app=fake_app), change)()
    assert sorted(fake_app.redbeat_redis.keys()) == before
