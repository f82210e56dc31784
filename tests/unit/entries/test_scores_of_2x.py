"""Scores of celery-redbeat 2.x, and last runs that an application has moved: the schedule decides."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat.beat.planner import Run, plan_run
from redbeat.decoder import encode_meta
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.store.records import Claimed, Commit

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HALF_PAST_11 = NOON - timedelta(minutes=30)
QUARTER_TO = NOON - timedelta(minutes=15)
MINUTE = timedelta(minutes=1)

#: each is due at noon when it ran, or was made, at half past eleven
Rule = dict[str, Any]
DUE_AT_NOON: list[Rule] = [
    {"__type__": "crontab", "minute": "0"},
    {"__type__": "interval", "every": 1800},
    {"__type__": "rrule", "freq": 4, "dtstart": 0, "dtstart_tz": 0},
]
EVERY_KIND = pytest.mark.parametrize("schedule", DUE_AT_NOON, ids=lambda schedule: schedule["__type__"])
RUN_COUNTS = pytest.mark.parametrize("count", [0, 7])


def claimed(
    score: str, schedule: Rule, last_run_at: datetime | None = HALF_PAST_11, **options: Any
) -> Claimed:
    meta = encode_meta(last_run_at, options.pop("count", 0))
    definition = json.dumps({"name": "x", "task": "t", "schedule": schedule, **options})
    return Claimed("redbeat:x", score, definition, meta, score=score)


def whole(moment: datetime) -> str:
    """A score as the server writes the whole seconds of 2.x."""
    return str(int(moment.timestamp()))


def decide(app: Celery, entry: Claimed, now: datetime) -> Run | Commit:
    return plan_run(RedBeatSchedulerEntry, app, entry, now.timestamp())


def due_of(planned: Run | Commit) -> datetime:
    assert isinstance(planned, Run)
    return datetime.fromisoformat(planned.entry.options["headers"]["redbeat_due"])


@EVERY_KIND
@RUN_COUNTS
def test_a_whole_score_before_its_time_is_moved_there_unsent(app: Celery, schedule: Rule, count: int) -> None:
    entry = claimed(whole(QUARTER_TO), schedule, count=count)
    assert decide(app, entry, QUARTER_TO + MINUTE) == Commit(entry, new_score=f"{NOON.timestamp():.6f}")


@EVERY_KIND
@RUN_COUNTS
def test_when_the_schedules_time_has_passed_it_runs_as_of_it(app: Celery, schedule: Rule, count: int) -> None:
    now = NOON + timedelta(seconds=5)
    planned = decide(app, claimed(whole(QUARTER_TO), schedule, count=count), now)
    assert due_of(planned) == NOON
    assert isinstance(planned, Run)
    assert planned.nominal == f"{NOON.timestamp():.6f}"
    assert float(planned.sent.new_score) > now.timestamp()


def test_an_interval_of_2x_cut_to_the_second_keeps_its_phase(app: Celery) -> None:
    ran_at = HALF_PAST_11 + timedelta(microseconds=750_000)
    own_time = NOON + timedelta(microseconds=750_000)
    planned = decide(app, claimed(whole(NOON), DUE_AT_NOON[1], ran_at, count=1), NOON + timedelta(seconds=2))
    assert due_of(planned) == own_time
    early = decide(app, claimed(whole(NOON), DUE_AT_NOON[1], ran_at, count=1), NOON + timedelta(seconds=0.5))
    assert isinstance(early, Commit)
    assert float(early.new_score) == own_time.timestamp()


@EVERY_KIND
def test_a_disabled_entry_is_moved_to_the_schedules_time_just_so(app: Celery, schedule: Rule) -> None:
    entry = claimed(whole(QUARTER_TO), schedule, enabled=False)
    assert decide(app, entry, QUARTER_TO + MINUTE) == Commit(entry, new_score=f"{NOON.timestamp():.6f}")


@EVERY_KIND
@RUN_COUNTS
@pytest.mark.parametrize("score", [QUARTER_TO.timestamp() - 60.75, int(QUARTER_TO.timestamp())])
def test_a_last_run_moved_ahead_moves_the_run(app: Celery, schedule: Rule, count: int, score: float) -> None:
    entry = claimed(f"{score}", schedule, count=count)
    entry.is_meta_foreign = True
    assert decide(app, entry, QUARTER_TO) == Commit(entry, new_score=f"{NOON.timestamp():.6f}")


@EVERY_KIND
@RUN_COUNTS
def test_a_last_run_moved_beyond_now_moves_even_a_past_run(app: Celery, schedule: Rule, count: int) -> None:
    entry = claimed(f"{QUARTER_TO.timestamp() - 3600.75}", schedule, count=count)
    entry.is_meta_foreign = True
    assert decide(app, entry, HALF_PAST_11 - MINUTE) == Commit(entry, new_score=f"{NOON.timestamp():.6f}")


@EVERY_KIND
@pytest.mark.parametrize(
    ("score", "due"),
    [
        (f"{QUARTER_TO.timestamp() - 60.75}", QUARTER_TO - timedelta(seconds=60.75)),
        (whole(HALF_PAST_11 - MINUTE), HALF_PAST_11 - MINUTE),
    ],
    ids=["fractional", "before the last run"],
)
def test_other_scores_are_taken_as_they_are(app: Celery, schedule: Rule, score: str, due: datetime) -> None:
    assert due_of(decide(app, claimed(score, schedule), QUARTER_TO)) == due


@EVERY_KIND
@RUN_COUNTS
def test_a_run_that_was_asked_for_runs_when_it_was_asked_for(app: Celery, schedule: Rule, count: int) -> None:
    entry = claimed(f"{QUARTER_TO.timestamp() - 60.75}", schedule, count=count)
    entry.is_asked = True
    assert due_of(decide(app, entry, QUARTER_TO)) == QUARTER_TO - timedelta(seconds=60.75)


@EVERY_KIND
def test_a_score_of_long_ago_is_one_run_for_all_that_were_missed(app: Celery, schedule: Rule) -> None:
    assert HALF_PAST_11 - 30 * MINUTE <= due_of(decide(app, claimed("1", schedule), QUARTER_TO)) <= QUARTER_TO


@EVERY_KIND
def test_a_score_without_a_last_run_is_taken_as_it_is(app: Celery, schedule: Rule) -> None:
    planned = decide(app, claimed(whole(QUARTER_TO), schedule, last_run_at=None), QUARTER_TO + MINUTE)
    assert due_of(planned) == QUARTER_TO


@EVERY_KIND
def test_a_score_at_the_schedules_own_time_runs_at_it(app: Celery, schedule: Rule) -> None:
    assert due_of(decide(app, claimed(whole(NOON), schedule), NOON)) == NOON
