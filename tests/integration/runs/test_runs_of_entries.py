"""An entry's runs as Python sees them: in progress, past, their figures."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.runs import Last, find_runs, read_last
from redbeat.runs.run import Run
from tests.support.progress import NAMES, Progress

UTC = timezone.utc


@pytest.fixture
def plain(app: Celery) -> Entry:
    return Entry("entry", "echo", 60, app=app).save()


def ids(runs: object) -> list[str | None]:
    return [run.task_id for run in runs]  # type: ignore[attr-defined]


def test_runs_are_those_in_progress_and_the_past_ones(plain: Entry, progress: Progress) -> None:
    for number in range(3):
        progress.end(progress.started("entry", f"past-{number}", 1000.0 + number), "succeeded")
    progress.started("entry", "first", 1010.0)
    progress.send("entry", "second", 1020.0)
    runs = plain.runs()
    assert ids(runs) == ["second", "first", "past-2", "past-1", "past-0"]
    assert [run.state for run in runs] == ["sent", "started", None, None, None]
    assert [run.outcome for run in runs] == [None, None, "succeeded", "succeeded", "succeeded"]
    assert ids(plain.running()) == ["second", "first"]
    assert ids(plain.runs(2)) == ["second", "first"]
    assert ids(plain.history(2)) == ["second", "first"]


def test_invalid_records_of_runs_are_left_out(plain: Entry, progress: Progress, client: redis.Redis) -> None:
    progress.started("entry", "good")
    records = ("{", "[]", '{"state": "gone"}', '{"state": "sent", "sent": 1, "due": "never"}')
    client.hset(NAMES.about("entry").running, mapping=dict(zip("abcd", records, strict=True)))
    assert ids(plain.running()) == ids(plain.runs()) == ["good"]


def test_a_run_in_progress_tells_its_worker_its_age_and_its_attempt(plain: Entry, progress: Progress) -> None:
    before = progress.now
    delivery = progress.started("entry", "one", 1500.25, max=60)
    [run] = plain.running()
    assert isinstance(run, Run)
    assert (run.name, run.due) == ("entry", datetime.fromtimestamp(1500.25, UTC))
    assert (run.state, run.worker, run.attempt, run.is_overdue) == ("started", "celery@test", 1, False)
    assert run.started_at is not None
    assert before <= run.started_at.timestamp() <= progress.now
    assert run.age_seconds == pytest.approx(progress.now - run.started_at.timestamp(), abs=5)
    progress.end(delivery, "retrying", error="ValueError: not yet", retry_seconds=60)
    [run] = plain.running()
    assert (run.state, run.attempt, run.error) == ("retrying", 2, "ValueError: not yet")
    assert run.to_dict() == json.loads(json.dumps(run.to_dict()))


def test_the_tasks_of_a_workflow_are_no_runs(plain: Entry, progress: Progress) -> None:
    delivery = progress.started("entry", "root", workflow=1)
    progress.runs.note_child(delivery, "child")
    assert set(progress.running("entry")) == {"root", "child"}
    assert ids(plain.running()) == ["root"]
    progress.end(delivery, "succeeded")
    assert [run.state for run in plain.running()] == ["spawned"]


def test_figures_are_those_of_the_kept_runs_and_the_failures_go_on_beyond_them(
    app: Celery, plain: Entry, progress: Progress, client: redis.Redis
) -> None:
    for number, outcome in enumerate(["failed", "succeeded", "failed", "lost", "failed"]):
        progress.end(progress.started("entry", f"{number}", 1000.0 + number), outcome, run_seconds=number)
    client.ltrim("redbeat::history:entry", 0, 1)
    found = plain.figures()
    assert (found.runs, found.succeeded, found.failures_in_a_row) == (2, 0, 3)
    assert (found.median_run_seconds, found.p95_run_seconds) == (3.5, 4.0)
    assert read_last(app, [plain.key, "redbeat:other"]) == [
        Last("failed", 3, ["lost", "failed"]),
        Last(None, 0, []),
    ]


def test_the_last_outcome_is_that_of_the_last_run_that_has_ended(
    app: Celery, plain: Entry, progress: Progress
) -> None:
    progress.send("entry", "one", 1000.0)
    assert read_last(app, [plain.key])[0][:2] == ("sent", 0)
    delivery = progress.delivery("entry", "one", 1000.0)
    progress.begin(delivery)
    progress.end(delivery, "succeeded")
    progress.send("entry", "two", 1060.0)
    for number in range(15):  # runs that were skipped since
        record = {"at": 1061.0 + number, "due": 1061 + number, "outcome": "skipped", "why": "another one"}
        progress.client.lpush("redbeat::history:entry", json.dumps(record))
    assert read_last(app, [plain.key])[0][:2] == ("succeeded", 0)


def test_runs_are_found_by_state_name_and_time(app: Celery, plain: Entry, progress: Progress) -> None:
    Entry("other", "echo", 60, app=app).save()
    for name in ("entry", "other"):
        for outcome in ("failed", "succeeded"):
            progress.end(progress.started(name, f"{name}-{outcome}"), outcome)
        progress.started(name, f"{name}-running", 2000.0)
    assert ids(find_runs(app)) == ["entry-running", "other-running"]
    assert ids(find_runs(app, ["failed", "lost"])) == ["other-failed", "entry-failed"]
    assert ids(find_runs(app, ["failed"], name="entry")) == ["entry-failed"]
    assert ids(find_runs(app, ["succeeded", "running"], match="o*")) == ["other-running", "other-succeeded"]
    now = datetime.fromtimestamp(progress.now, UTC)
    for wanted in ("failed", "succeeded"):
        assert len(find_runs(app, [wanted], since=now - timedelta(hours=1))) == 2
        assert find_runs(app, [wanted], since=now + timedelta(hours=1)) == []
