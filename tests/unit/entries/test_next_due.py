"""What is shown as an entry's next run is what beat does, whoever has written the score."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.planner import Run, plan_run
from redbeat.decoder import encode_meta
from redbeat.entries.loading import decode_entry
from redbeat.store.records import Claimed, KeyType, Stored, score_text
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
    score: float, schedule: Any, ran_at: datetime | None, count: int, policy: dict[str, Any], is_ours: bool
) -> Stored:
    enabled = policy.pop("enabled", True)
    definition = json.dumps({"name": "x", "task": "t", "schedule": schedule, "enabled": enabled})
    meta, text = encode_meta(ran_at, count), json.dumps(policy) if policy else None
    meta = meta if is_ours else json.dumps(json.loads(meta))
    return Stored("redbeat:x", definition, meta, score, text, type=KeyType.HASH)


def sent_by_beat(stored: Stored, now: datetime) -> datetime | None:
    """When beat, looking at each score in time, sends it."""
    for _ in range(5):
        if stored.score is None or stored.score < 0:
            return None
        at = max(now, datetime.fromtimestamp(stored.score, UTC))
        score = score_text(stored.score)
        claimed = Claimed(stored.key, score, stored.definition, stored.meta, stored.policy, score=score)
        planned = plan_run(Entry, APP, claimed, at.timestamp())
        if isinstance(planned, Run):
            return at
        stored.score = float(planned.new_score)
    raise AssertionError("it is put off for ever")


def shown(stored: Stored, now: datetime) -> datetime | None:
    entry = decode_entry(Entry, stored, APP)
    entry.seen_at = now
    return entry.next_due_at


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
def test_an_entry_is_sent_when_it_is_shown_to_be(
    score: float, schedule: Any, ran_at: Any, count: int, policy: dict[str, Any], is_ours: bool
) -> None:
    stored = stored_of(score, schedule, ran_at, count, dict(policy), is_ours)
    told = shown(stored, NOON)
    entry = decode_entry(Entry, stored, APP)
    if not entry.is_enabled_at(NOON) and not (policy.get("paused") and "paused_until" in policy):
        assert told is None
        return
    sent = sent_by_beat(stored, NOON)
    if told is not None and sent is not None:
        told = max(told, NOON)  # what is late is sent at once
    slack = timedelta(seconds=31) if policy.get("jitter") else timedelta(milliseconds=1)
    assert told == sent or (told is not None and sent is not None and abs(told - sent) <= slack)


def test_a_score_that_2x_has_cut_to_whole_seconds_is_shown_as_the_run_it_is(app: Celery) -> None:
    ran_at = NOON - timedelta(seconds=30) + timedelta(microseconds=750_000)
    meta = json.dumps(json.loads(encode_meta(ran_at, 3)))
    definition = {"name": "x", "task": "t", "schedule": {"__type__": "interval", "every": 60}}
    own_time = ran_at + MINUTE
    stored = Stored(
        "redbeat:x", json.dumps(definition), meta, float(int(own_time.timestamp())), type=KeyType.HASH
    )
    entry = decode_entry(Entry, stored, app)
    entry.seen_at = NOON
    assert entry.next_due_at == own_time
    assert entry.to_dict()["next_due_at"] == own_time.isoformat()
    entry.seen_at = own_time - timedelta(milliseconds=1)
    assert entry.state == "scheduled", "its score has come, and it isn't sent yet"


def test_a_score_that_2x_has_moved_at_its_start_is_shown_as_the_schedules_own_time(app: Celery) -> None:
    meta = json.dumps(json.loads(encode_meta(NOON - 30 * MINUTE, 0)))
    definition = {"name": "x", "task": "t", "schedule": {"__type__": "crontab", "minute": "0"}}
    stored = Stored("redbeat:x", json.dumps(definition), meta, NOON.timestamp() - 900, type=KeyType.HASH)
    entry = decode_entry(Entry, stored, app)
    entry.seen_at = NOON - 10 * MINUTE
    assert (entry.next_due_at, entry.state) == (NOON, "scheduled")


@pytest.mark.parametrize("score", [0.0, -1.0, 4e9])
def test_other_scores_are_what_they_are(app: Celery, score: float) -> None:
    definition = {"name": "x", "task": "t", "schedule": {"__type__": "interval", "every": 60}}
    meta = encode_meta(NOON, 3)
    entry = decode_entry(
        Entry, Stored("redbeat:x", json.dumps(definition), meta, score, type=KeyType.HASH), app
    )
    entry.seen_at = NOON
    assert entry.next_due_at == (None if score < 0 else datetime.fromtimestamp(score, UTC))
