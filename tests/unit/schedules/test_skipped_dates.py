"""A date that a country skipped: Samoa went from Thursday the 29th of December 2011 to Saturday the 31st."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from redbeat.schedules import cron
from redbeat.schedules.crontab import next_of_crontab

UTC = timezone.utc
SAMOA = ZoneInfo("Pacific/Apia")
CHANGE = datetime(2011, 12, 30, 10, tzinfo=UTC)

LOOKS = [
    timedelta(minutes=30), timedelta(hours=12), timedelta(hours=36), timedelta(hours=47), timedelta(days=3),
]  # fmt: skip


@pytest.mark.parametrize("before", LOOKS, ids=str)
@pytest.mark.parametrize(
    ("expression", "after_change"),
    [
        ("*/7 * * * sat,sun", timedelta(0)), ("5-59/7 * * * sat,sun", timedelta(minutes=5)),
        ("30 * 31 * *", timedelta(minutes=30)), ("*/7 * * * fri", timedelta(days=6)),
        ("15 * 30 * *", timedelta(days=30, minutes=15)),
    ],
)  # fmt: skip
def test_the_next_run_after_the_date_is_the_same_from_however_early(
    expression: str, after_change: timedelta, before: timedelta
) -> None:
    assert next_of_crontab(cron(expression), CHANGE - before, SAMOA) == CHANGE + after_change
