"""Entries, saved and read on real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryChanged, EntryNotFound
from redbeat.schedules import rrule
from tests.faults.children import run_children
from tests.support.fidelity import counting_round_trips
from tests.support.schedule import SCHEDULE, field, meta_json, score_of, server_now, write_raw
from tests.support.servers import Server

HOUR = 3600.0
#: counts deletions of entries that never ran
UNRUN = "redbeat::unrun"


def hourly(app: Celery, name: str = "entry", **fields: Any) -> Entry:
    return Entry(**{"name": name, "task": "echo", "schedule": schedule(HOUR), "app": app, **fields})


def test_save_returns_the_entry_and_stores_exactly_what_2x_knows(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app, args=[1, "zwei"], kwargs={"x": None}, options={"queue": "fast"})
    before = server_now(client)
    assert entry.save() is entry
    after = server_now(client)
    assert sorted(client.hkeys("redbeat:entry")) == ["definition", "meta", "meta_sha1"]
    assert field(client, "entry", "definition") == {
        "name": "entry",
        "task": "echo",
        "args": [1, "zwei"],
        "kwargs": {"x": None},
        "options": {"queue": "fast"},
        "schedule": {"__type__": "interval", "every": HOUR, "relative": False},
        "enabled": True,
    }
    assert set(field(client, "entry", "meta")) == {"last_run_at", "total_run_count"}
    assert before + HOUR - 1e-3 <= (score_of(client, "entry") or 0) <= after + HOUR + 1e-3
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:entry"]
    assert sorted(client.keys()) == [SCHEDULE, "redbeat:entry"]


def test_of_new_entries_saved_one_after_the_other_each_takes_a_round_trip_and_one_that_exists_keeps_its_runs(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.store.CLOCK_SECONDS", 3600)  # else a busy machine reads it again
    ran_at, due = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), server_now(client) + 99
    write_raw(client, "new-4", meta=meta_json(ran_at, 7), score=due)
    hourly(app, "first").save()
    trips = []
    for number in range(7):
        with counting_round_trips(monkeypatch) as sent:
            hourly(app, f"new-{number}").save()
        trips.append(sent())
    assert trips == [1, 1, 1, 1, 3, 2, 1], "after one that was there, the next is read"
    assert field(client, "new-4", "meta")["total_run_count"] == 7
    kept = Entry.from_key("new-4", app)
    assert (kept.last_run_at, kept.total_run_count) == (ran_at, 7)
    assert server_now(client) + HOUR - 60 < (score_of(client, "new-3") or 0) < server_now(client) + HOUR + 1


@pytest.mark.also_sharded
def test_an_entry_that_was_saved_is_read_before_it_is_saved_again(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [hourly(app, f"entry-{number}").save() for number in range(3)]
    client.hset(entries[0].key, "meta", meta_json(datetime.now(timezone.utc), 5))
    with counting_round_trips(monkeypatch) as sent:
        entries[0].save()
    assert (sent(), entries[0].total_run_count) == (2, 5)


@pytest.mark.parametrize("is_there", [True, False])
def test_if_unchanged_is_asked_of_an_entry_that_was_taken_for_new(
    app: Celery, client: redis.Redis, is_there: bool
) -> None:
    hourly(app, "before").save()
    if is_there:
        write_raw(client, "entry")
    definition = client.hget("redbeat:entry", "definition")
    if is_there:
        with pytest.raises(EntryChanged, match="there is such an entry by now"):
            hourly(app, args=[1]).save(if_unchanged=True)
        assert client.hget("redbeat:entry", "definition") == definition
    else:
        hourly(app, args=[1]).save(if_unchanged=True)
        assert field(client, "entry", "definition")["args"] == [1]


@pytest.mark.also_sharded
def test_what_is_read_back_equals_what_was_saved(app: Celery) -> None:
    saved = hourly(app, schedule=crontab(minute="*/5", hour={7, 13}), args=(1,), enabled=False).save()
    read = Entry.from_key(saved.key, app=app)
    for name in ("name", "task", "schedule", "kwargs", "options", "enabled", "total_run_count"):
        assert getattr(read, name) == getattr(saved, name), name
    assert (list(read.args), read.score, read.due_at) == ([1], saved.score, saved.due_at)
    assert abs(read.last_run_at - saved.last_run_at) < timedelta(milliseconds=1)


def test_an_entry_that_is_not_there_is_a_key_error(app: Celery) -> None:
    with pytest.raises(KeyError, match="redbeat:nobody") as caught:
        Entry.from_key("redbeat:nobody", app=app)
    assert isinstance(caught.value, EntryNotFound)
    assert caught.value.key == "redbeat:nobody"


def test_deleting_twice_is_no_error_and_leaves_nothing(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    entry.delete()
    entry.delete()
    assert client.keys() == [UNRUN]
    assert client.zrange(UNRUN, 0, -1, withscores=True) == [("entry", 1)]


def test_reschedule_counts_from_the_given_time_and_keeps_the_count(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    client.hset(entry.key, "meta", meta_json(datetime(2024, 1, 1), 7))
    since = datetime.now(timezone.utc) - timedelta(minutes=10)
    entry.reschedule(since)
    assert score_of(client, "entry") == pytest.approx(since.timestamp() + HOUR, abs=1e-3)
    assert Entry.from_key(entry.key, app=app).total_run_count == 7
    entry.reschedule()
    assert score_of(client, "entry") == pytest.approx(server_now(client) + HOUR, abs=5)


@pytest.mark.parametrize("change", [Entry.reschedule, Entry.next])
def test_a_deleted_entry_is_not_brought_back(
    app: Celery, client: redis.Redis, change: Callable[[Entry], Any]
) -> None:
    entry = hourly(app).save()
    entry.delete()
    with pytest.raises(EntryNotFound):
        change(entry)
    assert client.keys() == [UNRUN]


def test_next_records_a_run_and_leaves_its_argument_alone(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    following = entry.next()
    assert (following.total_run_count, entry.total_run_count) == (1, 0)
    assert next(following).total_run_count == 2
    assert field(client, "entry", "meta")["total_run_count"] == 2
    assert score_of(client, "entry") == pytest.approx(server_now(client) + HOUR, abs=5)


@pytest.mark.also_sharded
def test_rank_is_the_place_in_the_schedule(app: Celery) -> None:
    late, early = hourly(app, "late", schedule=schedule(9)), hourly(app, "early", schedule=schedule(5))
    assert late.rank is None
    late.save()
    early.save()
    assert (early.rank, late.rank) == (0, 1)


def test_saving_again_keeps_meta_and_is_scored_from_it(app: Celery, client: redis.Redis) -> None:
    ran_at = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(minutes=59)
    write_raw(client, "entry", meta=meta_json(ran_at, 41), score=12345)
    again = hourly(app, args=["new"]).save()
    assert field(client, "entry", "meta")["total_run_count"] == 41
    assert again.total_run_count == 41
    due = ran_at.replace(tzinfo=timezone.utc).timestamp() + HOUR
    assert score_of(client, "entry") == pytest.approx(due, abs=1e-3)
    assert again.due_at
    assert again.due_at.timestamp() == pytest.approx(due, abs=1e-3)


def test_a_changed_schedule_counts_from_now(app: Celery, client: redis.Redis) -> None:
    long_ago = datetime(2024, 1, 1, 12, 0, 0)
    write_raw(client, "entry", meta=meta_json(long_ago, 3), score=1e10)
    hourly(app, schedule=schedule(600)).save()
    due = score_of(client, "entry") or 0
    now = server_now(client)
    assert now < due <= now + 600
    assert (due - long_ago.replace(tzinfo=timezone.utc).timestamp()) % 600 == pytest.approx(0, abs=1e-3)
    assert field(client, "entry", "meta")["total_run_count"] == 3


def test_an_entry_enabled_again_does_not_make_up_for_its_pause(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "entry", meta=meta_json(datetime(2024, 1, 1), 3), enabled=False, score=1)
    hourly(app).save()
    assert (score_of(client, "entry") or 0) > server_now(client)


def test_what_others_put_beside_and_into_an_entry_is_kept(app: Celery, client: redis.Redis) -> None:
    own = {"__type__": "interval", "every": HOUR, "relative": False, "since": "spring"}
    write_raw(client, "entry", schedule=own, owner="ops", meta='{"total_run_count": 2, "seen": [1]}')
    client.hset("redbeat:entry", mapping={"policy": '{"colour": 5}', "note": "mine"})
    Entry.from_key("redbeat:entry", app=app).next()
    hourly(app, kwargs={"a": 1}).save()
    definition = field(client, "entry", "definition")
    assert (definition["owner"], definition["schedule"]["since"]) == ("ops", "spring")
    assert definition["kwargs"] == {"a": 1}
    meta = field(client, "entry", "meta")
    assert (meta["seen"], meta["total_run_count"]) == ([1], 3)
    assert client.hmget("redbeat:entry", ["policy", "note"]) == ['{"colour": 5}', "mine"]


def test_a_definition_that_was_unusable_is_replaced_and_keeps_its_count(
    app: Celery, client: redis.Redis
) -> None:
    write_raw(client, "entry", "{oops", meta=meta_json(datetime(2024, 1, 1), 9))
    client.hset("redbeat:entry", "error", '{"reason": "old"}')
    hourly(app).save()
    assert Entry.from_key("redbeat:entry", app=app).total_run_count == 9
    assert client.hget("redbeat:entry", "error") is None
    assert (score_of(client, "entry") or 0) > server_now(client)


def test_sets_in_a_crontab_can_be_saved(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app, schedule=crontab(minute=0, hour={13, 7}, day_of_week=frozenset({1}))).save()
    stored = field(client, "entry", "definition")["schedule"]
    assert (stored["hour"], stored["day_of_week"], stored["minute"]) == ([7, 13], [1], 0)
    assert Entry.from_key(entry.key, app=app).schedule == entry.schedule


def test_a_rule_that_ended_is_scored_as_never(app: Celery, client: redis.Redis) -> None:
    over = rrule("DAILY", dtstart=datetime(2020, 1, 1), count=3)
    assert hourly(app, schedule=over).save().due_at is None
    assert score_of(client, "entry") == -1


def test_eight_threads_that_record_runs_of_one_entry_lose_none(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: [entry.next() for _ in range(10)], range(8)))
    assert field(client, "entry", "meta")["total_run_count"] == 80


def test_eight_processes_that_save_one_entry_lose_nothing(server: Server, client: redis.Redis) -> None:
    write_raw(client, "entry", owner="ops", meta=meta_json(None, 5))
    assert run_children([partial(_save_often, server.url(1), number) for number in range(8)]) == [0] * 8
    definition = field(client, "entry", "definition")
    assert definition["owner"] == "ops"
    assert definition["kwargs"]["round"] == 9
    assert field(client, "entry", "meta")["total_run_count"] == 5 + 80


def _save_often(url: str, number: int) -> None:
    app = Celery("child", broker=url, set_as_current=False)
    for turn in range(10):
        hourly(app, kwargs={"from": number, "round": turn}).save().next()


def test_raw_json_is_what_another_language_reads(app: Celery, client: redis.Redis) -> None:
    hourly(app, kwargs={"text": "ü☃"}, args=[datetime(2024, 5, 6, tzinfo=timezone.utc)]).save()
    raw = client.hget("redbeat:entry", "definition")
    assert raw is not None
    assert json.loads(raw)["args"][0] == {
        "__type__": "datetime",
        "year": 2024,
        "month": 5,
        "day": 6,
        "hour": 0,
        "minute": 0,
        "second": 0,
        "microsecond": 0,
        "timezone": "UTC",
    }
    assert Entry.from_key("redbeat:entry", app=app).kwargs == {"text": "ü☃"}
