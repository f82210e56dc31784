"""When ``assert_runs`` passes, and what it says when it doesn't."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.testing import assert_runs

BERLIN = ZoneInfo("Europe/Berlin")
WHEN = "At 07:30, Monday through Friday (Europe/Berlin)"
SPAN = "Fri 2026-03-27 07:30:00 +0100 to Wed 2026-04-01 07:30:00 +0200"


@pytest.fixture
def app() -> Celery:
    return Celery("users-tests", broker="memory://", set_as_current=False)


def report(app: Celery, **fields: Any) -> Entry:
    return Entry("report", "proj.report", "30 7 * * mon-fri", timezone="Europe/Berlin", app=app, **fields)


def test_times_are_in_the_entrys_zone_in_any_form_and_order(app: Celery) -> None:
    friday = datetime(2026, 3, 27, 6, 30, tzinfo=timezone.utc)
    assert_runs(report(app), ["2026-03-31 07:30", friday, datetime(2026, 3, 30, 7, 30)])
    assert_runs(report(app), [friday.astimezone(BERLIN)], start="2026-03-27", end="2026-03-30 07:29")
    assert_runs(report(app), [], start="2026-03-28", end="2026-03-30")


def test_a_new_interval_begins_where_it_is_expected(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", 3600, app=app)
    assert_runs(entry, ["2026-06-01 12:17", "2026-06-01 13:17"])
    assert_runs(entry, ["2026-06-01 13:00"], start="2026-06-01 12:00", end="2026-06-01 13:59")
    with pytest.raises(AssertionError, match=r"\+ Mon 2026-06-01 13:17:00"):
        assert_runs(entry, ["2026-06-01 12:17", "2026-06-01 14:17"])


def test_it_says_what_is_missing_and_why_and_what_is_too_many(app: Celery) -> None:
    holidays = {"holidays": Calendar("holidays", ["2026-03-30"])}
    with pytest.raises(AssertionError) as caught:
        assert_runs(
            report(app, exclude="holidays"),
            ["2026-03-27 07:30", "2026-03-28 07:30", "2026-03-30 07:30", "2026-04-01 07:30"],
            calendars=holidays,
        )
    assert str(caught.value).splitlines() == [
        f"report ({WHEN}, except on holidays) doesn't run as expected from {SPAN} "  # noqa: ISC004
        "(- is missing, + isn't expected):",
        "  Fri 2026-03-27 07:30:00 +0100",
        "- Sat 2026-03-28 07:30:00 +0100   its schedule has no such time",
        "- Mon 2026-03-30 07:30:00 +0200   skipped: excluded by its calendar holidays",
        "+ Tue 2026-03-31 07:30:00 +0200",
        "  Wed 2026-04-01 07:30:00 +0200",
    ]


def test_the_reason_of_a_run_that_is_held_back_is_said(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", "*/10 * * * *", overlap="skip", app=app)
    expected = ["2026-06-01 10:00", "2026-06-01 10:10"]
    with pytest.raises(
        AssertionError, match=r"10:10:00 \+0000   skipped: the run of 2026-06-01 10:00:00 UTC was at work"
    ):
        assert_runs(entry, expected, durations={"sync": 700})
    assert_runs(entry, expected, durations={"sync": 600})


def test_what_is_as_expected_is_shown_beside_a_difference_only(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", "0 * * * *", app=app)
    expected = [datetime(2026, 6, day, hour) for day in (1, 2) for hour in range(24)]
    with pytest.raises(AssertionError) as caught:
        assert_runs(entry, [*expected[:30], *expected[31:]])
    _, *lines = str(caught.value).splitlines()
    assert lines[0] == "  ... 28 as expected"
    assert [line[0] for line in lines] == [" ", " ", " ", "+", " ", " ", " "]
    assert lines[-1] == "  ... 15 as expected"


def test_of_a_million_differences_some_are_shown(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", 1, app=app)
    with pytest.raises(AssertionError) as caught:
        assert_runs(entry, ["2026-06-01", "2027-06-01"])
    lines = str(caught.value).splitlines()
    assert len(lines) < 30
    assert lines[-1] == "  ... and more"


@pytest.mark.parametrize(
    ("expected", "span", "problem"),
    [
        ([], {}, "expected: is empty, so give start and end"),
        ([], {"start": "2026-06-01"}, "expected: is empty"),
        (["soon"], {}, "expected: 'soon' is no time"),
        ("2026-06-01 07:30", {}, r"expected: must be a list; write \['2026-06-01 07:30'\]"),
        (["2026-06-01 07:30"] * 2, {}, "expected: Mon 2026-06-01 07:30:00 .* is given twice"),
        (["2026-06-01 07:30"], {"end": "2026-05-01", "start": "2026-04-01"}, "isn't between start and end"),
        (["2026-06-01 07:30"], {"end": "2026-05-01"}, "end: 2026-05-01 is before start|isn't between"),
    ],
)
def test_wrong_arguments_are_named(app: Celery, expected: Any, span: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        assert_runs(report(app), expected, **span)


def test_it_takes_an_entry(app: Celery) -> None:
    with pytest.raises(ValueError, match="assert_runs takes a RedBeatSchedulerEntry, not 'report'"):
        assert_runs("report", ["2026-06-01 07:30"])  # type: ignore[arg-type]
