"""What beat logs, how often; what it remembers of that is bounded."""

from __future__ import annotations

from logging import ERROR
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.keys import Keys
from redbeat.log.events import ENTRY_QUARANTINED
from redbeat.scheduler import reports as reports_module
from redbeat.scheduler.reports import (
    MINUTE_SECONDS,
    NAMED_ALONE,
    UNTRACKED_SECONDS,
    WORKERS_SECONDS,
    Reports,
)
from redbeat.scheduler.supervision import report_settled
from redbeat.store.records import Stored
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs
from tests.support.fetched import fetched

LIMIT = 10


Log = pytest.LogCaptureFixture


def new_reports() -> Reports:
    config: Any = SimpleNamespace(keys=Keys(""))
    return Reports(config)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    monkeypatch.setattr(reports_module, "MAX_REMEMBERED", LIMIT)
    monkeypatch.setattr(reports_module, "MAX_MISSING", LIMIT)
    return new_reports()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reports_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def told(caplog: Log) -> list[str]:
    """What beat's log was told, not those of others."""
    return [record.getMessage() for record in caplog.records if record.name == "celery.beat"]


def test_is_time_once_in_so_many_seconds(clock: SimpleNamespace) -> None:
    reports, found = new_reports(), list[float]()
    for passed in range(150):
        clock.now = 1000.0 + passed
        found += [clock.now] if reports.is_time("standby", 60.0) else []
    assert found == [1000, 1060, 1120]


def remembered(reports: Reports) -> int:
    return max(len(memory) for memory in vars(reports).values() if hasattr(memory, "__len__"))


def due_entry(number: int, kind: str) -> Stored:
    return fetched(f"redbeat:entry-{number}", "1.5", type=kind)


def test_distinct_errors_are_each_logged_with_bounded_memory(reports: Reports, caplog: Log) -> None:
    for number in range(5 * LIMIT):
        for _ in range(3):  # seen again at once: nothing new
            reason = f"reason {number}"
            reports.report(
                ERROR, ENTRY_QUARANTINED, f"entry-{number}", "Invalid entry %s: %s", reason, once=reason
            )
            reports.report_typos(due_entry(number, "hash"), "polcy")
        assert remembered(reports) <= LIMIT
    for number in range(5 * LIMIT):
        assert sum(f"reason {number}" in line.split(": ") for line in told(caplog)) >= 1
        assert sum(f"redbeat:entry-{number} has keys" in line for line in told(caplog)) >= 1
    assert len(told(caplog)) < 3 * 5 * LIMIT


def test_what_happens_to_many_entries_is_logged_in_few_lines(caplog: Log) -> None:
    reports = new_reports()

    def remove(keys: list[str]) -> None:
        for key in keys:
            assert not reports.note_missing(key), "it is looked at again"
            assert reports.note_missing(key)

    remove([f"redbeat:entry-{number}" for number in range(20_000)])
    remove(["redbeat:last"])
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
    assert vars(caplog.records[-1])["redbeat"]["lines"] == "redbeat.entry.removed"
    caplog.clear()
    remove(["redbeat:" + "x" * 1_000_000] * 20)
    reports.log_others(is_ending=True)
    assert sum(map(len, told(caplog))) < 10_000
    caplog.clear()
    reports.log_others(is_ending=True)
    assert not told(caplog)


def test_runs_given_up_together_are_logged_in_few_lines(
    clock: SimpleNamespace, reports: Reports, caplog: Log
) -> None:
    for number in range(10_000):
        report_settled(reports, f"entry-{number}", RunRecord(f"id-{number}", sent=1e9), "lost")
    assert len(told(caplog)) == NAMED_ALONE
    clock.now += MINUTE_SECONDS
    reports.log_others()
    assert f"And {10_000 - NAMED_ALONE} more with a run that is lost" in told(caplog)[-1]


def test_missing_workers_are_looked_for_once_a_minute_and_logged_once_an_hour(
    clock: SimpleNamespace, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    store: Any = SimpleNamespace(without_retry=lambda: store)
    monkeypatch.setattr(Runs, "has_workers", lambda _self: asked.append(clock.now))
    reports, start = new_reports(), clock.now
    for _ in range(int(UNTRACKED_SECONDS / 10)):  # a run is held back every 10 seconds
        reports.report_untracked(store, "report", "held back")
        clock.now += 10
    assert asked == [start + WORKERS_SECONDS * look for look in range(1, 60)], "workers may start with beat"
    [said] = told(caplog)
    assert "A run of report was held back" in said
    assert "redbeat.track_runs(app)" in said
    clock.now += 2 * WORKERS_SECONDS
    reports.report_untracked(store, "report", "held back")
    assert len(told(caplog)) == 2
