"""Rules that come daily or more often, beside dateutil's own walk through the last weeks of its calendar."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from redbeat.recurrence import rrule
from redbeat.steps import next_step

#: dateutil gives up at the end of the year 9999, so that even in vain it hasn't far to go from here
LATE = datetime(9999, 12, 1)
ENOUGH = 40

PER_DAY = {"DAILY": 1, "HOURLY": 24, "MINUTELY": 1440, "SECONDLY": 86_400}
#: what steps over hours, days and weeks, and is a part or a multiple of them, or neither
INTERVALS = {
    "DAILY": [1, 2, 7, 14, 5],
    "HOURLY": [1, 2, 5, 7, 24, 25, 48, 168],
    "MINUTELY": [1, 7, 15, 90, 720, 1440, 1441, 10_080],
    "SECONDLY": [1, 7, 3600, 86_400, 86_399, 604_800],
}


def some(low: int, high: int) -> st.SearchStrategy[list[int] | None]:
    return st.none() | st.lists(st.integers(low, high), min_size=1, max_size=4)


@st.composite
def stepping_rules(draw: st.DrawFn) -> rrule:
    freq = draw(st.sampled_from(sorted(PER_DAY)))
    start = draw(st.datetimes(LATE, LATE + timedelta(days=20))).replace(microsecond=0)
    fields: dict[str, Any] = {
        "interval": draw(st.sampled_from(INTERVALS[freq])),
        "byhour": draw(some(0, 23)),
        "byminute": draw(some(0, 59)),
        "bysecond": draw(some(0, 59)),
    }
    days = {
        "byweekday": some(0, 6),
        "bymonthday": some(-31, 31).filter(lambda found: not found or 0 not in found),
    }
    days |= {"bymonth": st.sampled_from([None, 12]), "byyearday": st.sampled_from([None, [-1, -9, 350]])}
    for name in draw(st.sets(st.sampled_from(sorted(days)), max_size=2)):
        fields[name] = draw(days[name])
    if draw(st.booleans()):
        fields["count"] = draw(st.integers(1, 60))
    if freq == "DAILY" and any(fields[name] for name in ("byhour", "byminute", "bysecond")):
        fields["bysetpos"] = draw(st.none() | st.lists(st.sampled_from([1, 2, 3, -1, -2]), min_size=1))
    return rrule(freq, dtstart=start, **fields)


def own(rule: rrule, start: datetime) -> list[datetime]:
    found: list[datetime] = []
    upcoming = next_step(rule, start, start, inclusive=True)
    while upcoming is not None and len(found) < ENOUGH and upcoming.year == LATE.year:
        found.append(upcoming)
        upcoming = next_step(rule, upcoming, start, inclusive=False)
    return found


@given(stepping_rules())
def test_every_occurrence_is_one_of_dateutil_s_and_none_is_left_out(rule: rrule) -> None:
    start = rule.dtstart.replace(tzinfo=None)
    try:
        expected = [one.replace(tzinfo=None) for one in islice(rule.rrule, ENOUGH)]
    except ValueError:  # dateutil knows that its steps never reach the hours, minutes or seconds
        expected = []
    event("none" if not expected else "some" if len(expected) < ENOUGH else "many")
    assert own(rule, start) == expected


@given(stepping_rules(), st.timedeltas(timedelta(0), timedelta(days=10)), st.booleans())
def test_from_anywhere_the_next_one_is_the_next_one(rule: rrule, passed: timedelta, inclusive: bool) -> None:
    start = rule.dtstart.replace(tzinfo=None)
    wall = start + passed
    found = own(rule, start)
    if len(found) == ENOUGH and found[-1] <= wall:
        return
    later = [one for one in found if one > wall or (inclusive and one == wall)]
    assert next_step(rule, wall, start, inclusive) == (later[0] if later else None)


START = datetime(2026, 6, 1, 12)  # a Monday


@pytest.mark.parametrize(
    ("freq", "fields"),
    [
        ("DAILY", {"bysetpos": 2}),
        ("DAILY", {"interval": 7, "byweekday": 1}),
        ("DAILY", {"interval": 14, "byeaster": 0}),
        ("HOURLY", {"interval": 7, "byhour": [0, 1, 2], "byweekday": 6, "bymonth": 2, "bymonthday": 30}),
        ("MINUTELY", {"interval": 7, "byminute": 0, "byhour": 9, "byweekday": 0}),
        ("MINUTELY", {"interval": 90, "byhour": [13], "byminute": [1]}),
        ("SECONDLY", {"interval": 604_800, "byweekday": 1}),
        ("SECONDLY", {"byeaster": 0, "bymonth": 12}),
        ("SECONDLY", {"interval": 7, "count": 90, "bymonth": 2, "bymonthday": 30}),
    ],
)
def test_what_the_steps_never_reach_has_no_occurrence(freq: str, fields: dict[str, Any]) -> None:
    assert next_step(rrule(freq, dtstart=START, **fields), START, START, inclusive=True) is None


def test_a_count_is_counted_where_dateutil_takes_a_minute() -> None:
    start = datetime(1970, 1, 1)
    leap_days = {"bymonth": 2, "bymonthday": 29, "byhour": 9, "byminute": 0, "bysecond": 0}
    rule = rrule("SECONDLY", dtstart=start, count=14, **leap_days)  # 1972 is the first
    assert next_step(rule, START, start, inclusive=False) is None
    rule = rrule("SECONDLY", dtstart=start, count=15, **leap_days)
    assert next_step(rule, START, start, inclusive=False) == datetime(2028, 2, 29, 9)


@pytest.mark.parametrize(
    ("freq", "interval"), [("DAILY", 20_000), ("HOURLY", 500_000), ("MINUTELY", 10**8), ("SECONDLY", 86_401)]
)
def test_steps_of_decades_are_found(freq: str, interval: int) -> None:
    rule, step = rrule(freq, dtstart=START, interval=interval), timedelta(days=interval) / PER_DAY[freq]
    assert next_step(rule, START, START, inclusive=False) == START + step
    assert next_step(rule, START + 3 * step, START, inclusive=False) == START + 4 * step
    counted = rrule(freq, dtstart=START, interval=interval, count=4)
    assert next_step(counted, START + 3 * step, START, inclusive=False) is None
    weekday = (START + 2 * step).weekday()
    on_that_day = rrule(freq, dtstart=START, interval=interval, byweekday=weekday)
    found = next_step(on_that_day, START + step, START, inclusive=False)
    assert found == START + 2 * step
