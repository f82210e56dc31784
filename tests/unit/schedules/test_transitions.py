"""Where clocks change: nothing is lost, nothing runs twice, nothing runs before its time.

Changes of 2026 in zones of every sort (the long form: in every zone), beside models that read the clock every
minute; then what is rarer: a day that never was, leap days, the far future.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from celery.schedules import crontab
from dateutil.rrule import FR, MO, SA, SU, TH, TU, WE

from redbeat.policy import Policy
from redbeat.schedules import cron, next_run, rrule
from redbeat.schedules.crontab import next_of_crontab
from redbeat.schedules.occurrences import last_runs
from tests.conftest import SEED
from tests.faults.rounds import IS_LONG
from tests.unit.schedules.simulator import (
    DAY,
    HOUR,
    INSTANT,
    MINUTE,
    UTC,
    Change,
    IsNamed,
    changes_between,
    reached_between,
    runs_between,
    shown_between,
)

BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)

#: around a change, so much on either side
MARGIN = 26 * HOUR
WEEKDAYS = (MO, TU, WE, TH, FR, SA, SU)


#: their clocks change by half an hour, by two hours, at midnight, for Ramadan
TELLING = {
    "Australia/Lord_Howe", "Antarctica/Troll", "America/Havana", "America/Santiago", "Europe/Berlin",
    "Africa/Casablanca",
}  # fmt: skip


@lru_cache(maxsize=1)
def changes_of_the_year() -> dict[Change, str]:
    """Changes of the clocks in 2026 (the short form: some of them), and one of the zones that have each."""
    zones = available_timezones()
    if not IS_LONG:
        zones = TELLING | set(random.Random(SEED).sample(sorted(zones), 20))
    return {
        change: name
        for name in sorted(zones, reverse=True)
        for change in changes_between(ZoneInfo(name), BEGIN, END)
    }


def policy_in(zone: str) -> Policy:
    return Policy(timezone=zone)


def span_of(change: Change) -> tuple[datetime, datetime]:
    return change.at - MARGIN, change.at + MARGIN


def wall_times_near(change: Change) -> Iterator[datetime]:
    """Wall times before, at the beginning of, inside, at the end of and after what is skipped or repeated."""
    for passed in (-3 * HOUR, -MINUTE, 0 * MINUTE, MINUTE, change.shift / 2):
        yield change.wall + passed
    for passed in (-MINUTE, 0 * MINUTE, MINUTE, 5 * HOUR):
        yield change.wall + change.shift + passed


def is_daily(wall: datetime) -> IsNamed:
    return lambda shown: (shown.hour, shown.minute) == (wall.hour, wall.minute)


def is_weekly(wall: datetime) -> IsNamed:
    daily = is_daily(wall)
    return lambda shown: daily(shown) and shown.weekday() == wall.weekday()


def daily_kinds(wall: datetime, tz: ZoneInfo) -> list[Any]:
    start = datetime(2026, 1, 1, wall.hour, wall.minute, tzinfo=tz)
    at = {"byhour": wall.hour, "byminute": wall.minute, "bysecond": 0}
    return [
        crontab(minute=wall.minute, hour=wall.hour),
        cron(f"{wall.minute} {wall.hour} * * *"),
        rrule("DAILY", dtstart=start),
        rrule("DAILY", dtstart=BEGIN, **at),
        rrule("HOURLY", dtstart=BEGIN, **at),
        rrule("MINUTELY", dtstart=BEGIN, **at),
    ]


def weekly_kinds(wall: datetime, tz: ZoneInfo) -> list[Any]:
    start = (wall - timedelta(days=7 * 4)).replace(tzinfo=tz)
    return [
        crontab(minute=wall.minute, hour=wall.hour, day_of_week=(wall.weekday() + 1) % 7),
        rrule("WEEKLY", dtstart=start),
        rrule("WEEKLY", dtstart=start - 10 * DAY, byweekday=WEEKDAYS[wall.weekday()]),
    ]


#: crontabs that name several fixed times, and the same in Python
FIXED: list[tuple[str, IsNamed]] = [
    ("*/30 0-22 * * *", lambda wall: wall.hour <= 22 and wall.minute % 30 == 0),
    ("0 */2 * * *", lambda wall: wall.hour % 2 == 0 and wall.minute == 0),
    ("*/20 1,2,3 * * *", lambda wall: wall.hour in (1, 2, 3) and wall.minute % 20 == 0),
    ("* 0-2 * * SUN", lambda wall: wall.hour <= 2 and wall.weekday() == 6),
]

#: crontabs that match every hour, and the same in Python
REAL: list[tuple[str, IsNamed, timedelta]] = [
    ("* * * * *", lambda wall: True, MINUTE),
    ("*/30 * * * *", lambda wall: wall.minute % 30 == 0, 30 * MINUTE),
    ("*/7 * * * *", lambda wall: wall.minute % 7 == 0, 7 * MINUTE),
    ("0 * * * *", lambda wall: wall.minute == 0, HOUR),
    ("47 * * * *", lambda wall: wall.minute == 47, HOUR),
    ("*/30 * * * SUN", lambda wall: wall.minute % 30 == 0 and wall.weekday() == 6, 7 * DAY),
]

#: recurrence rules that come hourly or more often, and how often
STEPS = [("HOURLY", 1, HOUR), ("HOURLY", 5, 5 * HOUR), ("MINUTELY", 25, 25 * MINUTE)]


def test_the_year_has_changes_of_every_sort() -> None:
    changes = changes_of_the_year()
    print(f"REDBEAT_SEED={SEED}: {len(changes)} changes: {sorted(set(changes.values()))}")
    assert {change.shift for change in changes} == {30 * MINUTE, HOUR, 2 * HOUR}
    assert {change.is_gap for change in changes} == {True, False}
    assert len(changes) > (50 if IS_LONG else 8)


def test_a_fixed_time_runs_when_the_clock_first_shows_or_passes_it() -> None:
    checked = 0
    for change, zone in changes_of_the_year().items():
        tz, policy, span = ZoneInfo(zone), policy_in(zone), span_of(change)
        for wall in wall_times_near(change):
            daily = reached_between(is_daily(wall), tz, *span)
            weekly = reached_between(is_weekly(wall), tz, *span)
            for rule, expected in [
                *((rule, daily) for rule in daily_kinds(wall, tz)),
                *((rule, weekly) for rule in weekly_kinds(wall, tz)),
            ]:
                assert runs_between(rule, policy, *span) == expected, f"{zone} {change}: {rule!r} {wall}"
                checked += 1
    print(f"{checked} schedules")


def test_several_fixed_times_run_when_the_clock_first_shows_or_passes_them() -> None:
    for change, zone in changes_of_the_year().items():
        tz, policy, span = ZoneInfo(zone), policy_in(zone), span_of(change)
        for expression, is_named in FIXED:
            expected = reached_between(is_named, tz, *span)
            assert runs_between(cron(expression), policy, *span) == expected, f"{zone} {change}: {expression}"


def test_what_matches_every_hour_runs_whenever_the_clock_shows_it() -> None:
    for change, zone in changes_of_the_year().items():
        tz, policy = ZoneInfo(zone), policy_in(zone)
        for expression, is_named, step in REAL:
            margin = 4 * HOUR if step < HOUR else MARGIN
            span = change.at - margin, change.at + margin
            expected = shown_between(is_named, tz, *span)
            assert runs_between(cron(expression), policy, *span) == expected, f"{zone} {change}: {expression}"


def test_an_hourly_recurrence_rule_follows_real_time() -> None:
    for change, zone in changes_of_the_year().items():
        policy, (begin, end) = policy_in(zone), span_of(change)
        for freq, interval, step in STEPS:
            first = datetime(2026, 1, 1, 0, 10, tzinfo=ZoneInfo(zone)).astimezone(UTC)
            due = first + ((begin - first) // step + 1) * step
            expected = [due + k * step for k in range((end - due) // step + 1)]
            rule = rrule(freq, dtstart=first, interval=interval)
            assert runs_between(rule, policy, begin, end) == expected, f"{zone} {change}: {rule!r}"


def test_wherever_one_looks_from_the_same_runs_follow() -> None:
    """From inside the second pass, too, whose fixed times are over already."""
    for change, zone in changes_of_the_year().items():
        policy, span, wall = policy_in(zone), span_of(change), change.wall + change.shift / 2
        rules = [cron(expression) for expression, *_ in (*FIXED, *REAL[2:4])]
        for rule in [*rules, *daily_kinds(wall, ZoneInfo(zone)), *weekly_kinds(wall, ZoneInfo(zone))]:
            runs = runs_between(rule, policy, *span)
            for passed in (-2 * HOUR, -MINUTE, -INSTANT, 0 * HOUR, INSTANT, 20 * MINUTE, 31 * MINUTE, HOUR):
                after = change.at + passed
                place = bisect_right(runs, after)
                if 0 < place < len(runs):
                    case = zone, change, rule, passed
                    assert next_run(rule, policy, after) == runs[place], case
                    if rule in rules:
                        missed = runs[max(place - 3, 0) : place]
                        assert last_runs(rule, policy, runs[0], after, 3) == (missed, runs[place]), case


def test_a_date_that_never_was_runs_at_the_first_instant_after_it() -> None:
    """Samoa went from Thursday the 29th straight to Saturday the 31st."""
    change = datetime(2011, 12, 30, 10, tzinfo=UTC)
    policy, tz = policy_in("Pacific/Apia"), ZoneInfo("Pacific/Apia")
    begin, end = change - 2 * DAY, change + 2 * DAY
    daily = [datetime(2011, 12, day, 19, tzinfo=UTC) for day in (28, 29, 30, 31)]
    assert runs_between(crontab(0, 9), policy, begin, end) == [*daily[:2], change, *daily[2:]]
    assert runs_between(crontab(0, 9, day_of_week=5), policy, begin, end) == [change]
    assert runs_between(crontab(0, 9, day_of_month=30), policy, begin, end) == [change]
    friday = rrule("WEEKLY", dtstart=datetime(2011, 12, 23, 9, tzinfo=tz))
    assert runs_between(friday, policy, begin, end) == [change]
    hourly = shown_between(lambda wall: wall.minute == 0, tz, begin, end)
    assert runs_between(crontab(0), policy, begin, end) == hourly
    daytime = reached_between(lambda wall: 9 <= wall.hour <= 17 and wall.minute % 30 == 0, tz, begin, end)
    assert runs_between(crontab("*/30", "9-17"), policy, begin, end) == daytime


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29", "2032-02-29"]),
        ("0 0 29 2 *", "2096-01-01", ["2096-02-29", "2104-02-29"]),
        ("0 0 29 2 MON", "2026-01-01", ["2044-02-29", "2072-02-29"]),
        ("0 0 L * *", "2027-12-31", ["2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30"]),
        ("0 0 L * *", "2100-01-31", ["2100-02-28"]),
        ("0 0 LW * *", "2026-01-01", ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30", "2026-05-29"]),
        ("0 0 15W * *", "2026-01-31", ["2026-02-16", "2026-03-16", "2026-04-15", "2026-05-15"]),
        ("0 0 1W * *", "2026-07-31", ["2026-08-03", "2026-09-01"]),
        ("0 0 * * FRI#5", "2026-01-31", ["2026-05-29", "2026-07-31", "2026-10-30"]),
        ("0 0 * * SUNL", "2026-01-31", ["2026-02-22", "2026-03-29"]),
        ("0 0 1 1 *", "2037-12-31", ["2038-01-01", "2039-01-01"]),
        ("0 0 1 1 *", "9997-01-02", ["9998-01-01"]),
    ],
)
def test_a_crontab_knows_the_calendar(expression: str, after: str, expected: list[str]) -> None:
    moment: datetime | None = datetime.fromisoformat(after).replace(tzinfo=UTC)
    for wanted in expected:
        moment = next_run(cron(expression), Policy(), moment)
        assert moment == datetime.fromisoformat(wanted).replace(tzinfo=UTC)


@pytest.mark.parametrize("year", [2038, 2106, 9990])
def test_clocks_change_in_the_far_future_too(year: int) -> None:
    policy, begin = policy_in("Europe/Berlin"), datetime(year, 6, 30, 22, tzinfo=UTC)
    winter = datetime(year, 12, 31, 12, tzinfo=UTC)
    assert next_run(crontab(30, 7), policy, begin) == begin + 7.5 * HOUR
    assert next_run(crontab(30, 7), policy, winter) == winter + 18.5 * HOUR
    rule = rrule("DAILY", dtstart=datetime(2026, 1, 1, 7, 30, tzinfo=ZoneInfo("Europe/Berlin")))
    assert next_run(rule, policy, begin) == begin + 7.5 * HOUR
    assert next_run(rule, policy, winter) == winter + 18.5 * HOUR


SAMOA = ZoneInfo("Pacific/Apia")
CHANGE = datetime(2011, 12, 30, 10, tzinfo=UTC)


@pytest.mark.parametrize("before", [timedelta(minutes=30), timedelta(hours=36), timedelta(days=3)])
@pytest.mark.parametrize(
    ("expression", "after_change"),
    [
        ("*/7 * * * sat,sun", timedelta(0)),
        ("30 * 31 * *", timedelta(minutes=30)), ("*/7 * * * fri", timedelta(days=6)),
        ("15 * 30 * *", timedelta(days=30, minutes=15)),
    ],
)  # fmt: skip
def test_the_next_run_after_the_date_is_the_same_from_however_early(
    expression: str, after_change: timedelta, before: timedelta
) -> None:
    assert next_of_crontab(cron(expression), CHANGE - before, SAMOA) == CHANGE + after_change
