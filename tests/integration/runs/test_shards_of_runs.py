"""Runs of a schedule that is divided into shards: each is kept in the shard of its entry."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.runs import find_runs, read_failures
from redbeat.reshard.resharding import Resharding
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.support.shards import (
    EVERY_PLACE,
    app_in,
    at_most,
    names_in_every_shard,
    parts_of,
    write_sent,
)

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
    client, running = Store(sharded).client, parts_of(sharded)[0].about(names[0]).running
    record = json.loads(client.hget(running, f"{names[0]}-id"))
    client.hset(running, f"{names[0]}-id", json.dumps({**record, "terminate": "replaced"}))
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


@pytest.mark.slow
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
    left = list(deliveries)

    def reshard() -> None:
        for shards in (4, 32, 1, 16):
            Resharding(sharded, shards).run()

    with ThreadPoolExecutor(1) as pool:
        mover = pool.submit(reshard)
        while not mover.done():
            assert runs.renew([(one, 1.0) for one in left[:30]], 30_000, "celery@here", '"pool":"solo"') == {}
            if len(left) > 20:
                runs.end([End(left.pop(), "succeeded", run_seconds=1.0)])
        mover.result()
    runs.end([End(one, "succeeded", run_seconds=1.0) for one in left])
    found = {name: [run.outcome for run in Entry.get(name, worker).runs()] for name in names}
    assert found == {name: ["succeeded"] for name in names}
    assert list(find_runs(worker)) == [], "nothing is left behind in any shard"
