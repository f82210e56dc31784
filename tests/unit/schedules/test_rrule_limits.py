"""rrule where dateutil's own walk would not end, or ends late: the answer is the same, and soon."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import FR, MO

from redbeat.schedules import rrule
from tests.support.stopwatch import lines_run

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("count", [10**10, 10**18])
def test_a_count_of_thousands_of_millions_is_quick_and_right(count: int) -> None:
    rule = rrule("SECONDLY", dtstart=EPOCH, count=count)
    assert lines_run(lambda: rule.occurrence(NOON)) < 2_000
    assert rule.occurrence(NOON) == NOON + timedelta(seconds=1)
    assert rule.occurrence(NOON, inclusive=True) == NOON


def test_a_count_ends_at_its_last_occurrence_though_the_walk_is_cut_short() -> None:
    rule = rrule("SECONDLY", dtstart=EPOCH, interval=7, count=10**8)
    last = EPOCH + (10**8 - 1) * timedelta(seconds=7)
    assert rule.occurrence(last - timedelta(seconds=1)) == last
    assert rule.occurrence(last, inclusive=True) == last
    assert rule.occurrence(last) is None


@pytest.mark.parametrize(
    ("freq", "fields"),
    [
        ("HOURLY", {"bysetpos": 2}),
        ("HOURLY", {"byminute": [0, 30], "bysetpos": 3}),
        ("HOURLY", {"byminute": [0, 30], "bysecond": [0, 1, 2], "bysetpos": [1, -7]}),
        ("MINUTELY", {"bysecond": [0, 30], "bysetpos": -3}),
        ("MINUTELY", {"bysetpos": 2}),
        ("SECONDLY", {"bysecond": 0, "bysetpos": 2}),
        ("SECONDLY", {"bysecond": 0, "bysetpos": [1, -2]}),
    ],
)
def test_a_position_that_no_step_has_is_refused(freq: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bysetpos"):
        rrule(freq, dtstart=NOON, **fields)


@pytest.mark.parametrize(
    ("freq", "fields", "expected"),
    [
        ("HOURLY", {"byminute": [0, 30], "bysetpos": -1}, timedelta(minutes=30)),
        ("HOURLY", {"byminute": [0, 30], "bysecond": [0, 5], "bysetpos": 4}, timedelta(seconds=1805)),
        ("MINUTELY", {"bysecond": [0, 30], "bysetpos": 2}, timedelta(seconds=30)),
        ("SECONDLY", {"bysecond": 10, "bysetpos": -1}, timedelta(seconds=10)),
    ],
)
def test_a_position_that_a_step_has_is_found(freq: str, fields: dict[str, Any], expected: timedelta) -> None:
    assert rrule(freq, dtstart=NOON, **fields).occurrence(NOON) == NOON + expected


def test_a_count_with_filters_over_steps_that_fit_no_day_is_counted() -> None:
    start = datetime(1800, 1, 1, tzinfo=UTC)
    fields = {"interval": 7, "bysecond": [0]}  # one step in 60 begins with a minute, each 7 minutes
    passed = (NOON - start) // timedelta(minutes=7)
    for count, expected in ((passed + 1, None), (passed + 2, start + (passed + 1) * timedelta(minutes=7))):
        assert rrule("SECONDLY", dtstart=start, count=count, **fields).occurrence(NOON) == expected


@pytest.mark.parametrize(
    "fields", [{"bysecond": [0]}, {"byhour": [7], "bysecond": 0}, {"byweekday": [MO, FR]}]
)
def test_a_count_with_filters_that_are_the_same_each_week_is_counted_at_once(fields: dict[str, Any]) -> None:
    start = datetime(1600, 1, 3, tzinfo=UTC)  # a Monday
    per_week = sum(1 for day in range(7) if day in (0, 4) or "byweekday" not in fields) * (
        86_400 if "byweekday" in fields else 60 if "byhour" in fields else 1440
    )
    last = start + timedelta(weeks=10_000, hours=7)
    rule = rrule("SECONDLY", dtstart=start, count=per_week * 10_000 + 1, **fields)
    over = rule.occurrence(last + timedelta(days=1))
    assert rule.occurrence(last - timedelta(days=7)) is not None
    assert over is None


FAR: list[rrule] = [
    rrule("DAILY", dtstart=datetime(2900, 1, 1, tzinfo=UTC), until=datetime(9999, 12, 31, 23, tzinfo=UTC)),
    rrule("DAILY", dtstart=NOON, until=datetime(2500, 1, 1, tzinfo=UTC), bymonth=2, bymonthday=29),
    rrule("WEEKLY", dtstart=NOON, until=datetime(3000, 6, 1, 12, tzinfo=UTC), interval=3, byweekday=[MO, FR]),
    rrule("MONTHLY", dtstart=NOON, byweekday=FR, bymonthday=13),
    rrule("MONTHLY", dtstart=NOON, byweekday=MO(+5)),
    rrule("MONTHLY", dtstart=NOON, bymonthday=31, count=4000),
    rrule("YEARLY", dtstart=NOON, bymonth=2, bymonthday=29),
    rrule("YEARLY", dtstart=NOON, byyearday=366, count=300),
    rrule("YEARLY", dtstart=NOON, byyearday=-366),
    rrule("YEARLY", dtstart=NOON, interval=7, byweekno=53, byweekday=MO),
    rrule("YEARLY", dtstart=NOON, byeaster=[0, 1]),
    rrule("YEARLY", dtstart=NOON, byeaster=-2, until=datetime(2700, 1, 1, tzinfo=UTC)),
    rrule("YEARLY", dtstart=datetime(9990, 2, 28, tzinfo=UTC), bymonth=2, bymonthday=29),
    rrule("DAILY", dtstart=datetime(9999, 12, 30, tzinfo=UTC)),
    rrule("MONTHLY", dtstart=datetime(1970, 1, 31, 2, 30, tzinfo=BERLIN), bymonthday=-1),
    rrule("YEARLY", dtstart=datetime(2024, 2, 29, 8, tzinfo=BERLIN)),
    rrule("WEEKLY", dtstart=datetime(2024, 3, 1, 8, tzinfo=BERLIN), until=datetime(2600, 1, 1, tzinfo=UTC)),
]
YEARS = (2026, 2027, 2028, 2099, 2100, 2399, 2400, 2699, 2999)


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("rule", FAR, ids=repr)
def test_in_far_years_an_occurrence_is_the_one_dateutil_finds(rule: rrule) -> None:
    begin = rule.dtstart.astimezone(UTC)
    moments = [begin - timedelta(days=1), begin, begin + timedelta(seconds=1)]
    moments += [datetime(year, month, 27, 13, tzinfo=UTC) for year in YEARS for month in (2, 12)]
    for after in moments:
        expected = rule.rrule.after(after)
        assert rule.occurrence(after) == expected, after
        if expected is not None:
            assert rule.occurrence(expected, inclusive=True) == expected


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("year", [9598, 9599, 9600, 9995, 9999])
def test_near_the_end_of_the_calendar_an_occurrence_is_the_one_dateutil_finds(year: int) -> None:
    start = datetime(year, 1, 1, 6, tzinfo=UTC)
    for rule in (
        rrule("DAILY", dtstart=start, bymonth=2, bymonthday=29),
        rrule("MONTHLY", dtstart=start, byweekday=MO(+1)),
        rrule("HOURLY", dtstart=start, bymonth=12),
    ):
        for after in (start, start.replace(month=7), datetime(9999, 12, 31, 22, 30, tzinfo=UTC)):
            assert rule.occurrence(after) == rule.rrule.after(after), (rule, after)
    assert rrule("DAILY", dtstart=start).occurrence(datetime(9999, 12, 31, 7, tzinfo=UTC)) is None


@pytest.mark.parametrize("zero", ["byhour", "byminute", "bysecond", "byweekday"])
def test_a_filter_of_zero_counts_as_one_when_occurrences_are_counted(zero: str) -> None:
    """Midnight, the full hour, Monday: 0 is no lack of a filter."""
    rule = rrule("MINUTELY" if zero == "bysecond" else "HOURLY", dtstart=NOON, count=10, **{zero: 0})
    occurrences = [moment.astimezone(UTC) for moment in rule.rrule]
    assert len(occurrences) == 10
    for earlier, later in pairwise(occurrences):
        assert rule.occurrence(earlier) == later
    assert rule.occurrence(occurrences[-1]) is None


@pytest.mark.parametrize("freq", ["MINUTELY", "SECONDLY"])
def test_a_small_count_is_over_however_long_ago_it_began(freq: str) -> None:
    rule = rrule(freq, dtstart=EPOCH, count=100, byhour=7)
    assert rule.occurrence(NOON) is None
    assert rrule(freq, dtstart=EPOCH, count=10**9, byhour=7).occurrence(NOON) == NOON + timedelta(hours=19)
