"""A schedule that computes for ever."""

from __future__ import annotations

from datetime import datetime, timedelta

from celery.schedules import BaseSchedule

from redbeat.schedules.occurrences import register_schedule

SPINNING = {"__type__": "spinning"}


class spinning(BaseSchedule):  # noqa: N801 - as Celery's are called
    """Never returns when it is asked."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        while True:
            pass


def know_spinning() -> None:
    """Let entries with such a schedule be read, in this test."""
    register_schedule("spinning", spinning, lambda _schedule: {}, lambda _fields: spinning())
