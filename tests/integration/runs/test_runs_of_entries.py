"""An entry's runs as Python sees them: in progress, past, their figures."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.runs import Last, find_runs, read_last, read_last_outcomes, with_histories
from redbeat.runs.run import Run
from tests.support.progress import Progress, running_of
from tests.support.schedule import server_now

UTC = timezone.utc


@pytest.fixture
def entry(app: Celery) -> Entry:
    return Entry("entry", "echo", 60, app=app).save()


def ids(runs: object) -> list[str | None]:
    return [run.task_id for run in runs]  # type: ignore[attr-defined]


def test_runs_are_those_in_progress_and_then_the_past_ones_each_once(
    entry: Entry, progress: Progress
) -> None:
    for number in range(3):
        progress.end(progress.started("entry", f"past-{number}", 1000.0 + number), "succeeded")
    progress.started("entry", "first", 1010.0)
    progress.send("entry", "second", 1020.0)
    runs = entry.runs()
    assert ids(runs) == ["second", "first", "past-2", "past-1", "past-0"]
    assert [run.state for run in runs] == ["sent", "started", None, None, None]
    assert [run.outcome for run in runs] == [None, None, "succeeded", "succeeded", "succeeded"]
    assert ids(entry.running()) == ["second", "first"]
    assert ids(entry.runs(2)) == ["second", "first"]
    assert ids(entry.history(2)) == ["second", "first"]


def test_a_run_in_progress_tells_its_worker_its_age_and_its_attempt(
    entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    before = server_now(client)
    delivery = progress.started("entry", "one", 1500.25, max=60)
    [run] = entry.running()
    assert isinstance(run, Run)
    assert (run.name, run.due) == ("entry", datetime.fromtimestamp(1500.25, UTC))
    assert (run.state, run.worker, run.attempt, run.is_overdue) == ("started", "celery@test", 1, False)
    assert run.started_at is not None
    assert before <= run.started_at.timestamp() <= server_now(client)
    assert run.age_seconds == pytest.approx(server_now(client) - run.started_at.timestamp(), abs=5)
    progress.end(delivery, "retrying", error="ValueError: not yet", retry_seconds=60)
    [run] = entry.running()
    assert (run.state, run.attempt, run.error) == ("retrying", 2, "ValueError: not yet")
    assert run.to_dict() == json.loads(json.dumps(run.to_dict()))


def test_a_past_run_tells_how_long_it_waited_and_took(entry: Entry, progress: Progress) -> None:
    delivery = progress.started("entry", "one")
    progress.end(delivery, "failed", run_seconds=2.25, error="ValueError: no")
    [run] = entry.runs()
    assert (run.outcome, run.error, run.run_seconds) == ("failed", "ValueError: no", 2.25)
    assert (run.worker, run.attempt, run.is_running) == ("celery@test", 1, False)
    assert run.started_at is not None
    assert run.sent_at is not None
    assert run.started_at - run.sent_at == timedelta(seconds=run.wait_seconds or 0)
    assert entry.history()[0].error == "ValueError: no"


def test_the_tasks_of_a_workflow_are_no_runs(entry: Entry, progress: Progress) -> None:
    delivery = progress.started("entry", "root", workflow=1)
    progress.runs.note_child(delivery, "child")
    assert set(running_of(progress.client, "entry")) == {"root", "child"}
    assert ids(entry.running()) == ["root"]
    progress.end(delivery, "succeeded")
    assert [run.state for run in entry.running()] == ["spawned"]


def test_figures_are_those_of_the_kept_runs_and_the_failures_go_on_beyond_them(
    app: Celery, entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    for number, outcome in enumerate(["failed", "succeeded", "failed", "lost", "failed"]):
        progress.end(progress.started("entry", f"{number}", 1000.0 + number), outcome, run_seconds=number)
    client.ltrim("redbeat::history:entry", 0, 1)
    found = entry.figures()
    assert (found.runs, found.succeeded, found.failures_in_a_row) == (2, 0, 3)
    assert (found.median_run_seconds, found.p95_run_seconds) == (3.5, 4.0)
    assert read_last(app, [entry.key, "redbeat:other"]) == [Last("failed", 3), Last(None, 0)]


def test_the_last_outcome_is_that_of_the_last_run_that_has_ended(
    app: Celery, entry: Entry, progress: Progress
) -> None:
    progress.send("entry", "one", 1000.0)
    assert read_last(app, [entry.key]) == [Last("sent", 0)]
    assert read_last_outcomes(app, [entry.key, "redbeat:other"]) == ["sent", None]
    delivery = progress.delivery("entry", "one", 1000.0)
    progress.begin(delivery)
    progress.end(delivery, "succeeded")
    progress.send("entry", "two", 1060.0)
    for number in range(15):  # runs that were skipped since
        record = {"at": 1061.0 + number, "due": 1061 + number, "outcome": "skipped", "why": "another one"}
        progress.client.lpush("redbeat::history:entry", json.dumps(record))
    assert read_last(app, [entry.key]) == [Last("succeeded", 0)]
    assert read_last_outcomes(app, ["redbeat:other", entry.key]) == [None, "succeeded"]


def test_runs_of_all_entries_are_found_by_state_name_and_time(
    app: Celery, entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    Entry("other", "echo", 60, app=app).save()
    for name in ("entry", "other"):
        for outcome in ("failed", "succeeded"):
            progress.end(progress.started(name, f"{name}-{outcome}"), outcome)
        progress.started(name, f"{name}-running", 2000.0)
    assert ids(find_runs(app)) == ["entry-running", "other-running"]
    assert ids(find_runs(app, ["failed", "lost"])) == ["other-failed", "entry-failed"]
    assert ids(find_runs(app, ["failed"], name="entry")) == ["entry-failed"]
    assert ids(find_runs(app, ["succeeded", "running"], match="o*")) == ["other-running", "other-succeeded"]
    now = datetime.fromtimestamp(server_now(client), UTC)
    for wanted in ("failed", "succeeded"):
        assert len(find_runs(app, [wanted], since=now - timedelta(hours=1))) == 2
        assert find_runs(app, [wanted], since=now + timedelta(hours=1)) == []


def test_runs_in_progress_are_found_by_their_state(app: Celery, entry: Entry, progress: Progress) -> None:
    progress.send("entry", "past", 900.0)
    progress.client.delete("redbeat::running:entry")
    progress.send("entry", "sent", 1000.0)
    progress.started("entry", "started", 1001.0, max=1)
    progress.settle(at=server_now(progress.client) + 10)
    progress.end(progress.started("entry", "retrying", 1002.0), "retrying", retry_seconds=60)
    delivery = progress.started("entry", "spawned", 1003.0, workflow=1)
    progress.runs.note_child(delivery, "child")
    progress.end(delivery, "succeeded")
    for state in ("retrying", "spawned", "started"):
        assert ids(find_runs(app, [state])) == [state]
    assert ids(find_runs(app, ["overdue"])) == ["started"]
    assert ids(find_runs(app, ["sent"])) == ["sent", "past"], "also that of which nothing more is known"
    assert ids(find_runs(app, ["sent", "retrying", "failed"])) == ["retrying", "sent", "past"]


def test_runs_that_are_listed_as_failed_have_all_that_their_histories_say(
    app: Celery, entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    other = Entry("other", "echo", 60, app=app).save()
    for name in ("entry", "other"):
        progress.end(progress.started(name, f"{name}-1"), "failed", run_seconds=2.5, error="ValueError: no")
    found = with_histories(app, find_runs(app, ["failed"]))
    assert found == [*other.runs(), *entry.runs()]
    assert {run.run_seconds for run in found} == {2.5}
    client.delete("redbeat::history:entry")
    [_, bare] = with_histories(app, find_runs(app, ["failed"]))
    assert (bare.task_id, bare.run_seconds, bare.error) == ("entry-1", None, "ValueError: no")


def test_keys_of_another_type_count_as_no_runs_in_progress(
    app: Celery, entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    Entry("other", "echo", 60, app=app).save()
    progress.send("entry", "one")
    progress.send("other", "two")
    client.delete("redbeat::running:other")
    client.set("redbeat::running:other", "oops")
    assert ids(find_runs(app)) == ["one"]


def test_what_has_failed_is_found_when_the_history_has_forgotten_it(
    app: Celery, entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    progress.end(progress.started("entry", "one"), "failed", error="ValueError: no")
    client.delete("redbeat::history:entry")
    [run] = find_runs(app, ["failed"])
    assert (run.name, run.task_id, run.error, run.outcome) == ("entry", "one", "ValueError: no", "failed")


def test_spoilt_records_of_runs_are_left_out(entry: Entry, progress: Progress, client: redis.Redis) -> None:
    progress.started("entry", "good")
    for task_id, text in {
        "a": "{", "b": '{"state": "gone"}', "c": '{"state": "sent", "due": "never"}', "": '{"due": "1"}',
        "d": '{"state": "sent", "due": "1e99"}', "e": "[]",
    }.items():  # fmt: skip
        client.hset("redbeat::running:entry", task_id, text)
    assert ids(entry.running()) == ["good"]
    assert ids(entry.runs()) == ["good"]
