"""Entries over shards, on one server and on a cluster, and while they are moved."""

from __future__ import annotations

import asyncio
import random

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics.downgrade import examine
from redbeat.errors import ConfigurationError, EntryNotFound
from redbeat.store.entries import read_entries
from redbeat.store.members import count_members
from tests.support.command_line import call
from tests.support.sharded import TOPOLOGIES, Sharded, sharded


@pytest.fixture(params=TOPOLOGIES, ids=["one server", "cluster"])
def at(request: pytest.FixtureRequest) -> Sharded:
    return sharded(request, *request.param)


def make(at: Sharded, count: int, chance: random.Random | None = None) -> list[Entry]:
    every = [60 if chance is None else chance.randrange(60, 90_000) for _ in range(count)]
    entries = [Entry(f"e{number}", "echo", every[number], app=at.app) for number in range(count)]
    Entry.save_many(entries)
    return entries


def test_entry_and_its_records_are_in_the_shard_of_its_name(at: Sharded) -> None:
    make(at, 300)
    per_shard = at.shards_of("e")
    assert sum(per_shard) == 300
    assert all(per_shard), "each shard has some"
    entry = Entry.get("e7", at.app)
    part = at.store.parts.of("e7")
    assert entry.key == part.entry("e7")
    assert at.client.zscore(part.schedule, entry.key) == entry.score
    entry.trigger()
    assert len(entry.history()) == 1
    assert at.client.exists(part.about("e7").history)
    entry.delete()
    assert not at.client.exists(entry.key, *part.beside(entry.key))
    with pytest.raises(EntryNotFound):
        Entry.get("e7", at.app)


def test_bulk_operations_take_one_round_trip_a_node(at: Sharded) -> None:
    entries = make(at, 500)
    with at.counting() as sent:
        _, found = read_entries(at.store, [entry.key for entry in entries])
        assert sent() == at.nodes
    assert [stored.key for stored in found] == [entry.key for entry in entries], "in their order"
    others = [Entry(f"new-{number}", "echo", 60, app=at.app) for number in range(500)]
    with at.counting() as sent:
        result = Entry.save_many(others)
        assert sent() <= 2 * at.nodes, "one to read, one to write"
    assert result.new == tuple(entry.name for entry in others)
    with at.counting() as sent:
        again = Entry.save_many([*entries[:250], Entry("e300", "other", 60, app=at.app)])
        assert sent() <= 3 * at.nodes, "and one, as they were expected to be new, too"
    assert (len(again.same), again.changed) == (250, ("e300",))
    Entry.delete_many([entry.name for entry in entries[:250]], at.app)
    with at.counting() as sent:
        assert Entry.delete_many([f"new-{number}" for number in range(500)], at.app) == 500
        assert sent() == at.nodes
    assert Entry.count(at.app) == 250


def test_list_over_shards_is_ordered_by_due_time(at: Sharded, chance: random.Random) -> None:
    entries = make(at, 700, chance)
    Entry("never", "echo", 60, enabled=False, app=at.app).save()
    at.client.zadd(at.store.parts.of("never").schedule, {at.store.keys.entry("never"): -1})
    by_time = sorted(entries, key=lambda entry: entry.score)
    listed = list(Entry.list(at.app))
    assert [entry.next_due_at for entry in listed[:-1]] == [entry.next_due_at for entry in by_time]
    assert listed[-1].name == "never", "those that never run again are last"
    assert {entry.name for entry in listed} == {*(entry.name for entry in entries), "never"}
    with at.counting() as sent:
        page = [entry.name for entry in Entry.list(at.app, offset=300, limit=20)]
        assert sent() <= 6 * at.nodes
    assert page == [entry.name for entry in listed[300:320]]
    latest = by_time[100]
    count = sum(entry.score <= latest.score for entry in entries)  # some may be due at the same time
    assert len(list(Entry.list(at.app, due_before=latest.next_due_at))) == count
    assert len(list(Entry.list(at.app, match="e1*"))) == Entry.count(at.app, match="e1*") == 111
    assert count_members(at.store) == Entry.count(at.app) == 701


def test_clear_removes_entries_from_wrong_shards(at: Sharded) -> None:
    make(at, 40)
    for part in at.store.parts:
        at.client.zadd(part.schedule, {"e1": 5, at.store.keys.entry("e2"): 6})
    Entry.clear(at.app)
    assert Entry.count(at.app) == 0
    assert sum(at.shards_of("e")) == 0


def test_downgrade_of_a_sharded_schedule_is_refused(at: Sharded) -> None:
    make(at, 3)
    told = call(at.app, "downgrade", "--yes")
    assert told.exit_code != 0
    assert "reshard --to none" in f"{told.output}{told.exception}"
    with pytest.raises(ConfigurationError, match="reshard --to none"):
        examine(at.app)
    assert Entry.count(at.app) == 3


def test_awaited_operations_work_over_shards(at: Sharded) -> None:
    async def live() -> None:
        saved = await Entry.asave_many([Entry(f"e{number}", "echo", 60, app=at.app) for number in range(200)])
        assert len(saved.new) == await Entry.acount(at.app) == 200
        await (await Entry.aget("e7", at.app)).aupdate(args=[1])
        assert {entry.name async for entry in Entry.alist(at.app)} == {*saved.new}
        assert await Entry.adelete_many(saved.new[:50], at.app) == 50
        assert await Entry.acount(at.app) == 150

    asyncio.run(live())


@pytest.fixture
def moving(request: pytest.FixtureRequest) -> Sharded:
    """Entries e0 to e59 are in two shards; the layout says that they are on their way into four."""
    former = sharded(request, 1, 2)
    make(former, 60)
    layout = former.store.config.base_keys.layout
    former.client.hset(layout, mapping={"shards": 4, "generation": 2, "former": 2, "state": "moving"})
    at = sharded(request, 1, 4)
    for part in at.store.parts:
        at.client.set(part.generation, part.guard)
    return at


def move(at: Sharded, name: str) -> None:
    """Move an entry as `celery redbeat reshard` does, in one step."""
    former, home = at.store.config.layout.former_keys.home(name), at.store.config.layout.keys.home(name)
    if former.prefix == home.prefix or not at.client.exists(former.entry(name)):
        return
    score = at.client.zscore(former.schedule, former.entry(name))
    at.client.zrem(former.schedule, former.entry(name))
    at.client.rename(former.entry(name), home.entry(name))
    at.client.zadd(home.schedule, {home.entry(name): score})


def test_entries_being_moved_are_found_and_written_once(moving: Sharded) -> None:
    at = moving
    assert Entry.count(at.app) == len([*Entry.list(at.app)]) == 60
    assert Entry.get("e7", at.app).task == "echo"
    for number in range(0, 60, 2):
        move(at, f"e{number}")
    assert sorted(entry.name for entry in Entry.list(at.app)) == sorted(f"e{number}" for number in range(60))
    Entry.get("e7", at.app).update(args=[1])
    result = Entry.save_many([Entry(f"e{number}", "other", 60, app=at.app) for number in range(80)])
    assert (len(result.new), len(result.changed)) == (20, 60)
    assert Entry.count(at.app) == 80
    assert {entry.task for entry in Entry.list(at.app)} == {"other"}
    assert Entry.pause_many([f"e{number}" for number in range(80)], app=at.app, note="x").changed
    assert Entry.count(at.app, state="paused") == 80
    assert Entry.delete_many([f"e{number}" for number in range(40)], at.app) == 40
    assert Entry.count(at.app) == 40
    assert sum(at.shards_of("e")) == 40, "nothing is left of any"
