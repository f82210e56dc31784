"""What beat tells Sentry of runs that it is told of, and of which it tells nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import signals
from redbeat.runs.run import Run
from redbeat.task_ids import task_id_of
from redbeat.telemetry.sentry import check_ins
from redbeat.telemetry.sentry.check_ins import CheckIns
from redbeat.telemetry.sentry.monitors import monitors_of
from redbeat.telemetry.sentry.sentry import Outlet
from tests.support.servers import Server

DUE = datetime(2026, 6, 1, 9, tzinfo=timezone.utc)


class Integration(SimpleNamespace):
    """Sentry's for Celery, as far as it matters."""

    def __init__(self, *excluded: str) -> None:
        super().__init__(monitor_beat_tasks=True, exclude_beat_tasks=[*excluded] or None)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Minute of the run, or the entry's name if it isn't report, and status."""
    found: list[tuple[str, str]] = []

    def note(_: Any, name: str, due: datetime, status: str, *_more: Any) -> None:
        found.append((f"{due.minute}" if name == "report" else name, status))

    monkeypatch.setattr(Outlet, "send", note)
    return found


@pytest.fixture
def integration(monkeypatch: pytest.MonkeyPatch) -> Integration:
    made = Integration("private-.*")
    monkeypatch.setattr(check_ins, "find_integration", lambda: made)
    return made


@pytest.fixture
def part(app: Celery, integration: Integration, told: Any, client: redis.Redis) -> Iterator[CheckIns]:
    Entry("report", "echo", 60, app=app).save()
    part = CheckIns(app)
    part.look()
    yield part
    part.stop()


def run(minute: int = 0, name: str = "report", **fields: Any) -> Run:
    due = DUE + timedelta(minutes=minute)
    task_id = task_id_of(f"redbeat:{name}", due.isoformat(timespec="microseconds"))
    return Run(name, due, **{"task_id": task_id, **fields})


def tell(app: Celery, signal: Any, told_of: Run) -> None:
    """As beat's feed does."""
    responses = signal.send(sender=app, entry=told_of.name, run=told_of)
    assert [response for _, response in responses] == [None], "an error counts as told"


@pytest.mark.usefixtures("part")
def test_each_outcome_but_two_is_an_error(app: Celery, told: list[tuple[str, str]]) -> None:
    outcomes = ("succeeded", "ignored", "failed", "lost", "never_started", "revoked", "expired", "rejected")
    for number, outcome in enumerate(outcomes):
        name = f"report-{number}"
        Entry(name, "echo", 60, app=app).save()
        tell(app, signals.run_sent, run(name=name))
        tell(app, signals.run_ended, run(name=name, outcome=outcome))
    ends = {name: status for name, status in told if status != "in_progress"}
    assert [*ends.values()] == ["ok", "ok", *["error"] * 6]
    assert len(told) == 16


@pytest.mark.usefixtures("part")
def test_attempts_that_follow_at_once_tell_nothing_new(app: Celery, told: list[tuple[str, str]]) -> None:
    tell(app, signals.run_sent, run())
    for attempt in range(1, 6):
        tell(app, signals.run_started, run(state="started", attempt=attempt))
    tell(app, signals.run_ended, run(outcome="succeeded"))
    assert told == [("0", "in_progress"), ("0", "ok")]


