"""Verdicts about runs and about the schedule, and excerpts of what is broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics.checks.entries import EXCERPT_LENGTH, excerpt_of
from redbeat.diagnostics.facts import Facts
from redbeat.diagnostics.why import VERDICTS, explain
from redbeat.entries.calendar_loading import Unusable
from redbeat.entries.failures import Failure
from redbeat.entries.loading import decode_entry
from redbeat.entries.saving import next_score
from redbeat.errors import EntryCorrupt
from redbeat.history import PastRun
from redbeat.leadership.status import Leader, ShardStatus, State, Status, judge
from redbeat.log.text import sha1_of_text
from redbeat.runs.run import Run
from redbeat.schedules.exclusions import Exclusions
from redbeat.store.records import Stored
from tests.support.schedule import meta_json

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NOW = NOON + HOUR / 2
LEAP_DAY = datetime(2024, 2, 29, tzinfo=UTC)
HOURLY = {"__type__": "crontab", "minute": "0"}
TWO_HOURLY = {"__type__": "interval", "every": 7200}
YOUNG = Leader("b", 1, NOON - 2 * HOUR, "t", 1.0, NOW)
FOREIGN = Leader(None, None, None, "ab" * 16, 9.0, None)
LEADER = Leader("web-1", 4711, NOON - timedelta(days=9), "redbeat:3:web-1:4711:1:x", 1500.0, NOW)
LOCK = "redbeat::lock"
UNSHARDED = ShardStatus(None, LOCK, LEADER, NOW, 0, 0, None)


def hours(count: float) -> datetime:
    """Noon and so many hours."""
    return NOON + timedelta(hours=count)


def sent(due: float, late_seconds: float = 0.1, **fields: Any) -> PastRun:
    at = hours(due) + timedelta(seconds=late_seconds)
    return PastRun(hours(due), at, **{"task_id": f"id-{due:g}", **fields})


def skipped(due: float, at: float, why: str = "too late") -> PastRun:
    return PastRun(hours(due), hours(at), "skipped", why=why)


def unsent(due: float, why: str = "ValueError('no')") -> PastRun:
    return PastRun(hours(due), hours(due), "unsent", why=why)


def ended(outcome: str, **fields: Any) -> PastRun:
    """The run of 12 o'clock, which waited for 1.5 s, and took 2.25."""
    given = {"wait_seconds": 1.5, "run_seconds": 2.25, "worker": "celery@h", "attempt": 1, **fields}
    return sent(0, outcome=outcome, ended=hours(0.1), **given)


def failure(due: float, attempts: int, reason: str = "it is bad") -> str:
    seconds, retry_at = f"{hours(due).timestamp():.6f}", f"{NOW.timestamp() + 9:.6f}"
    return Failure(reason, hours(due).isoformat(), "", attempts, seconds, retry_at).to_json()


def paused(**policy: str) -> dict[str, Any]:
    return {"enabled": False, "policy": {"paused": True, **policy}}


def facts(
    app: Celery,
    history: list[PastRun],
    *,
    last: float | None = -1,
    count: int = 5,
    score: float | None = hours(1).timestamp(),
    error: str | None = None,
    policy: dict[str, Any] | None = None,
    kept: int = 20,
    leader: Leader | None = LEADER,
    ticked: float | None = None,
    calendar: Any = None,
    running: Sequence[Run] = (),
    **definition: Any,
) -> Facts:
    """An entry that runs hourly, has last run at 11, and is looked at at 12:30."""
    text = json.dumps({"task": "t", "schedule": HOURLY, **definition})
    meta = meta_json(None if last is None else hours(last), count)
    error = error and error.replace('"definition_sha1": ""', f'"definition_sha1": "{sha1_of_text(text)}"')
    stored = Stored("redbeat:x", text, meta, score, policy and json.dumps(policy), error, "hash")
    entry, problem = None, ""
    try:
        entry = decode_entry(Entry, stored, app)
        entry.policy = entry.policy.with_calendar(calendar)
    except EntryCorrupt as exc:
        problem = str(exc)
    tick = hours(ticked) if ticked is not None else NOW if leader else hours(-0.5)
    status = Status(NOW, LOCK, [replace(UNSHARDED, leader=leader, last_tick=tick)])
    return Facts("redbeat:x", entry, stored, problem, history, kept, status, running=running)


#: those of 7, 8 and 9 o'clock were skipped, the one of 10 was merged into that of 11
OUTAGE = [
    PastRun(hours(-2), hours(-2 / 3), "merged", why="the run of 11 stands for it", count=1),
    PastRun(hours(-5), hours(-2 / 3), "skipped", why="older than the limit of 1", last=hours(-3), count=3),
]


