"""What an outage has dropped is counted once for all entries of one crontab."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab

from redbeat import dropped
from redbeat.dropped import dropped_until
from redbeat.policy import Policy

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
    monkeypatch.setattr(dropped, "_counted", {})
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
