"""Recurrence rules in words, on the clocks that they go by."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.rules import read_rule
from redbeat.schedules import rrule

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2030, 3, 5, 9, 30, tzinfo=BERLIN)  # a Tuesday


def described(rule: rrule, **policy: Any) -> str:
    app = Celery(broker="redis://", set_as_current=False)
    return RedBeatSchedulerEntry("n", "t", rule, app=app, **policy).describe()


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
        ("FREQ=DAILY;BYMONTH=1,2", "Every day in January and February at 09:30"),
        ("FREQ=DAILY;UNTIL=20310101T000000Z", "Every day at 09:30 until 2031-01-01 01:00+01:00"),
        ("DTSTART:20300305T093000 FREQ=DAILY;COUNT=5", "Every day at 09:30 from 2030-03-05, 5 times"),
        ("FREQ=MINUTELY", "Every minute"),
        ("FREQ=HOURLY;INTERVAL=5", "Every 5 hours from 2030-03-05 09:30+01:00"),
    ],
)
def test_a_rule_has_words(text: str, words: str) -> None:
    rule = rrule(**{"dtstart": START, **read_rule(text, BERLIN)})
    assert described(rule) == f"{words} (Europe/Berlin)"


@pytest.mark.parametrize(
    "part",
    [
        "FREQ=MONTHLY;BYSETPOS=-1;BYDAY=MO,TU,WE,TH,FR",
        "FREQ=HOURLY;BYMINUTE=5",
        "FREQ=DAILY;BYHOUR=1,2,3,4,5",
        "FREQ=YEARLY;BYEASTER=-2",
    ],
)
def test_a_rule_that_has_none_is_shown_as_rfc_5545_writes_it(part: str) -> None:
    rule = rrule(**{"dtstart": START, **read_rule(part, BERLIN)})
    assert described(rule) == f"DTSTART:20300305T093000 RRULE:{part} (Europe/Berlin)"


def test_the_words_are_of_the_clocks_that_the_policy_names() -> None:
    rule = rrule("WEEKLY", dtstart=datetime(2030, 3, 5, 23, 30, tzinfo=timezone.utc))
    assert described(rule) == "Every week on Tuesday at 23:30 (UTC)"
    assert described(rule, timezone="Asia/Tokyo") == "Every week on Wednesday at 08:30 (Asia/Tokyo)"
