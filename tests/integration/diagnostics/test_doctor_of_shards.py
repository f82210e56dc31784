"""The doctor over shards: what is in the wrong one, and shards without a leader."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.orphans import find_orphans, purge_orphans
from redbeat.keys import Keys
from redbeat.store.store import Store
from tests.support.command_line import call
from tests.support.servers import Server
from tests.support.shards import EVERY_PLACE, announce, app_in, lead, names_in_every_shard, parts_of

DEFINITION = json.dumps(
    {"name": "stray", "task": "tasks.report", "schedule": {"__type__": "interval", "every": 60}}
)


BEAT = "ann:12:aabbccdd"


Findings = dict[str, list[dict[str, Any]]]


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    """A schedule with an entry in each shard, and a leader of all."""
    app = app_in(place, request)
    for name in names_in_every_shard(app):
        Entry(name, "tasks.report", 3600, app=app).save()
    lead(app, parts_of(app), BEAT)
    announce(app, BEAT)
    return app


@pytest.fixture
def examine(sharded: Celery) -> Callable[..., Findings]:
    """What the doctor finds, by kind, without what it says of server and settings."""

    def run(*arguments: str) -> Findings:
        found: Findings = {}
        for finding in json.loads(call(sharded, "doctor", "--json", *arguments).output)["findings"]:
            if finding["kind"] not in ("persistence", "eviction", "retry-period"):
                found.setdefault(finding["kind"], []).append(finding)
        return found

    return run


def write(app: Celery, keys: Keys, name: str) -> None:
    """Write an entry as a program does that doesn't know how the schedule is divided."""
    client = Store(app).client
    client.hset(keys.entry(name), "definition", DEFINITION.replace("stray", name))
    client.zadd(keys.schedule, {keys.entry(name): 9e9})


def elsewhere(app: Celery, name: str) -> Keys:
    """The names in a shard that isn't the entry's."""
    keys: Any = Store(app).keys
    return next(part for part in parts_of(app) if part != keys.home(name))


@EVERY_PLACE
def test_shard_without_a_leader_is_found(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    part, store = parts_of(sharded)[5], Store(sharded)
    store.client.delete(part.lock, part.tick)
    [found] = examine()["no-leader"]
    assert (found["about"], found["severity"]) == (part.lock, "error")
    assert found["problem"] == "No beat leads shard 5, though 1 beat runs."
    store.client.delete(store.keys.beats)
    assert examine() == {}, f"{place}: nothing is due, and nobody is there"
    store.client.zadd(part.schedule, {part.entry("entry"): 1})
    [found] = examine()["no-leader"]
    assert found["problem"] == "No beat leads shard 5, and 1 entry is due."


@EVERY_PLACE
def test_entry_in_the_wrong_shard_is_found_and_moved(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    wrong = elsewhere(sharded, "stray")
    write(sharded, wrong, "stray")
    [found] = examine()["misplaced"]
    assert (found["about"], found["fixable"]) == ("stray", True)
    assert list(find_orphans(sharded)) == [], "it exists, wherever it is"
    examine("--fix", "--dry-run")
    assert Store(sharded).client.exists(wrong.entry("stray"))
    repaired = json.loads(call(sharded, "doctor", "--fix", "--json").output)["repairs"]
    assert repaired == [f"{wrong.entry('stray')}: moved to {Store(sharded).keys.entry('stray')}."], place
    assert examine() == {}
    assert Entry.from_key(Store(sharded).keys.entry("stray"), sharded).task == "tasks.report"


@EVERY_PLACE
def test_entries_left_in_the_unsharded_schedule_are_found_and_moved(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    keys: Any = Store(sharded).keys
    write(sharded, keys.undivided, "stray")
    write(sharded, keys.undivided, "another")
    [found] = examine()["former-part"]
    assert found["about"] == keys.undivided.schedule
    assert "2 entries are there" in found["problem"]
    examine("--fix")
    assert examine() == {}, place
    assert {Entry.from_key(keys.entry(name), sharded).name for name in ("stray", "another")} == {
        "stray",
        "another",
    }


@EVERY_PLACE
def test_shard_with_a_wrong_generation_is_found_and_repaired(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    client, part, gone = Store(sharded).client, parts_of(sharded)[3], parts_of(sharded)[4]
    client.set(part.generation, "0 8")
    client.delete(gone.generation)
    found = {one["about"]: one for one in examine()["generation"]}
    assert found.keys() == {part.generation, gone.generation}
    assert "It holds '0 8'" in found[part.generation]["problem"]
    assert "It is missing" in found[gone.generation]["problem"]
    examine("--fix")
    assert examine() == {}, place
    assert {client.get(one.generation) for one in (part, gone)} <= {part.guard, part.guard.encode()}


@EVERY_PLACE
def test_orphans_are_found_in_their_shards(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    client, keys, parts = Store(sharded).client, Store(sharded).keys, parts_of(sharded)
    history, _, _ = keys.beside(keys.entry("gone"))
    client.rpush(history, "{}")
    client.zadd(parts[2].schedule, {parts[2].entry("dropped"): 9e9})
    running = parts[7].about("lost").running
    client.hset(running, "id", '{"state":"sent","due":"1000.000000"}')
    client.zadd(parts[8].deadlines, {f"id\0{parts[8].about('over').running}": 1})
    found = examine()
    assert {kind: len(those) for kind, those in found.items()} == {
        "missing-hash": 1,
        "orphan-key": 1,
        "orphan-run": 2,
    }, place
    orphans = list(find_orphans(sharded))
    assert sorted((one.kind, one.name) for one in orphans) == [
        ("deadline", "over"),
        ("history", "gone"),
        ("member", "dropped"),
        ("running", "lost"),
    ]
    assert purge_orphans(sharded, orphans) == 4
    assert examine() == {}


@EVERY_PLACE
def test_why_uses_the_leader_of_the_entrys_shard(sharded: Celery, place: str) -> None:
    names, part = names_in_every_shard(sharded), parts_of(sharded)[5]
    Store(sharded).client.delete(part.lock, part.tick)
    found = [read_facts(sharded, name).status for name in names]
    assert [status.leader is None for status in found] == [shard == 5 for shard in range(16)], place
    assert found[5].lock_key == part.lock


def test_setting_that_differs_from_the_layout_is_found(
    request: pytest.FixtureRequest, valkey: Server
) -> None:
    app_in("one-server", request)
    other = app_of(valkey, 8)
    done = call(other, "doctor")
    assert done.exit_code == 2, done.output
    assert "redbeat_shards" in done.output
    assert "16" in done.output


@EVERY_PLACE
@pytest.mark.parametrize("state", ["moving", "settling"])
def test_unfinished_reshard_is_found(
    sharded: Celery, examine: Callable[..., Findings], state: str, place: str
) -> None:
    layout = sharded.redbeat_conf.base_keys.layout
    Store(sharded).client.hset(layout, mapping={"state": state, "former": 4})
    [found] = examine()["reshard"]
    assert "from 4 to 16" in found["problem"], place


def app_of(server: Server, shards: int) -> Celery:
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(redbeat_redis_url=server.url(1), redbeat_shards=shards)
    return app
