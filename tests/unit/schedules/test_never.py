"""Rules whose days don't exist: said of none that has some."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from dateutil.rrule import rrule as dateutil_rrule
from dateutil.rrule import weekday
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat.schedules.recurrence import FREQUENCIES, rrule

UTC = timezone.utc
START = datetime(2026, 6, 1, 12)  # a Monday

some_days = st.one_of(
    st.none(), st.lists(st.sampled_from([1, 13, 28, 29, 30, 31, -1, -30, -31, 32]), min_size=1)
)
filters = st.fixed_dictionaries(
    {
        "bymonth": st.one_of(st.none(), st.integers(1, 12)),
        "bymonthday": some_days,
        "byyearday": st.one_of(st.none(), st.sampled_from([1, 59, 60, 366, -366, 400])),
        "byweekno": st.one_of(st.none(), st.sampled_from([1, 9, 53, -53])),
        "byeaster": st.one_of(st.none(), st.sampled_from([0, -47, 39, 1, 200])),
        "byweekday": st.one_of(
            st.none(),
            st.lists(st.integers(0, 6), min_size=1, max_size=2),
            st.builds(weekday, st.integers(0, 6), st.sampled_from([1, 5, -1])),
        ),
    }
)


def first_of(rule: dateutil_rrule) -> datetime | None:
    """The first occurrence; dateutil doesn't end before one in a week of 9999 that extends beyond it."""
    try:
        return next(iter(rule), None)
    except ValueError as exc:
        assert str(exc) == "year 10000 is out of range"  # noqa: PT017 - it may raise or not
        return None


@example("WEEKLY", {"byyearday": -366, "byweekday": [5]})
@given(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]), filters)
def test_no_rule_that_comes_true_is_called_impossible(freq: str, fields: dict[str, Any]) -> None:
    start = START.replace(year=9985)  # as far from the last year as dateutil walks quickly
    if rrule(freq, dtstart=start, **fields).occurrence(start.replace(tzinfo=UTC), inclusive=True) is None:
        assert first_of(dateutil_rrule(FREQUENCIES[freq], dtstart=start, **fields)) is None


@pytest.mark.parametrize(
    ("freq", "fields"),
    [
        *((freq, {"bymonth": 2, "bymonthday": 30}) for freq in FREQUENCIES),
        ("YEARLY", {"bymonth": 4, "bymonthday": [31]}),
        ("MONTHLY", {"bymonthday": 32}),
        *((freq, {"byyearday": 366, "bymonth": 2}) for freq in FREQUENCIES),
        *((freq, {"byyearday": -366, "bymonth": 12}) for freq in FREQUENCIES),
        ("DAILY", {"byweekno": 53, "bymonth": 6}),
        ("DAILY", {"byeaster": 0, "bymonth": 7}),
        ("YEARLY", {"byeaster": 0, "bymonth": 3, "bymonthday": [1, -11]}),
        ("WEEKLY", {"byeaster": 0, "byweekday": [0]}),
    ],
)
def test_days_that_do_not_exist_are_known(freq: str, fields: dict[str, Any]) -> None:
    assert rrule(freq, dtstart=START, **fields).occurrence(START.replace(tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"byeaster": 0, "bymonth": 3, "bymonthday": 22},  # in 2285 next
        {"bymonth": 2, "bymonthday": 29, "byweekday": 0},
        {"byyearday": 366},
        {"byweekno": 53},
    ],
)
def test_what_comes_seldom_is_not_never(fields: dict[str, Any]) -> None:
    assert rrule("DAILY", dtstart=START, **fields).occurrence(START.replace(tzinfo=UTC)) is not None


@pytest.mark.parametrize("freq", ["DAILY", "HOURLY", "SECONDLY"])
def test_a_rule_that_never_comes_true_ends_wherever_its_walk_begins(freq: str) -> None:
    rule = rrule(freq, dtstart=START, bymonth=2, bymonthday=30)
    for year in (9500, 9998):
        assert rule.occurrence(START.replace(year=year, tzinfo=UTC)) is None
