"""The runs of all entries in columns: they are the runs that each entry has by itself."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.timeline import Chart, Counting, Timeline, chart_from

UTC = timezone.utc
#: schedules and policies, and how many runs they have at most
KINDS: dict[str, tuple[Any, dict[str, Any], int | None]] = {
    "often": (timedelta(seconds=37), {}, None),
    "seldom": (timedelta(hours=5), {}, None),
    "cron": (crontab(minute="*/7"), {}, None),
    "cron-in-zone": (crontab(minute=30, hour="*/2"), {"timezone": "Asia/Kolkata"}, None),
    "rule": ("FREQ=HOURLY;BYMINUTE=5,50", {}, None),
    "bounded": (timedelta(minutes=11), {"end_time": datetime.now(UTC) + timedelta(hours=6)}, None),
    "three-times": (timedelta(minutes=40), {"max_runs": 3}, 3),
    "once": (crontab(minute=0), {"one_off": True}, 1),
}


def count(app: Celery, chart: Chart, since: datetime | None, by: str = "load") -> Timeline:
    counting = Counting(app, chart, since, by=by, max_rows=9)
    for _ in counting.steps():
        pass
    return counting.found


@pytest.mark.parametrize("kind", KINDS)
def test_columns_have_the_runs_of_the_entry(app: Celery, kind: str) -> None:
    schedule, policy, most = KINDS[kind]
    schedule = {"rrule": schedule} if isinstance(schedule, str) else schedule
    for name in ("one", "two"):  # the second one shares what was computed for the first
        Entry(name, "echo", schedule, app=app, **policy).save()
    chart = chart_from(datetime.now(UTC), UTC, 24, 48)
    found, by_task = (count(app, chart, None, by=by) for by in ("next", "task"))
    for row in found.rows:
        entry = Entry.get(row.name, app)
        due = entry.next_due_at
        assert due is not None
        runs = [due, *entry.runs_between(due + timedelta(microseconds=1), chart.end)][:most]
        expected = Counter(map(chart.column_of, runs))
        assert row.counts == [expected[column] for column in range(chart.columns)], row.name
    assert (found.is_whole, found.row_count) == (True, 2)
    assert found.total.runs == sum(row.runs for row in by_task.rows) > 0


def test_past_columns_have_what_the_schedule_had(app: Celery) -> None:
    entry = Entry("one", "echo", timedelta(minutes=10), app=app).save()
    now = datetime.now(UTC)
    chart = chart_from(now - timedelta(hours=3), UTC, 2, 60)
    found = count(app, chart, chart.begin)
    due = entry.next_due_at
    assert due is not None
    dues = (due - number * timedelta(minutes=10) for number in range(100))
    expected = Counter(chart.column_of(run) for run in islice(dues, 100) if chart.begin <= run < chart.end)
    assert found.total.counts == [expected[column] for column in range(chart.columns)]
