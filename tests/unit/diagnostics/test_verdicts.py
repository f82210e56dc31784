"""The verdict about a look at the schedule: values in, values out."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timedelta, timezone

import pytest

from redbeat.leadership.status import Leader, State, Status, judge

NOW = datetime(2026, 1, 31, 7, 30, tzinfo=timezone.utc)
LEADER = Leader("web-1", 4711, NOW, "token", 1500.0, NOW)
HEALTHY = Status(NOW, "redbeat::lock", LEADER, NOW, 0, None)


def seconds_ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, State.HEALTHY, ""),
        ({"backlog": 3, "oldest_due": seconds_ago(60)}, State.HEALTHY, ""),
        ({"backlog": 3, "oldest_due": seconds_ago(61)}, State.LATE, "due entry has been waiting for 61 s"),
        ({"overdue_messages": 3, "oldest_message": seconds_ago(60)}, State.HEALTHY, ""),
        ({"oldest_message": seconds_ago(61)}, State.LATE, "stored message has been waiting for 61 s"),
        ({"last_tick": seconds_ago(60)}, State.HEALTHY, ""),
        ({"last_tick": seconds_ago(61)}, State.LATE, "last tick was 61 s ago"),
        ({"last_tick": None}, State.HEALTHY, ""),
        ({"leader": None}, State.NO_LEADER, "No beat holds the lock redbeat::lock."),
        ({"leader": None, "oldest_due": seconds_ago(99)}, State.NO_LEADER, "No beat holds"),
        ({"leader": None, "lock_key": None, "last_tick": None}, State.HEALTHY, ""),
        ({"leader": None, "lock_key": None, "oldest_due": seconds_ago(99)}, State.LATE, "99 s"),
        ({"leader": replace(LEADER, obstacle="It is full.")}, State.BLOCKED, "It is full."),
        ({"oldest_due": seconds_ago(-5), "last_tick": seconds_ago(-5)}, State.HEALTHY, ""),
    ],
)
def test_the_verdict_names_what_is_wrong(changes: dict[str, object], state: State, words: str) -> None:
    found, problem = judge(replace(HEALTHY, **changes), 60)  # type: ignore[arg-type]
    assert found is state
    assert words in problem
    assert bool(problem) == (state is not State.HEALTHY)


def test_the_exit_codes_are_those_that_the_documentation_promises() -> None:
    states = {"HEALTHY": 0, "NO_LEADER": 1, "LATE": 2, "UNREACHABLE": 3, "BLOCKED": 4}
    assert {state.name: int(state) for state in State} == states


def test_a_leader_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        LEADER.pid = 1  # type: ignore[misc]
