"""What beat's log is told, how often, and in which words.

What beat remembers of it is bounded, and whatever is forgotten is said again, not left out.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.beat import log as reports_module
from redbeat.beat.log import (
    MAX_SETTLED,
    MISSING_SECONDS,
    STANDBY_SECONDS,
    UNTRACKED_SECONDS,
    WORKERS_SECONDS,
    Reports,
)
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.records import Claimed, KeyType
from redbeat.store.run_record import RunRecord

LIMIT = 10
Log = pytest.LogCaptureFixture


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    monkeypatch.setattr(reports_module, "MAX_REMEMBERED", LIMIT)
    monkeypatch.setattr(reports_module, "MAX_MISSING", LIMIT)
    return Reports()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reports_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def told(caplog: Log) -> list[str]:
    """What beat's log was told, not those of others."""
    return [record.getMessage() for record in caplog.records if record.name == "celery.beat"]


def test_a_standby_says_once_a_minute_who_it_waits_for(clock: SimpleNamespace, caplog: Log) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    candidacy: Any = SimpleNamespace(key="lock", describe_holder=lambda: f"somebody at {clock.now:.0f}")
    reports = Reports()
    for passed in range(int(2.5 * STANDBY_SECONDS)):
        clock.now = 1000.0 + passed
        reports.report_standby(candidacy)
    assert told(caplog) == [
        f"beat: Standing by: somebody at {1000 + minute * STANDBY_SECONDS:.0f}." for minute in range(3)
    ]


def test_a_trouble_is_logged_when_it_comes_and_when_it_comes_back(caplog: Log) -> None:
    reports = Reports()
    for trouble in ("a", "a", "", "", "a", "b"):
        reports.report_trouble(trouble)
    assert [line[-1] for line in told(caplog)] == ["a", ".", "a", "b"]


def remembered(reports: Reports) -> int:
    return max(len(memory) for memory in vars(reports).values() if hasattr(memory, "__len__"))


def claimed(number: int, kind: str) -> Claimed:
    return Claimed(f"redbeat:entry-{number}", "1.5", type=KeyType(kind))


def test_many_distinct_errors_are_each_logged_and_take_bounded_memory(reports: Reports, caplog: Log) -> None:
    for number in range(5 * LIMIT):
        for _ in range(3):  # seen again at once: nothing new
            reports.report_quarantined(claimed(number, "string"), f"reason {number}", is_news=False)
            reports.report_contested(claimed(number, "hash"))
        assert remembered(reports) <= LIMIT
    for number in range(5 * LIMIT):
        assert sum(f"reason {number}" in line.split(": ") for line in told(caplog)) >= 1
        assert sum(f"send redbeat:entry-{number}," in line for line in told(caplog)) >= 1
    assert len(told(caplog)) < 3 * 5 * LIMIT


def test_one_error_with_many_reasons_takes_the_memory_of_one(reports: Reports, caplog: Log) -> None:
    for number in range(5 * LIMIT):
        reports.report_quarantined(claimed(0, "list"), f"reason {number}", is_news=False)
        reports.report_trouble(f"trouble {number}")
    assert remembered(reports) == 2
    assert len(told(caplog)) == 2 * 5 * LIMIT


def test_shards_that_cannot_be_sent_are_named_again_when_they_are_more(reports: Reports, caplog: Log) -> None:
    caplog.set_level("INFO")
    for named, places in [("shard 3", "a"), ("shard 3", "a"), ("shards 3, 5", "ab"), ("shard 5", "b")]:
        reports.report_trouble("Redis is full.", f"{named} of 16", places)
    reports.report_trouble("")
    reports.report_trouble("")
    assert told(caplog) == [
        "beat: Nothing of shard 3 of 16 can be sent, the rest goes on: Redis is full.",
        "beat: Nothing of shards 3, 5 of 16 can be sent, the rest goes on: Redis is full.",
        "beat: Sending again.",
    ]


def test_more_missing_than_are_remembered_are_all_removed(reports: Reports, clock: Any, caplog: Log) -> None:
    left, looks = list(range(5 * LIMIT)), 0
    while left:  # as they come up in the schedule: in the same order each time
        left = [number for number in left if not reports.note_missing(claimed(number, "none"))]
        assert remembered(reports) <= LIMIT
        looks += 1
        assert looks < 20
    print(f"{5 * LIMIT} missing, {LIMIT} remembered: gone after {looks} looks")


def test_of_many_that_are_removed_the_first_have_a_line_each_the_others_one(
    reports: Reports, caplog: Log
) -> None:
    reports.report_removed([f"redbeat:entry-{number}" for number in range(20_000)])
    *alone, together = told(caplog)
    assert [line.partition(",")[0] for line in alone] == [
        f"beat: Failed to load redbeat:entry-{number}" for number in range(len(alone))
    ]
    assert alone
    assert together.startswith(f"beat: Failed to load {20_000 - len(alone)} more, removing")
    assert f"redbeat:entry-{len(alone)}, " in together
    assert len(together) < 1000
    caplog.clear()
    reports.report_removed(["redbeat:" + "x" * 1_000_000] * 20)
    assert sum(map(len, told(caplog))) < 10_000
    caplog.clear()
    reports.report_removed([])
    assert not told(caplog)


