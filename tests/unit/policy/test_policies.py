"""Values of a policy that would do harm, and are refused; and what isn't refused with them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.entry import EntryArguments
from redbeat.entries.loading import decode_entry
from redbeat.entries.management import CHANGEABLE, Changes
from redbeat.errors import EntryCorrupt, EntryError
from redbeat.policy.jitter import delayed, due_time_of
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.policy.policy import (
    FIELDS,
    NO_POLICY,
    OVERLAP_QUEUE_SECONDS,
    PATIENT_QUEUE_SECONDS,
    ROWS,
    Policy,
    PolicyFields,
    decode_policy,
    encode_policy,
    make_policy,
)
from redbeat.schedules import cron, next_run, rrule
from redbeat.store.records import Stored
from tests.support.ticks import memory_app


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", schedule(60), app=app, **fields)


NO_ZONES = [
    "localtime", "LocalTime", "posixrules", "Factory", "factory", "right/UTC", "right/Europe/Berlin",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_ZONES)
def test_a_file_that_is_no_zone_is_refused_as_one(app: Celery, name: str) -> None:
    with pytest.raises(EntryError, match=f"^x: timezone: '{name}' can't be used as a zone: it differs"):
        entry(app, timezone=name)
    definition = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})
    stored = Stored("redbeat:x", definition, policy=json.dumps({"timezone": name}), type="hash")
    with pytest.raises(EntryCorrupt, match=f"^redbeat:x: policy: timezone: '{name}' can't be used as a zone"):
        decode_entry(RedBeatSchedulerEntry, stored, app)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-24T18:00", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24T18:00:00.123456+01:00", "2026-12-24T17:00:00.123456+00:00"),
        ("20261224T180000", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24", "2026-12-24T00:00:00+00:00"),
    ],
)
def test_a_time_in_iso_8601_is_read_alike_by_every_python(app: Celery, text: str, expected: str) -> None:
    start = entry(app, start_time=text).start_time
    assert start is not None
    assert start.isoformat() == expected


@pytest.mark.parametrize("text", ["2026-12", "tomorrow", "", "2026-12-24T25:00"])
def test_what_is_no_time_in_iso_8601_is_refused(app: Celery, text: str) -> None:
    with pytest.raises(EntryError, match=r"^x: start_time: .* is not a time"):
        entry(app, start_time=text)


def test_editors_and_type_checkers_know_every_field() -> None:
    assert PolicyFields.__optional_keys__ == set(FIELDS)
    assert Changes.__optional_keys__ == {*FIELDS, *CHANGEABLE}
    others = {"app", "last_run_at", "relative", "total_run_count"}
    assert EntryArguments.__optional_keys__ == {*FIELDS, *others}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        *(({name: wrong}, name) for name in ("misfire_grace_time", "expires_after", "max_runtime")
          for wrong in (0, timedelta(0), -1, True, [], float("nan"), 1e11)),
        ({"jitter": -1}, "jitter"),
        ({"misfire_limit": 1001}, "misfire_limit"),
        ({"expires_after": 60, "jitter": 60}, "expires_after"),
        ({"start_time": datetime(1969, 12, 31)}, "start_time"),
        ({"end_time": datetime(9999, 1, 1)}, "end_time"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_the_field_s_name(
    app: Celery, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(EntryError, match=f"^x: {named}: must be "):
        entry(app, **fields)
    made = entry(app)
    if len(fields) == 1:
        with pytest.raises(EntryError, match=f"^x: {named}: must be "):
            setattr(made, named, fields[named])
    assert made.policy == NO_POLICY


def test_values_at_the_bounds_are_allowed(app: Celery) -> None:
    made = entry(app, misfire_grace_time=0.5, expires_after=timedelta(seconds=60), jitter=59.5,
                 misfire_limit=1000, start_time=datetime(1970, 1, 2))  # fmt: skip
    assert (made.misfire_grace_time, made.expires_after, made.jitter) == (0.5, 60.0, 59.5)
    assert entry(app, timezone="Etc/GMT+5").timezone == "Etc/GMT+5"


SECONDS = st.one_of(st.integers(1, 10**10), st.floats(1e-6, 1e10))
LENGTHS = SECONDS | st.timedeltas(timedelta(microseconds=1), timedelta(days=9999))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "overlap": st.sampled_from(ROWS["overlap"].values), "max_runtime": LENGTHS,
    "revoke_overdue": st.booleans(),
    "queue_timeout": LENGTHS, "pause_after_failures": st.integers(1), "resume_after": LENGTHS,
    "tracks": st.sampled_from(ROWS["tracks"].values),
}  # fmt: skip
JUNK = st.one_of(
    st.integers(max_value=0), st.floats(max_value=0), st.just(float("nan")), st.floats(1e11),
    st.sampled_from(["", "sometimes", "Skip", b"skip", [], {}, ["skip"], object()]),
)  # fmt: skip
GIVEN = st.fixed_dictionaries({}, optional={name: st.none() | of for name, of in VALUES.items()})


def is_whole(values: dict[str, Any]) -> bool:
    """Whether each field has the other that it needs."""
    if values.get("revoke_overdue") and values.get("max_runtime") is None:
        return False
    return values.get("resume_after") is None or values.get("pause_after_failures") is not None


@given(GIVEN)
def test_a_run_policy_is_made_where_no_field_lacks_another(values: dict[str, Any]) -> None:
    if not is_whole(values):
        with pytest.raises(
            ValueError, match=r"^(revoke_overdue: needs max_runtime|resume_after: needs pause_)"
        ):
            make_policy(values, timezone.utc)
        return
    policy = make_policy(values, timezone.utc)
    for name in VALUES:
        value = values.get(name)
        expected = value.total_seconds() if isinstance(value, timedelta) else value
        assert getattr(policy, name) == (getattr(NO_POLICY, name) if expected is None else expected)
    stored = encode_policy(policy)
    assert make_policy(decode_policy(stored or None), timezone.utc) == policy
    assert set(json.loads(stored or "{}")) == {
        name for name in FIELDS if getattr(policy, name) != getattr(NO_POLICY, name)
    }


@given(GIVEN.filter(is_whole), st.sampled_from(sorted(VALUES)), JUNK)
def test_one_wrong_value_is_named_and_refuses_the_policy(
    values: dict[str, Any], name: str, junk: Any
) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        make_policy({**values, name: junk}, timezone.utc)


@given(GIVEN.filter(is_whole))
def test_how_long_a_run_may_wait_follows_from_the_policy(values: dict[str, Any]) -> None:
    policy = make_policy(values, timezone.utc)
    own = policy.queue_timeout
    if own is not None:
        assert (policy.queue_seconds, policy.message_queue_seconds) == (own, own)
    elif policy.overlap == "allow":
        assert (policy.queue_seconds, policy.message_queue_seconds) == (PATIENT_QUEUE_SECONDS, None)
    else:
        assert policy.queue_seconds == policy.message_queue_seconds == OVERLAP_QUEUE_SECONDS
    assert 0 < policy.queue_seconds < float("inf"), "no entry is held back for ever"


@pytest.mark.parametrize(
    ("values", "needs"),
    [
        ({}, False), ({"overlap": "allow", "tracks": "task", "jitter": 5, "expires_after": 60}, False),
        *(({"overlap": overlap}, True) for overlap in ROWS["overlap"].values if overlap != "allow"),
        ({"ping_url": "https://hc-ping.com/abc-123"}, False),
        ({"max_runtime": 5}, True), ({"queue_timeout": 5}, True), ({"pause_after_failures": 1}, True),
        ({"tracks": "workflow"}, True),
    ],
)  # fmt: skip
def test_whether_runs_must_be_tracked_follows_from_the_policy(values: dict[str, Any], needs: bool) -> None:
    assert Policy(**values).needs_tracking is needs


def test_a_field_that_another_needs_is_not_removed_alone(app: Celery) -> None:
    entry = RedBeatSchedulerEntry("x", "t", 60, app=app, max_runtime=5, revoke_overdue=True)
    with pytest.raises(EntryError, match=r"^x: revoke_overdue: needs max_runtime, which says when"):
        entry.max_runtime = None
    assert (entry.max_runtime, entry.revoke_overdue) == (5, True)
    entry.set_policy({"max_runtime": None, "revoke_overdue": None})
    assert entry.policy == NO_POLICY


UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

SCHEDULES: list[Any] = [
    schedule(60), schedule(0.5), schedule(1800, relative=True), schedule(7200, relative=True),
    crontab(app=memory_app()), cron("0 9 LW * *"), rrule("SECONDLY", dtstart=NOON),
    rrule("MONTHLY", dtstart=NOON),
]  # fmt: skip


@pytest.mark.parametrize("schedule_", SCHEDULES, ids=repr)
@pytest.mark.parametrize("jitter", [0.1, 1, 600, 86_400])
def test_run_after_run_the_due_time_is_found_again_and_so_is_the_phase(schedule_: Any, jitter: float) -> None:
    policy = Policy(jitter=jitter)
    due = last_run = NOON
    for _ in range(30):
        following = next_run(schedule_, policy, due, due)
        assert following is not None
        sent_at = delayed("redbeat:x", schedule_, policy, following)
        assert following <= sent_at <= following + jitter * SECOND
        upcoming = next_run(schedule_, policy, following, following)
        assert upcoming is not None
        assert sent_at < upcoming
        assert due_time_of("redbeat:x", schedule_, policy, sent_at, last_run) == following
        due = last_run = following


@given(st.floats(0.001, 100_000), st.integers(0, 10**6))
def test_a_run_that_is_sent_a_little_late_is_not_taken_for_the_next_one(jitter: float, number: int) -> None:
    every = schedule(10)
    due = NOON + number * timedelta(seconds=10)
    assert delayed("redbeat:x", every, Policy(jitter=jitter), due) <= due + 9 * SECOND


def test_after_missed_runs_the_due_time_is_found_without_a_last_run_that_fits() -> None:
    minutely, policy = crontab(app=memory_app()), Policy(jitter=86_400)
    for passed in range(0, 5000, 7):  # far more runs than one fall into a day of jitter
        due = NOON + timedelta(minutes=passed)
        sent_at = delayed("redbeat:x", minutely, policy, due)
        assert due_time_of("redbeat:x", minutely, policy, sent_at, NOON - timedelta(days=3)) == due


@pytest.mark.parametrize(("late", "due"), [(70, NOON), (71, None)])
def test_a_run_is_too_late_only_by_more_than_its_jitter_and_the_grace_time(
    late: int, due: datetime | None
) -> None:
    policy = Policy(jitter=60, misfire_grace_time=10)
    every = schedule(3600)
    rules = rules_of(every, policy, NO_POLICY)
    assert choose_run(every, policy, NOON, NOON + late * SECOND, rules).due == due
