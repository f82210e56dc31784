"""Exports and imports: nothing is lost, nothing is written over, nothing is stored by halves."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import FileError, StoreCorrupt
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import apply_plan, commit, make_plan
from redbeat.manifest.transfer import declare_beat_schedule, export_entries, plan_import
from redbeat.schedules import clocked, rrule
from redbeat.store.entries import read_entries
from redbeat.store.records import mark_of
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.applying import apply
from tests.support.schedule import SCHEDULE, STATICS, meta_json, score_of, write_raw

UTC = timezone.utc


YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def dump(client: redis.Redis) -> dict[str, Any]:
    """All entries, calendars and due times, as they stand there."""
    found: dict[str, Any] = {"schedule": dict(client.zrange(SCHEDULE, 0, -1, withscores=True))}
    for key in client.scan_iter():
        kind = client.type(key)
        if kind == "hash":
            found[key] = {name: parsed(name, text) for name, text in client.hgetall(key).items()}
        elif kind == "set":
            found[key] = client.smembers(key)
        elif kind == "list":
            found[key] = client.lrange(key, 0, -1)
    return found


def parsed(name: str, text: str) -> Any:
    """A definition or policy may be written in another order, and with what it left out; a meta may not."""
    if name not in ("definition", "policy"):
        return text
    try:
        value = json.loads(text)
        if name == "definition":
            value = {"args": None, "kwargs": {}, "options": {}, "enabled": True, **value}
            value["args"] = value["args"] or []
            if value["schedule"]["__type__"] == "interval":
                value["schedule"].setdefault("relative", False)
                value["schedule"]["every"] = float(value["schedule"]["every"])
        return json.dumps(value, sort_keys=True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return text


def again(app: Celery, client: redis.Redis, *, is_json: bool = False) -> Declared:
    """Export all, forget all, import all."""
    text = write_file(export_entries(app, with_history=True).declared, is_json=is_json)
    client.flushdb()
    declared = read_file(text)
    commit(plan_import(app, declared))
    return declared


ENTRIES: dict[str, dict[str, Any]] = {
    "plain": {"schedule": schedule(60)},
    "relative": {"schedule": schedule(60, relative=True)},
    "daily": {"schedule": crontab("30", "4"), "timezone": "Europe/Berlin"},
    "numbers": {"schedule": crontab(minute=0, hour=[1, 2])},
    "once": {"schedule": clocked(datetime(2090, 1, 1, tzinfo=UTC)), "after_finish": "delete"},
    "over": {"schedule": clocked(datetime(2020, 1, 1, tzinfo=UTC))},
    "rule": {"schedule": rrule("WEEKLY", dtstart=datetime(2024, 1, 1, 9, tzinfo=UTC), byhour=[9, 17])},
    "sun": {"schedule": solar("sunrise", 52.5, 13.4)},
    "values": {"schedule": 60, "args": [1, {"x": [1.5]}], "kwargs": {"at": datetime(2026, 1, 1, tzinfo=UTC)}},
    "options": {"schedule": 60, "options": {"queue": "q", "priority": 3, "headers": {"a": "b"}}},
    "policy": {"schedule": 60, "start_time": datetime(2025, 1, 1, tzinfo=UTC), "jitter": 5, "max_runs": 7},
    "excluded": {"schedule": 60, "exclude": "holidays"},
    "alone": {"schedule": 60, "overlap": "buffer_one", "queue_timeout": 90, "tracks": "workflow"},
    "disabled": {"schedule": 60, "enabled": False},
    "ümläut \n: - 'x'": {"schedule": 60},
}


@pytest.mark.parametrize("is_json", [False, True], ids=["yaml", "json"])
def test_export_and_import_restore_entries_calendars_and_records(
    app: Celery, client: redis.Redis, is_json: bool
) -> None:
    Calendar("holidays", {"2026-12-25": "Christmas"}, "days off", app=app).save()
    for name, fields in ENTRIES.items():
        Entry(name, "echo", app=app, **fields).save()
    Entry.get("plain", app).pause("maintenance", until=datetime(2090, 1, 1, tzinfo=UTC))
    meta = meta_json(datetime(2026, 1, 2, 3, 4, 5, 678), 99)
    client.hset("redbeat:daily", mapping={"meta": meta, "meta_crc32": mark_of(meta)})
    client.zadd(SCHEDULE, {"redbeat:daily": 1_900_000_000.123457, "redbeat:numbers": 0})
    client.zrem(SCHEDULE, "redbeat:options")
    client.hset("redbeat:sun", "owner", "billing")
    client.sadd("redbeat::owner:billing", "sun")
    Entry.get("relative", app).backfill(YESTERDAY, YESTERDAY + timedelta(minutes=25))
    client.rpush("redbeat::history:rule", '{"at": 1.50, "due":1}', "no record 'at' all\t")
    client.sadd("redbeat::backfilled:sun", "1.5", "-3")
    before = dump(client)
    declared = again(app, client, is_json=is_json)
    assert before.pop("redbeat:options")  # out of the schedule, an entry isn't listed
    assert dump(client) == before
    assert declared.entries["daily"]["schedule"] == {"cron": "30 4 * * *"}
    assert declared.entries["once"]["schedule"] == {"at": "2090-01-01T00:00:00+00:00"}
    assert (declared.entries["over"]["next_run"], declared.entries["sun"]["owner"]) == ("never", "billing")
    assert [name for name in declared.entries if "stored" in declared.entries[name]] == []
    assert len(Entry.get("relative", app).history()) == 20
    assert Entry.get("relative", app).backfill(YESTERDAY, YESTERDAY + timedelta(minutes=25)) == []


HOURLY = {"__type__": "interval", "every": 3600}


def test_export_and_import_restore_raw_and_invalid_entries(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "by-2x", score=4e9, meta=meta_json(datetime(2026, 1, 1), 5))
    write_raw(client, "unknown", {"task": "a", "schedule": HOURLY, "team": "x"}, score=4e9)
    meta = '{"last_run_at": null, "total_run_count": 1, "z": 2}'
    write_raw(client, "unknown-meta", score=4e9, meta=meta)
    client.hset("redbeat:unknown-meta", "meta_crc32", mark_of(meta))
    write_raw(client, "in-schedule", {"task": "a", "schedule": {**HOURLY, "note": 1}}, score=4e9)
    write_raw(client, "moved", {"task": "a", "schedule": HOURLY, "jitter": 3}, score=4e9)
    write_raw(client, "broken", "{oops", score=-7)
    write_raw(client, "no-kind", {"task": "a", "schedule": {"__type__": "lunar"}}, score=1e15)
    write_raw(client, "failing", score=4e9, meta=meta_json(None))
    client.hset("redbeat:failing", "error", json.dumps({"reason": "away", "attempts": 3}))
    client.hset("redbeat:by-2x", "policy", '{"colour": "red"}')
    before = dump(client)
    again(app, client)
    assert dump(client) == before


@pytest.mark.also_sharded
def test_export_by_pattern_and_owner(app: Celery) -> None:
    for name in ("a1", "a2", "b1"):
        Entry(name, "echo", 60, app=app).save()
    text = "entries: {b1: {task: echo, schedule: 60}}"
    apply_plan(lambda: make_plan(app, read_file(text), "billing"))
    assert list(export_entries(app, match="a*").declared.entries) == ["a1", "a2"]
    mine = export_entries(app, owner="billing").declared
    assert (mine.owner, list(mine.entries), "owner" in mine.entries["b1"]) == ("billing", ["b1"], False)
    assert not make_plan(app, read_file(write_file(mine)), "billing").difference


def test_import_without_history_keeps_the_stored_records(app: Celery, client: redis.Redis) -> None:
    Entry("one", "echo", 60, app=app).save()
    client.rpush("redbeat::history:one", '{"at":2,"due":1}')
    client.sadd("redbeat::backfilled:one", "1")
    commit(plan_import(app, export_entries(app).declared, replace_existing=True))
    assert client.exists("redbeat::history:one", "redbeat::backfilled:one") == 2
    with_records = export_entries(app, with_history=True).declared
    client.rpush("redbeat::history:one", '{"at":4,"due":3}')
    client.sadd("redbeat::backfilled:one", "3")
    commit(plan_import(app, with_records, replace_existing=True))
    assert client.lrange("redbeat::history:one", 0, -1) == ['{"at":2,"due":1}']
    assert client.smembers("redbeat::backfilled:one") == {"1"}


def test_export_skips_names_that_are_not_utf8(app: Celery, client: redis.Redis) -> None:
    write_raw(
        client, "halves", '{"task": "a", "schedule": {"__type__": "interval", "every": 60}, "x": "\\ud800"}'
    )
    before = dump(client)
    client.zadd(SCHEDULE, {b"redbeat:\xff": 1, "redbeat:gone": 1})
    client.hset(b"redbeat:\xff", "definition", "{}")
    exported = export_entries(app)
    reasons = sorted(reason.split(": ")[1] for reason in exported.skipped)
    assert reasons == ["its hash is gone.", "its name is no UTF-8."]
    text = write_file(exported.declared)
    assert text[0] == "{"  # YAML knows no halves of characters
    client.flushdb()
    commit(plan_import(app, read_file(text)))
    assert dump(client) == before


def test_export_has_entries_that_are_rescheduled_meanwhile(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Entry.save_many([Entry(f"entry-{number}", "echo", 86_400 + number, app=app) for number in range(1100)])
    moved = iter(range(1000, 1100))

    def read_and_move(store: Store, keys: Any) -> Any:
        found = read_entries(store, keys)
        for number in (next(moved), next(moved)):  # what isn't due for long becomes due soon
            client.zadd(SCHEDULE, {f"redbeat:entry-{number}": time.time() + 60})
        return found

    monkeypatch.setattr("redbeat.manifest.plan.read_entries", read_and_move)
    declared = export_entries(app).declared
    assert len(declared.entries) == 1100


def test_import_refuses_or_replaces_existing_entries(app: Celery, client: redis.Redis) -> None:
    Entry("one", "echo", 60, app=app, jitter=5).save()
    exported = export_entries(app).declared
    Entry("one", "other", 60, app=app, max_runs=3).save()
    client.hset("redbeat:one", "error", "{}")
    with pytest.raises(FileError, match="one: is stored already"):
        plan_import(app, exported)
    commit(plan_import(app, exported, replace_existing=True))
    entry = Entry.get("one", app)
    assert (entry.task, entry.jitter, entry.max_runs) == ("echo", 5, None)
    assert not client.hexists("redbeat:one", "error")


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    "fields",
    ["next_run: .nan", "stored: {definition: !!binary aGVsbG8=}"],
    ids=["nan", "bytes"],
)
def test_import_of_an_invalid_value_changes_nothing(app: Celery, client: redis.Redis, fields: str) -> None:
    text = f"""
        entries:
          a: {{task: echo, schedule: {{every: 1h}}, next_run: never}}
          b: {{task: echo, schedule: {{every: 1h}}, {fields}}}
    """
    with pytest.raises(FileError, match=r"line 4: b: (next_run|stored): "):
        commit(plan_import(app, read_file(text)))
    assert not client.keys()


@pytest.mark.parametrize("depth", [150, 2000])
def test_deep_entry_is_exported_and_imported(app: Celery, client: redis.Redis, depth: int) -> None:
    Entry("plain", "echo", 60, app=app).save()
    deep = "[" * depth + "]" * depth
    schedule = '{"__type__": "interval", "every": 60, "relative": false}'
    write_raw(client, "deep", f'{{"name": "deep", "task": "echo", "schedule": {schedule}, "args": {deep}}}')
    text = write_file(export_entries(app).declared)
    client.flushdb()
    commit(plan_import(app, read_file(text)))
    assert sorted(client.zrange("redbeat::schedule", 0, -1)) == ["redbeat:deep", "redbeat:plain"]
    assert deep in client.hgetall("redbeat:deep")["definition"]


ENTRY_FILE = "entries: {a: {task: echo, schedule: {every: 1h}, next_run: never}}"


@pytest.mark.parametrize("key", ["redbeat::owner:billing", "redbeat::statics", "redbeat::static-owners"])
def test_key_that_is_not_a_set_is_named(app: Celery, client: redis.Redis, key: str) -> None:
    Entry("there", "echo", 60, app=app).save()
    client.set(key, "mine")
    with pytest.raises(StoreCorrupt, match=f"^{key} holds something that is no set"):
        apply(app, ENTRY_FILE)
    assert sorted(client.keys()) == sorted([key, "redbeat::schedule", "redbeat:there"])


def test_imported_beat_schedule_is_not_removed_by_beat(make_app: MakeApp, client: redis.Redis) -> None:
    daily = {"task": "echo", "schedule": crontab("0", "4"), "options": {"queue": "q"}, "relative": False}
    statics = {"hourly": {"task": "echo", "schedule": 3600.0, "args": (1,)}, "daily": daily}
    app = make_app(beat_schedule=statics, redbeat_lock_key=None)
    RedBeatScheduler(app).close()
    client.hset("redbeat:hourly", "meta", meta_json(datetime(2026, 1, 1), 7))
    before = score_of(client, "daily")
    declared, known = declare_beat_schedule(app)
    commit(plan_import(app, declared, owner="imported", may_exist=known))
    assert Entry.get("hourly", app).total_run_count == 7
    assert score_of(client, "daily") == before
    RedBeatScheduler(make_app(redbeat_lock_key=None)).close()  # beat_schedule is empty now
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:daily", "redbeat:hourly"]
    assert not client.exists(STATICS)
