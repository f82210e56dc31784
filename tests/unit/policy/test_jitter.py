"""Jitter: each run a little later, by an amount that any beat finds out again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from redbeat.policy import Policy
from redbeat.policy.jitter import delayed, due_time_of
from redbeat.policy.misfires import choose_run
from redbeat.policy.policy import NO_POLICY
from redbeat.schedules import cron, next_run, rrule
from tests.support.ticks import memory_app

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


def test_a_time_that_no_run_was_delayed_to_is_taken_as_it_is() -> None:
    at = NOON + timedelta(seconds=59.5)
    assert due_time_of("redbeat:x", crontab(app=memory_app()), Policy(jitter=1), at, None) == at


@pytest.mark.parametrize(("late", "due"), [(70, NOON), (71, None)])
def test_a_run_is_too_late_only_by_more_than_its_jitter_and_the_grace_time(
    late: int, due: datetime | None
) -> None:
    policy = Policy(jitter=60, misfire_grace_time=10)
    assert choose_run(schedule(3600), policy, NOON, NOON + late * SECOND, NO_POLICY).due == due