#: what is recorded of the hours around it
SEEN = [sent(-1, 1200), *OUTAGE, sent(-6)]
RAN = [sent(-1)]
NOT_BEGUN: dict[str, Any] = {"worker": None, "wait_seconds": None, "run_seconds": None, "attempt": None}
SPAWNED = Run("x", hours(0), "id-0", state="spawned", started_at=hours(0))
HELD = PastRun(hours(0), hours(0), "waiting", why="the run id-9 was at work on celery@h")
LONG = [sent(-hour) for hour in range(1, 21)]
DUE = NOON.timestamp()
RETRY = NOW.timestamp() + 9
NEVER = {"score": -1.0}
HOLIDAY = Exclusions(["2026-06-01"])


@pytest.mark.parametrize(
    ("at", "history", "given", "verdict", "words"),
    [
        # what is recorded
        (0, [sent(0)], {}, "sent", "100 ms after its time, with the task id id-0."),
        (0, [sent(0, is_manual=True)], {}, "sent", "by hand"),
        (0, [skipped(0, 0.1)], {}, "skipped", "too late."),
        (0, [unsent(0)], {"error": failure(0, 3), "score": DUE}, "unsent", "again at 2026-06-01 12:30:09"),
        (-1, [unsent(-1)], {"error": failure(0, 3), "score": DUE}, "unsent", "isn't recorded"),
        (0, [unsent(0, "no task")], {"error": failure(0, 0)}, "quarantined", "no task."),
        (-2, [sent(-1), unsent(-2)], {}, "merged", "no'). The run that was due at 2026-06-01 11:00:00"),
        # what became of it
        (0, [ended("succeeded", attempt=3)], {}, "succeeded", "after 2 s, with attempt 3."),
        (0, [ended("failed", error="ValueError: no")], {}, "failed", "on celery@h after 2 s: ValueError"),
        (0, [ended("lost", late="succeeded")], {}, "lost", "It has ended later, as succeeded."),
        (0, [ended("never_started", **NOT_BEGUN)], {}, "never_started", "No worker has begun it in time."),
        (0, [sent(0, rerun_of="id-x", is_manual=True)], {}, "sent", ", as a rerun of id-x, with the task id"),
        (0, [HELD], {}, "waiting", "It is held back: the run id-9"),
        (0, [replace(HELD, outcome="skipped")], {}, "skipped", ": the run id-9 was at work on celery@h."),
        (
            0,
            [sent(0)],
            {"running": [SPAWNED]},
            "running",
            "workflow goes on since 2026-06-01 12:00:00 UTC.",
        ),
        # no time of its schedule's
        (0.3, [sent(0)], {}, "no-time", "before is 2026-06-01 12:00:00 UTC. The next after is 2026-06-01 13"),
        # its policy
        (-3, [], {"policy": {"start_time": "2026-06-01T11:30Z"}}, "outside", "before the entry's start_time"),
        (0, [], {"policy": {"end_time": "2026-06-01T11:30Z"}}, "outside", "after the entry's end_time"),
        (0, [], {"policy": {"exclude": "holidays"}, "calendar": HOLIDAY}, "excluded", "holidays"),
        # failures
        (
            0,
            RAN,
            {"error": failure(-0.5, 0), "score": RETRY},
            "quarantined",
            "since 2026-06-01 11:30:00 UTC: ",
        ),
        (0, [], {"task": None}, "quarantined", "definition: task: is missing."),
        (0, [], {"policy": {"exclude": "x"}, "calendar": Unusable("gone.")}, "quarantined", "gone."),
        (0, [unsent(-1)], {"error": failure(-1, 7), "last": -2, "score": RETRY}, "unsent", "7 times so far"),
        # still to come
        (1, [sent(0)], {}, "to-come", "still to come"),
        (1, [sent(0)], {"policy": {"max_runs": 5}, **NEVER}, "finished", "max_runs=5"),
        # other runs stand for it
        (-3, [sent(-1, 1200), sent(-4)], {}, "merged", "misfire: latest"),
        (-3, [sent(-1, 1200), sent(-4)], {"policy": {"misfire": "skip"}}, "skipped", "misfire: skip"),
        # each run of an outage by its own reason
        (-3, SEEN, {}, "skipped", "3 runs from 2026-06-01 07:00:00 UTC to 2026-06-01 09:00:00 UTC: older"),
        (-2, SEEN, {}, "merged", "(id--1) stands for it."),
        (-4, SEEN, {"policy": {"exclude": "holidays"}, "calendar": HOLIDAY}, "excluded", "holidays"),
        (-4, [sent(-1, 1200), *OUTAGE], {"task": None}, "skipped", "older than the limit of 1."),
        (-2, [sent(-3, 2.5 * 3600), sent(-4)], {}, "merged", "(id--3) stands for it"),
        (-2, [sent(-1), skipped(-3, -1.5), sent(-4)], {}, "skipped", "too late"),
        (-3, [sent(-1), sent(-4)], {}, "unknown", "saved, changed, paused or disabled"),
        (-3, [sent(-1), sent(-4)], {"leader": YOUNG}, "unknown", "since 2026-06-01 10"),
        # what is recorded doesn't go back so far
        (-30, LONG, {"count": 25}, "too-long-ago", "(redbeat_history is 20)"),
        (-3, [], {"last": -1, "count": 0}, "not-there-yet", "counts from 2026-06-01 11:00:00"),
        (-3, [sent(-1), sent(-2)], {"count": 9}, "too-long-ago", "begins with the run that was due at"),
        (-3, [skipped(-1, -1), skipped(-2, -2)], {"count": 0, "kept": 2}, "too-long-ago", "begins with"),
        (-3, [sent(-1), sent(-2)], {"count": 2}, "not-there-yet", "first run was due at 2026-06-01 10:00:00"),
        # what was sent by hand says nothing about the schedule's own runs
        (-1, [sent(0.2, is_manual=True)], {"count": 0}, "not-there-yet", "counts from 2026-06-01 11:00:00"),
        # nothing is recorded at all
        (-3, [], {"kept": 0}, "history-off", "its last run was at 2026-06-01 11"),
        # the entry as it is now
        (0, RAN, {"policy": {"max_runs": 5}, **NEVER}, "finished", "had its runs (max_runs=5)"),
        (0, RAN, {"policy": {"max_runs": 5}}, "finished", "It never runs again: it has had its runs"),
        (0, RAN, {"enabled": False}, "disabled", "enabled is false"),
        (0, RAN, paused(paused_until="2026-06-02T00:00Z"), "paused", "until 2026-06-02 00:00:00 UTC"),
        (0, RAN, paused(paused_until="2026-06-01T12:20Z"), "paused", "was paused until 2026-06-01 12:20:00"),
        (0, RAN, {"score": None}, "unscheduled", "save it again"),
        (0, RAN, {**NEVER}, "unscheduled", "-1, which means never: its schedule has times, but"),
        # the beats
        (0, RAN, {"score": DUE, "leader": None}, "no-leader", "No beat holds the lock"),
        (0, RAN, {"score": DUE}, "waiting", "the log of beat on web-1"),
        (0, RAN, {"score": DUE, "ticked": -0.1}, "waiting", "last tick was 2160 s ago"),
        (0, RAN, {"score": DUE, "leader": FOREIGN}, "waiting", "other than RedBeat 3 holds the lock"),
        (0, RAN, {}, "unknown", "Nothing is recorded of it."),
    ],
)
def test_run_is_explained(
    app: Celery, at: float, history: list[PastRun], given: dict[str, Any], verdict: str, words: str
) -> None:
    answer = explain(facts(app, history, **given), hours(at))
    assert (answer.verdict, words in answer.reason) == (verdict, True), answer
    assert answer.reason.endswith(".")
    assert verdict in VERDICTS