@pytest.mark.usefixtures("part")
def test_a_run_that_begins_after_more_than_a_minute_says_so(
    app: Celery, told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(app, signals.run_sent, run())
    monkeypatch.setattr(check_ins, "MINUTE", 0.0)
    tell(app, signals.run_started, run(state="started"))
    assert told == [("0", "in_progress")] * 2


@pytest.mark.usefixtures("part")
def test_of_many_runs_that_are_made_up_for_in_a_minute_two_are_told_of(
    app: Celery, told: list[tuple[str, str]]
) -> None:
    for minute in range(50):
        tell(app, signals.run_sent, run(minute))
    for minute in range(50):
        tell(app, signals.run_ended, run(minute, outcome="succeeded"))
    assert told == [(minute, status) for status in ("in_progress", "ok") for minute in ("0", "1")]


@pytest.mark.usefixtures("part")
def test_runs_that_somebody_asked_for_have_no_check_in(app: Celery, told: list[tuple[str, str]]) -> None:
    tell(app, signals.run_started, run(task_id="mine", state="started"))
    tell(app, signals.run_ended, run(task_id="mine", outcome="failed"))
    assert told == []


@pytest.mark.usefixtures("part")
def test_an_entry_whose_runs_have_a_task_id_of_its_own_has_them(
    app: Celery, told: list[tuple[str, str]]
) -> None:
    Entry("own", "echo", 60, options={"task_id": "mine"}, app=app).save()
    tell(app, signals.run_sent, run(name="own", task_id="mine"))
    assert told == [("own", "in_progress")]


@pytest.mark.usefixtures("part")
def test_an_entry_that_is_deleted_meanwhile_ends_its_check_in(
    app: Celery, told: list[tuple[str, str]]
) -> None:
    tell(app, signals.run_sent, run())
    Entry.get("report", app).delete()
    tell(app, signals.run_ended, run(outcome="succeeded"))
    tell(app, signals.run_ended, run(name="never was", outcome="succeeded"))
    assert told == [("0", "in_progress"), ("0", "ok")]


@pytest.mark.usefixtures("part")
def test_why_there_is_no_monitor_is_said_once_for_each_entry(
    app: Celery,
    told: list[tuple[str, str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_ins, "KEPT_SECONDS", 0.0)
    for number in range(60):
        Entry(f"odd-{number}", "echo", 90, app=app).save()
        for minute in range(2):
            tell(app, signals.run_sent, run(minute, name=f"odd-{number}"))
    Entry("private-one", "echo", 90, app=app).save()
    tell(app, signals.run_sent, run(name="private-one"))
    said = [one.getMessage() for one in caplog.records if "monitor at Sentry" in one.getMessage()]
    reason = "Sentry knows intervals of whole minutes only, and this one has 90 s"
    assert said[0] == f"beat: odd-0 has no monitor at Sentry: {reason}."
    assert len({*said}) == len(said) == 51
    assert said[-1].startswith("beat: More entries have no monitor")
    assert told == []


def test_without_redis_nothing_is_told_and_nothing_raised(
    make_app: Any, integration: Integration, told: list[tuple[str, str]], second: Server
) -> None:
    app = make_app(redbeat_redis_url=second.url(0))
    part = CheckIns(app)
    part.look()
    second.kill()
    tell(app, signals.run_sent, run())
    part.stop()
    assert told == []


def test_sentrys_own_monitors_are_off_as_long_as_beat_has_them(
    app: Celery, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Integration("private-.*"), Integration()
    present: list[Any] = [first]
    monkeypatch.setattr(check_ins, "find_integration", lambda: present[0])
    part = CheckIns(app)
    part.look()
    assert first.exclude_beat_tasks == [r"(?s).*"]
    part.look()
    assert first.exclude_beat_tasks.given == ["private-.*"]
    present[0] = second  # Sentry was started once more
    part.look()
    assert (first.exclude_beat_tasks, second.exclude_beat_tasks) == (["private-.*"], [r"(?s).*"])
    present[0] = None
    part.look()
    assert second.exclude_beat_tasks is None
    assert monitors_of(app) is None
    assert not signals.is_wanted("run_sent", "run_started", "run_ended")
    present[0] = first
    part.look()
    part.stop()
    assert first.exclude_beat_tasks == ["private-.*"]
    assert not signals.is_wanted("run_sent", "run_started", "run_ended")


def test_a_pattern_that_cant_be_used_leaves_sentry_as_it_is(
    app: Celery, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Integration("(")
    monkeypatch.setattr(check_ins, "find_integration", lambda: broken)
    part = CheckIns(app)
    with pytest.raises(Exception, match="unterminated subpattern"):
        part.look()
    assert broken.exclude_beat_tasks == ["("]
