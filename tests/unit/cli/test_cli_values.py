"""Values of options: lengths of time, times, recurrence rules; and how times are shown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr

from redbeat.entries.wording import one_line, relative, when_in
from redbeat.policy.policy import NO_POLICY
from redbeat.schedules.occurrences import rrule, runs_after
from redbeat.schedules.rfc5545 import read_rule

BERLIN = ZoneInfo("Europe/Berlin")


NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0;COUNT=5", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;WKST=SU",
        "FREQ=MONTHLY;BYDAY=2TU,+3WE,-1FR;BYHOUR=8,20", "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "FREQ=YEARLY;BYYEARDAY=1,100,-1", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "FREQ=YEARLY;BYEASTER=-2",
        "FREQ=YEARLY;BYMONTH=1,7;BYMONTHDAY=4,-1;UNTIL=20350101T000000Z",
    ],
)  # fmt: skip
def test_rule_runs_at_the_times_of_dateutil(text: str) -> None:
    given = f"DTSTART:20300105T093000Z\nRRULE:{text}"
    rule = rrule(**read_rule(given, timezone.utc))
    found = islice(runs_after(rule, NO_POLICY, NOW), 20)
    assert list(found) == list(islice(iter(rrulestr(given)), 20))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("FREQ=DAILY", None),
        ("DTSTART:20300601T090000 RRULE:FREQ=DAILY", datetime(2030, 6, 1, 9, tzinfo=BERLIN)),
        (r"DTSTART:20300601T090000Z\nRRULE:FREQ=DAILY", datetime(2030, 6, 1, 9, tzinfo=timezone.utc)),
        ("DTSTART;TZID=Asia/Tokyo:20300601T090000\nFREQ=DAILY", datetime(2030, 6, 1, tzinfo=timezone.utc)),
        ("dtstart:20300601\nrrule:freq=daily", datetime(2030, 6, 1, tzinfo=BERLIN)),
    ],
)
def test_rule_has_its_dtstart(text: str, start: datetime | None) -> None:
    assert read_rule(text, BERLIN).get("dtstart") == start


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("BYHOUR=9", "FREQ: is missing"),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ: is there twice"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL: 0 is no whole number from 1"),
        ("FREQ=DAILY;BYDAY=XX", "BYDAY: must be one of MO"),
        ("FREQ=DAILY;UNTIL=2030", "UNTIL: 2030 is no time"),
        ("FREQ=DAILY\nFREQ=WEEKLY", "more than one rule"),
        ("DTSTART;TZID=Mars:20300101T000000\nFREQ=DAILY", "unknown time zone 'Mars'"),
    ],
)
def test_invalid_rule_names_its_part(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_rule(text, BERLIN)


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (timedelta(0), "now"), (timedelta(seconds=45), "in 45 s"), (timedelta(minutes=5), "in 5 min"),
        (timedelta(hours=-3), "3 h ago"), (timedelta(days=3), "in 3 d"), (timedelta(days=3650), "in 10 y"),
    ],
)  # fmt: skip
def test_distance_is_shown_in_the_unit_that_fits(distance: timedelta, words: str) -> None:
    assert relative(NOW + distance, NOW) == words
    assert when_in(datetime.max.replace(tzinfo=timezone.utc), BERLIN).startswith("9999-12-31")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb\x1b[31m", "a\\nb\\x1b[31m"), ("caf\udce9", "caf\\udce9"), ("é☃ x", "é☃ x"), (5, "5")],
)
def test_text_is_shown_on_one_line(text: Any, shown: str) -> None:
    assert one_line(text) == shown
