"""Schedules in words, and marks beside their next runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, solar
from syrupy.assertion import SnapshotAssertion

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.marks import MOST_EXCLUSIONS, Mark, marks_of
from redbeat.schedules import clocked, rrule
from redbeat.schedules.exclusions import Exclusions
from redbeat.schedules.rfc5545 import read_rule

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2030, 3, 5, 9, 30, tzinfo=BERLIN)  # a Tuesday
CRONTABS = [
    *("0 9 15 * fri", "0 9 1-7 * mon", "0 9 * * fri,wed", "0 9 * jun,jul wed", "0 9 * * FRIL"),
    *("0 9 l * *", "0 9 l-2 * *", "0 9 15w * *", "0 9 lw * *", "@midnight", "@hourly", "@weekly"),
    *("0 9 * * mon,fril", "0 9 * * fri#2,fri#4", "0 9 l-2,1 * *", "0 9 15w,1 * *"),
    *(crontab("0", "9", "fri", "15"), crontab([30, 0], [9])),
]
INTERVALS = [1, 2, 60, 60.5, 90, 3600, 5400, 86_400, timedelta(weeks=1), 0.5, 1_000_000.25]
RULES = [
    *("FREQ=DAILY;BYHOUR=9;BYSECOND=5", "FREQ=WEEKLY", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE", "FREQ=MONTHLY"),
    *("FREQ=MONTHLY;BYDAY=-1FR", "FREQ=MONTHLY;BYDAY=2TU,+3WE;BYHOUR=8,20;BYMINUTE=0"),
    *("FREQ=MONTHLY;BYMONTHDAY=1,22,-1", "FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR", "FREQ=YEARLY;BYMONTHDAY=4"),
    *("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", "FREQ=DAILY;BYMONTH=1,2", "FREQ=DAILY;UNTIL=20310101T000000Z"),
    *("DTSTART:20300305T093000 FREQ=DAILY;COUNT=5", "FREQ=MINUTELY", "FREQ=HOURLY;INTERVAL=5"),
    *("FREQ=MONTHLY;BYSETPOS=-1;BYDAY=MO,TU,WE,TH,FR", "FREQ=HOURLY;BYMINUTE=5", "FREQ=YEARLY;BYEASTER=-2"),
    *("FREQ=YEARLY;BYDAY=4TH", "FREQ=MONTHLY;BYMONTHDAY=-2", "FREQ=MONTHLY;BYDAY=-2FR"),
]
POLICIES: list[dict[str, Any]] = [
    *({"overlap": value} for value in ("skip", "buffer_one", "replace")),
    *({"one_off": True}, {"max_runs": 1}, {"max_runs": 3}, {"exclude": "holidays"}, {"jitter": 1_234_567}),
    *({"start_time": NOON}, {"end_time": NOON + timedelta(seconds=5)}),
]


def describe(app: Celery, schedule: Any, **fields: Any) -> str:
    return Entry("x", "t", schedule, app=app, **fields).describe()


def test_schedules_are_described_in_words(app: Celery, snapshot: SnapshotAssertion) -> None:
    def rule(text: str) -> rrule:
        return rrule(**{"dtstart": START, **read_rule(text, BERLIN)})

    assert {
        "crontabs": {str(one): describe(app, one) for one in CRONTABS},
        "intervals": {str(one): describe(app, one) for one in INTERVALS},
        "rules": {one: describe(app, rule(one)) for one in RULES},
        "policies": {str(one): describe(app, 60, **one) for one in POLICIES},
        "sun": describe(app, solar("dawn_civil", 52.5, 13.4)),
    } == snapshot


def test_description_uses_the_entry_timezone(app: Celery) -> None:
    zone = {"timezone": "Asia/Tokyo"}
    late = rrule("WEEKLY", dtstart=datetime(2030, 3, 5, 23, 30, tzinfo=UTC))
    raw = rrule("HOURLY", dtstart=NOON, byminute=0, until=NOON + timedelta(days=5))
    assert describe(app, "0 9 * * *", **zone) == "At 09:00 (Asia/Tokyo)"
    assert describe(app, late, **zone) == "At 08:30, only on Wednesday (Asia/Tokyo)"
    assert "20260601T210000 RRULE:FREQ=HOURLY;UNTIL=20260606T210000" in describe(app, raw, **zone)
    assert describe(app, clocked(NOON), **zone) == "At 2026-06-01 21:00:00+09:00"
    assert describe(app, clocked(NOON.replace(tzinfo=None)), **zone) == "At 2026-06-01 12:00:00+09:00"
    assert Entry("x", "t", clocked(NOON), app=app, **zone).describe(BERLIN) == "At 2026-06-01 14:00:00+02:00"


def marks(
    app: Celery, schedule: object, begin: datetime, count: int, *days: str, **policy: object
) -> list[list[Mark]]:
    entry = Entry("marked", "t", schedule, app=app, timezone="Europe/Berlin", **policy)
    entry.policy = entry.policy.with_calendar(Exclusions(days) if days else None)
    return marks_of(entry, entry.next_runs(count, after=begin), BERLIN, begin)


def kinds(app: Celery, schedule: object, begin: datetime, count: int) -> list[list[str]]:
    return [[mark.kind for mark in one] for one in marks(app, schedule, begin, count)]


def test_skipped_time_is_marked_on_the_run_in_its_place(app: Celery) -> None:
    begin = datetime(2026, 3, 27, 12, tzinfo=timezone.utc)
    assert kinds(app, "30 2 * * *", begin, 3) == [[], ["clocks", "skipped"], []]
    assert "02:00 to 03:00" in marks(app, "30 2 * * *", begin, 3)[1][1].words


def test_repeated_time_is_marked_where_clocks_go_back(app: Celery) -> None:
    begin = datetime(2026, 10, 24, 12, tzinfo=timezone.utc)
    assert kinds(app, "30 2 * * *", begin, 3) == [["twice"], ["clocks"], []]
    assert kinds(app, 3600, begin, 30).count(["clocks"]) == 1


def test_excluded_days_are_marked_on_the_run_after_them(app: Celery) -> None:
    begin = datetime(2026, 12, 22, 12, tzinfo=timezone.utc)
    days = ("2026-12-24/2026-12-26", "2026-12-28")
    found = marks(app, "0 9 * * *", begin, 3, *days, exclude="holidays")
    words = [[mark.words for mark in one] for one in found]
    assert words == [[], ["holidays excludes 2026-12-24 to 2026-12-26"], ["holidays excludes 2026-12-28"]]


def test_many_exclusions_are_cut_short(app: Celery) -> None:
    begin = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    days = [f"2026-01-{day:02}" for day in range(3, 30, 2)]
    # a run a minute: to go through all that are excluded would take too long
    [found] = marks(app, "* * 3,5,7,9,11,13,15,17,19 1 *", begin, 1, *days, exclude="odd")
    assert [mark.kind for mark in found] == ["excluded"] * (MOST_EXCLUSIONS + 1)
    assert found[-1].words == "and more"
