"""What next_run costs, in lines of Python; the figures are printed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import crontab, schedule, solar
from dateutil.rrule import FR, MO, TU

from redbeat.policy import Policy
from redbeat.schedules import clocked, cron, next_run, rrule
from tests.support.stopwatch import lines_run
from tests.support.ticks import memory_app

#: in no other test: nothing is remembered of them
AFTER = datetime(2026, 6, 1, 12, 0, 30, 123_457, tzinfo=timezone.utc)
START = datetime(2020, 1, 6, 8, 0, 47, tzinfo=timezone.utc)
BERLIN = Policy(timezone="Europe/Berlin")

COMMON: dict[str, Any] = {
    "interval": schedule(60),
    "relative interval": schedule(3600, relative=True),
    "* * * * *": crontab(),
    "30 7 * * 1-5": crontab("30", "7", "1-5"),
    "0 0 29 2 *": crontab("0", "0", "*", "29", "2"),
    "0 9 LW * *": cron("0 9 LW * *"),
    "0 9 * * FRI#2": cron("0 9 * * FRI#2"),
    "rrule HOURLY": rrule("HOURLY", dtstart=START),
    "rrule DAILY": rrule("DAILY", dtstart=START, byhour=[7, 13], byminute=0),
    "rrule WEEKLY": rrule("WEEKLY", dtstart=START, byweekday=[MO, FR]),
    "rrule MONTHLY": rrule("MONTHLY", dtstart=START, byweekday=FR(-1)),
    "rrule YEARLY": rrule("YEARLY", dtstart=START),
    "clocked": clocked(AFTER + timedelta(days=1)),
    "sunrise": solar("sunrise", 52.5, 13.4, app=memory_app()),
}
NEVER: dict[str, Any] = {
    "0 0 30 2 *": cron("0 0 30 2 *"),
    "0 0 LW * SUN": cron("0 0 LW * SUN"),
    "0 0 1-6 * MON#2": cron("0 0 1-6 * MON#2"),
    **{
        f"rrule {freq} 30 February": rrule(freq, dtstart=START, bymonth=2, bymonthday=30)
        for freq in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
    },
    "rrule HOURLY interval 7": rrule("HOURLY", dtstart=START, interval=7, bymonth=2, bymonthday=30),
    "rrule DAILY another weekday": rrule("DAILY", dtstart=START, interval=7, byweekday=TU),
    "rrule WEEKLY bysetpos": rrule("WEEKLY", dtstart=START, byweekday=MO, bysetpos=2),
    "rrule YEARLY Easter in July": rrule("YEARLY", dtstart=START, byeaster=0, bymonth=7),
    "rrule DAILY Easter in July": rrule("DAILY", dtstart=START, byeaster=0, bymonth=7),
    "rrule, over": rrule("DAILY", dtstart=START, count=5),
}


def test_common_kinds_take_some_lines_and_impossible_ones_no_walk_through_the_centuries() -> None:
    costs = {}
    for name, one in {**COMMON, **NEVER}.items():
        costs[name] = lines_run(lambda one=one: next_run(one, BERLIN, AFTER))
        assert (next_run(one, BERLIN, AFTER) is None) == (one in NEVER.values()), name
        print(f"{name:30}{costs[name]:10}")
    assert max(costs[name] for name in COMMON) < 3_000
    assert max(costs[name] for name in NEVER) < 1_000_000
