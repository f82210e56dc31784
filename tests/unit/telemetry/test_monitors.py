"""Which monitor Sentry can have of an entry, and why it can't have one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.schedules import clocked, cron, rrule
from redbeat.telemetry.sentry.monitors import Monitor, Monitors, headers_of_check_in, monitor_of, set_monitors


def monitor(kind: Any, defaults: Policy = NO_POLICY, **policy: Any) -> Monitor | str:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.timezone = "Asia/Tokyo"
    app.conf.redbeat_redis_url = "redis://nowhere"
    entry = Entry("report", "echo", kind, app=app, **policy)
    return monitor_of(entry.schedule, entry.policy, defaults)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("30 7 * * mon-fri", "30 7 * * 1-5"),
        ("*/5 * * * *", "*/5 * * * *"),
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("0 22-2 * * *", "0 0-2,22,23 * * *"),
        ("@monthly", "0 0 1 * *"),
        ("0 0 * jan,jul 7", "0 0 * 1,7 0"),
        (crontab("0,30", "8-18/2"), "0,30 8,10,12,14,16,18 * * *"),
        (crontab("0", "0", day_of_month="1-31"), "0 0 * * *"),
    ],
)
def test_a_cron_is_written_as_sentry_reads_it(kind: Any, value: str) -> None:
    expected = {"schedule": {"type": "crontab", "value": value}, "timezone": "Asia/Tokyo"}
    assert monitor(kind) == expected


@pytest.mark.parametrize(
    ("seconds", "value", "unit"),
    [(60, 1, "minute"), (5400, 90, "minute"), (7200, 2, "hour"), (604800, 7, "day")],
)
def test_an_interval_is_counted_in_its_longest_unit(seconds: int, value: int, unit: str) -> None:
    found = monitor(schedule(seconds))
    assert isinstance(found, dict)
    assert found["schedule"] == {"type": "interval", "value": value, "unit": unit}


def test_the_entrys_own_zone_counts_before_the_apps() -> None:
    found = monitor("0 9 * * *", timezone="America/New_York")
    assert isinstance(found, dict)
    assert found["timezone"] == "America/New_York"


class OfficeHours(schedule):  # type: ignore[misc]
    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


@pytest.mark.parametrize(
    ("kind", "policy", "reason"),
    [
        ("0 9 L * *", {}, "Sentry knows no L, W and # in crons"),
        ("0 9 15W * *", {}, "Sentry knows no L, W and # in crons"),
        ("0 9 * * fri#2", {}, "Sentry knows no L, W and # in crons"),
        ("0 9 1-7 * mon", {}, "in Sentry one of them is enough"),
        (schedule(90), {}, "whole minutes only, and this one has 90 s"),
        (schedule(0.5), {}, "whole minutes only, and this one has 0.5 s"),
        (rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=timezone.utc)), {}, "no schedules such as rrule"),
        (solar("sunset", 52, 13), {}, "no schedules such as solar"),
        (clocked(datetime(2030, 1, 1, tzinfo=timezone.utc)), {}, "no schedules such as clocked"),
        (OfficeHours(timedelta(minutes=5)), {}, "no schedules such as OfficeHours"),
        (60, {"exclude": "holidays"}, "no calendars (exclude)"),
        (60, {"one_off": True}, "it ends, and Sentry would go on expecting runs (one_off)"),
        (60, {"max_runs": 3}, "(max_runs)"),
        (60, {"end_time": "2030-01-01"}, "(end_time)"),
    ],
)
def test_what_sentry_cant_say_has_no_monitor_but_a_reason(
    kind: Any, policy: dict[str, Any], reason: str
) -> None:
    found = monitor(kind, **policy)
    assert isinstance(found, str)
    assert found.endswith(reason)


@pytest.mark.parametrize(
    ("policy", "margin"),
    [
        ({}, None),
        ({"misfire_grace_time": 600}, 10),
        ({"misfire_grace_time": 601, "jitter": 60}, 12),
        ({"misfire_grace_time": 5}, 1),
        ({"misfire": "skip"}, 1),
        ({"jitter": 90}, 3),
        ({"expires_after": 300}, 5),
        ({"misfire_grace_time": 10**9}, 40_320),
    ],
)
def test_a_run_may_be_as_late_as_beat_would_still_send_it(policy: dict[str, Any], margin: int | None) -> None:
    found = monitor(crontab("0"), **policy)
    assert isinstance(found, dict)
    assert found.get("checkin_margin") == margin


def test_the_apps_own_grace_counts_where_the_entry_has_none() -> None:
    found = monitor(60, Policy(misfire_grace_time=120))
    assert isinstance(found, dict)
    assert found["checkin_margin"] == 2


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(30, 1), (3600, 60), (3601, 61), (14 * 86_400, 20_160), (10**9, 40_320)]
)
def test_how_long_a_run_may_take_is_rounded_up_to_minutes(seconds: float, minutes: int) -> None:
    found = monitor(60, max_runtime=seconds)
    assert isinstance(found, dict)
    assert found["max_runtime"] == minutes


def test_only_messages_of_entries_with_a_monitor_say_so() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.redbeat_redis_url = "redis://nowhere"
    every, excluded = schedule(60), ("private-.*",)
    assert headers_of_check_in(app, "report", every, NO_POLICY) == {}
    set_monitors(app, Monitors.excluding(app, excluded))
    [(name, found)] = headers_of_check_in(app, "report", every, NO_POLICY).items()
    assert name == "redbeat_check_in"
    assert found["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert headers_of_check_in(app, "private-report", every, NO_POLICY) == {}
    assert headers_of_check_in(app, "private", every, NO_POLICY) != {}
    assert headers_of_check_in(app, "report", cron("0 9 L * *"), NO_POLICY) == {}
    set_monitors(app, None)
    assert headers_of_check_in(app, "report", every, NO_POLICY) == {}
