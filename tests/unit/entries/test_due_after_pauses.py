"""Pauses that end by themselves: beat goes on at the first run after them, and that is what is shown."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.planner import Run, plan_run
from redbeat.decoder import encode_meta
from redbeat.entries.loading import decode_entry
from redbeat.store.records import Claimed, Clear, Commit, KeyType, Stored, score_text

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

HALF_SECONDS = {"__type__": "interval", "every": 0.5}
HOURLY = {"__type__": "crontab", "minute": "0"}
EVERY_FIVE = {"__type__": "crontab", "minute": "*/5"}
MINUTELY_RULE = {"__type__": "rrule", "freq": 5, "dtstart": NOON.timestamp() - 53, "dtstart_tz": 0}


def paused(
    schedule: dict[str, Any],
    until: datetime | None,
    *,
    score: datetime = NOON,
    ran_at: datetime | None = NOON - SECOND / 4,
    count: int = 5,
    enabled: bool = False,
    **policy: Any,
) -> Stored:
    """As a writer in any language leaves it: the score is what it was before the pause."""
    policy = {"paused": True, **policy}
    if until is not None:
        policy["paused_until"] = until.isoformat()
    definition = json.dumps({"name": "x", "task": "t", "schedule": schedule, "enabled": enabled})
    meta, at = encode_meta(ran_at, count), score.timestamp()
    return Stored("redbeat:x", definition, meta, at, json.dumps(policy), type=KeyType.HASH)


def decide(app: Celery, stored: Stored, now: datetime) -> Run | Commit:
    score = score_text(stored.score)
    claimed = Claimed(
        stored.key, score, stored.definition, stored.meta, stored.policy, stored.error, score=score
    )
    return plan_run(Entry, app, claimed, now.timestamp())


def sent(app: Celery, stored: Stored, now: datetime) -> Commit:
    """What is recorded when it has sent a run."""
    run = decide(app, stored, now)
    assert isinstance(run, Run)
    return run.sent


def look(app: Celery, stored: Stored, now: datetime) -> datetime:
    """When beat looks at it again, that has looked at it now and sent nothing."""
    commit = decide(app, stored, now)
    assert isinstance(commit, Commit)
    return datetime.fromtimestamp(float(commit.new_score), UTC)


def due_of(run: Run | Commit) -> datetime:
    assert isinstance(run, Run)
    return datetime.fromisoformat(run.entry.options["headers"]["redbeat_due"])


def read(app: Celery, stored: Stored, now: datetime) -> Entry:
    entry = decode_entry(Entry, stored, app)
    entry.seen_at = now
    return entry


@pytest.mark.parametrize("policy", [{}, {"run_missed": True}])
def test_the_first_run_after_a_pause_stores_that_it_is_over(app: Celery, policy: dict[str, Any]) -> None:
    until = NOON + HOUR
    stored = paused(
        HOURLY, until, ran_at=NOON, score=until, timezone="Europe/Berlin", pause_note="n", **policy
    )
    commit = sent(app, stored, until + SECOND)
    assert json.loads(commit.new_definition)["enabled"] is True
    assert json.loads(commit.new_policy) == {"timezone": "Europe/Berlin", **policy}
    assert not commit.is_for_this_definition  # whoever changes it meanwhile doesn't undo the run


def test_a_pause_was_all_that_the_policy_had(app: Celery) -> None:
    until = NOON + HOUR
    commit = sent(app, paused(HOURLY, until, ran_at=NOON, score=until), until + SECOND)
    assert commit.new_policy is Clear.FIELD


def test_the_last_run_after_a_pause_leaves_a_finished_entry_disabled(app: Celery) -> None:
    until = NOON + HOUR
    stored = paused(HOURLY, until, ran_at=NOON, score=until, max_runs=6, after_finish="disable")
    commit = sent(app, stored, until + SECOND)
    assert json.loads(commit.new_definition)["enabled"] is False
    assert json.loads(commit.new_policy) == {"max_runs": 6, "after_finish": "disable"}


def test_an_entry_whose_pause_is_over_is_shown_so_before_its_run(app: Celery) -> None:
    stored = paused(HOURLY, NOON + MINUTE, ran_at=NOON, pause_note="n")
    during = read(app, stored, NOON + SECOND).to_dict()
    assert (during["enabled"], during["paused"], during["pause_note"]) == (False, True, "n")
    after = read(app, stored, NOON + 2 * MINUTE).to_dict()
    assert after["enabled"] is True
    assert not after.keys() & {"paused", "pause_note", "paused_by", "paused_until"}


@pytest.mark.parametrize("policy", [{}, {"run_missed": True}])
def test_the_next_runs_after_a_pause_begin_with_the_next_one_due(app: Celery, policy: dict[str, Any]) -> None:
    now = datetime.now(UTC)
    until = now + HOUR
    rule = {"__type__": "interval", "every": 420}
    entry = read(app, paused(rule, until, ran_at=now - MINUTE, score=now + 6 * MINUTE, **policy), now)
    first, second, third = entry.next_runs(3)
    assert first == entry.next_due_at
    assert (first == until) is bool(policy)
    phase = (second - (now - MINUTE)) % timedelta(seconds=420)
    assert phase == timedelta(0)
    assert third - second == timedelta(seconds=420)
    assert second - first <= timedelta(seconds=420)


ENDS = pytest.mark.parametrize(
    ("schedule", "until", "first"),
    [
        (HALF_SECONDS, NOON + 6 * SECOND, NOON + 6.25 * SECOND),  # its phase is kept
        (HALF_SECONDS, NOON + 6.25 * SECOND, NOON + 6.25 * SECOND),  # the end itself is in time
        (HALF_SECONDS, NOON + 400.1 * SECOND, NOON + 400.25 * SECOND),
        (EVERY_FIVE, NOON + 6 * MINUTE, NOON + 10 * MINUTE),
        (EVERY_FIVE, NOON + 10 * MINUTE, NOON + 10 * MINUTE),
        (HOURLY, NOON + 26 * HOUR + SECOND, NOON + 27 * HOUR),
        (MINUTELY_RULE, NOON + 5 * MINUTE, NOON + 5 * MINUTE + 7 * SECOND),
        (HOURLY, NOON + 30 * MINUTE, NOON + HOUR),
    ],
)


@ENDS
@pytest.mark.parametrize("count", [0, 5])
def test_beat_looks_again_at_the_first_run_after_the_pause_and_sends_it(
    app: Celery, schedule: dict[str, Any], until: datetime, first: datetime, count: int
) -> None:
    due = NOON if schedule in (EVERY_FIVE, HOURLY) else NOON + SECOND / 4
    stored = paused(schedule, until, count=count, score=due)
    at = look(app, stored, due + SECOND / 100)
    assert at == first
    stored.score = at.timestamp()
    run = decide(app, stored, at + SECOND / 100)
    assert due_of(run) == first


@ENDS
def test_whoever_asks_is_told_that_time_and_never_one_before_the_end(
    app: Celery, schedule: dict[str, Any], until: datetime, first: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + 3 * HOUR  # the pause isn't over
    until, first = soon + (until - NOON), soon + (first - NOON)
    if schedule is MINUTELY_RULE:
        schedule = {**schedule, "dtstart": soon.timestamp() + 7}
    entry = read(app, paused(schedule, until, score=soon, ran_at=soon - SECOND / 4), soon - HOUR)
    assert entry.next_due_at == first
    assert entry.due_at == first
    assert entry.score == first.timestamp()
    assert entry.to_dict()["next_due_at"] == first.isoformat()
    assert (entry.state, entry.to_dict()["state"]) == ("paused", "paused")
    assert entry.next_runs(1)[0] == first
    assert entry.next_runs(1, after=NOON - HOUR)[0] == first
    assert entry.next_runs(1, after=first)[0] > first
    assert not entry.is_due().is_due


@pytest.mark.parametrize(
    "stored",
    [
        paused(EVERY_FIVE, None),
        paused(HALF_SECONDS, None, score=NOON - HOUR),
        paused(EVERY_FIVE, NOON + 9 * HOUR, enabled=False, paused=False),
    ],
)
def test_what_rests_without_an_end_has_no_next_run_whatever_its_score(app: Celery, stored: Stored) -> None:
    entry = read(app, stored, NOON)
    assert (entry.next_due_at, entry.due_at) == (None, None)
    assert entry.to_dict()["next_due_at"] is None
    assert entry.state in ("paused", "disabled")
    assert entry.score > 0, "beat looks at it all the same: somebody may enable it by hand"


@pytest.mark.parametrize("misfire", ["latest", "all", "earliest", "skip"])
def test_the_runs_in_a_pause_that_nobody_saw_end_are_not_missed(app: Celery, misfire: str) -> None:
    until = NOON + 62 * MINUTE
    stored = paused(EVERY_FIVE, until, score=NOON + 5 * MINUTE, misfire=misfire)
    back = NOON + 65 * MINUTE + SECOND  # a beat is back that was away all the while
    assert due_of(decide(app, stored, back)) == NOON + 65 * MINUTE
    assert read(app, stored, back).next_due_at == NOON + 65 * MINUTE
    early = decide(app, stored, NOON + 63 * MINUTE)
    assert isinstance(early, Commit)
    assert early.new_score == score_text((NOON + 65 * MINUTE).timestamp())
    assert read(app, stored, NOON + 63 * MINUTE).state == "scheduled"


def test_runs_missed_after_the_pause_are_made_up_for(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON + 62 * MINUTE, score=NOON + 5 * MINUTE, misfire="all")
    run = decide(app, stored, NOON + 76 * MINUTE)
    assert due_of(run) == NOON + 65 * MINUTE
    assert isinstance(run, Run)
    assert float(run.sent.new_score) == (NOON + 70 * MINUTE).timestamp()


def test_with_run_missed_the_runs_in_the_pause_are_made_up_for_at_its_end(app: Celery) -> None:
    until = NOON + 12.5 * MINUTE
    for misfire, dues in (("latest", [10]), ("earliest", [5]), ("all", [5, 10])):
        stored = paused(
            EVERY_FIVE, until, score=NOON + 5 * MINUTE, run_missed=True, misfire=misfire, ran_at=NOON
        )
        at = look(app, stored, NOON + 5 * MINUTE)
        assert at == until == read(app, stored, NOON + 6 * MINUTE).next_due_at
        for minutes in dues:
            stored.score = at.timestamp()
            run = decide(app, stored, until + SECOND)
            assert due_of(run) == NOON + minutes * MINUTE
            assert isinstance(run, Run)
            stored.meta, at = run.sent.new_meta, datetime.fromtimestamp(float(run.sent.new_score), UTC)
        assert at == NOON + 15 * MINUTE
    stored = paused(EVERY_FIVE, until, run_missed=True, misfire="skip", ran_at=NOON)
    assert look(app, stored, NOON + SECOND) == NOON + 15 * MINUTE, "at the end all is too late"


def test_a_pause_whose_end_is_over_is_none(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON - HOUR)
    assert due_of(decide(app, stored, NOON + SECOND)) == NOON
    entry = read(app, stored, NOON - MINUTE)
    assert (entry.state, entry.next_due_at) == ("scheduled", NOON)


def test_an_end_that_was_moved_meanwhile_counts_as_it_is_now(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON + 22 * MINUTE, score=NOON + 10 * MINUTE)  # it was to end before
    assert look(app, stored, NOON + 10 * MINUTE) == NOON + 25 * MINUTE


def test_a_run_asked_for_while_it_rests_is_not_sent_and_after_the_pause_it_is(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON + HOUR)
    claimed = Claimed(stored.key, "1780315201.5", stored.definition, stored.meta, stored.policy)
    claimed.is_asked, claimed.score = True, claimed.nominal
    commit = plan_run(Entry, app, claimed, float(claimed.nominal))
    assert isinstance(commit, Commit)
    assert commit.new_score == score_text((NOON + HOUR).timestamp())


def test_jitter_does_not_bring_a_run_of_the_pause_back(app: Celery) -> None:
    until = NOON + 22 * MINUTE
    stored = paused(EVERY_FIVE, until, jitter=250)
    at = look(app, stored, NOON + SECOND)
    assert NOON + 25 * MINUTE <= at <= NOON + 30 * MINUTE
    assert read(app, stored, NOON + MINUTE).next_due_at == at
    stored.score = at.timestamp()
    assert due_of(decide(app, stored, at + SECOND)) == NOON + 25 * MINUTE


def test_an_interval_that_never_ran_begins_after_its_pause(app: Celery) -> None:
    stored = paused(HALF_SECONDS, NOON + 6.1 * SECOND, ran_at=None, count=0)
    assert look(app, stored, NOON + SECOND) == NOON + 6.5 * SECOND  # it counts from its score


def test_a_pause_after_which_nothing_is_left_ends_in_nothing(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON + HOUR, end_time=(NOON + 30 * MINUTE).isoformat())
    commit = decide(app, stored, NOON + SECOND)
    assert isinstance(commit, Commit)
    assert commit.new_score == "-1.000000"
    assert read(app, stored, NOON).next_due_at is None
    assert read(app, stored, NOON).state == "paused"
