"""Every kind of entry that celery-redbeat 2.4.2 can write, for both packages to make with their own classes.

Imported by the tests, and by `legacy.py` in the environment of 2.4.2: nothing here is of one package alone.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule
from dateutil import tz
from dateutil.rrule import FR, MO, TU, weekday

from redbeat.schedules import rrule

#: long ago, so that whatever repeats is due by now, and the same for both
LAST_RUN_AT = datetime(2025, 3, 4, 5, 6, 7, 891, tzinfo=timezone.utc)
START = datetime(2025, 1, 1, 9, 30, tzinfo=timezone.utc)
END = datetime(2099, 12, 31, 23, 59, 58, tzinfo=timezone.utc)
PARIS = ZoneInfo("Europe/Paris")
INDIA = timezone(timedelta(hours=5, minutes=30))

RRULE_FIELDS = (
    *("freq", "interval", "wkst", "count", "bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster"),
    *("byweekno", "byweekday", "byhour", "byminute", "bysecond", "dtstart", "until"),
)
CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def schedules() -> dict[str, Any]:
    """Name to schedule: every type, with each form of each of its fields."""
    return {
        "interval-int": schedule(30),
        "interval-float": schedule(1.5),
        "interval-timedelta": schedule(timedelta(days=1, microseconds=250_000)),
        "interval-relative": schedule(60, relative=True),
        "crontab-default": crontab(),
        "crontab-ints": crontab(0, 4, 1, 15, 6),
        "crontab-strings": crontab("*/15", "0-6,18", "mon-fri", "1,15", "1,6"),
        "crontab-lists": crontab([0, 30], [7, 13], [1, 2, 3], [1, 15], [1, 6, 12]),
        "rrule-bare": rrule("HOURLY", dtstart=START),
        "rrule-count": rrule("DAILY", dtstart=START, interval=2, count=5_000),
        "rrule-until": rrule("WEEKLY", dtstart=START, until=END, wkst=MO, byweekday=[MO, FR]),
        "rrule-wkst-int": rrule("WEEKLY", dtstart=START, wkst=6, byweekday=2),
        "rrule-nth-weekday": rrule("MONTHLY", dtstart=START, byweekday=TU(+1)),
        "rrule-last-weekdays": rrule("MONTHLY", dtstart=START, byweekday=[MO(-1), TU(+2)]),
        "rrule-setpos": rrule("MONTHLY", dtstart=START, byweekday=[0, 1, 2, 3, 4], bysetpos=[1, -1]),
        "rrule-year": rrule("YEARLY", dtstart=START, bymonth=[1, 6], bymonthday=[1, -1], byhour=[8, 20]),
        "rrule-yearday": rrule("YEARLY", dtstart=START, byyearday=[1, 200]),
        "rrule-weekno": rrule("YEARLY", dtstart=START, byweekno=[10, 20], byweekday=0),
        "rrule-easter": rrule("YEARLY", dtstart=START, byeaster=[0, 1]),
        "rrule-times": rrule("DAILY", dtstart=START, byhour=9, byminute=[0, 30], bysecond=15),
        "rrule-offset": rrule("HOURLY", dtstart=START.astimezone(INDIA), until=END.astimezone(INDIA)),
    }


def entries() -> dict[str, dict[str, Any]]:
    """Name to the arguments of the entry's constructor."""
    due = {"last_run_at": LAST_RUN_AT}
    made = {name: {"task": "tasks.report", "schedule": one, **due} for name, one in schedules().items()}
    nested = {"numbers": [1, 2.5, None, True], "text": "späß\n\u2028", "empty": {}}
    moments = {
        "utc": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
        "zone": datetime(2030, 7, 2, 3, 4, 5, 6, tzinfo=PARIS),
        "dateutil": datetime(2030, 7, 2, 3, 4, 5, 6, tzinfo=tz.UTC),
        "offset": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=INDIA),
        "west": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=-3))),
        "naive": datetime(2030, 1, 2, 3, 4, 5, 6),
    }
    often = {"task": "tasks.report", "schedule": schedule(30), **due}
    options = {"expires": 86_400, "headers": {"tenant": "blue"}, "retry": False, "serializer": "json"}
    return {
        **made,
        "args": {**often, "args": ["weekly", 1, nested]},
        "kwargs": {**often, "kwargs": nested},
        "moments": {**often, "kwargs": moments},
        "moment-args": {**often, "args": [moments["zone"], [moments["offset"]]]},
        "options": {**often, "schedule": crontab(), "options": options},
        "counted": {**often, "total_run_count": 41},
        "disabled": {**often, "enabled": False},
        "näme: with spaces/and :colons": often,
    }


def describe(entry: Any) -> dict[str, Any]:
    """All that makes up an entry, in values that both packages, and JSON, compare alike."""
    given = {"args": list(entry.args or []), "kwargs": entry.kwargs or {}, "options": entry.options or {}}
    names = ("name", "task", "enabled", "last_run_at", "total_run_count")
    plain = _plain({**given, **{name: getattr(entry, name) for name in names}})
    return {**plain, "schedule": _describe_schedule(entry.schedule)}


def _describe_schedule(made: Any) -> dict[str, Any]:
    kind = type(made).__name__
    if kind == "rrule":
        return {"kind": kind, **{name: _plain(getattr(made, name)) for name in RRULE_FIELDS}}
    if kind == "crontab":
        sets = {name: sorted(getattr(made, name)) for name in CRONTAB_FIELDS}
        return {"kind": kind, **sets}
    return {"kind": kind, "every": made.run_every.total_seconds(), "relative": bool(made.relative)}


def _plain(value: Any) -> Any:
    """Instants as UTC, to the microsecond; days of the week as (number, nth); the rest as it is."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return f"{aware.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}"
    if isinstance(value, weekday):
        return [value.weekday, value.n]
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value
