"""What an entry says of itself: its next runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.failures import Failure
from redbeat.entries.preview import next_runs
from redbeat.schedules import clocked, cron, rrule
from redbeat.store.records import Stored

UTC = timezone.utc
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


def entry(app: Celery, schedule: Any, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", schedule, app=app, **fields)


@pytest.mark.parametrize(
    "rule",
    [
        schedule(3600), schedule(3600, relative=True), crontab(minute="*/5"), cron("0 9 LW * *"),
        rrule("DAILY", dtstart=SOON), rrule("HOURLY", dtstart=SOON, byminute=(1, 2)), clocked(SOON),
        *(solar(event, 52.5, 13.4) for event in ("sunrise", "solar_noon", "dusk_civil")),
        *(solar(event, -33, 13.4) for event in ("sunrise", "solar_noon", "dusk_civil")),
    ],
    ids=lambda rule: repr(rule) if isinstance(rule, solar) else type(rule).__name__,
)  # fmt: skip
def test_the_next_runs_of_a_new_entry_begin_with_what_it_is_due_at(app: Celery, rule: Any) -> None:
    made = entry(app, rule)
    runs = made.next_runs(4, tz=UTC)
    assert runs[0] == made.due_at
    assert all(later > earlier + timedelta(seconds=50) for earlier, later in pairwise(runs))
    assert len(runs) == (1 if isinstance(rule, clocked) else 4)


def test_the_next_runs_of_a_failing_entry_begin_with_its_next_try(app: Celery) -> None:
    """As ``next_due_at`` has it: what falls due before that is coalesced with the run that is tried."""
    now = SOON.replace(minute=0, second=0)
    retry = now + timedelta(seconds=75)
    failure = Failure("no broker", "", "", 7, f"{now.timestamp():.6f}", f"{retry.timestamp():.6f}")
    made = entry(app, schedule(30), last_run_at=now - timedelta(seconds=30))
    made.stored = Stored(made.key, "{}", score=retry.timestamp(), error=failure.to_json())
    made.seen_at = now
    assert made.next_due_at == retry
    later = [now + timedelta(seconds=seconds) for seconds in (90, 120)]
    for after in (None, now, now + timedelta(seconds=70)):
        assert next_runs(made, 3, after, UTC, now) == [retry, *later], after
    assert next_runs(made, 2, retry, UTC, now) == later
    made.enabled = False
    assert next_runs(made, 1, None, UTC, now) != [retry]


def test_an_interval_had_the_same_phase_before_its_last_run(app: Celery) -> None:
    made = entry(app, schedule(3600))
    made.last_run_at = SOON
    begin = SOON - timedelta(hours=2, minutes=10)
    assert made.next_runs(3, after=begin, tz=UTC) == [SOON - timedelta(hours=hours) for hours in (2, 1, 0)]


@pytest.mark.parametrize("event", ["dawn_astronomical", "sunrise", "solar_noon", "sunset", "dusk_nautical"])
@pytest.mark.parametrize("month", range(1, 13))
def test_the_suns_next_event_is_the_same_one_to_the_microsecond(app: Celery, event: str, month: int) -> None:
    made = entry(app, solar(event, 41.0, 28.9), last_run_at=SOON + timedelta(days=30 * month, hours=month))
    first, second = made.next_runs(2, tz=UTC)
    assert first == made.due_at
    assert second - first > timedelta(hours=23)


@pytest.mark.parametrize("freq", ["DAILY", "HOURLY", "MONTHLY", "SECONDLY"])
def test_a_rule_made_just_now_begins_with_its_dtstart(app: Celery, freq: str) -> None:
    rule = rrule(freq)
    made = entry(app, rule)
    [first, second] = made.next_runs(2)
    assert first == rule.dtstart == made.due_at
    assert second > first


@pytest.mark.parametrize("limit", [{"one_off": True}, {"max_runs": 1}], ids=["one_off", "max_runs"])
def test_the_first_run_counts_as_one(app: Celery, limit: dict[str, Any]) -> None:
    rule = rrule("DAILY")
    assert entry(app, rule, **limit).next_runs(5) == [entry(app, rule).due_at]


def test_a_first_run_that_was_long_ago_is_no_next_one(app: Celery) -> None:
    now = datetime.now(UTC)
    made = entry(app, 60, last_run_at=now - timedelta(hours=1))
    [first] = made.next_runs(1)
    assert now < first <= now + timedelta(seconds=90)


def test_an_entry_that_has_run_is_not_at_its_first_run_again(app: Celery) -> None:
    made = entry(app, rrule("DAILY"), total_run_count=1)
    assert made.next_runs(1)[0] > datetime.now(UTC) + timedelta(hours=23)
