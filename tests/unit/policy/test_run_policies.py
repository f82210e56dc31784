"""The fields of a policy that are about runs: what they allow, and what follows from them."""

from __future__ import annotations

import json
from datetime import timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.policy.policy import (
    FIELDS,
    NO_POLICY,
    OVERLAP_QUEUE_SECONDS,
    OVERLAPS,
    PATIENT_QUEUE_SECONDS,
    TRACKS,
    Policy,
    decode_policy,
    encode_policy,
    make_policy,
)

SECONDS = st.one_of(st.integers(1, 10**10), st.floats(1e-6, 1e10))
LENGTHS = SECONDS | st.timedeltas(timedelta(microseconds=1), timedelta(days=9999))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "overlap": st.sampled_from(OVERLAPS), "max_runtime": LENGTHS, "revoke_overdue": st.booleans(),
    "queue_timeout": LENGTHS, "pause_after_failures": st.integers(1), "resume_after": LENGTHS,
    "tracks": st.sampled_from(TRACKS),
}  # fmt: skip
JUNK = st.one_of(
    st.integers(max_value=0), st.floats(max_value=0), st.just(float("nan")), st.floats(1e11),
    st.sampled_from(["", "5", "sometimes", "Skip", b"skip", [], {}, ["skip"], object()]),
)  # fmt: skip
GIVEN = st.fixed_dictionaries({}, optional={name: st.none() | of for name, of in VALUES.items()})


def is_whole(values: dict[str, Any]) -> bool:
    """Whether each field has the other that it needs."""
    if values.get("revoke_overdue") and values.get("max_runtime") is None:
        return False
    return values.get("resume_after") is None or values.get("pause_after_failures") is not None


@given(GIVEN)
def test_a_policy_is_made_where_no_field_lacks_another(values: dict[str, Any]) -> None:
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
    with pytest.raises(ValueError, match=f"^{name}: must be "):
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
        *(({"overlap": overlap}, True) for overlap in OVERLAPS if overlap != "allow"),
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
    entry.set_policy({"max_runtime": None, "revoke_overdue": None})
    assert entry.policy == NO_POLICY
    entry.set_policy({"pause_after_failures": 3, "resume_after": timedelta(hours=1)})
    with pytest.raises(EntryError, match=r"^x: resume_after: needs pause_after_failures, which says when"):
        entry.pause_after_failures = None
    assert (entry.pause_after_failures, entry.resume_after) == (3, 3600)
