"""When intervals and crontabs are due next; rrule is in test_rrule.py."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import MO, TU

from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.schedules import cron
from redbeat.schedules.exclusions import Exclusions
from redbeat.schedules.occurrences import FIRST_OCCURRENCE_GRACE, first_run, last_runs, next_run, rrule
from tests.support.stopwatch import lines_run
from tests.support.ticks import memory_app
from tests.unit.schedules.simulator import changes_between

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("every", "passed", "expected"),
    [
        (1e-6, timedelta(days=3650), timedelta(days=3650) + MICROSECOND),
        (0.1, 0.25 * SECOND, 0.3 * SECOND),
        (60, 60 * SECOND, 120 * SECOND),
        (60, 60 * SECOND - MICROSECOND, 60 * SECOND),
        (86400 * 365 * 1000, SECOND, timedelta(days=365_000)),
    ],
)
def test_tiny_and_huge_intervals_are_exact(every: float, passed: timedelta, expected: timedelta) -> None:
    assert next_run(schedule(every), NO_POLICY, NOON + passed, NOON) == NOON + expected


@pytest.mark.parametrize(
    ("every", "relative"), [(0, False), (-5, True), (1e-9, False)], ids=["zero", "negative", "tiny"]
)
def test_an_interval_that_is_not_longer_than_zero_is_refused(every: float, relative: bool) -> None:
    with pytest.raises(ValueError, match="must be longer than 0 s"):
        next_run(schedule(every, relative=relative), NO_POLICY, NOON, NOON)


def test_an_interval_beyond_the_calendar_is_an_overflow() -> None:
    with pytest.raises(OverflowError):
        next_run(schedule(86400 * 365 * 9000), NO_POLICY, NOON, NOON)


@pytest.mark.parametrize(
    ("every", "expected"),
    [(86400, NOON + DAY / 2), (3600, NOON + timedelta(hours=1)), (60, NOON + timedelta(minutes=8))],
)
def test_a_relative_interval_is_due_at_whole_units(every: float, expected: datetime) -> None:
    moment = datetime(2026, 6, 1, 12, 7, 30, tzinfo=UTC)
    assert next_run(schedule(every, relative=True, app=memory_app()), NO_POLICY, moment, NOON) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"timezone": None, "enable_utc": True}, datetime(2026, 6, 2, 7, tzinfo=UTC)),
        ({"timezone": "America/New_York", "enable_utc": False}, datetime(2026, 6, 2, 11, tzinfo=UTC)),
        ({"timezone": "Asia/Tokyo", "enable_utc": True}, datetime(2026, 6, 1, 22, tzinfo=UTC)),
    ],
)
def test_a_crontab_is_in_the_apps_time_zone(settings: dict[str, Any], expected: datetime) -> None:
    rule = crontab(minute=0, hour=7, app=memory_app(**settings))
    assert next_run(rule, NO_POLICY, NOON, NOON) == expected


def test_a_schedule_of_another_kind_is_asked_for_its_own_estimate() -> None:
    class Hourly(BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at.replace(minute=0) + timedelta(hours=1) - self.now()

    hourly = Hourly(app=memory_app())
    moment = NOON + timedelta(minutes=20)
    assert next_run(hourly, NO_POLICY, moment, NOON) == NOON + timedelta(hours=1)
    assert hourly.nowfun is None


@pytest.mark.parametrize("event", ["sunrise", "solar_noon", "dusk_astronomical"])
def test_a_solar_schedule_is_due_once_at_each_event(event: str) -> None:
    sun = solar(event, 52.5, 13.4, app=memory_app())
    after = datetime(2026, 3, 1, tzinfo=UTC)
    for _ in range(20):
        due = next_run(sun, NO_POLICY, after)
        for later in (MICROSECOND, SECOND):
            following = next_run(sun, NO_POLICY, due + later)
            assert timedelta(hours=23) < following - due < timedelta(hours=25)
        after = due


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(timedelta(0), 0), (FIRST_OCCURRENCE_GRACE, 0), (FIRST_OCCURRENCE_GRACE + SECOND, 1), (-SECOND, 0)],
)
def test_a_rule_saved_soon_after_dtstart_runs_its_first_occurrence(delay: timedelta, expected: int) -> None:
    daily = rrule("DAILY", dtstart=NOON)
    assert first_run(daily, NO_POLICY, NOON + delay) == NOON + expected * timedelta(days=1)


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"])
@pytest.mark.parametrize("every", [0.5, 30, 600, 1800, 3600])
def test_a_relative_interval_shorter_than_a_day_follows_real_time_where_the_clocks_change(
    zone: str, every: float
) -> None:
    relative, policy = schedule(every, relative=True), Policy(timezone=zone)
    for change in changes_between(ZoneInfo(zone), NOON - 150 * DAY, NOON + 200 * DAY):
        due = next_run(relative, policy, change.at - timedelta(hours=3))
        while due is not None and due < change.at + timedelta(hours=4):
            following = next_run(relative, policy, due)
            assert following - due <= timedelta(seconds=every)
            due = following if every >= 30 else due + timedelta(minutes=7)


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(
    ("one", "nominal"),
    [
        (schedule(0.01), NOON - timedelta(days=7.3)),
        (crontab(app=memory_app()), NOON - timedelta(days=90)),
        (crontab("*", "9-17", "mon-fri", app=memory_app()), NOON - timedelta(days=1000)),
        (rrule("SECONDLY", dtstart=NOON - 400 * DAY, bymonth=5, bymonthday=1), NOON - 400 * DAY),
        (
            rrule("SECONDLY", dtstart=datetime(2026, 1, 1), byweekday=range(5), count=10**9),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
    ids=repr,
)
@pytest.mark.parametrize("excluded", [[], ["2026-05-25/2026-06-01"], ["2026-01-01/2026-05-31"]], ids=len)
def test_the_last_of_many_missed_runs_are_found_with_few_looks_at_the_schedule(
    one: Any, nominal: datetime, limit: int, excluded: list[str]
) -> None:
    policy = Policy(calendar=Exclusions(excluded), exclude="x") if excluded else NO_POLICY
    lines = lines_run(lambda: last_runs(one, policy, nominal, NOON, limit))
    print(f"{lines} lines for {limit}")
    assert lines < 100_000 + 1_000 * limit  # of up to 63 million runs
    runs, following = last_runs(one, policy, nominal, NOON, limit)
    assert len(runs) == limit or runs[0] == nominal
    assert following is None or following > NOON
    for earlier, later in pairwise(runs):
        assert next_run(one, policy, earlier, nominal) == later
    assert (next_run(one, policy, runs[-1], nominal) or NOON + SECOND) > NOON


#: in no other test: nothing is remembered of them
A_MONDAY = datetime(2026, 6, 1, 12, 0, 30, 123_457, tzinfo=timezone.utc)
JANUARY = datetime(2020, 1, 6, 8, 0, 47, tzinfo=timezone.utc)
BERLIN = Policy(timezone="Europe/Berlin")

NEVER: dict[str, Any] = {
    "0 0 30 2 *": cron("0 0 30 2 *"),
    "0 0 LW * SUN": cron("0 0 LW * SUN"),
    "0 0 1-6 * MON#2": cron("0 0 1-6 * MON#2"),
    **{
        f"rrule {freq} 30 February": rrule(freq, dtstart=JANUARY, bymonth=2, bymonthday=30)
        for freq in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
    },
    "rrule HOURLY interval 7": rrule("HOURLY", dtstart=JANUARY, interval=7, bymonth=2, bymonthday=30),
    "rrule DAILY another weekday": rrule("DAILY", dtstart=JANUARY, interval=7, byweekday=TU),
    "rrule WEEKLY bysetpos": rrule("WEEKLY", dtstart=JANUARY, byweekday=MO, bysetpos=2),
    "rrule YEARLY Easter in July": rrule("YEARLY", dtstart=JANUARY, byeaster=0, bymonth=7),
    "rrule DAILY Easter in July": rrule("DAILY", dtstart=JANUARY, byeaster=0, bymonth=7),
    "rrule, over": rrule("DAILY", dtstart=JANUARY, count=5),
}


@pytest.mark.parametrize("name", NEVER)
def test_impossible_schedule_takes_no_walk_through_the_centuries(name: str) -> None:
    def is_refused() -> bool:
        try:
            return next_run(NEVER[name], BERLIN, A_MONDAY) is None
        except ValueError as exc:
            return "too sparse" in str(exc)

    assert lines_run(is_refused) < 1_000_000
    assert is_refused()