@pytest.mark.parametrize(
    ("schedule", "given", "expected"),
    [
        (HOURLY, {}, hours(0)),
        (TWO_HOURLY, {}, hours(-1)),
        ({"__type__": "interval", "every": 600, "relative": True}, {}, hours(0.5)),
        ({"__type__": "clocked", "clocked_time": "2026-06-01T10:00:00+00:00"}, {}, hours(-2)),
        ({**HOURLY, "hour": "0", "day_of_month": "29", "month_of_year": "2"}, {}, LEAP_DAY),
        (TWO_HOURLY, {"policy": {"start_time": "2026-06-01T11:15Z"}}, hours(-0.75)),
    ],
)
def test_without_a_time_the_latest_due_time_is_explained(
    app: Celery, schedule: dict[str, Any], given: dict[str, Any], expected: datetime
) -> None:
    assert explain(facts(app, [], schedule=schedule, **given)).at == expected


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"schedule": {"__type__": "clocked", "clocked_time": "2027-01-01T00:00:00+00:00"}}, "no-time"),
        ({"schedule": {"__type__": "interval", "every": 60}, "last": None, "count": 0}, "no-time"),
        ({"schedule": 5}, "quarantined"),
    ],
)
def test_entry_without_a_due_time_yet_says_so(app: Celery, given: dict[str, Any], verdict: str) -> None:
    answer = explain(facts(app, [], **given))
    assert (answer.verdict, answer.at) == (verdict, None)


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [
        ({"error": failure(0, 3), "score": RETRY}, "unsent", "12:00:00 UTC couldn't be sent, 3 times so far"),
        ({"score": 0.0, "leader": None}, "no-leader", "No beat holds the lock"),
        ({"score": 0.0}, "waiting", "the log of beat on web-1"),
        (NEVER, "unscheduled", "its schedule has times, but its score was written so"),
        ({"score": None}, "unscheduled", "save it again"),
        ({"enabled": False}, "disabled", "enabled is false"),
    ],
)
def test_entry_that_never_ran_is_explained_by_its_state(
    app: Celery, given: dict[str, Any], verdict: str, words: str
) -> None:
    fields = {"schedule": {"__type__": "interval", "every": 60}, "last": None, "count": 0, **given}
    answer = explain(facts(app, [], **fields))
    assert (answer.verdict, words in answer.reason) == (verdict, True), answer


