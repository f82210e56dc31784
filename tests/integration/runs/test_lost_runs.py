"""What is left of runs that nobody looks after is found, told and removed; all other runs are left alone."""

from __future__ import annotations

import json

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.store.orphans import LostRun, Orphans
from redbeat.store.store import Store
from tests.support.command_line import call
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.schedule import server_now


@pytest.fixture
def orphans(app: Celery) -> Orphans:
    return Orphans(Store(app))


def age(client: redis.Redis, seconds: float) -> None:
    """Let all deadlines have been so long ago."""
    then = server_now(client) - seconds
    for member in client.zrange(NAMES.deadlines, 0, -1):
        client.zadd(NAMES.deadlines, {member: then})


def gone(app: Celery, progress: Progress, name: str) -> None:
    """An entry is deleted while a run of it is at work."""
    entry = Entry(name, "echo", 60, app=app).save()
    progress.started(name, f"{name}-1")
    entry.delete()


def test_a_run_at_work_outlives_its_entry(
    app: Celery, progress: Progress, client: redis.Redis, orphans: Orphans
) -> None:
    gone(app, progress, "entry")
    age(client, 30)
    assert list(orphans.lost_runs()) == []
    assert orphans.forget([LostRun("redbeat:entry")]) == [False]
    assert set(running_of(client, "entry")) == {"entry-1"}


def test_runs_of_an_entry_that_is_gone_are_removed_when_nobody_looks_after_them(
    app: Celery, progress: Progress, client: redis.Redis, orphans: Orphans
) -> None:
    gone(app, progress, "entry")
    age(client, 61)
    assert list(orphans.lost_runs()) == [LostRun("redbeat:entry")]
    assert orphans.forget([LostRun("redbeat:entry")]) == [True]
    assert not client.exists("redbeat::running:entry", NAMES.deadlines)


def test_a_run_of_an_entry_that_is_there_is_beat_s_matter(
    app: Celery, progress: Progress, client: redis.Redis, orphans: Orphans
) -> None:
    Entry("entry", "echo", 60, app=app).save()
    progress.started("entry", "one")
    age(client, 10_000)
    assert list(orphans.lost_runs()) == []
    assert orphans.forget([LostRun("redbeat:entry")]) == [False]


def test_deadlines_of_runs_that_are_gone_are_removed(
    app: Celery, progress: Progress, client: redis.Redis, orphans: Orphans
) -> None:
    Entry("entry", "echo", 60, app=app).save()
    progress.started("entry", "one")
    progress.started("entry", "two")
    client.hdel("redbeat::running:entry", "one")
    client.zadd(NAMES.deadlines, {"\0redbeat::running:entry": 1, "no-nul": 1, "id\0other:key": 1})
    age(client, 61)
    client.zadd(NAMES.deadlines, {"later\0redbeat::running:entry": server_now(client)})
    found = list(orphans.lost_runs())
    members = {"one\0redbeat::running:entry", "no-nul", "id\0other:key"}
    assert {lost.member for lost in found} == members
    kept = [LostRun("redbeat:entry", member) for member in ("two\0redbeat::running:entry",)]
    kept.append(LostRun("redbeat:entry", "later\0redbeat::running:entry"))
    assert orphans.forget([*found, *kept]) == [True] * 3 + [False] * 2
    assert set(client.zrange(NAMES.deadlines, 0, -1)) == {
        "two\0redbeat::running:entry", "later\0redbeat::running:entry", "\0redbeat::running:entry",
    }  # fmt: skip


def test_a_nul_in_the_name_of_an_entry_is_a_part_of_it(
    app: Celery, progress: Progress, client: redis.Redis, orphans: Orphans
) -> None:
    Entry("a\0b", "echo", 60, app=app).save()
    lasting = progress.started("a\0b", "lasting")
    ended = progress.started("a\0b", "ended", 2000.0)
    progress.end(ended, "succeeded")
    assert history_of(client, "a\0b")[0]["outcome"] == "succeeded"
    members = ["ended\0redbeat::running:a\0b", "lasting\0redbeat::running:a\0b"]
    client.zadd(NAMES.deadlines, dict.fromkeys(members, 1))
    assert list(orphans.lost_runs()) == [LostRun("redbeat:a\0b", members[0])]
    assert orphans.forget([LostRun("redbeat:a\0b", one) for one in members]) == [True, False]
    progress.settle(at=server_now(client) + 1e6)
    assert history_of(client, "a\0b")[1]["outcome"] == "lost"
    progress.end(lasting, "succeeded")
    assert not client.exists("redbeat::running:a\0b", NAMES.deadlines)


def test_purge_and_the_doctor_tell_and_remove_them(
    app: Celery, progress: Progress, client: redis.Redis
) -> None:
    gone(app, progress, "entry")
    Entry("other", "echo", 86_400, app=app).save()
    client.zadd(NAMES.deadlines, {"id\0redbeat::running:other": 1})
    age(client, 61)
    left = json.loads(call(app, "purge", "--dry-run", "--json").stdout)["leftovers"]
    assert {(one["kind"], one["name"]) for one in left} >= {("running", "entry"), ("deadline", "other")}
    said = json.loads(call(app, "doctor", "--json").stdout)["findings"]
    found = [one for one in said if one["kind"] == "orphan-run"]
    assert {(one["about"], one["severity"], one["fixable"]) for one in found} == {
        ("entry", "note", True), ("other", "note", True),
    }  # fmt: skip
    dry = call(app, "doctor", "--fix", "--dry-run").stdout
    assert "redbeat::running:entry: would be removed." in dry
    assert "a deadline in redbeat::deadlines: would be removed." in dry
    assert client.exists("redbeat::running:entry")
    assert "redbeat::running:entry: removed." in call(app, "doctor", "--fix").stdout
    assert not client.exists("redbeat::running:entry", NAMES.deadlines)
    client.zadd(NAMES.deadlines, {"id\0redbeat::running:other": 1})
    assert "Removed " in call(app, "purge", "--yes").stdout
    assert not client.exists(NAMES.deadlines)
