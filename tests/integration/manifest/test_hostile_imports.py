"""What stands in a file by mistake or malice: an import stores all of it or nothing, and says why."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.ownership import StaticsPlan, note_statics
from redbeat.errors import EntryError, FileError, StoreCorrupt
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import apply_plan, commit
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.schedules import clocked
from redbeat.schedules.timezones import time_of
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.applying import apply
from tests.support.schedule import write_raw


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