def test_explanation_has_the_neighbouring_due_times(app: Celery) -> None:
    answer = explain(facts(app, [sent(-1)]), hours(0))
    assert (answer.before, answer.after) == (hours(-1), hours(1))
    assert answer.to_dict()["after"] == "2026-06-01T13:00:00+00:00"


HEALTHY = Status(NOW, LOCK, [UNSHARDED])


def seconds_ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, State.HEALTHY, ""),
        ({"backlog": 3, "oldest_due": seconds_ago(61)}, State.LATE, "due entry has been waiting for 61 s"),
        ({"overdue_messages": 3, "oldest_message": seconds_ago(60)}, State.HEALTHY, ""),
        ({"oldest_message": seconds_ago(61)}, State.LATE, "stored message has been waiting for 61 s"),
        ({"last_tick": seconds_ago(61)}, State.LATE, "last tick was 61 s ago"),
        ({"last_tick": None}, State.HEALTHY, ""),
        ({"leader": None}, State.NO_LEADER, "No beat holds the lock redbeat::lock."),
        ({"leader": None, "lock_key": None, "last_tick": None}, State.HEALTHY, ""),
        ({"leader": None, "lock_key": None, "oldest_due": seconds_ago(99)}, State.LATE, "99 s"),
        ({"leader": replace(LEADER, obstacle="It is full.")}, State.BLOCKED, "It is full."),
    ],
)
def test_status_is_judged(changes: dict[str, object], state: State, words: str) -> None:
    of_shard = {name: value for name, value in changes.items() if hasattr(UNSHARDED, name)}
    shard = replace(UNSHARDED, **of_shard)  # type: ignore[arg-type]
    rest = {name: value for name, value in changes.items() if name not in of_shard}
    status = replace(HEALTHY, lock_key=shard.lock_key, parts=[shard], **rest)  # type: ignore[arg-type]
    found, problem = judge(status, 60)
    assert found is state
    assert words in problem
    assert bool(problem) == (state is not State.HEALTHY)


@pytest.mark.parametrize(
    ("definition", "reason", "expected"),
    [
        ('{"task": 5}', "definition: task: must be the name of a task, not 5.", '{"task": 5}'),
        (f'{{"args": ["{"x" * EXCERPT_LENGTH}"], "task": 5}}', "definition: task: must be …", '…"task": 5}'),
        ('{"a": 1}', "definition: task: is missing.", '{"a": 1}'),
        ("\udcff", "definition: no valid JSON.", "\\udcff"),
        (None, "the hash has no field 'definition'.", ""),
    ],
)
def test_excerpt_shows_the_place_of_the_reason(definition: str | None, reason: str, expected: str) -> None:
    assert excerpt_of(Stored("k", definition, type="hash"), reason) == expected


@pytest.mark.parametrize(
    ("last", "count", "policy", "expected"),
    [
        (None, 0, {}, timedelta(seconds=60)),
        (NOON - timedelta(seconds=30), 5, {}, timedelta(seconds=30)),
        (NOON - timedelta(hours=9, seconds=10), 5, {}, timedelta(seconds=50)),
        (NOON - timedelta(hours=9), 5, {"start_time": "2026-06-02T00:00Z"}, timedelta(hours=12)),
        (NOON - timedelta(hours=9), 5, {"max_runs": 5}, None),
        (NOON - timedelta(hours=9), 5, {"end_time": "2026-06-01T11:00Z"}, None),
    ],
)
def test_repaired_entry_is_due_at_its_next_time(
    app: Celery, last: datetime | None, count: int, policy: dict[str, Any], expected: timedelta | None
) -> None:
    definition = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})
    meta, kind = meta_json(last, count), "hash"
    stored = Stored("redbeat:x", definition, meta, policy=json.dumps(policy), type=kind)
    score = next_score(decode_entry(Entry, stored, app), NOON)
    assert score == (-1 if expected is None else (NOON + expected).timestamp())
