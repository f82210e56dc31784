"""An import stores all of a file or nothing, and says why; what stands elsewhere becomes entries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.ownership import StaticsPlan, note_statics
from redbeat.errors import EntryChanged, EntryError, FileError, StoreCorrupt
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import apply_plan, commit
from redbeat.manifest.transfer import declare_beat_schedule, export_entries, plan_import
from redbeat.schedules import clocked
from redbeat.schedules.timezones import time_of
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.applying import apply
from tests.support.schedule import SCHEDULE, STATICS, meta_json, score_of, write_raw


def test_existing_names_are_refused_or_replaced_whole(app: Celery, client: redis.Redis) -> None:
    Entry("one", "echo", 60, app=app, jitter=5).save()
    exported = export_entries(app).declared
    Entry("one", "other", 60, app=app, max_runs=3).save()
    client.hset("redbeat:one", "error", "{}")
    with pytest.raises(FileError, match="one: is stored already; --replace writes over"):
        plan_import(app, exported)
    commit(plan_import(app, exported, replace_existing=True))
    entry = Entry.get("one", app)
    assert (entry.task, entry.jitter, entry.max_runs) == ("echo", 5, None)
    assert not client.hexists("redbeat:one", "error")


def test_a_name_that_appears_meanwhile_stops_the_import(app: Celery, client: redis.Redis) -> None:
    declared = read_file("entries: {one: {task: echo, schedule: 60}, two: {task: echo, schedule: 60}}")
    plan = plan_import(app, declared)
    Entry("two", "mine", 60, app=app).save()
    with pytest.raises(EntryChanged):
        commit(plan)
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:two"]


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    "fields",
    ["next_run: .nan", f"next_run: 1{'0' * 400}", "stored: {definition: !!binary aGVsbG8=}"],
    ids=["nan", "huge", "bytes"],
)
def test_a_value_that_redis_would_refuse_leaves_everything_as_it_was(
    app: Celery, client: redis.Redis, fields: str
) -> None:
    text = f"""
        entries:
          a: {{task: echo, schedule: {{every: 1h}}, next_run: never}}
          b: {{task: echo, schedule: {{every: 1h}}, {fields}}}
    """
    with pytest.raises(FileError, match=r"line 4: b: (next_run|stored): "):
        commit(plan_import(app, read_file(text)))
    assert not client.keys()


@pytest.mark.parametrize(("year", "zone"), [(1, "Asia/Tokyo"), (9999, "America/New_York")])
def test_a_single_time_at_the_end_of_all_time_is_refused(app: Celery, year: int, zone: str) -> None:
    moment = f"{year:04}-{'01-01T00:00' if year == 1 else '12-31T23:59'}"
    with pytest.raises(FileError, match="out of range"):
        apply(app, f"entries: {{a: {{task: echo, schedule: {{at: '{moment}'}}, timezone: {zone}}}}}")
    with pytest.raises(EntryError, match="out of range"):
        Entry("a", "echo", clocked(time_of(moment)), timezone=zone, app=app).save()


@pytest.mark.parametrize("depth", [150, 300, 450, 600, 750, 900, 960, 990, 2000])
def test_one_deep_entry_keeps_nobody_from_an_export(app: Celery, client: redis.Redis, depth: int) -> None:
    Entry("plain", "echo", 60, app=app).save()
    deep = "[" * depth + "]" * depth
    schedule = '{"__type__": "interval", "every": 60, "relative": false}'
    write_raw(client, "deep", f'{{"name": "deep", "task": "echo", "schedule": {schedule}, "args": {deep}}}')
    text = write_file(export_entries(app).declared)
    client.flushdb()
    commit(plan_import(app, read_file(text)))
    assert sorted(client.zrange("redbeat::schedule", 0, -1)) == ["redbeat:deep", "redbeat:plain"]
    assert deep in client.hgetall("redbeat:deep")["definition"]


def test_what_is_nested_more_deeply_than_a_hundred_levels_is_exported_as_text(app: Celery) -> None:
    def nested(levels: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(levels - 1):
            value = [value]
        return value

    # the definition itself is a level
    Entry("deep", "echo", 60, args=nested(100), app=app).save()
    Entry("less deep", "echo", 60, args=nested(99), app=app).save()
    entries = export_entries(app).declared.entries
    assert isinstance(entries["deep"]["stored"]["definition"], str)
    assert entries["less deep"]["args"] == nested(99)


def test_brackets_in_a_text_are_no_nesting(app: Celery, client: redis.Redis) -> None:
    brackets = '[{"' * 200
    Entry("brackets", "echo", 60, args=[brackets], app=app).save()
    Entry("wide", "echo", 60, args=[[[]] * 200], app=app).save()
    entries = export_entries(app).declared.entries
    assert (entries["brackets"]["args"], entries["wide"]["args"]) == ([brackets], [[[]] * 200])


ENTRY = "entries: {a: {task: echo, schedule: {every: 1h}, next_run: never}}"


def test_what_is_no_entry_is_not_written_over(app: Celery, client: redis.Redis) -> None:
    client.set("redbeat:a", "mine")
    with pytest.raises(FileError, match="line 1: a: the key holds no hash; delete it first"):
        apply_plan(lambda: plan_import(app, read_file(ENTRY), replace_existing=True))
    assert client.get("redbeat:a") == "mine"


@pytest.mark.parametrize("key", ["redbeat::owner:billing", "redbeat::statics", "redbeat::static-owners"])
def test_the_key_that_is_no_set_is_named(app: Celery, client: redis.Redis, key: str) -> None:
    Entry("there", "echo", 60, app=app).save()
    client.set(key, "mine")
    with pytest.raises(StoreCorrupt, match=f"^{key} holds something that is no set"):
        apply(app, ENTRY)
    if ":owner:" in key:
        with pytest.raises(StoreCorrupt, match=f"^{key} holds something that is no set"):
            commit(plan_import(app, read_file(ENTRY), owner="billing"))
    assert sorted(client.keys()) == sorted([key, "redbeat::schedule", "redbeat:there"])


@pytest.mark.parametrize("key", ["redbeat::statics", "redbeat::static-owners"])
def test_statics_are_noted_in_both_sets_or_in_none(app: Celery, client: redis.Redis, key: str) -> None:
    client.set(key, "mine")
    with pytest.raises(StoreCorrupt, match=f"^{key} holds something that is no set"):
        note_statics(Store(app), Fence(), "proj", StaticsPlan(("a",), (), {}))
    assert client.keys() == [key]


# -- from beat_schedule


def test_beat_schedule_becomes_entries_that_beat_does_not_remove(
    make_app: MakeApp, client: redis.Redis
) -> None:
    statics = {
        "hourly": {"task": "echo", "schedule": 3600.0, "args": (1,)},
        "daily": {
            "task": "echo",
            "schedule": crontab("0", "4"),
            "options": {"queue": "q"},
            "relative": False,
        },
    }
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


def test_a_bad_beat_schedule_is_named(make_app: MakeApp) -> None:
    app = make_app(beat_schedule={"odd": {"task": "echo", "schedule": "never ever"}})
    with pytest.raises(FileError, match="beat_schedule: 'odd': "):
        declare_beat_schedule(app)
