"""The doctor over shards: what is in the wrong one, and shards without a leader."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.fixes import find_orphans
from redbeat.store.store import Store
from tests.support.command_line import call
from tests.support.servers import Server
from tests.support.shards import EVERY_PLACE, announce, app_in, lead, names_in_every_shard, parts_of
from tests.support.ticks import memory_app

DEFINITION = json.dumps(
    {"name": "stray", "task": "tasks.report", "schedule": {"__type__": "interval", "every": 60}}
)
BEAT = "ann:12:aabbccdd"
Findings = dict[str, list[dict[str, Any]]]


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """A schedule with an entry in each shard, and a leader of all; no other program writes there."""
    monkeypatch.setattr("redbeat.diagnostics.fixes.MISSING_GRACE_SECONDS", 0.0)
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


@pytest.mark.parametrize("place", ["one-server"])
def test_shard_without_a_leader_is_found(sharded: Celery, examine: Callable[..., Findings]) -> None:
    part, store = parts_of(sharded)[5], Store(sharded)
    store.client.delete(part.lock, part.tick)
    [found] = examine()["no-leader"]
    assert (found["about"], found["severity"]) == (part.lock, "error")
    store.client.delete(store.keys.beats)
    assert examine() == {}, "nothing is due, and no beat runs"
    store.client.zadd(part.schedule, {part.entry("entry"): 1})
    assert [one["about"] for one in examine()["no-leader"]] == [part.lock]


@pytest.mark.parametrize("place", ["one-server"])
def test_beat_that_has_just_ended_is_no_late_one(sharded: Celery, examine: Callable[..., Findings]) -> None:
    part, store = parts_of(sharded)[5], Store(sharded)
    store.client.delete(*(one.lock for one in parts_of(sharded)), store.keys.beats)
    store.client.zadd(part.schedule, {store.client.zrange(part.schedule, 0, 0)[0]: 1})
    found = examine()
    assert ([one["about"] for one in found["no-leader"]], "late" in found) == ([part.lock], False)
    assert read_facts(sharded, "entry-1").status.lock_key == store.keys.home("entry-1").lock


@EVERY_PLACE
def test_faults_of_shards_are_found_and_repaired(
    sharded: Celery, examine: Callable[..., Findings], place: str
) -> None:
    client, parts = Store(sharded).client, parts_of(sharded)
    keys: Any = Store(sharded).keys
    wrong = next(part for part in parts if part != keys.home("stray"))
    for where, name in ((wrong, "stray"), (keys.undivided, "former-1"), (keys.undivided, "former-2")):
        client.hset(where.entry(name), "definition", DEFINITION)
        client.zadd(where.schedule, {where.entry(name): 9e9})
    history, _, _ = keys.beside(keys.entry("gone"))
    client.rpush(history, "{}")
    client.zadd(parts[2].schedule, {parts[2].entry("dropped"): 9e9})
    orphans = {("history", "gone"), ("member", "dropped")}
    assert {(one.kind, one.name) for one in find_orphans(sharded)} == orphans, place
    found = {kind: {one["about"] for one in those} for kind, those in examine("--fix").items()}
    assert found.keys() == {"misplaced", "former-part", "missing-hash", "orphan-key"}
    assert found["misplaced"] == {"stray"}
    assert found["former-part"] == {keys.undivided.schedule}
    assert examine() == {}
    for name in ("stray", "former-1", "former-2"):
        assert Entry.from_key(keys.entry(name), sharded).task == "tasks.report"


def test_setting_that_differs_from_the_layout_is_found(
    request: pytest.FixtureRequest, valkey: Server
) -> None:
    app_in("one-server", request)
    other = memory_app(redbeat_redis_url=valkey.url(1), redbeat_shards=8)
    done = call(other, "doctor")
    assert done.exit_code == 2, done.output
    assert "redbeat_shards" in done.output
    assert "16" in done.output
