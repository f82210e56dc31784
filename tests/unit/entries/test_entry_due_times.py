"""When an entry is due: what it shows, what beat does, scores of 2.x, and pauses."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import encode_meta
from redbeat.entries.failures import Failure
from redbeat.entries.loading import decode_entry
from redbeat.entries.upcoming import next_runs
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.planner import Planner, entry_to_send
from redbeat.schedules import clocked, cron, rrule
from redbeat.store.records import Commit, Stored, mark_of, score_text
from tests.support.fetched import fetched
from tests.support.ticks import memory_app

UTC = timezone.utc


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


MINUTE = timedelta(minutes=1)


APP = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")


SCHEDULES: list[dict[str, Any]] = [
    {"__type__": "crontab", "minute": "*/5"},
    {"__type__": "interval", "every": 90.5},
    {"__type__": "interval", "every": 900},
    {"__type__": "rrule", "freq": 5, "dtstart": NOON.timestamp() - 86_393, "dtstart_tz": 0},
]


def stored_of(
    score: float,
    schedule: Any,
    ran_at: datetime | None,
    count: int,
    policy: dict[str, Any],
    is_ours: bool = True,
) -> Stored:
    policy = dict(policy)
    fields = {"schedule": schedule, "enabled": policy.pop("enabled", True)}
    definition = json.dumps({"name": "x", "task": "t", **fields})
    meta, text = encode_meta(ran_at, count), json.dumps(policy) if policy else None
    meta = meta if is_ours else json.dumps(json.loads(meta))
    return Stored("redbeat:x", definition, meta, score, text, type="hash")


def claimed_of(stored: Stored, score: str = "") -> Stored:
    score = score or score_text(stored.score)
    mark = "" if stored.is_meta_foreign else mark_of(stored.meta or "")
    return fetched(stored.key, score, stored.definition, stored.meta, policy=stored.policy, meta_mark=mark)


def decide(app: Celery, stored: Stored, now: datetime) -> Any:
    due_entry = stored if stored.nominal else claimed_of(stored)
    return Planner(app).plan(due_entry, now.timestamp())


def read(app: Celery, stored: Stored, now: datetime) -> Entry:
    entry = decode_entry(Entry, stored, app)
    entry.seen_at = now
    return entry


def sent_by_beat(stored: Stored, now: datetime) -> datetime | None:
    """Return when a beat that is never late sends the entry."""
    for _ in range(5):
        if stored.score is None or stored.score < 0:
            return None
        at = max(now, datetime.fromtimestamp(stored.score, UTC))
        planned = decide(APP, stored, at)
        if isinstance(planned, Send):
            return at
        stored.score = float(planned.commit.new_score)
    raise AssertionError("beat never sends it")


FRACTIONS = st.sampled_from([0.0, 0.25])


minutes = st.integers(-200, 200).map(lambda count: NOON + count * MINUTE)


policies = st.fixed_dictionaries(
    {},
    optional={
        "paused": st.just(True), "paused_until": minutes.map(datetime.isoformat),
        "start_time": minutes.map(datetime.isoformat),
        "end_time": minutes.map(lambda moment: (moment + 400 * MINUTE).isoformat()),
        "run_missed": st.booleans(), "enabled": st.booleans(), "max_runs": st.integers(1, 9),
        "jitter": st.sampled_from([0, 30]),
    },
)  # fmt: skip


@given(
    st.builds(lambda count, part: NOON.timestamp() + 30 * count + part, st.integers(-100, 100), FRACTIONS),
    st.sampled_from(SCHEDULES),
    st.none() | st.integers(-9000, 0).map(lambda seconds: NOON + timedelta(seconds=seconds + 0.5)),
    st.integers(0, 5),
    policies,
    st.booleans(),
)
def test_shown_due_time_is_when_beat_sends(
    score: float, schedule: Any, ran_at: Any, count: int, policy: dict[str, Any], is_ours: bool
) -> None:
    stored = stored_of(score, schedule, ran_at, count, policy, is_ours)
    entry = read(APP, stored, NOON)
    told = entry.next_due_at
    if not entry.is_enabled_at(NOON) and not (policy.get("paused") and "paused_until" in policy):
        assert told is None
        return
    sent = sent_by_beat(stored, NOON)
    if told is not None and sent is not None:
        told = max(told, NOON)  # what is late is sent at once
    slack = timedelta(seconds=31) if policy.get("jitter") else timedelta(milliseconds=1)
    assert told == sent or (told is not None and sent is not None and abs(told - sent) <= slack)


HALF_PAST_11 = NOON - timedelta(minutes=30)


QUARTER_TO = NOON - timedelta(minutes=15)


#: each is due at noon when it ran, or was made, at half past eleven
Rule = dict[str, Any]


DUE_AT_NOON: list[Rule] = [
    {"__type__": "crontab", "minute": "0"},
    {"__type__": "interval", "every": 1800},
    {"__type__": "rrule", "freq": 4, "dtstart": 0, "dtstart_tz": 0},
]


EVERY_KIND = pytest.mark.parametrize("schedule", DUE_AT_NOON, ids=lambda schedule: schedule["__type__"])


RUN_COUNTS = pytest.mark.parametrize("count", [0, 7])


def claimed_2x(score: datetime, schedule: Rule, ran_at: datetime = HALF_PAST_11, count: int = 0) -> Stored:
    """Return an entry whose score is in whole seconds, as 2.x writes it."""
    return claimed_of(stored_of(0, schedule, ran_at, count, {}), str(int(score.timestamp())))


def due_of(run: Any) -> datetime:
    return datetime.fromisoformat(
        entry_to_send(run, Entry, run.known.entry.app).options["headers"]["redbeat_due"]
    )


@EVERY_KIND
@RUN_COUNTS
def test_early_score_of_2x_is_moved_to_the_due_time_unsent(app: Celery, schedule: Rule, count: int) -> None:
    entry = claimed_2x(QUARTER_TO, schedule, count=count)
    assert decide(app, entry, QUARTER_TO + MINUTE).commit == Commit(
        entry, new_score=f"{NOON.timestamp():.6f}"
    )


@EVERY_KIND
@RUN_COUNTS
def test_early_score_of_2x_runs_as_the_passed_due_time(app: Celery, schedule: Rule, count: int) -> None:
    now = NOON + timedelta(seconds=5)
    run = decide(app, claimed_2x(QUARTER_TO, schedule, count=count), now)
    assert due_of(run) == NOON
    assert run.nominal == f"{NOON.timestamp():.6f}"
    assert float(run.commit.new_score) > now.timestamp()


def test_interval_of_2x_keeps_its_phase(app: Celery) -> None:
    ran_at = HALF_PAST_11 + timedelta(microseconds=750_000)
    own_time = NOON + timedelta(microseconds=750_000)
    entry = claimed_2x(NOON, DUE_AT_NOON[1], ran_at, count=1)
    assert due_of(decide(app, entry, NOON + timedelta(seconds=2))) == own_time
    assert float(decide(app, entry, NOON + timedelta(seconds=0.5)).commit.new_score) == own_time.timestamp()


@EVERY_KIND
@RUN_COUNTS
def test_requested_run_runs_at_its_score(app: Celery, schedule: Rule, count: int) -> None:
    asked_for = QUARTER_TO - timedelta(seconds=60.75)
    entry = claimed_of(stored_of(asked_for.timestamp(), schedule, HALF_PAST_11, count, {}))
    entry.is_asked = True
    assert due_of(decide(app, entry, QUARTER_TO)) == asked_for


SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


HALF_SECONDS = {"__type__": "interval", "every": 0.5}


HOURLY = {"__type__": "crontab", "minute": "0"}


EVERY_FIVE = {"__type__": "crontab", "minute": "*/5"}


MINUTELY_RULE = {"__type__": "rrule", "freq": 5, "dtstart": NOON.timestamp() - 53, "dtstart_tz": 0}


def paused(
    schedule: Rule, until: datetime | None, *, score: datetime = NOON, ran_at: datetime = NOON - SECOND / 4,
    count: int = 5, **policy: Any,
) -> Stored:  # fmt: skip
    """Return an entry paused by a writer in any language: its score is that of before the pause."""
    policy = {"enabled": False, "paused": True, **policy}
    if until is not None:
        policy["paused_until"] = until.isoformat()
    return stored_of(score.timestamp(), schedule, ran_at, count, policy)


def look(app: Celery, stored: Stored, now: datetime) -> datetime:
    """Return when beat looks at the entry again, after it has looked now and sent nothing."""
    return datetime.fromtimestamp(float(decide(app, stored, now).commit.new_score), UTC)


@pytest.mark.parametrize("policy", [{}, {"run_missed": True}])
def test_first_run_after_a_pause_removes_the_pause(app: Celery, policy: dict[str, Any]) -> None:
    until = NOON + HOUR
    stored = paused(
        HOURLY, until, ran_at=NOON, score=until, timezone="Europe/Berlin", pause_note="n", **policy
    )
    commit = decide(app, stored, until + SECOND).commit
    assert json.loads(commit.new_definition)["enabled"] is True
    assert json.loads(commit.new_policy) == {"timezone": "Europe/Berlin", **policy}
    assert not commit.is_for_this_definition  # whoever changes it meanwhile doesn't undo the run


def test_expired_pause_is_not_shown(app: Celery) -> None:
    stored = paused(HOURLY, NOON + MINUTE, ran_at=NOON, pause_note="n")
    during = read(app, stored, NOON + SECOND).to_dict()
    assert (during["enabled"], during["paused"], during["pause_note"]) == (False, True, "n")
    after = read(app, stored, NOON + 2 * MINUTE).to_dict()
    assert after["enabled"] is True
    assert not after.keys() & {"paused", "pause_note", "paused_by", "paused_until"}


@pytest.mark.parametrize(
    ("schedule", "until", "first"),
    [
        (HALF_SECONDS, NOON + 6 * SECOND, NOON + 6.25 * SECOND),  # its phase is kept
        (HALF_SECONDS, NOON + 6.25 * SECOND, NOON + 6.25 * SECOND),  # the end itself is in time
        (EVERY_FIVE, NOON + 6 * MINUTE, NOON + 10 * MINUTE),
        (HOURLY, NOON + 26 * HOUR + SECOND, NOON + 27 * HOUR),
        (MINUTELY_RULE, NOON + 5 * MINUTE, NOON + 5 * MINUTE + 7 * SECOND),
    ],
)
@pytest.mark.parametrize("count", [0, 5])
def test_beat_sends_the_first_run_after_a_pause(
    app: Celery, schedule: dict[str, Any], until: datetime, first: datetime, count: int
) -> None:
    due = NOON if schedule in (EVERY_FIVE, HOURLY) else NOON + SECOND / 4
    stored = paused(schedule, until, count=count, score=due)
    assert look(app, stored, due + SECOND / 100) == first == read(app, stored, due).next_due_at
    stored.score = first.timestamp()
    assert due_of(decide(app, stored, first + SECOND / 100)) == first


@pytest.mark.parametrize(
    "stored",
    [
        paused(EVERY_FIVE, None),
        paused(HALF_SECONDS, None, score=NOON - HOUR),
        paused(EVERY_FIVE, NOON + 9 * HOUR, paused=False),
    ],
)
def test_pause_without_end_has_no_next_run(app: Celery, stored: Stored) -> None:
    entry = read(app, stored, NOON)
    assert (entry.next_due_at, entry.due_at) == (None, None)
    assert entry.to_dict()["next_due_at"] is None
    assert entry.state in ("paused", "disabled")
    assert entry.score > 0, "beat looks at it all the same: somebody may enable it by hand"


@pytest.mark.parametrize("misfire", ["latest", "all"])
def test_runs_within_a_pause_are_not_missed(app: Celery, misfire: str) -> None:
    until = NOON + 62 * MINUTE
    stored = paused(EVERY_FIVE, until, score=NOON + 5 * MINUTE, misfire=misfire)
    back = NOON + 65 * MINUTE + SECOND  # a beat is back that was away all the while
    assert due_of(decide(app, stored, back)) == NOON + 65 * MINUTE
    assert read(app, stored, back).next_due_at == NOON + 65 * MINUTE
    assert look(app, stored, NOON + 63 * MINUTE) == NOON + 65 * MINUTE
    assert read(app, stored, NOON + 63 * MINUTE).state == "scheduled"


def test_run_missed_makes_up_for_runs_within_a_pause(app: Celery) -> None:
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
            stored.meta, at = run.commit.new_meta, datetime.fromtimestamp(float(run.commit.new_score), UTC)
        assert at == NOON + 15 * MINUTE
    stored = paused(EVERY_FIVE, until, run_missed=True, misfire="skip", ran_at=NOON)
    assert look(app, stored, NOON + SECOND) == NOON + 15 * MINUTE, "at the end all is too late"


def test_pause_beyond_end_time_leaves_no_run(app: Celery) -> None:
    stored = paused(EVERY_FIVE, NOON + HOUR, end_time=(NOON + 30 * MINUTE).isoformat())
    assert decide(app, stored, NOON + SECOND).commit.new_score == "-1.000000"
    assert read(app, stored, NOON).next_due_at is None
    assert read(app, stored, NOON).state == "paused"


SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def entry_x(app: Celery, schedule: Any, **fields: Any) -> Entry:
    return Entry("x", "t", schedule, app=app, **fields)


@pytest.mark.parametrize(
    "rule",
    [
        schedule(3600), schedule(3600, relative=True), crontab(minute="*/5"), cron("0 9 LW * *"),
        rrule("DAILY", dtstart=SOON), rrule("HOURLY", dtstart=SOON, byminute=(1, 2)), clocked(SOON),
        *(solar(event, -33, 13.4) for event in ("sunrise", "dusk_civil")),
    ],
    ids=lambda rule: repr(rule) if isinstance(rule, solar) else type(rule).__name__,
)  # fmt: skip
def test_next_runs_of_a_new_entry_begin_with_its_due_time(app: Celery, rule: Any) -> None:
    made = entry_x(app, rule)
    runs = made.next_runs(4, tz=UTC)
    assert runs[0] == made.due_at
    assert all(later > earlier + timedelta(seconds=50) for earlier, later in pairwise(runs))
    assert len(runs) == (1 if isinstance(rule, clocked) else 4)


def test_next_runs_of_a_failing_entry_begin_with_its_retry(app: Celery) -> None:
    """As ``next_due_at`` has it: what falls due before that is coalesced with the run that is tried."""
    now = SOON.replace(minute=0, second=0)
    retry = now + timedelta(seconds=75)
    failure = Failure("no broker", "", "", 7, f"{now.timestamp():.6f}", f"{retry.timestamp():.6f}")
    made = entry_x(app, schedule(30), last_run_at=now - timedelta(seconds=30))
    made.stored = Stored(made.key, "{}", score=retry.timestamp(), error=failure.to_json())
    made.seen_at = now
    assert made.next_due_at == retry
    later = [now + timedelta(seconds=seconds) for seconds in (90, 120)]
    for after in (None, now, now + timedelta(seconds=70)):
        assert next_runs(made, 3, after, UTC, now) == [retry, *later], after
    assert next_runs(made, 2, retry, UTC, now) == later
    late = retry + timedelta(minutes=10)  # the retry stands for the runs until then
    assert next_runs(made, 2, None, UTC, late)[1] > late
    made.enabled = False
    assert next_runs(made, 1, None, UTC, now) != [retry]
