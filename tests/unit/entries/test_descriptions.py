"""An entry's schedule in English words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import clocked, rrule
from redbeat.schedules.rfc5545 import read_rule

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2030, 3, 5, 9, 30, tzinfo=BERLIN)  # a Tuesday


def describe(app: Celery, schedule: Any, **fields: Any) -> str:
    return RedBeatSchedulerEntry("x", "t", schedule, app=app, **fields).describe()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("0 9 15 * fri", "At 09:00, on day 15 of the month, and only on Friday"),
        ("0 9 1-7 * mon", "At 09:00, between day 1 and 7 of the month, and only on Monday"),
        (crontab("0", "9", "fri", "15"), "At 09:00, on day 15 of the month, and only on Friday"),
        (crontab([30, 0], [9]), "At 0 and 30 minutes past the hour, at 09:00"),
        ("0 9 * * fri", "At 09:00, only on Friday"),
        ("0 9 * * fri,wed", "At 09:00, only on Friday and Wednesday"),
        ("0 9 * jul wed", "At 09:00, only on Wednesday, only in July"),
        ("0 9 * jun,jul wed", "At 09:00, only on Wednesday, only in June and July"),
        ("0 9 * * friL", "At 09:00, on the last Friday of the month"),
        ("0 9 * * FRIL", "At 09:00, on the last Friday of the month"),
        ("0 9 * * fri#2", "At 09:00, on the second Friday of the month"),
        ("0 9 l * *", "At 09:00, on the last day of the month"),
        ("0 9 L-1 * *", "At 09:00, 1 day before the last day of the month"),
        ("0 9 l-2 * *", "At 09:00, 2 days before the last day of the month"),
        ("0 9 15w * *", "At 09:00, on the weekday nearest day 15 of the month"),
        ("0 9 lw * *", "At 09:00, on the last weekday of the month"),
        ("@daily", "At 00:00"),
        ("@midnight", "At 00:00"),
        ("@hourly", "Every hour"),
        ("@weekly", "At 00:00, only on Sunday"),
    ],
)
def test_a_crontab_is_in_words_and_its_zone(app: Celery, schedule: Any, words: str) -> None:
    assert describe(app, schedule) == f"{words} (UTC)"
    assert describe(app, schedule, timezone="Europe/Berlin") == f"{words} (Europe/Berlin)"


@pytest.mark.parametrize(
    "days", ["* * FRIL,mon", "* * mon,fril", "* * fri#2,fri#4", "L,15 * *", "l-2,1 * *", "15w,1 * *"]
)
def test_a_list_with_last_or_nearest_days_is_not_put_into_wrong_words(app: Celery, days: str) -> None:
    assert describe(app, f"0 9 {days}") == f"cron 0 9 {days} (UTC)"


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (1, "Every second"), (2, "Every 2 seconds"), (60, "Every minute"), (60.5, "Every 60.5 seconds"),
        (90, "Every 90 seconds"), (120, "Every 2 minutes"), (3600, "Every hour"), (5400, "Every 90 minutes"),
        (7200, "Every 2 hours"), (86400, "Every day"), (timedelta(weeks=1), "Every 7 days"),
        (0.5, "Every 0.5 seconds"), (0, "Every 0 seconds"), (1_000_000.25, "Every 1000000.25 seconds"),
        (timedelta(microseconds=5), "Every 0.000005 seconds"),
    ],
)  # fmt: skip
def test_an_interval_is_told_exactly_in_the_longest_fitting_unit(app: Celery, every: Any, words: str) -> None:
    assert describe(app, every) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "Every day at 09:00"),
        ("FREQ=DAILY;BYHOUR=9;BYSECOND=5", "Every day at 09:30:05"),
        ("FREQ=WEEKLY", "Every week on Tuesday at 09:30"),
        (
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE",
            "Every 2 weeks on Monday and Wednesday at 09:30 from 2030-03-05",
        ),
        ("FREQ=MONTHLY", "Every month on the 5th day at 09:30"),
        ("FREQ=MONTHLY;BYDAY=-1FR", "Every month on the last Friday at 09:30"),
        (
            "FREQ=MONTHLY;BYDAY=2TU,+3WE;BYHOUR=8,20;BYMINUTE=0",
            "Every month on the 2nd Tuesday and the 3rd Wednesday at 08:00 and 20:00",
        ),
        ("FREQ=MONTHLY;BYMONTHDAY=1,22,-1", "Every month on the 1st, 22nd and last day at 09:30"),
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR", "Every month on Friday that is the 13th day at 09:30"),
        ("FREQ=YEARLY", "Every year on the 5th day of March at 09:30"),
        ("FREQ=YEARLY;BYMONTHDAY=4", "Every year on the 4th day of each month at 09:30"),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", "Every year on the 4th Thursday of November at 09:30"),
        ("FREQ=WEEKLY;BYDAY=MO,WE", "Every week on Monday and Wednesday at 09:30"),
        ("FREQ=DAILY;BYMONTH=1,2", "Every day in January and February at 09:30"),
        ("FREQ=DAILY;UNTIL=20310101T000000Z", "Every day at 09:30 until 2031-01-01 01:00+01:00"),
        ("DTSTART:20300305T093000 FREQ=DAILY;COUNT=5", "Every day at 09:30 from 2030-03-05, 5 times"),
        ("FREQ=MINUTELY", "Every minute"),
        ("FREQ=HOURLY;INTERVAL=5", "Every 5 hours from 2030-03-05 09:30+01:00"),
    ],
)
def test_a_rule_has_words(app: Celery, text: str, words: str) -> None:
    rule = rrule(**{"dtstart": START, **read_rule(text, BERLIN)})
    assert describe(app, rule) == f"{words} (Europe/Berlin)"


@pytest.mark.parametrize(
    "part",
    [
        "FREQ=MONTHLY;BYSETPOS=-1;BYDAY=MO,TU,WE,TH,FR", "FREQ=HOURLY;BYMINUTE=5",
        "FREQ=DAILY;BYHOUR=1,2,3,4,5", "FREQ=YEARLY;BYEASTER=-2",
    ],
)  # fmt: skip
def test_a_rule_that_has_none_is_shown_as_rfc_5545_writes_it(app: Celery, part: str) -> None:
    rule = rrule(**{"dtstart": START, **read_rule(part, BERLIN)})
    assert describe(app, rule) == f"DTSTART:20300305T093000 RRULE:{part} (Europe/Berlin)"


def test_the_words_are_of_the_clocks_that_the_policy_names(app: Celery) -> None:
    rule = rrule("WEEKLY", dtstart=datetime(2030, 3, 5, 23, 30, tzinfo=UTC))
    assert describe(app, rule) == "Every week on Tuesday at 23:30 (UTC)"
    assert describe(app, rule, timezone="Asia/Tokyo") == "Every week on Wednesday at 08:30 (Asia/Tokyo)"


@pytest.mark.parametrize(
    ("zone", "start"), [("Europe/Berlin", "20260601T140000"), ("Asia/Kolkata", "20260601T173000")]
)
def test_a_rule_starts_at_what_the_clocks_of_its_entry_show(app: Celery, zone: str, start: str) -> None:
    rule = rrule("HOURLY", dtstart=NOON, byminute=0)
    assert describe(app, rule, timezone=zone) == f"DTSTART:{start} RRULE:FREQ=HOURLY;BYMINUTE=0 ({zone})"


def test_a_rule_ends_by_the_same_clocks_as_it_starts(app: Celery) -> None:
    rule = rrule("HOURLY", dtstart=NOON, byminute=0, until=NOON + timedelta(days=5))
    words = "DTSTART:20260601T140000 RRULE:FREQ=HOURLY;UNTIL=20260606T140000;BYMINUTE=0 (Europe/Berlin)"
    assert describe(app, rule, timezone="Europe/Berlin") == words


def test_a_rule_without_another_zone_goes_by_that_of_its_dtstart(app: Celery) -> None:
    rule = rrule("HOURLY", dtstart=NOON.astimezone(ZoneInfo("Asia/Tokyo")), byminute=0)
    assert describe(app, rule) == "DTSTART:20260601T210000 RRULE:FREQ=HOURLY;BYMINUTE=0 (Asia/Tokyo)"


@pytest.mark.parametrize(
    ("clocked_time", "shown"),
    [(NOON, "2026-06-01 14:00:00+02:00"), (NOON.replace(tzinfo=None), "2026-06-01 12:00:00+02:00")],
    ids=["aware", "naive"],
)
def test_an_instant_is_told_in_the_zone_of_the_entry(app: Celery, clocked_time: datetime, shown: str) -> None:
    assert describe(app, clocked(clocked_time), timezone="Europe/Berlin") == f"At {shown}"


def test_the_sun_needs_no_zone(app: Celery) -> None:
    assert describe(app, solar("dawn_civil", 52.5, 13.4)) == "At dawn civil at 52.5, 13.4"


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (NOON, "2026-06-01 14:00+02:00"),
        (NOON + 5 * SECOND, "2026-06-01 14:00:05+02:00"),
        (NOON + timedelta(microseconds=5), "2026-06-01 14:00:00.000005+02:00"),
    ],
)
def test_a_window_s_ends_have_seconds_where_there_are_any(app: Celery, moment: datetime, shown: str) -> None:
    zone = {"timezone": "Europe/Berlin"}
    assert describe(app, 60, start_time=moment, **zone) == f"Every minute, not before {shown}"
    assert describe(app, 60, end_time=moment, **zone) == f"Every minute, not after {shown}"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"overlap": "skip"}, "not while a run is in progress"),
        ({"overlap": "buffer_one"}, "after the run in progress"),
        ({"overlap": "replace"}, "in place of the run in progress"),
        ({"one_off": True}, "once"), ({"max_runs": 1}, "once"), ({"max_runs": 3}, "3 times at the most"),
        ({"exclude": "holidays"}, "except on holidays"), ({"jitter": 2.5}, "up to 2.5 s later"),
        ({"jitter": 1_234_567}, "up to 14 d 6 h 56 min 7 s later"),
    ],
)  # fmt: skip
def test_the_rest_of_the_policy_follows(app: Celery, policy: dict[str, Any], words: str) -> None:
    assert describe(app, 60, **policy) == f"Every minute, {words}"


def test_instants_are_shown_in_the_zone_that_is_asked_for(app: Celery) -> None:
    berlin, kathmandu = "Europe/Berlin", ZoneInfo("Asia/Kathmandu")
    once = RedBeatSchedulerEntry("x", "t", clocked(NOON), app=app, timezone=berlin)
    ends = RedBeatSchedulerEntry("x", "t", "0 9 * * *", app=app, timezone=berlin, end_time=NOON)
    assert once.describe(kathmandu) == "At 2026-06-01 17:45:00+05:45"
    assert ends.describe(kathmandu) == "At 09:00 (Europe/Berlin), not after 2026-06-01 17:45+05:45"


def test_an_interval_of_a_class_of_its_own_is_described_as_the_interval_that_is_stored(app: Celery) -> None:
    class every(schedule):  # noqa: N801 - as Celery's
        pass

    assert describe(app, every(5)) == "Every 5 seconds"
