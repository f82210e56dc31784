"""What is decided about a claimed entry, and what is recorded of it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat.beat.log import Reports
from redbeat.beat.planner import (
    DISABLED_SECONDS,
    MISSING_GRACE_SECONDS,
    Run,
    commit_failed,
    commit_missing,
    commit_quarantined,
    plan_run,
)
from redbeat.decoder import encode_meta
from redbeat.entries.dropped import Dropped
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of, sha1_of
from redbeat.errors import EntryCorrupt
from redbeat.store.records import Claimed, Clear, Commit, Ending, KeyType
from redbeat.task_ids import TASK_ID_NAMESPACE, task_id_of

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOW = NOON.timestamp() + 5
MINUTELY = {"__type__": "interval", "every": 60}
HOURLY = {"__type__": "crontab", "minute": "0"}


def seconds(offset: float = 0) -> str:
    """Noon and so many seconds, as a score that RedBeat writes."""
    return f"{NOON.timestamp() + offset:.6f}"


def claimed(
    nominal: str = seconds(), meta: str | None = None, error: str | None = None, **fields: Any
) -> Claimed:
    definition = json.dumps({"name": "x", "task": "t", "schedule": MINUTELY, **fields})
    return Claimed("redbeat:x", nominal, definition, meta, error=error, score=nominal)


def plan(app: Celery, entry: Claimed, now: float = NOW) -> Run:
    run = plan_run(RedBeatSchedulerEntry, app, entry, now)
    assert isinstance(run, Run)
    return run


def skipped(app: Celery, entry: Claimed, now: float = NOW) -> Commit:
    commit = plan_run(RedBeatSchedulerEntry, app, entry, now)
    assert isinstance(commit, Commit)
    return commit


def test_a_run_is_recorded_at_its_nominal_time_and_the_next_keeps_the_phase(app: Celery) -> None:
    entry = claimed(meta=encode_meta(NOON - timedelta(minutes=1), 7))
    run = plan(app, entry)
    record = f'"due":{seconds()}'
    task_id = run.entry.options["task_id"]
    assert run.sent == Commit(
        entry,
        new_score=seconds(60),
        new_meta=encode_meta(NOON, 8),
        records=(record,),
        task_id=task_id,
        counted=seconds(),
    )
    assert (run.nominal, run.failure) == (seconds(), None)


def test_a_run_carries_its_name_and_nominal_time_beside_the_users_headers(app: Celery) -> None:
    entry = claimed(seconds(0.25), options={"queue": "q", "headers": {"mine": 1}}, name="another")
    assert plan(app, entry).entry.options == {
        "queue": "q",
        "headers": {"mine": 1, "redbeat_entry": "x", "redbeat_due": "2026-06-01T12:00:00.250000+00:00"},
        "task_id": task_id_of("redbeat:x", "2026-06-01T12:00:00.250000+00:00"),
    }


def test_a_rule_without_another_occurrence_is_never_due_again(app: Celery) -> None:
    once = {"__type__": "rrule", "freq": 3, "dtstart": NOON.timestamp(), "count": 1}
    assert plan(app, claimed(schedule=once)).sent.new_score == "-1.000000"


@pytest.mark.parametrize("enabled", [True, 1])
def test_an_entry_runs_unless_it_is_disabled(app: Celery, enabled: Any) -> None:
    plan(app, claimed(enabled=enabled))


@pytest.mark.parametrize("enabled", [False, None, 0])
def test_a_disabled_entry_is_looked_at_again_at_its_first_due_time_after_a_while(
    app: Celery, enabled: Any
) -> None:
    entry = claimed(enabled=enabled, schedule={**MINUTELY, "every": 7})
    commit = skipped(app, entry)
    assert commit == Commit(entry, new_score=seconds(70))
    assert 5 + DISABLED_SECONDS < 70 <= 5 + DISABLED_SECONDS + 7


@pytest.mark.parametrize(("late", "is_sent"), [(30, True), (61, False), (3600 + 30, True), (3700, False)])
def test_a_crontab_past_celerys_starting_deadline_is_skipped(app: Celery, late: int, is_sent: bool) -> None:
    app.conf.beat_cron_starting_deadline = 60
    planned = plan_run(RedBeatSchedulerEntry, app, claimed(schedule=HOURLY), NOON.timestamp() + late)
    assert isinstance(planned, Run) is is_sent
    commit = planned.sent if isinstance(planned, Run) else planned
    assert commit.new_score == seconds(3600 if late < 3600 else 7200)


@pytest.mark.parametrize("fields", [{"enabled": False}, {}])
def test_a_good_entry_loses_the_error_of_its_past(app: Celery, fields: dict[str, Any]) -> None:
    planned = plan_run(RedBeatSchedulerEntry, app, claimed(error="{}", **fields), NOW)
    assert (planned.sent if isinstance(planned, Run) else planned).new_error is Clear.FIELD


def test_an_entry_that_cannot_be_used_is_an_exception(app: Celery) -> None:
    with pytest.raises(EntryCorrupt, match="task: is missing"):
        plan_run(RedBeatSchedulerEntry, app, claimed(task=None), NOW)


def test_a_run_tried_again_when_it_is_too_late_gives_way_to_one_in_time(app: Celery) -> None:
    policy = json.dumps({"expires_after": 30})
    failed = plan(app, claimed(schedule={"__type__": "crontab"}))
    entry = claimed(schedule={"__type__": "crontab"})
    entry.error = commit_failed(failed, "the broker is away", NOW)[0].new_error
    entry.nominal = entry.score = json.loads(entry.error)["retry_at"]
    for late, due in ((10, NOON), (65, NOON + timedelta(minutes=1))):
        entry.policy = policy
        run = plan(app, entry, NOON.timestamp() + late)
        assert run.entry.options["expires"] == due + timedelta(seconds=30)
        assert run.expiration_seconds == pytest.approx(30 - late % 60, abs=1e-3)
        assert run.entry.options["task_id"] == task_id_of("redbeat:x", due.isoformat(timespec="microseconds"))


@pytest.mark.parametrize("after_finish", ["keep", "disable", "delete"])
@pytest.mark.parametrize(
    ("policy", "schedule", "meta"),
    [
        ({"end_time": "2026-06-01T11:00:00Z"}, HOURLY, encode_meta(NOON - timedelta(hours=1), 3)),
        ({}, {"__type__": "clocked", "clocked_time": "2026-06-01T12:00:00Z"}, "ahead"),
        ({"max_runs": 3}, HOURLY, encode_meta(NOON - timedelta(hours=1), 3)),
    ],
    ids=["end_time moved into the past", "last_run_at moved ahead", "has had its runs"],
)
def test_an_entry_that_is_found_to_be_over_ends_as_its_policy_says(
    app: Celery, after_finish: str, policy: dict[str, Any], schedule: dict[str, Any], meta: str
) -> None:
    if meta == "ahead":  # by an application: RedBeat's own ends in a space
        meta = encode_meta(NOON + timedelta(hours=1), 3).strip()
    entry = claimed(schedule=schedule, meta=meta)
    entry.policy = json.dumps({**policy, "after_finish": after_finish})
    commit = skipped(app, entry)
    assert commit.new_score == (Ending.DELETE if after_finish == "delete" else "-1.000000")
    disabled = json.loads(commit.new_definition)["enabled"] if commit.new_definition else True
    assert disabled is (after_finish != "disable")


def test_a_quarantined_entry_is_kept_out_of_the_way_with_its_reason() -> None:
    entry = claimed()
    commit, is_news = commit_quarantined(entry, "bad", NOW, 300)
    assert is_news
    assert (commit.new_score, commit.new_meta) == (seconds(305), None)
    assert commit.is_for_this_definition
    assert json.loads(commit.new_error) == {
        "reason": "bad",
        "since": "2026-06-01T12:00:05+00:00",
        "definition_sha1": sha1_of(entry),
        "attempts": 0,
        "due": entry.nominal,
        "retry_at": seconds(305),
        "is_asked": False,
    }


def test_the_same_quarantine_again_is_no_news_and_keeps_its_since() -> None:
    first, _ = commit_quarantined(claimed(), "bad", NOW, 300)
    again, is_news = commit_quarantined(claimed(error=first.new_error), "bad", NOW + 300, 300)
    assert not is_news
    assert json.loads(again.new_error) == {**json.loads(first.new_error), "retry_at": seconds(605)}


def test_once_it_can_be_used_a_quarantined_entry_runs_as_of_the_time_it_was_due_at_first(app: Celery) -> None:
    entry = claimed(schedule={"__type__": "crontab", "minute": "*/5"})
    for late in (5, 305):
        entry.error = commit_quarantined(entry, "bad", NOW + late, 300)[0].new_error
        entry.nominal = entry.score = json.loads(entry.error)["retry_at"]
    for misfire, due in (("earliest", NOON), ("latest", NOON + timedelta(minutes=10))):
        entry.policy = json.dumps({"misfire": misfire})
        run = plan_run(RedBeatSchedulerEntry, app, entry, NOW + 610)
        assert isinstance(run, Run)
        assert run.entry.options["headers"]["redbeat_due"] == due.isoformat(timespec="microseconds")
    entry.policy = json.dumps({"misfire": "skip", "misfire_grace_time": 2})
    assert isinstance(plan_run(RedBeatSchedulerEntry, app, entry, NOW + 610), Commit)


@pytest.mark.parametrize(("reason", "task"), [("worse", "t"), ("bad", "another")])
def test_another_reason_or_another_definition_is_news(reason: str, task: str) -> None:
    first, _ = commit_quarantined(claimed(), "bad", NOW, 300)
    commit, is_news = commit_quarantined(claimed(error=first.new_error, task=task), reason, NOW + 300, 300)
    assert is_news
    assert json.loads(commit.new_error)["since"] == "2026-06-01T12:05:05+00:00"


def test_what_is_no_hash_is_put_off_and_not_written() -> None:
    commit, _ = commit_quarantined(
        replace(claimed(), type=KeyType("string"), definition=None), "bad", NOW, 300
    )
    assert (commit.new_score, commit.new_error, commit.is_for_this_definition) == (seconds(305), None, False)


def test_failing_runs_back_off_and_keep_their_nominal_time(app: Celery) -> None:
    entry, now, pauses, news = claimed(), NOW, [], []
    for _ in range(9):
        run = plan(app, entry, now)
        assert (run.nominal, run.sent.new_score > f"{now:.6f}") == (seconds(), True)
        assert run.entry.options["headers"]["redbeat_due"] == NOON.isoformat(timespec="microseconds")
        commit, is_news = commit_failed(run, "broken", now)
        assert commit.new_meta is None
        pauses.append(float(commit.new_score) - now)
        news.append(is_news)
        now = float(commit.new_score)
        entry = replace(entry, nominal=commit.new_score, score=commit.new_score, error=commit.new_error)
    for pause, wanted in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert wanted - 1e-6 <= pause <= 1.25 * wanted + 1e-6
    assert news == [True] + [False] * 8
    assert json.loads(entry.error or "")["attempts"] == 9


def test_a_run_has_one_task_id_at_every_try_and_on_every_beat(app: Celery) -> None:
    first = plan(app, claimed())
    commit, _ = commit_failed(first, "broken", NOW)
    again = plan(app, claimed(commit.new_score, error=commit.new_error), NOW + 1)
    elsewhere = plan(Celery("another", set_as_current=False, broker="redis://"), claimed(), NOW + 30)
    assert {run.entry.options["task_id"] for run in (first, again, elsewhere)} == {
        str(uuid.uuid5(TASK_ID_NAMESPACE, "redbeat:x\n2026-06-01T12:00:00.000000+00:00"))
    }


def test_runs_of_other_times_and_entries_have_other_ids(app: Celery) -> None:
    entries = [claimed(), claimed(seconds(1e-6)), replace(claimed(), key="redbeat:y")]
    assert len({plan(app, entry).entry.options["task_id"] for entry in entries}) == 3


def test_a_task_id_among_the_options_is_the_users(app: Celery) -> None:
    assert plan(app, claimed(options={"task_id": "mine"})).entry.options["task_id"] == "mine"


def test_another_reason_is_news_and_goes_on_counting(app: Celery) -> None:
    first, _ = commit_failed(plan(app, claimed()), "broken", NOW)
    run = plan(app, claimed(first.new_score, error=first.new_error), NOW + 1)
    commit, is_news = commit_failed(run, "broken otherwise", NOW + 1)
    assert is_news
    assert json.loads(commit.new_error)["attempts"] == 2
    assert seconds(8) <= commit.new_score <= seconds(8.5)


def test_an_entry_re_timed_while_its_run_fails_is_due_when_it_was_re_timed_to(app: Celery) -> None:
    failed, _ = commit_failed(plan(app, claimed()), "broken", NOW)
    moved = claimed(seconds(30), error=failed.new_error)
    run = plan(app, moved, NOW + 30)
    assert (run.nominal, run.sent.new_error) == (seconds(30), Clear.FIELD)


def test_a_retry_after_the_next_due_time_covers_that_run_too(app: Celery) -> None:
    failed, _ = commit_failed(plan(app, claimed()), "broken", NOW)
    run = plan(app, claimed(failed.new_score, error=failed.new_error), NOW + 130)
    assert (run.nominal, run.sent.new_score) == (seconds(), seconds(180))


@pytest.mark.parametrize(
    ("is_known", "new_score"), [(False, seconds(5 + MISSING_GRACE_SECONDS)), (True, Ending.UNSCHEDULE)]
)
def test_an_entry_without_its_hash_gets_one_moment_of_grace(is_known: bool, new_score: str | Ending) -> None:
    entry = replace(claimed(), type=KeyType.NONE, definition=None)
    assert commit_missing(entry, NOW, is_known) == Commit(entry, new_score)


def test_the_reasons_of_past_failures_are_read_back(app: Celery) -> None:
    commit, _ = commit_failed(plan(app, claimed()), "broken", NOW)
    failure = failure_of(claimed(error=commit.new_error))
    assert failure is not None
    assert (failure.reason, failure.attempts, failure.due) == ("broken", 1, seconds())


def log_of_batch(app: Celery, caplog: pytest.LogCaptureFixture, *entries: Claimed, now: float) -> list[Any]:
    caplog.set_level("INFO", logger="celery.beat")
    reports = Reports()
    found: list[tuple[str, Dropped]] = []

    def note(name: str, dropped: Dropped) -> None:
        found.append((name, dropped))

    for one in entries:
        plan_run(RedBeatSchedulerEntry, app, one, now, report_dropped=note)
    reports.report_dropped(found)
    return caplog.records


def test_skipped_runs_are_logged_with_entry_name_and_the_reason_in_history(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    entry = replace(claimed(), policy=json.dumps({"misfire": "all", "misfire_grace_time": 50}))
    commit = plan_run(RedBeatSchedulerEntry, app, entry, NOW + 330)
    records = commit.sent.records if isinstance(commit, Run) else commit.records
    why = json.loads(f"{{{records[0]}}}")["why"]
    assert why == "older than misfire_grace_time of 50 s"
    [told] = log_of_batch(app, caplog, entry, now=NOW + 330)
    assert told.levelname == "WARNING"
    assert told.message == (
        f"beat: Skipped 5 runs of x, from 2026-06-01 12:00:00 UTC to 2026-06-01 12:04:00 UTC: {why}."
    )


def test_merged_runs_of_a_batch_are_logged_in_one_line(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    [told] = log_of_batch(app, caplog, claimed(), now=NOW + 300)
    assert (told.levelname, "Merged 5 runs of x" in told.message) == ("INFO", True)
    assert "the run of 2026-06-01 12:05:00 UTC stands for them." in told.message
    caplog.clear()
    [told] = log_of_batch(app, caplog, *[claimed()] * 500, now=NOW + 300)
    assert (told.levelname, told.redbeat["event"], told.redbeat["count"]) == (
        "INFO",
        "redbeat.runs.merged",
        500,
    )
