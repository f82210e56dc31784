"""A schedule that computes for as long as a test likes."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule

from redbeat.schedules.occurrences import register_schedule

SPINNING = {"__type__": "spinning"}


class spinning(BaseSchedule):  # noqa: N801 - as Celery's are called
    """Computes for so many seconds whenever it is asked; None: for ever."""

    def __init__(self, seconds: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        until = float("inf") if self.seconds is None else time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return timedelta(hours=1)  # however slow the machine is, it is due once in a test


def fields_of(schedule: spinning) -> dict[str, Any]:
    return {"seconds": schedule.seconds}


def know_spinning() -> None:
    """Let entries with such a schedule be read, in this test."""
    register_schedule("spinning", spinning, fields_of, lambda fields: spinning(fields.get("seconds")))
