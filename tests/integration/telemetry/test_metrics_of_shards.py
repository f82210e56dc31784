"""Metrics of a schedule in shards: each shard's by the beat that leads it, gathered in few round trips."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.leadership.elector import Leadership
from redbeat.store.figures import Figures
from redbeat.store.parts import Part
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from redbeat.telemetry.metrics import exposition
from redbeat.telemetry.metrics.gathering import Gathering
from redbeat.telemetry.metrics.labels import LabelBook, queue_finder
from redbeat.telemetry.metrics.last_hour import read_last_hour
from redbeat.telemetry.metrics.table import METRICS, SHARD_LABEL
from tests.support.fidelity import counting_round_trips
from tests.support.shards import EVERY_PLACE, app_in, names_in_every_shard, parts_of, write_sent


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    return app_in(place, request)


class Beat:
    """What one beat gathers that leads some shards."""

    def __init__(self, app: Celery, parts: Sequence[Keys]) -> None:
        self.leaderships = [self._lead(app, part) for part in parts]
        self.book = LabelBook(queue_finder(app), 10)
        self.gathering = Gathering(app, lambda: self.leaderships, self.book, is_shown=True)

    @staticmethod
    def _lead(app: Celery, part: Keys) -> Leadership:
        leadership = Leadership(Store(app, part=Part(part)), part.lock, Timing(30))
        assert leadership.stand()
        leadership.keep_alive()
        return leadership

    def families(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """What it shows of the schedule: names to labels to values."""
        registry = CollectorRegistry()
        registry.register(_Shown(self.gathering))
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def end(self) -> None:
        for leadership in self.leaderships:
            leadership.resign()
        self.gathering.stop()


class _Shown:
    """What a beat shows of the schedule, without what it shows of itself."""

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering

    def collect(self) -> Any:
        views = self._gathering.views
        return exposition._schedule_families(views) if views else ()  # noqa: SLF001


def by_shard(samples: dict[tuple[tuple[str, str], ...], float], **labels: str) -> dict[str, float]:
    """The values by their shards, of those samples with these labels."""
    found = {}
    for given, value in samples.items():
        named = dict(given)
        if labels.items() <= named.items():
            found[named[SHARD_LABEL]] = value
    return found


@EVERY_PLACE
def test_each_shard_is_shown_by_the_beat_that_leads_it_and_by_no_other(sharded: Celery, place: str) -> None:
    names, client = names_in_every_shard(sharded), Store(sharded).client
    for shard, name in enumerate(names):
        Entry(name, "tasks.report", 3600, app=sharded).save()
        keys = parts_of(sharded)[shard]
        client.zadd(keys.schedule, {keys.entry(f"late-{shard}"): time.time() - 100})
        client.hset(keys.figures, ":sent", shard + 1)
    one, other = Beat(sharded, parts_of(sharded)[:6]), Beat(sharded, parts_of(sharded)[6:])
    try:
        for _ in range(2):
            one.gathering.gather()
            other.gathering.gather()
        first, second = one.families(), other.families()
        assert {*by_shard(first["redbeat_due_entries"])} == {*map(str, range(6))}
        assert {*by_shard(second["redbeat_due_entries"])} == {*map(str, range(6, 16))}
        sent = by_shard(first["redbeat_runs_total"], outcome="sent")
        sent |= by_shard(second["redbeat_runs_total"], outcome="sent")
        assert sent == {str(shard): shard + 1 for shard in range(16)}
        assert by_shard(first["redbeat_leader_changes_total"])["0"] == 1
        overdue = by_shard(first["redbeat_entries_overdue"], reason="not_sent")
        assert overdue == {str(shard): 1 for shard in range(6)}, place
        states = by_shard(second["redbeat_entries"], state="scheduled")
        assert states == {str(shard): 1 for shard in range(6, 16)}
        overdue_names = [name for view in one.gathering.views for name in view.overdue.names]
        assert sorted(overdue_names) == sorted(f"late-{shard}" for shard in range(6))
    finally:
        one.end()
        other.end()


@EVERY_PLACE
def test_a_shard_that_is_handed_over_goes_on_counting_where_it_was(sharded: Celery, place: str) -> None:
    part, client = parts_of(sharded)[2], Store(sharded).client
    one, other = Beat(sharded, [part, parts_of(sharded)[3]]), Beat(sharded, [parts_of(sharded)[4]])
    try:
        client.hset(part.figures, ":sent", 3)
        one.gathering.gather()
        one.gathering.gather()
        assert by_shard(one.families()["redbeat_runs_total"], outcome="sent") == {"2": 3}
        one.leaderships.pop(0).resign()
        assert {*by_shard(one.families()["redbeat_due_entries"])} == {"3"}, "not for a moment longer"
        other.leaderships.append(Beat._lead(sharded, part))  # noqa: SLF001
        client.hset(part.figures, ":sent", 4)
        other.gathering.gather()
        other.gathering.gather()
        assert by_shard(other.families()["redbeat_runs_total"], outcome="sent") == {"2": 7}, place
        assert by_shard(other.families()["redbeat_leader_changes_total"])["2"] == 2
    finally:
        one.end()
        other.end()


@EVERY_PLACE
def test_labels_are_stored_in_the_shard_of_their_entry(sharded: Celery, place: str) -> None:
    names = names_in_every_shard(sharded)[:4]
    beat, figures = Beat(sharded, parts_of(sharded)[:4]), Figures(Store(sharded))
    try:
        for name in names:
            Entry(name, "tasks.report", 3600, app=sharded).save()
        ids = [beat.book.id_of(name, "tasks.report", {}, is_asked=False) for name in names]
        for _ in range(2):
            for part, id_ in zip(parts_of(sharded), ids, strict=False):
                Store(sharded).client.hincrby(part.figures, f"{id_}:sent", 1)
            beat.gathering.gather()
        stored = figures.read_labels(parts_of(sharded)[:4])
        assert [{one.entry for one in labels.values()} for labels in stored] == [{name} for name in names]
        beat.gathering.gather()
        for shard, name in enumerate(names):
            shown = by_shard(beat.families()["redbeat_runs_total"], outcome="sent", entry=name)
            assert shown == {str(shard): 2}, place
    finally:
        beat.end()


@EVERY_PLACE
def test_round_trips_of_a_look_do_not_grow_with_the_shards(
    sharded: Celery, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.telemetry.metrics.gathering.SLICES", 0)  # counting is bounded by itself
    few, many = Beat(sharded, parts_of(sharded)[:1]), Beat(sharded, parts_of(sharded)[1:])
    made = []
    try:
        for beat in (few, many):
            beat.gathering.gather()
            beat.gathering.gather()
            for leadership in beat.leaderships:
                leadership._heartbeat.stop()  # noqa: SLF001 - it would be counted, too
            with counting_round_trips(monkeypatch) as count:
                beat.gathering.gather()
                made.append(count())
    finally:
        few.end()
        many.end()
    nodes = 3 if place == "cluster" else 1
    assert made[1] <= made[0] * nodes, made


@EVERY_PLACE
def test_the_last_hour_is_of_all_shards_together(sharded: Celery, place: str) -> None:
    client, now = Store(sharded).client, Store(sharded).vitals().now
    beat = Beat(sharded, parts_of(sharded))
    try:
        for part in parts_of(sharded):
            client.hset(part.figures, ":sent", 2)
        beat.gathering.gather()
    finally:
        beat.end()
    hour = read_last_hour(sharded, datetime.fromtimestamp(now + 1, timezone.utc))
    assert (hour.is_counted, hour.sent) == (True, 32), place


@EVERY_PLACE
def test_failures_in_a_row_are_shown_with_the_shard_of_the_entry(sharded: Celery, place: str) -> None:
    names, runs = names_in_every_shard(sharded)[:3], Runs(Store(sharded))
    for count, name in enumerate(names, start=1):
        Entry(name, "tasks.report", 3600, app=sharded).save()
        for number in range(count):
            write_sent(sharded, name, f"{name}-{number}", due=1000.0 + number)
            delivery = Delivery(name, f"{name}-{number}", f"{1000 + number}.000000", f"{name}{number}", "w")
            runs.begin(delivery, 30_000)
            runs.end([End(delivery, "failed", "ValueError: no")])
    assert Figures(Store(sharded)).read_streaks(2) == [
        Store(sharded).keys.entry(name) for name in (names[2], names[1])
    ], "the most first, of all shards"
    beat = Beat(sharded, parts_of(sharded)[:3])
    try:
        beat.gathering.gather()
        rows = beat.families()["redbeat_entry_failures_in_a_row"]
        assert by_shard(rows, entry="other") == {"0": 1, "1": 2, "2": 3}, place
    finally:
        beat.end()


def test_all_metrics_of_a_divided_schedule_have_the_label(request: pytest.FixtureRequest) -> None:
    app = app_in("one-server", request)
    beat = Beat(app, parts_of(app)[:2])
    try:
        beat.gathering.gather()
        for name, samples in beat.families().items():
            if re.sub("_(total|bucket|sum|count)$", "", name) in METRICS:
                assert all(SHARD_LABEL in dict(labels) for labels in samples), name
    finally:
        beat.end()
