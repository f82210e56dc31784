"""Times as people type them, on a Tuesday at 3:00 in Berlin."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from redbeat.schedules.typed_times import read_future, read_past

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 24, 2, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "following", "last"),
    [
        ("monday 8:00", "2026-11-30 08:00", "2026-11-23 08:00"),
        ("Mon at 8:00", "2026-11-30 08:00", "2026-11-23 08:00"),
        ("sunday", "2026-11-29 00:00", "2026-11-22 00:00"),
        ("tuesday 5:00", "2026-11-24 05:00", "2026-11-17 05:00"),
        ("tue 3:00", "2026-12-01 03:00", "2026-11-17 03:00"),
        ("wed", "2026-11-25 00:00", "2026-11-18 00:00"),
        ("18:30", "2026-11-24 18:30", "2026-11-23 18:30"),
    ],
)
def test_a_weekday_is_the_next_one_or_the_last_one(text: str, following: str, last: str) -> None:
    for read, expected in ((read_future, following), (read_past, last)):
        moment = read(text)(NOW, BERLIN).astimezone(BERLIN)
        assert f"{moment:%Y-%m-%d %H:%M}" == expected


def test_a_weekday_keeps_its_clock_over_a_change_of_clocks() -> None:
    friday = datetime(2027, 3, 26, 12, tzinfo=BERLIN)
    assert read_future("monday 8:00")(friday, BERLIN) == datetime(2027, 3, 29, 6, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["mond", "monday tuesday", "monday 25:00", "at monday", "next monday"])
def test_what_only_looks_like_a_weekday_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no time|hour must be"):
        read_future(text)(NOW, BERLIN)
