"""What is remarkable about next runs: clock changes, wall times that come twice or never, excluded days."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.marks import MOST_EXCLUSIONS, Mark, marks_of
from redbeat.schedules.exclusions import Exclusions

BERLIN = ZoneInfo("Europe/Berlin")


def marks(
    app: Celery, schedule: object, begin: datetime, count: int, *days: str, **policy: object
) -> list[list[Mark]]:
    entry = RedBeatSchedulerEntry("marked", "t", schedule, app=app, timezone="Europe/Berlin", **policy)
    entry.policy = entry.policy.with_calendar(Exclusions(days) if days else None)
    return marks_of(entry, entry.next_runs(count, after=begin), BERLIN, begin)


def kinds(found: list[list[Mark]]) -> list[list[str]]:
    return [[mark.kind for mark in one] for one in found]


def test_a_time_that_clocks_skip_is_marked_on_the_run_that_stands_for_it(app: Celery) -> None:
    found = marks(app, "30 2 * * *", datetime(2026, 3, 27, 12, tzinfo=timezone.utc), 3)
    assert kinds(found) == [[], ["clocks", "skipped"], []]
    assert found[1][1].words == "Europe/Berlin skips 02:00 to 03:00: times in between count as this one"


def test_a_time_that_comes_twice_is_marked_where_clocks_go_back(app: Celery) -> None:
    begin = datetime(2026, 10, 24, 12, tzinfo=timezone.utc)
    assert kinds(marks(app, "30 2 * * *", begin, 3)) == [["twice"], ["clocks"], []]
    assert kinds(marks(app, 3600, begin, 30)).count(["clocks"]) == 1


def test_days_that_a_calendar_excludes_are_told_before_the_run_after_them(app: Celery) -> None:
    begin = datetime(2026, 12, 22, 12, tzinfo=timezone.utc)
    days = ("2026-12-24/2026-12-26", "2026-12-28")
    found = marks(app, "0 9 * * *", begin, 3, *days, exclude="holidays")
    words = [[mark.words for mark in one] for one in found]
    assert words == [
        [],
        ["holidays excludes 2026-12-24 to 2026-12-26"],
        ["holidays excludes 2026-12-28"],
    ]


def test_an_exclusion_without_a_run_in_it_is_not_told(app: Celery) -> None:
    begin = datetime(2026, 12, 22, 12, tzinfo=timezone.utc)
    assert kinds(marks(app, "0 9 * * mon", begin, 2, "2026-12-24", exclude="holidays")) == [[], []]


def test_of_many_exclusions_the_first_are_told(app: Celery) -> None:
    begin = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    days = [f"2026-01-{day:02}" for day in range(3, 30, 2)]
    # a run a minute: to go through all that are excluded would take too long
    [found] = marks(app, "* * 3,5,7,9,11,13,15,17,19 1 *", begin, 1, *days, exclude="odd")
    assert [mark.kind for mark in found] == ["excluded"] * (MOST_EXCLUSIONS + 1)
    assert found[-1].words == "and more"
