"""Calendars: what is excluded and until when, how days are spelled, and what an iCalendar file excludes."""

from __future__ import annotations

import sys
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.calendars import Calendar
from redbeat.entries.validation import find_name_problem
from redbeat.errors import ConfigurationError
from redbeat.policy import Policy
from redbeat.schedules import clocked, next_run
from redbeat.schedules.exclusions import NEVER_FREE
from redbeat.schedules.timezones import wall_of
from tests.faults.rounds import IS_LONG

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
#: zone to days on which its clocks change: at midnight or by a whole day but for the first, never in the last
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"), "America/St_Johns": ("2006-10-29", "2006-04-02"),
    "America/Santiago": ("2026-09-06", "2026-04-05"), "America/Havana": ("2026-11-01", "2026-03-08"),
    "Pacific/Apia": ("2011-12-30",), "Asia/Beirut": ("2025-03-30",), "Asia/Kathmandu": ("2026-06-01",),
}  # fmt: skip


def at(text: str, tz: Any = UTC) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=tz).astimezone(UTC)


def test_what_is_excluded_for_ever_never_runs() -> None:
    calendar = Calendar("closed", ["2026-01-01/9999-12-31"])
    assert calendar.end_of_exclusion(at("2026-06-01"), UTC) == NEVER_FREE
    assert next_run(schedule(60), Policy().with_calendar(calendar), at("2026-06-01")) is None


@st.composite
def fields(draw: st.DrawFn, around: datetime) -> list[str]:
    found = []
    for _ in range(draw(st.integers(0, 8))):
        first = around + timedelta(minutes=draw(st.integers(-4000, 4000)))
        length = draw(st.integers(0, 3))
        if draw(st.booleans()):
            last = first + timedelta(days=length)
            found.append(f"{first:%Y-%m-%d}/{last:%Y-%m-%d}" if length else f"{first:%Y-%m-%d}")
        else:
            last = first + timedelta(minutes=draw(st.integers(1, 2000)))
            found.append(f"{first:%Y-%m-%dT%H:%M}+00:00/{last:%Y-%m-%dT%H:%M}+00:00")
    return found


def is_excluded_naively(days: list[str], instant: datetime, tz: Any) -> bool:
    for field in days:
        first, _, last = field.partition("/")
        if "T" in field:
            if datetime.fromisoformat(first) <= instant < datetime.fromisoformat(last):
                return True
        elif first <= f"{wall_of(instant, tz):%Y-%m-%d}" <= (last or first):
            return True
    return False


@settings(max_examples=150 if IS_LONG else 40, deadline=None)
@given(data=st.data(), change=st.sampled_from([(name, day) for name in CHANGES for day in CHANGES[name]]))
def test_it_is_what_a_walk_from_minute_to_minute_finds(data: st.DataObject, change: tuple[str, str]) -> None:
    tz, around = ZoneInfo(change[0]), at(change[1])
    days = data.draw(fields(around))
    instant = around + timedelta(minutes=data.draw(st.integers(-3000, 3000)))
    found = Calendar("holidays", days).end_of_exclusion(instant, tz)
    walked = instant
    while is_excluded_naively(days, walked, tz):
        walked += timedelta(minutes=1)
    assert (found or instant) == walked
    assert (found is None) == (walked == instant)


@pytest.mark.parametrize(
    ("day", "field"),
    [
        (date(2026, 12, 25), "2026-12-25"),
        ((date(2026, 12, 24), date(2026, 12, 31)), "2026-12-24/2026-12-31"),
        (
            (datetime(2026, 12, 24, 18, tzinfo=BERLIN), datetime(2026, 12, 25, 6, 0, 1, tzinfo=BERLIN)),
            "2026-12-24T18:00+01:00/2026-12-25T06:00:01+01:00",
        ),
        ("2026-12-25", "2026-12-25"),
    ],
)
def test_a_day_is_spelled_in_one_way(day: Any, field: str) -> None:
    assert Calendar("holidays", {day: "Christmas"}).days == {field: "Christmas"}
    assert Calendar("holidays", [day]).days == {field: ""}


@pytest.mark.parametrize(
    "day",
    [
        "", "25.12.2026", "2026-02-30", "2026-12-31/2026-12-24", "2026-12-24T18:00/2026-12-25T06:00",
        "2026-12-24T18:00Z", datetime(2026, 12, 25), (date(2026, 12, 25),), None,
    ],
)  # fmt: skip
def test_an_invalid_day_is_named(day: Any) -> None:
    with pytest.raises(ValueError, match="holidays: ") as caught:
        Calendar("holidays", [day])
    shown = f"{day:%Y-%m-%dT%H:%M}" if isinstance(day, datetime) else repr(day)
    assert shown in str(caught.value) or isinstance(day, tuple)


