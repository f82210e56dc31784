"""What an outage has dropped is counted once for all entries of one crontab."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.entries import dropped
from redbeat.entries.dropped import dropped_until
from redbeat.policy import Policy
from redbeat.schedules import cron
from redbeat.schedules.crontab import count_of_crontab, runs_back_of_crontab
from redbeat.schedules.timezones import find_change
from tests.faults.rounds import IS_LONG

FIRST = datetime(2026, 3, 1, tzinfo=timezone.utc)
END = FIRST + timedelta(hours=3)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The crontabs whose runs were walked through."""
    found: list[Any] = []
    walk = dropped.runs_back

    def note(schedule: Any, *args: Any) -> Any:
        found.append(schedule)
        return walk(schedule, *args)

    monkeypatch.setattr(dropped, "runs_back", note)
    monkeypatch.setattr(dropped, "_counted", {})  # of the process
    return found


def test_entries_of_one_crontab_are_counted_once_and_others_each_for_itself(walked: list[Any]) -> None:
    for _ in range(5):
        found = dropped_until(crontab(), Policy(), FIRST, END, "late")
        assert (found.first, found.last, found.count, found.why) == (FIRST, END, 181, "late")
    assert len(walked) == 1
    assert dropped_until(crontab("*/2"), Policy(), FIRST, END, "late").count == 91
    assert dropped_until(crontab(), Policy(), FIRST, FIRST + timedelta(hours=1), "late").count == 61
    bounded = Policy(end_time=FIRST + timedelta(hours=2))
    assert dropped_until(crontab(), bounded, FIRST, END, "late").count == 121
    india = Policy(timezone="Asia/Kolkata")
    assert dropped_until(crontab("0"), india, FIRST + timedelta(minutes=30), END, "late").count == 3
    utc = dropped_until(crontab("0"), Policy(), FIRST + timedelta(minutes=30), END, "late")
    assert utc.last == END
    assert len(walked) == 6


@pytest.mark.parametrize(
    ("expression", "count"),
    [("* * * * *", 525_600), ("0 * * * *", 8760), ("*/5 8-17 * * mon-fri", 31_320), ("0 9 L * *", 12)],
)
def test_the_runs_of_a_year_are_counted(expression: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped, "_counted", {})  # of the process
    berlin = Policy(timezone="Europe/Berlin")
    begin = datetime(2025, 1, 1, tzinfo=timezone.utc)
    found = dropped_until(cron(expression), berlin, begin, begin + timedelta(days=365), "late")
    # from one run to the next one a year later is a run more than those in between
    assert found.count in (count, count + 1)


ZONES = (
    *("Europe/Berlin", "America/Havana", "Australia/Lord_Howe"),
    *("Africa/Casablanca", "Antarctica/Troll", "UTC"),
)
MOMENTS = st.datetimes(datetime(2010, 1, 1), datetime(2026, 1, 1), timezones=st.just(timezone.utc))
FIELDS = (
    st.sampled_from(["*", "0", "*/15", "30", "0,59", "7"]),
    st.sampled_from(["*", "*/2", "0", "0-3", "2", "1-23", "23,0"]),
    st.sampled_from(["*", "1-15", "31", "L", "LW"]),
    st.sampled_from(["*", "3,10,11", "2"]),
    st.sampled_from(["*", "mon-fri", "sun", "sun#1"]),
)


@settings(max_examples=300 if IS_LONG else 80, deadline=None)
@given(
    st.tuples(*FIELDS),
    st.sampled_from(ZONES),
    MOMENTS,
    st.timedeltas(timedelta(0), timedelta(days=20)),
    st.none() | st.sampled_from([-3600.0, -1e-6, 0.0, 1e-6, 1800.0]),
)
def test_counted_by_arithmetic_there_are_as_many_as_when_they_are_walked_through(
    fields: tuple[str, ...], zone: str, after: datetime, span: timedelta, beside_change: float | None
) -> None:
    rule, tz = cron(" ".join(fields)), ZoneInfo(zone)
    week = timedelta(weeks=1)
    changes = (find_change(tz, after + n * week, after + (n + 1) * week) for n in range(53))
    change = next(filter(None, changes), None)
    if beside_change is not None and change is not None:
        after = change + timedelta(seconds=beside_change)
    until = after + span
    walked = sum(1 for due in runs_back_of_crontab(rule, until, tz, after) if due > after)
    assert count_of_crontab(rule, after, until, tz) == walked
