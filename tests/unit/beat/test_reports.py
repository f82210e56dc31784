"""What beat logs, how often; what it remembers of that is bounded."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.scheduler import reports as reports_module
from redbeat.scheduler.reports import (
    MINUTE_SECONDS,
    NAMED_ALONE,
    STANDBY_SECONDS,
    UNTRACKED_SECONDS,
    WORKERS_SECONDS,
    Reports,
)
from redbeat.store.records import Stored
from redbeat.store.run_record import RunRecord
from tests.support.fetched import fetched

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


def test_standby_is_logged_once_a_minute(clock: SimpleNamespace, caplog: Log) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    candidacy: Any = SimpleNamespace(key="lock", describe_holder=lambda: f"somebody at {clock.now:.0f}")
    reports = Reports()
    for passed in range(int(2.5 * STANDBY_SECONDS)):
        clock.now = 1000.0 + passed
        reports.report_standby(candidacy)
    assert told(caplog) == [
        f"beat: Standing by: somebody at {1000 + minute * STANDBY_SECONDS:.0f}." for minute in range(3)
    ]


def remembered(reports: Reports) -> int:
    return max(len(memory) for memory in vars(reports).values() if hasattr(memory, "__len__"))


def due_entry(number: int, kind: str) -> Stored:
    return fetched(f"redbeat:entry-{number}", "1.5", type=kind)


def test_distinct_errors_are_each_logged_with_bounded_memory(reports: Reports, caplog: Log) -> None:
    for number in range(5 * LIMIT):
        for _ in range(3):  # seen again at once: nothing new
            reports.report_quarantined(due_entry(number, "string"), f"reason {number}", is_news=False)
            reports.report_typos(due_entry(number, "hash"), "polcy")
        assert remembered(reports) <= LIMIT
    for number in range(5 * LIMIT):
        assert sum(f"reason {number}" in line.split(": ") for line in told(caplog)) >= 1
        assert sum(f"redbeat:entry-{number} has keys" in line for line in told(caplog)) >= 1
    assert len(told(caplog)) < 3 * 5 * LIMIT


def test_shards_that_cannot_be_sent_are_logged_as_they_change(reports: Reports, caplog: Log) -> None:
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


def test_what_happens_to_many_entries_is_logged_in_few_lines(reports: Reports, caplog: Log) -> None:
    reports.report_removed([f"redbeat:entry-{number}" for number in range(20_000)])
    reports.report_removed(["redbeat:last"])
    alone = told(caplog)
    assert [line.partition(",")[0] for line in alone] == [
        f"beat: Failed to load redbeat:entry-{number}" for number in range(len(alone))
    ]
    assert len(alone) == NAMED_ALONE
    reports.log_others()
    assert told(caplog) == alone, "the minute isn't over"
    reports.log_others(is_ending=True)
    together = told(caplog)[-1]
    assert together.startswith(f"beat: And {20_001 - NAMED_ALONE} more removed from the schedule")
    assert f"redbeat:entry-{NAMED_ALONE}, " in together
    caplog.clear()
    reports.report_removed(["redbeat:" + "x" * 1_000_000] * 20)
    reports.log_others(is_ending=True)
    assert sum(map(len, told(caplog))) < 10_000
    caplog.clear()
    reports.report_removed([])
    reports.log_others(is_ending=True)
    assert not told(caplog)


def test_runs_given_up_together_are_logged_in_few_lines(
    clock: SimpleNamespace, reports: Reports, caplog: Log
) -> None:
    for number in range(10_000):
        reports.report_settled(f"entry-{number}", RunRecord(f"id-{number}", sent=1e9), "lost")
    assert len(told(caplog)) == NAMED_ALONE
    clock.now += MINUTE_SECONDS
    reports.log_others()
    assert f"And {10_000 - NAMED_ALONE} more with a run that is lost" in told(caplog)[-1]


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


def test_missing_workers_are_looked_for_once_a_minute_and_logged_once_an_hour(
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
