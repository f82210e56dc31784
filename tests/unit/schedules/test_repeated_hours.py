"""The day on which clocks go back: an hour comes twice, and no due time may stand still in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from redbeat.policy.policy import NO_POLICY
from redbeat.schedules import next_run
from tests.support.ticks import memory_app

UTC = timezone.utc
MINUTE = timedelta(minutes=1)

#: zone to the instant at which its clocks go back, and by how many minutes
CHANGES: dict[str, tuple[datetime, int]] = {
    "Europe/Berlin": (datetime(2026, 10, 25, 1, tzinfo=UTC), 60),
    "America/New_York": (datetime(2026, 11, 1, 6, tzinfo=UTC), 60),
    "Australia/Lord_Howe": (datetime(2026, 4, 4, 15, tzinfo=UTC), 30),
}

SCHEDULES: dict[str, tuple[type, dict[str, Any]]] = {
    "every minute": (crontab, {}),
    "every five minutes": (crontab, {"minute": "*/5"}),
    "relative minute": (schedule, {"run_every": 60, "relative": True}),
    "relative five minutes": (schedule, {"run_every": 300, "relative": True}),
    "relative hour": (schedule, {"run_every": 3600, "relative": True}),
    "relative 90 seconds": (schedule, {"run_every": 90, "relative": True}),
}

EVERY_ZONE = pytest.mark.parametrize("zone", CHANGES)
EVERY_SCHEDULE = pytest.mark.parametrize("kind", SCHEDULES)


def schedule_in(zone: str, kind: str) -> Any:
    made, fields = SCHEDULES[kind]
    return made(**fields, app=memory_app(timezone=zone, enable_utc=False))


def minutes_of_the_day(zone: str) -> Iterator[datetime]:
    change, _ = CHANGES[zone]
    for passed in range(-12 * 60, 12 * 60):
        yield change + passed * MINUTE


def due_after(made: Any, after: datetime) -> datetime:
    due = next_run(made, NO_POLICY, after)
    assert due is not None
    return due


@EVERY_ZONE
@EVERY_SCHEDULE
def test_a_due_time_is_always_later_on_the_day_the_clocks_go_back(zone: str, kind: str) -> None:
    made = schedule_in(zone, kind)
    for minute in minutes_of_the_day(zone):
        for after in (minute, minute + timedelta(seconds=30), minute - timedelta(microseconds=1)):
            assert due_after(made, after) > after, f"{zone}: {kind} after {after}"


@EVERY_ZONE
@EVERY_SCHEDULE
def test_following_due_times_leads_out_of_the_repeated_hour(zone: str, kind: str) -> None:
    made, (change, minutes) = schedule_in(zone, kind), CHANGES[zone]
    moment, steps = change - timedelta(hours=3), 0
    while moment < change + timedelta(hours=3):
        due = due_after(made, moment)
        longest = timedelta(hours=1, minutes=2 * minutes)  # the step, and what may be passed over
        assert moment < due <= moment + longest
        moment, steps = due, steps + 1
    assert steps <= 6 * 60 + 1


@EVERY_ZONE
def test_a_crontab_of_the_repeated_hour_is_at_whole_steps_in_both_passes(zone: str) -> None:
    change, minutes = CHANGES[zone]
    made = schedule_in(zone, "every five minutes")
    for passed in range(-minutes, minutes):
        after = change + passed * MINUTE
        due = due_after(made, after)
        assert (due.minute % 5, due.second, due.microsecond) == (0, 0, 0)
        if passed >= 0:
            assert due - after <= 5 * MINUTE, f"the second pass has its runs, too: {after}"