def test_one_day_is_not_many() -> None:
    with pytest.raises(ValueError, match=r"\['2026-12-25'\]"):
        Calendar("holidays", "2026-12-25")
    for name in ("", None, "\udcff"):
        with pytest.raises(ValueError, match="must have a name"):
            Calendar(name)  # type: ignore[arg-type]


def test_no_entry_may_be_called_like_a_calendar() -> None:
    assert find_name_problem(":calendar:holidays", frozenset())
    assert find_name_problem("calendar:holidays", frozenset()) is None


@pytest.mark.parametrize(
    ("rule", "after", "expected"),
    [
        (crontab(minute="0", hour="8"), "2026-12-23T12:00", "2026-12-27T07:00"),
        (schedule(3600), "2026-12-23T22:30", "2026-12-26T23:30"),
        (clocked(at("2026-12-25T12:00")), "2026-12-01T00:00", None),
        (clocked(at("2026-12-27T12:00")), "2026-12-01T00:00", "2026-12-27T12:00"),
    ],
)
def test_the_next_run_is_the_first_that_is_not_excluded(rule: Any, after: str, expected: str | None) -> None:
    calendar = Calendar("holidays", ["2026-12-24/2026-12-26"])
    policy = Policy(timezone="Europe/Berlin").with_calendar(calendar)
    assert next_run(rule, policy, at(after)) == (expected and at(expected))


# -- iCalendar files

EVENTS = """
DTSTART;VALUE=DATE:20251225|DTEND;VALUE=DATE:20251227|RRULE:FREQ=YEARLY|SUMMARY:Christmas|TRANSP:TRANSPARENT
DTSTART;VALUE=DATE:20260501|SUMMARY:Labour Day
DTSTART;TZID=Europe/Berlin:20260401T180000|DTEND;TZID=Europe/Berlin:20260402T060000|SUMMARY:Maintenance
DTSTART:20260601T100000|DURATION:PT90M|SUMMARY:Floating
DTSTART;VALUE=DATE:20260701|SUMMARY:Called off|STATUS:CANCELLED
DTSTART:20260702T100000Z|SUMMARY:Takes no time
DTSTART;VALUE=DATE:20260501|SUMMARY:Anniversary
"""
ICAL = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n{}END:VCALENDAR\r\n".format(
    "".join(
        f"BEGIN:VEVENT|UID:{number}|{event}|END:VEVENT|".replace("|", "\r\n")
        for number, event in enumerate(EVENTS.split("\n")[1:-1])
    )
)


@pytest.fixture
def app() -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.timezone = "America/New_York"
    return app


def test_an_ical_file_excludes_its_events(app: Celery) -> None:
    calendar = Calendar.from_ical("holidays", ICAL.encode(), until=date(2028, 1, 1), app=app)
    single = {
        "2026-05-01": "Labour Day, Anniversary",
        "2026-04-01T18:00+02:00/2026-04-02T06:00+02:00": "Maintenance",
        "2026-06-01T10:00-04:00/2026-06-01T11:30-04:00": "Floating",
    }
    yearly = {f"{year}-12-25/{year}-12-26": "Christmas" for year in (2026, 2027)}
    found = {day: label for day, label in calendar.days.items() if not day.startswith("2025")}
    assert found == {**single, **yearly}


def test_what_recurs_is_excluded_for_five_years(app: Celery) -> None:
    calendar = Calendar.from_ical("holidays", ICAL, app=app)
    years = {int(day[:4]) for day, label in calendar.days.items() if label == "Christmas"}
    today = datetime.now(UTC)
    assert {today.year, today.year + 4} <= years
    assert max(years) <= today.year + 6


@pytest.mark.parametrize("text", ["", "h.ics", "BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR", b"\xff\xfe"])
def test_what_is_no_ical_file_is_said_to_be_none(app: Celery, text: Any) -> None:
    with pytest.raises(ValueError, match="holidays: no iCalendar file"):
        Calendar.from_ical("holidays", text, app=app)


def test_missing_icalendar_is_named_with_its_extra(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icalendar", None)
    with pytest.raises(ConfigurationError, match=r"icalendar.*celery-redbeat\[calendar\]"):
        Calendar.from_ical("holidays", ICAL, app=app)
