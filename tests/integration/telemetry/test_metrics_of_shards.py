"""Metrics of a sharded schedule: each shard is shown by the beat that leads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.leadership.leadership import Leadership
from redbeat.store.figures import read_labels
from redbeat.store.store import Store
from redbeat.store.vitals import read_vitals
from redbeat.telemetry.gathering import Gathering
from redbeat.telemetry.labels import LabelBook, queue_finder
from redbeat.telemetry.last_hour import read_last_hour
from redbeat.telemetry.metrics import OF_SCHEDULE, SHARD_LABEL, families
from tests.support.fidelity import counting_round_trips
from tests.support.shards import EVERY_PLACE, app_in, election_in, names_in_every_shard, parts_of


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    return app_in(place, request)


def lead_shard(app: Celery, part: Keys) -> Leadership:
    election = election_in(app, Timing(30), [part])
    [leadership] = election.look()
    election.keep_alive()
    return leadership


class Beat:
    """Gathers metrics of the shards that it leads."""

    def __init__(self, app: Celery, parts: Sequence[Keys]) -> None:
        self.leaderships = [lead_shard(app, part) for part in parts]
        self.book = LabelBook(queue_finder(app), 10)
        self.gathering = Gathering(app, lambda: self.leaderships, self.book, is_shown=True)

    def samples(self) -> list[Any]:
        """Return what it shows of the schedule."""
        views = self.gathering.views
        return [sample for family in families(OF_SCHEDULE, views) for sample in family.samples]

    def by_shard(self, name: str, **labels: str) -> dict[str, float]:
        """Return the values of the samples with these labels, by shard."""
        samples = [one for one in self.samples() if one.name == name and labels.items() <= one.labels.items()]
        return {one.labels[SHARD_LABEL]: one.value for one in samples}

    def end(self) -> None:
        for leadership in self.leaderships:
            leadership.lock.release()
        self.gathering.stop()


@pytest.fixture
def beat(sharded: Celery) -> Iterator[Callable[[slice], Beat]]:
    """Return beats that lead the shards of a slice; they end with the test."""
    with ExitStack() as at_end:

        def make(shards: slice) -> Beat:
            made = Beat(sharded, parts_of(sharded)[shards])
            at_end.callback(made.end)
            return made

        yield make


MakeBeat = Callable[[slice], Beat]


@EVERY_PLACE
def test_each_shard_is_shown_by_the_beat_that_leads_it_and_by_no_other(
    sharded: Celery, place: str, beat: MakeBeat
) -> None:
    names, client, now = (
        names_in_every_shard(sharded),
        Store(sharded).client,
        read_vitals(Store(sharded), Store(sharded).all_parts)[0].now,
    )
    for shard, name in enumerate(names):
        Entry(name, "tasks.report", 3600, app=sharded).save()
        keys = parts_of(sharded)[shard]
        client.zadd(keys.schedule, {keys.entry(f"late-{shard}"): time.time() - 100})
        client.hset(keys.figures, ":sent", shard + 1)
    one, other = beat(slice(6)), beat(slice(6, None))
    for _ in range(2):
        one.gathering.gather()
        other.gathering.gather()
    assert {*one.by_shard("redbeat_due_entries")} == {*map(str, range(6))}
    assert {*other.by_shard("redbeat_due_entries")} == {*map(str, range(6, 16))}
    sent = [made.by_shard("redbeat_runs_total", outcome="sent") for made in (one, other)]
    assert {**sent[0], **sent[1]} == {str(shard): shard + 1 for shard in range(16)}
    overdue = one.by_shard("redbeat_entries_overdue", reason="not_sent")
    assert overdue == {str(shard): 1 for shard in range(6)}
    states = other.by_shard("redbeat_entries", state="scheduled")
    assert states == {str(shard): 1 for shard in range(6, 16)}
    overdue_names = [name for view in one.gathering.views for name in view.overdue.names]
    assert sorted(overdue_names) == sorted(f"late-{shard}" for shard in range(6))
    assert all(SHARD_LABEL in sample.labels for sample in one.samples())
    hour = read_last_hour(sharded, datetime.fromtimestamp(now + 1, timezone.utc))
    assert (hour.is_counted, hour.sent) == (True, sum(range(17)))


@EVERY_PLACE
def test_shard_that_is_handed_over_keeps_its_totals(sharded: Celery, place: str, beat: MakeBeat) -> None:
    part, client = parts_of(sharded)[2], Store(sharded).client
    one, other = beat(slice(2, 4)), beat(slice(4, 5))
    client.hset(part.figures, ":sent", 3)
    one.gathering.gather()
    one.gathering.gather()
    assert one.by_shard("redbeat_runs_total", outcome="sent") == {"2": 3}
    one.leaderships.pop(0).lock.release()
    assert {*one.by_shard("redbeat_due_entries")} == {"3"}
    other.leaderships.append(lead_shard(sharded, part))
    client.hset(part.figures, ":sent", 4)
    other.gathering.gather()
    other.gathering.gather()
    assert other.by_shard("redbeat_runs_total", outcome="sent") == {"2": 7}
    assert other.by_shard("redbeat_leader_changes_total")["2"] == 2


@EVERY_PLACE
def test_labels_are_stored_in_the_shard_of_their_entry(sharded: Celery, place: str, beat: MakeBeat) -> None:
    names, client = names_in_every_shard(sharded)[:4], Store(sharded).client
    made = beat(slice(4))
    for name in names:
        Entry(name, "tasks.report", 3600, app=sharded).save()
    ids = [made.book.id_of(name, "tasks.report", {}, is_asked=False) for name in names]
    for _ in range(2):
        for part, id_ in zip(parts_of(sharded), ids, strict=False):
            client.hincrby(part.figures, f"{id_}:sent", 1)
        made.gathering.gather()
    stored = read_labels(Store(sharded), parts_of(sharded)[:4])
    assert [{one.entry for one in labels.values()} for labels in stored] == [{name} for name in names]
    made.gathering.gather()
    for shard, name in enumerate(names):
        shown = made.by_shard("redbeat_runs_total", outcome="sent", entry=name)
        assert shown == {str(shard): 2}


@EVERY_PLACE
def test_shards_are_asked_together_in_one_round_trip_a_node(
    sharded: Celery, place: str, beat: MakeBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.telemetry.gathering.STEPS", 0)  # counting has a bound of its own
    made = []
    for shards in (slice(1), slice(1, None)):
        gathers = beat(shards)
        gathers.gathering.gather()
        for leadership in gathers.leaderships:
            leadership._heartbeat.stop()  # type: ignore[union-attr]  # noqa: SLF001 - it is counted, too
        with counting_round_trips(monkeypatch) as count:
            gathers.gathering.gather()
            made.append(count())
    assert made[1] <= made[0] * (3 if place == "cluster" else 1), made
