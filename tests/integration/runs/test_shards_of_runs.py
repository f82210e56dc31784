"""Runs of a schedule that is divided into shards: each is kept in the shard of its entry."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler, track_runs
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.runs import find_runs, read_failures
from redbeat.reshard.resharding import Resharding
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.shards import (
    EVERY_PLACE,
    SHARDS,
    app_in,
    at_most,
    names_in_every_shard,
    parts_of,
    write_sent,
)
from tests.support.ticks import leader
from tests.support.tracked import WORK, Tracked

BEGINNING = datetime.fromtimestamp(0, timezone.utc)


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    return app_in(place, request)


def deliveries_of(app: Celery, names: list[str]) -> list[Delivery]:
    """A run of each entry, sent and about to be begun."""
    for name in names:
        write_sent(app, name, f"{name}-id")
    return [Delivery(name, f"{name}-id", "1000.000000", f"{name}-token", "celery@here") for name in names]


@EVERY_PLACE
def test_leases_in_all_shards_are_renewed_in_one_round_trip_a_node(
    sharded: Celery, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_in_every_shard(sharded, 3)
    deliveries, runs = deliveries_of(sharded, names), Runs(Store(sharded))
    assert {runs.begin(one, 30_000).answer.value for one in deliveries} == {"go"}
    held = [(one, 1.0) for one in deliveries]
    client = Store(sharded).client
    record = json.loads(client.hget(parts_of(sharded)[0].about(names[0]).running, f"{names[0]}-id"))
    client.hset(
        parts_of(sharded)[0].about(names[0]).running,
        f"{names[0]}-id",
        json.dumps({**record, "terminate": "replaced"}),
    )
    assert runs.renew(held, 30_000, "celery@here", '"pool":"prefork"') == {f"{names[0]}-token": "replaced"}
    with at_most(1, place, monkeypatch):
        runs.renew(held, 30_000, "celery@here", '"pool":"prefork"')
    assert list(runs.workers()) == ["celery@here"], "one worker, however many shards know it"
    ends = [End(one, "succeeded", run_seconds=1.0) for one in deliveries]
    runs.end(ends)
    with at_most(1, place, monkeypatch):
        runs.end(ends)  # once more, as after an answer that was lost
    assert runs.read([Store(sharded).keys.entry(name) for name in names]) == [[]] * len(names)
    runs.forget_worker("celery@here")
    assert not runs.workers()


@EVERY_PLACE
def test_what_has_failed_is_listed_over_all_shards_the_newest_first(
    sharded: Celery, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_in_every_shard(sharded, 2)
    runs = Runs(Store(sharded))
    for delivery in deliveries_of(sharded, names):
        runs.begin(delivery, 30_000)
        runs.end([End(delivery, "failed", "ValueError: no")])
    found = runs.failures(BEGINNING, 100)
    assert sorted(run.name for run in found) == sorted(names)
    assert [run.at for run in found] == sorted((run.at for run in found), reverse=True)
    assert [run.name for run in runs.failures(BEGINNING, 5)] == [run.name for run in found[:5]]
    assert [run.name for run in read_failures(Store(sharded), BEGINNING) or ()] == [one.name for one in found]
    with at_most(1, place, monkeypatch):
        runs.failures(BEGINNING, 100)


@EVERY_PLACE
def test_runs_in_progress_are_found_in_all_shards(
    sharded: Celery, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_in_every_shard(sharded, 2)
    for name in names:
        Entry(name, "tasks.report", 60, app=sharded).save()
    for delivery in deliveries_of(sharded, names):
        Runs(Store(sharded)).begin(delivery, 30_000)
    found = find_runs(sharded)
    assert sorted(run.name for run in found) == sorted(names)
    assert {run.state for run in found} == {"started"}
    with at_most(6, place, monkeypatch):  # the clock, two of the runs, of their deadlines ...
        find_runs(sharded)
    given_up = Entry.from_key(Store(sharded).keys.entry(names[3]), sharded)
    assert [run.state for run in given_up.running()] == ["started"]


@pytest.mark.few_cases(1)
@EVERY_PLACE
def test_runs_at_work_are_renewed_and_end_once_while_the_schedule_is_divided_otherwise(
    sharded: Celery, request: pytest.FixtureRequest, place: str
) -> None:
    names = names_in_every_shard(sharded, 8)
    for name in names:
        Entry(name, "tasks.report", 3600, app=sharded).save()
    worker = app_in(place, request)  # it knows the layout of before
    runs, deliveries = Runs(Store(worker)), deliveries_of(sharded, names)
    assert {runs.begin(one, 30_000).answer.value for one in deliveries} == {"go"}
    left, failed = list(deliveries), list[Exception]()

    def reshard() -> None:
        try:
            for shards in (4, 32, 1, 16):
                Resharding(sharded, shards).run()
        except Exception as exc:  # noqa: BLE001 - it is looked at below
            failed.append(exc)

    mover = Thread(target=reshard)
    mover.start()
    renewals = 0
    while mover.is_alive():
        assert runs.renew([(one, 1.0) for one in left[:30]], 30_000, "celery@here", '"pool":"solo"') == {}
        renewals += 1
        if len(left) > 20:
            runs.end([End(left.pop(), "succeeded", run_seconds=1.0)])
    mover.join()
    assert not failed, failed
    runs.end([End(one, "succeeded", run_seconds=1.0) for one in left])
    found = {name: [run.outcome for run in Entry.from_key(Store(worker).keys.entry(name), worker).runs()]
             for name in names}  # fmt: skip
    assert found == {name: ["succeeded"] for name in names}, f"{renewals} renewals"
    assert list(find_runs(worker)) == [], "nothing is left behind in any shard"


# -- with a beat and a worker


@pytest.fixture
def tracked(valkey: Server, tmp_path: Path) -> Iterator[Tracked]:
    """A worker at work, for a schedule of 16 shards."""
    with valkey.client(db=1) as client:
        made = Tracked.write(tmp_path, valkey.url(0), valkey.url(1), client, redbeat_shards=SHARDS)
        made.app.conf.redbeat_shards = SHARDS
        track_runs(made.app)
        with made.app:
            worker = made.worker("prefork", concurrency=4)
            try:
                yield made
            finally:
                worker.kill()


def work_of(client: redis.Redis) -> Counter[tuple[str, str]]:
    """What the tasks have noted, by their task ids."""
    lines: Any = client.lrange(WORK, 0, -1)
    return Counter((task_id, word) for task_id, word, *_ in map(json.loads, lines))


def make_due(app: Celery, names: list[str]) -> None:
    store, now = Store(app), time.time()
    for name in names:
        keys = store.parts.home(name).keys
        store.client.zadd(keys.schedule, {keys.entry(name): now})


def tick_until_nothing_is_due(scheduler: RedBeatScheduler) -> None:
    for _ in range(2 * SHARDS):
        if scheduler.tick() > 0:
            return
    raise AssertionError("something is always due")


def test_tracked_runs_of_all_shards_end_with_what_their_tasks_did(tracked: Tracked) -> None:
    app, names = tracked.app, names_in_every_shard(tracked.app)
    entries = {}
    for place, name in enumerate(names):
        task = "tracked.fail_badly" if place % 4 == 0 else "tracked.succeed"
        entries[name] = Entry(name, task, 3600, overlap="skip", app=app).save()
    make_due(app, names)
    with leader(app) as scheduler:
        tick_until_nothing_is_due(scheduler)
    wanted = {name: "failed" if place % 4 == 0 else "succeeded" for place, name in enumerate(names)}

    def outcomes() -> dict[str, str | None]:
        return {name: next((run.outcome for run in entry.runs()), None) for name, entry in entries.items()}

    eventually(lambda: outcomes() == wanted, message=f"{outcomes()}")
    assert all(count == 1 for count in work_of(tracked.client).values()), "each has run once"
    assert len(Runs(Store(app)).failures(BEGINNING, 100)) == 4
    assert [entries[name].figures().failures_in_a_row for name in names[:2]] == [1, 0]
    assert len(Runs(Store(app)).workers()) == 1


def test_in_each_shard_a_run_in_progress_holds_the_next_one_back(tracked: Tracked) -> None:
    app, names = tracked.app, names_in_every_shard(tracked.app)[:4]
    policies: dict[str, Any] = dict(zip(names, ("skip", "buffer_one", "skip", "buffer_one"), strict=True))
    for name, overlap in policies.items():
        Entry(name, "tracked.work_until", 3600, ["done"], overlap=overlap, app=app).save()
    make_due(app, names)
    with leader(app) as scheduler:
        tick_until_nothing_is_due(scheduler)
        eventually(lambda: sum(work_of(tracked.client).values()) == len(names), message="not all have begun")
        make_due(app, names)
        tick_until_nothing_is_due(scheduler)
        assert sum(work_of(tracked.client).values()) == len(names), "none has begun beside another"
        tracked.client.set("done", 1)

        def has_ended() -> bool:
            scheduler.tick()
            begun = [task_id for task_id, word in work_of(tracked.client) if word == "begin"]
            ended = [task_id for task_id, word in work_of(tracked.client) if word == "end"]
            return len(begun) == len(ended) == 6

        eventually(has_ended, message="the runs that have waited aren't over")
    kept = {name: [run.outcome for run in Entry.from_key(
        Store(app).keys.entry(name), app).runs()] for name in names}  # fmt: skip
    assert all("skipped" in outcomes for name, outcomes in kept.items() if policies[name] == "skip"), kept
