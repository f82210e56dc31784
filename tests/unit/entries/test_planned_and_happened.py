"""What was planned beside what happened (redbeat/entries/past.py), by the columns of a chart."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.calendar_loading import Unusable, give_calendars
from redbeat.entries.past import HAPPENED, Past, past_of
from redbeat.entries.timeline import Chart, empty_chart
from redbeat.history import PastRun

NOON = datetime(2026, 5, 4, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def chart() -> Chart:
    """Six columns of an hour, from 9 to 15 o'clock."""
    return empty_chart(NOON - 3 * HOUR, timezone.utc, 6, 6)


def made(schedule: Any = None, **fields: Any) -> RedBeatSchedulerEntry:
    app = Celery("past", set_as_current=False)
    return RedBeatSchedulerEntry("a", "t", schedule or crontab(minute="0,30"), app=app, **fields)


def run(hours: float, outcome: str = "succeeded", **fields: Any) -> PastRun:
    due = NOON + hours * HOUR
    return PastRun(due, due, outcome, **fields)


def happened(past: Past) -> dict[str, dict[int, int]]:
    return {word: dict(counts) for word, counts in past.happened.items() if counts}


def test_what_was_planned_ends_now_and_what_happened_stands_beside_it_in_its_column(chart: Chart) -> None:
    outcomes = ["succeeded", "sent", "failed", "lost", "never_started", "skipped", "merged", "expired"]
    history = [run(-number / 2, outcome) for number, outcome in enumerate(outcomes)]
    found = past_of(made(), history, chart, NOON + timedelta(minutes=10))
    assert dict(found.planned) == {0: 2, 1: 2, 2: 2, 3: 1}
    assert happened(found) == {
        "succeeded": {3: 1},
        "sent": {2: 1},
        "failed": {2: 1},
        "lost": {1: 2},
        "skipped": {0: 2},
    }
    assert found.known_since == NOON - 3.5 * HOUR
    assert found.untold == ""
    document = found.to_dict(chart.columns)
    assert document.keys() == {"planned", *HAPPENED, "known_since", "untold"}
    assert document["planned"] == [2, 2, 2, 1, 0, 0]


def test_a_run_counts_once_and_one_that_somebody_asked_for_does_not(chart: Chart) -> None:
    history = [run(0, "failed", is_manual=True), run(-1, "succeeded"), run(-1, "unsent")]
    assert happened(past_of(made(), history, chart, NOON)) == {"succeeded": {2: 1}}


def test_runs_that_were_left_out_together_are_spread_over_their_columns(chart: Chart) -> None:
    span = run(-5, "skipped", last=NOON - 1.5 * HOUR, count=8)
    assert happened(past_of(made(), [span], chart, NOON)) == {"skipped": {0: 2, 1: 2}}
    of_another_schedule = run(-2.9, "skipped", last=NOON - 2.8 * HOUR, count=8)
    assert happened(past_of(made(), [of_another_schedule], chart, NOON)) == {"skipped": {0: 8}}


def test_of_an_entry_with_a_number_of_runs_what_happened_was_planned(chart: Chart) -> None:
    found = past_of(made(max_runs=5), [run(-1), run(-2, "skipped")], chart, NOON)
    assert dict(found.planned) == {1: 1, 2: 1}


def test_what_cannot_be_computed_is_told_and_what_happened_is_there_all_the_same(chart: Chart) -> None:
    entry = made(exclude="missing")
    give_calendars([entry], {"missing": Unusable("the calendar 'missing' doesn't exist.", "none")})
    found = past_of(entry, [run(-1)], chart, NOON)
    assert happened(found) == {"succeeded": {2: 1}}
    assert found.untold.startswith("a: ")
