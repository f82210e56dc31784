"""Shards on a server that only imitates Redis, as in users' tests: entries, beat, and a changed layout."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import EntryNotFound
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.store.layouts import Layouts
from redbeat.store.members import Members
from redbeat.store.scripts.layouts import Refusal, refusal_of
from redbeat.store.store import Store
from tests.support.ticks import fake_redis_app, leader

NAMES = [f"entry-{number}" for number in range(20)]


@pytest.fixture
def app() -> Celery:
    return fake_redis_app(redbeat_shards=4)


def save_all(app: Celery) -> None:
    for name in NAMES:
        Entry(name, "echo", timedelta(hours=1), app=app).save()


def names_of(app: Celery) -> list[str]:
    keys = ensure_conf(app).keys
    return sorted(keys.name(key) for key in Members(Store(app)).entries())


def test_entries_are_saved_read_and_deleted(app: Celery) -> None:
    save_all(app)
    assert names_of(app) == sorted(NAMES)
    assert sum(1 for _ in app.redbeat_redis.scan_iter("{redbeat:*}::schedule")) == 4
    for name in NAMES:
        entry = Entry.from_key(ensure_conf(app).keys.entry(name), app=app)
        assert entry.name == name
        entry.delete()
    assert names_of(app) == []
    with pytest.raises(EntryNotFound):
        Entry.from_key(ensure_conf(app).keys.entry("entry-1"), app=app)


def test_a_changed_layout_is_followed(app: Celery) -> None:
    save_all(app)
    layout, client = Layout(Keys(), 2, 2), app.redbeat_redis
    client.flushall()
    client.hset(Keys().layout, mapping={"shards": 2, "generation": 2})
    for part in layout.parts:
        client.set(part.generation, layout.guard)
    save_all(app)
    assert names_of(app) == sorted(NAMES)
    assert ensure_conf(app).layout.guard == "2 2"
    assert sum(1 for _ in client.scan_iter("{redbeat:*}::schedule")) == 2


def test_a_beat_runs_what_is_in_all_shards(app: Celery) -> None:
    save_all(app)
    for part in Store(app).parts:
        for member in app.redbeat_redis.zrange(part.keys.schedule, 0, -1):
            app.redbeat_redis.zadd(part.keys.schedule, {member: 1})
    with leader(app) as scheduler:
        while not scheduler.tick():
            pass
    entries = [Entry.from_key(ensure_conf(app).keys.entry(name), app=app) for name in NAMES]
    assert [entry.total_run_count for entry in entries] == [1] * 20


def test_asynchronous_callers_follow_too(app: Celery) -> None:
    async def save() -> None:
        await Entry("report", "echo", 60, app=app).asave()

    asyncio.run(save())
    assert names_of(app) == ["report"]


def test_a_refusal_names_the_part_and_what_it_holds() -> None:
    said = 'RESHARDED {redbeat:1}::generation holds "3 4", not "2 16".'
    assert refusal_of(Exception(said)) == Refusal("{redbeat:1}::generation", "3 4")
    assert refusal_of(Exception('RESHARDED my"key:generation holds "", not "2 16".')) == Refusal(
        'my"key:generation', ""
    )
    assert refusal_of(Exception("WRONGTYPE")) is refusal_of(None) is None


def test_the_name_of_an_entry_is_known_by_its_key_in_any_layout() -> None:
    for layout in (Layout(Keys(), 4, 1), Layout(Keys(), None, 2), Layout(Keys(), 4, 3, None, is_moving=True)):
        for key in ("redbeat:report", "{redbeat:3}:report", "{redbeat:15}:report"):
            assert layout.name_of(key) == "report"
    assert Layout(Keys()).name_of("{redbeat:3}:report") == "{redbeat:3}:report", "it was never divided"


def test_a_generation_is_told_to_a_part_once(app: Celery) -> None:
    layouts, part = Layouts(Store(app)), Keys("{redbeat:1}:", guard="2 4")
    assert [layouts.raise_generation(part), layouts.raise_generation(part)] == ["2 4", "2 4"]
