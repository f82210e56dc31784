"""When intervals and crontabs are due next; rrule is in test_rrule.py."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import assume, given
from hypothesis import strategies as st

from redbeat.policy.misfires import choose_run
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.schedules.exclusions import Exclusions
from redbeat.schedules.occurrences import FIRST_OCCURRENCE_GRACE, first_run, last_runs, next_run, rrule
from redbeat.schedules.timezones import find_change
from tests.support.stopwatch import lines_run
from tests.support.ticks import memory_app

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)

moments = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))


def crontab_in(zone: str | None, **fields: Any) -> crontab:
    app = memory_app(timezone=zone, enable_utc=zone is None)
    return crontab(**fields, app=app)


@given(moments, st.timedeltas(MICROSECOND, 3650 * DAY), st.timedeltas(timedelta(0), 9000 * DAY))
def test_an_interval_keeps_its_phase(anchor: datetime, every: timedelta, passed: timedelta) -> None:
    every = schedule(every).run_every
    due = next_run(schedule(every), NO_POLICY, anchor + passed, anchor)
    assert due is not None
    assert (due - anchor) % every == timedelta(0)
    assert anchor + passed < due <= anchor + passed + every


def test_an_interval_whose_anchor_is_in_the_future_waits_for_it() -> None:
    assert next_run(schedule(60), NO_POLICY, NOON, NOON + 90 * SECOND) == NOON + 150 * SECOND


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


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("every", [0, -5, 1e-9])
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


@given(moments, st.timedeltas(MICROSECOND, timedelta(days=400)))
def test_a_relative_interval_is_always_due_later(moment: datetime, every: timedelta) -> None:
    due = next_run(schedule(every, relative=True, app=memory_app()), NO_POLICY, moment, moment)
    assert due is not None
    assert due > moment


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        (None, datetime(2026, 6, 2, 7, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 6, 2, 5, tzinfo=UTC)),
        ("Asia/Tokyo", datetime(2026, 6, 1, 22, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 6, 2, 11, tzinfo=UTC)),
    ],
)
def test_a_crontab_is_in_the_apps_time_zone(zone: str | None, expected: datetime) -> None:
    assert next_run(crontab_in(zone, minute=0, hour=7), NO_POLICY, NOON, NOON) == expected


def test_a_crontab_is_in_the_apps_time_zone_with_utc_enabled_too() -> None:
    app = memory_app(timezone="Asia/Tokyo", enable_utc=True)
    assert next_run(crontab(minute=0, hour=7, app=app), NO_POLICY, NOON, NOON) == NOON + timedelta(hours=10)


@pytest.mark.parametrize(
    ("hour", "times"),
    [(9, ["28 09:30", "29 09:30", "30 09:30"]), (2, ["28 02:30", "29 03:00", "30 02:30"])],
    ids=["keeps to the wall clock", "runs once for the hour that does not exist"],
)
def test_a_crontab_when_the_clocks_change(hour: int, times: list[str]) -> None:
    daily, moment = crontab_in("Europe/Berlin", minute=30, hour=hour), datetime(2026, 3, 27, 12, tzinfo=UTC)
    for expected in times:
        moment = next_run(daily, NO_POLICY, moment, moment) or moment
        assert moment.astimezone(ZoneInfo("Europe/Berlin")).strftime("%d %H:%M") == expected


@given(moments, st.integers(1, 30), st.sampled_from(["*", "*/3", "7,13"]))
def test_a_crontab_is_due_at_a_whole_minute_later_than_now(moment: datetime, step: int, hour: str) -> None:
    assume(moment.year < 2190)
    due = next_run(crontab_in(None, minute=f"*/{step}", hour=hour), NO_POLICY, moment, NOON)
    assert due is not None
    assert due > moment
    assert (due.second, due.microsecond, due.minute % step) == (0, 0, 0)


def test_a_schedule_of_another_kind_is_asked_for_its_own_estimate() -> None:
    class Hourly(BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at.replace(minute=0) + timedelta(hours=1) - self.now()

    hourly = Hourly(app=memory_app())
    moment = NOON + timedelta(minutes=20)
    assert next_run(hourly, NO_POLICY, moment, NOON) == NOON + timedelta(hours=1)
    assert hourly.nowfun is None


@pytest.mark.parametrize("event", sorted(solar._all_events))  # noqa: SLF001 - Celery's list
def test_a_solar_schedule_is_due_once_at_each_event(event: str) -> None:
    sun = solar(event, 52.5, 13.4, app=memory_app())
    after = datetime(2026, 3, 1, tzinfo=UTC)
    for _ in range(20):
        due = next_run(sun, NO_POLICY, after)
        assert due is not None
        for later in (MICROSECOND, SECOND):
            following = next_run(sun, NO_POLICY, due + later)
            assert following is not None
            assert timedelta(hours=23) < following - due < timedelta(hours=25)
        after = due


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(timedelta(0), 0), (FIRST_OCCURRENCE_GRACE, 0), (FIRST_OCCURRENCE_GRACE + SECOND, 1), (-SECOND, 0)],
)
def test_a_rule_saved_soon_after_dtstart_runs_its_first_occurrence(delay: timedelta, expected: int) -> None:
    daily = rrule("DAILY", dtstart=NOON)
    assert first_run(daily, NO_POLICY, NOON + delay) == NOON + expected * timedelta(days=1)


@pytest.mark.parametrize(("delay", "expected"), [(0, 0), (60, 0), (61, 3600), (-30, 0)])
def test_an_interval_saved_soon_after_its_start_time_runs_then(delay: int, expected: int) -> None:
    hourly = Policy(start_time=NOON)
    assert first_run(schedule(3600), hourly, NOON + delay * SECOND) == NOON + expected * SECOND


def test_a_new_interval_is_due_one_interval_after_it_was_saved() -> None:
    assert first_run(schedule(60), NO_POLICY, NOON) == NOON + 60 * SECOND


@pytest.mark.parametrize(
    ("late", "last_run_at", "upcoming"), [(0, 0, 60), (59, 0, 60), (60, 60, 120), (3605, 3600, 3660)]
)
def test_a_late_interval_records_its_latest_nominal_time(late: int, last_run_at: int, upcoming: int) -> None:
    choice = choose_run(schedule(60), NO_POLICY, NOON, NOON + late * SECOND, NO_POLICY)
    assert (choice.ran_at, choice.following) == (NOON + last_run_at * SECOND, NOON + upcoming * SECOND)


@pytest.mark.parametrize("late", [MICROSECOND, SECOND, timedelta(minutes=30)])
def test_with_all_a_run_in_time_records_its_nominal_time_as_a_late_one_does(late: timedelta) -> None:
    choice = choose_run(crontab_in(None, minute=0), Policy(misfire="all"), NOON, NOON + late, NO_POLICY)
    assert (choice.due, choice.ran_at, choice.following) == (NOON, NOON, NOON + timedelta(hours=1))


@pytest.mark.parametrize("rule", [crontab_in(None, minute=0), rrule("HOURLY", dtstart=NOON)], ids=repr)
def test_what_follows_the_wall_clock_records_when_it_was_sent(rule: Any) -> None:
    sent_at = NOON + timedelta(hours=3, minutes=5)
    choice = choose_run(rule, NO_POLICY, NOON, sent_at, NO_POLICY)
    assert (choice.ran_at, choice.following) == (sent_at, NOON + timedelta(hours=4))


def test_a_rule_that_has_ended_has_no_next_run() -> None:
    choice = choose_run(rrule("DAILY", dtstart=NOON, count=1), NO_POLICY, NOON, NOON, NO_POLICY)
    assert (choice.due, choice.ran_at, choice.following) == (NOON, NOON, None)


@pytest.mark.parametrize(
    ("late", "deadline", "is_skipped"),
    [
        (0, 60, False), (60, 60, False), (61, 60, True), (3700, None, False), (3600 + 30, 60, False),
        (3700, 60, True),
    ],
)  # fmt: skip
def test_a_crontab_past_its_deadline_is_skipped(late: int, deadline: float | None, is_skipped: bool) -> None:
    hourly = crontab_in(None, minute=0)
    choice = choose_run(hourly, NO_POLICY, NOON, NOON + late * SECOND, Policy(misfire_grace_time=deadline))
    assert (choice.due is None) == choice.is_skipped == is_skipped


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"])
@pytest.mark.parametrize("every", [0.5, 30, 600, 1800, 3600])
def test_a_relative_interval_shorter_than_a_day_follows_real_time_where_the_clocks_change(
    zone: str, every: float
) -> None:
    relative, policy = schedule(every, relative=True), Policy(timezone=zone)
    for change in changes_of(ZoneInfo(zone), 2026):
        due = next_run(relative, policy, change - timedelta(hours=3))
        while due is not None and due < change + timedelta(hours=4):
            following = next_run(relative, policy, due)
            assert following is not None
            assert following - due <= timedelta(seconds=every)
            due = following if every >= 30 else due + timedelta(minutes=7)


def changes_of(zone: ZoneInfo, year: int) -> list[datetime]:
    found, moment = [], datetime(year, 1, 1, tzinfo=UTC)
    while moment.year == year:
        change = find_change(zone, moment, moment + timedelta(days=1))
        found += [change] if change else []
        moment += timedelta(days=1)
    assert found
    return found


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(
    ("one", "nominal"),
    [
        (schedule(0.01), NOON - timedelta(days=7.3)),
        (crontab(app=memory_app()), NOON - timedelta(days=90)),
        (crontab("*", "9-17", "mon-fri", app=memory_app()), NOON - timedelta(days=1000)),
        (rrule("SECONDLY", dtstart=NOON - 400 * DAY, bymonth=5, bymonthday=1), NOON - 400 * DAY),
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