def test_missing_entries_that_never_come_up_again_make_room(reports: Reports, clock: Any) -> None:
    for number in range(LIMIT):
        assert not reports.note_missing(claimed(number, "none"))
    clock.now += MISSING_SECONDS + 1
    assert not reports.note_missing(claimed(LIMIT, "none"))
    assert reports.note_missing(claimed(LIMIT, "none"))


def test_a_typo_of_megabytes_is_cut(reports: Reports, caplog: Log) -> None:
    entry = SimpleNamespace(typos="", schedule=SimpleNamespace(typos="relativ\ud800 " * 300_000))
    run: Any = SimpleNamespace(entry=entry, claimed=claimed(0, "hash"))
    reports.report_typos(run)
    [line] = told(caplog)
    assert len(line.encode()) < 1000


def settled(count: int, word: str, **record: Any) -> list[tuple[str, RunRecord, str]]:
    values = {"sent": 1e9, **record}
    return [(f"entry-{number}", RunRecord(f"id-{number}", **values), word) for number in range(count)]


def test_a_run_that_is_given_up_or_overdue_is_told_of_with_its_worker_and_since_when(caplog: Log) -> None:
    at_work: dict[str, Any] = {"started": 1e9 + 60, "worker": "celery@a\nb", "max": 30.0}
    for runs in (
        settled(1, "lost", **at_work),
        settled(1, "never_started"),
        settled(1, "overdue", **at_work),
        settled(1, "overdue", is_revoked_overdue=True, **at_work),
    ):
        Reports().report_settled(runs)
    begun, sent = shown(moment_of(1e9 + 60)), shown(moment_of(1e9))
    worker, limit = "celery@a\\nb", "longer than its max_runtime of 30 s"
    explained = [line.removeprefix("beat: The run id-0 of entry-0 is ") for line in told(caplog)]
    lost = f"its lease ran out, so its worker {worker} or the machine is gone; it was begun at {begun}"
    never = f"no worker that tracks runs has begun it within queue_timeout; it was sent at {sent}"
    at_work_since = f"it is at work on {worker} since {begun}, {limit}"
    assert explained == [
        f"lost: {lost}.",
        f"never_started: {never}.",
        f"overdue: {at_work_since}, and no longer holds back the next one.",
        f"overdue: {at_work_since}, and is terminated.",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_of_many_runs_that_are_given_up_together_the_first_have_a_line_each(caplog: Log) -> None:
    Reports().report_settled(settled(MAX_SETTLED, "lost"))
    assert len(told(caplog)) == MAX_SETTLED
    caplog.clear()
    Reports().report_settled(settled(100_000, "lost"))
    assert len(told(caplog)) == MAX_SETTLED + 1
    assert f"And {100_000 - MAX_SETTLED} more runs are lost" in told(caplog)[-1]


class Workers:
    """Tells, as Redis would, whether a live worker tracks runs; and when it was asked."""

    def __init__(self, clock: SimpleNamespace, reports: Reports) -> None:
        self.are_there = False
        self.asked: list[float] = []
        self._clock = clock
        self._reports = reports

    def _has_any(self) -> bool:
        self.asked.append(self._clock.now)
        return self.are_there

    def hold_back_runs_for(self, seconds: float) -> None:
        """Let a run be held back every 10 seconds."""
        for _ in range(int(seconds / 10)):
            self._reports.report_untracked("report", "held back", self._has_any)
            self._clock.now += 10


def test_that_no_worker_tracks_runs_is_asked_once_a_minute_and_said_once_an_hour(
    clock: SimpleNamespace, caplog: Log
) -> None:
    workers, start = Workers(clock, Reports()), clock.now
    workers.hold_back_runs_for(UNTRACKED_SECONDS)
    assert workers.asked == [start + WORKERS_SECONDS * look for look in range(60)]
    [said] = told(caplog)
    assert "A run of report was held back" in said
    assert "redbeat.track_runs(app)" in said
    workers.hold_back_runs_for(2 * WORKERS_SECONDS)
    assert len(told(caplog)) == 2


def test_a_worker_that_starts_with_beat_or_again_has_a_minute_before_it_is_missed(
    clock: SimpleNamespace, caplog: Log
) -> None:
    workers = Workers(clock, Reports())
    for _ in range(3):
        workers.are_there = False
        workers.hold_back_runs_for(WORKERS_SECONDS)
        workers.are_there = True
        workers.hold_back_runs_for(WORKERS_SECONDS)
    assert told(caplog) == []


@pytest.mark.parametrize("is_seen_in_redis", [True, False])
def test_that_no_worker_tracks_runs_any_more_is_news(
    clock: SimpleNamespace, caplog: Log, is_seen_in_redis: bool
) -> None:
    reports = Reports()
    workers = Workers(clock, reports)
    workers.hold_back_runs_for(3 * WORKERS_SECONDS)
    assert len(told(caplog)) == 1
    if is_seen_in_redis:
        workers.are_there = True
        workers.hold_back_runs_for(WORKERS_SECONDS)
        workers.are_there = False
    else:
        reports.note_tracked()
    workers.hold_back_runs_for(2 * WORKERS_SECONDS)
    assert len(told(caplog)) == 2
