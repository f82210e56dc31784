"""What may stand in Redis and celery-redbeat 2.4.2 can't run, or can: definitions, metas and members by name.

Each was tried with it. All are due since long ago.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

__all__ = ["DROPPED", "ENDING", "OTHERWISE", "READABLE", "Form", "form"]


class Form(NamedTuple):
    """One way in which an entry called ``name`` may stand in Redis; a definition of None: a string."""

    name: str
    definition: str | None
    meta: str | None
    member: str


def interval(**changes: Any) -> dict[str, Any]:
    return {"__type__": "interval", "every": 3600, "relative": False, **changes}


def crontab(**changes: Any) -> dict[str, Any]:
    fields = dict.fromkeys(("minute", "hour", "day_of_week", "day_of_month", "month_of_year"), "*")
    return {"__type__": "crontab", **fields, **changes}


def rrule(**changes: Any) -> dict[str, Any]:
    start = int(time.time()) - 86_400
    return {"__type__": "rrule", "freq": 4, "interval": 1, "dtstart": start, "dtstart_tz": 0, **changes}


def moment(**changes: Any) -> dict[str, Any]:
    parts = {"year": 2025, "month": 3, "day": 4, "hour": 5, "minute": 6, "second": 7, "microsecond": 0}
    return {"__type__": "datetime", **parts, "timezone": "UTC", **changes}


def without(given: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: value for field, value in given.items() if field not in fields}


DTSTART, WEEKDAYS = ("dtstart", "dtstart_tz"), [{"__type__": "weekday", "wkday": day} for day in range(7)]
META = {"last_run_at": moment(), "total_run_count": 3}


def form(
    called: str, schedule: Any = None, *, meta: Any = META, member: str = "", drop: str = "", **changes: Any
) -> Form:
    definition = {"name": called, "task": "echo", "args": [called], "kwargs": {}, "options": {}}
    definition |= {"enabled": True, "schedule": interval() if schedule is None else schedule, **changes}
    text = meta if meta is None or isinstance(meta, str) else json.dumps(meta)
    return Form(called, json.dumps(without(definition, drop)), text, member or f"redbeat:{called}")


#: it ends, with all other entries
ENDING = [
    form("cron", {"__type__": "cron", "expression": "0 9 L-1 * *"}),
    form("clocked", {"__type__": "clocked", "clocked_time": moment()}),
    form("solar", {"__type__": "solar", "event": "sunset", "lat": 52.5, "lon": 13.4}),
    form("registered", {"__type__": "mine", "x": 1}),
    form("disabled-cron", {"__type__": "cron", "expression": "0 9 L-1 * *"}, enabled=False),
    form("string", "*/5 * * * *"),
    form("crontab-null", crontab(hour=None)),
    form("crontab-extra", crontab(minutes="5")),
    form("crontab-last-day", crontab(day_of_month="L")),
    form("crontab-seven", crontab(day_of_week="7")),
    form("crontab-question", crontab(day_of_month="?")),
    form("crontab-float", crontab(minute=1.0)),
    form("rrule-extra", rrule(foo=1)),
    form("rrule-datetime", rrule(dtstart=moment())),
    form("rrule-names", rrule(byweekday=["MO"])),
    form("rrule-null-interval", rrule(interval=None)),
    form("weekday-extra", rrule(byweekday=[{"__type__": "weekday", "wkday": 1, "foo": 1}])),
    form("extra-key", foo=1),
    form("policy-in-definition", jitter=1),
    form("meta-extra", meta={**META, "foo": 1}),
    form("meta-moment-extra", meta={**META, "last_run_at": moment(foo=1)}),
    form("meta-bad", meta="{no json"),
    form("meta-list", meta="[]"),
    form("kwargs-crontab-null", kwargs={"when": crontab(hour=None)}),
    Form("bad-json", "{no json", json.dumps(META), "redbeat:bad-json"),
    Form("no-object", "[1]", json.dumps(META), "redbeat:no-object"),
    Form("no-hash", None, None, "redbeat:no-hash"),
]

#: it takes them out of the schedule, and they never run again
DROPPED = [
    form("no-relative", without(interval(), "relative")),
    form("meta-without-last-run", meta={"total_run_count": 5}),
    form("meta-empty", meta="{}"),
    form("bare-member", member="bare-member"),
    form("kwargs-no-relative", kwargs={"every": without(interval(), "relative")}),
    Form("no-definition", "", json.dumps(META), "redbeat:no-definition"),
]

#: it runs them at other times, or too often
OTHERWISE = [
    form("no-name", drop="name"),
    form("other-name", name="another"),
    form("nth-weekday", crontab(day_of_week="mon#1")),
    form("last-weekday", crontab(day_of_week="friL")),
    form("no-dtstart", without(rrule(freq=3, byhour=[0], byminute=[0], bysecond=[0]), *DTSTART)),
]

#: it runs them just as we do
READABLE = [
    form("interval"),
    form("17", name=17),
    form("interval-extra", interval(foo=1)),
    form("interval-null-relative", interval(relative=None)),
    form("crontab", crontab()),
    form("crontab-missing", without(crontab(), "hour", "month_of_year")),
    form("crontab-list", crontab(minute=list(range(60)), day_of_week=list(range(7)))),
    form("rrule", rrule()),
    form("rrule-names-its-freq", rrule(freq="HOURLY")),
    form("rrule-nulls", rrule(until=None, wkst=None, byhour=None, dtstart_tz=None)),
    form("rrule-weekdays", rrule(byweekday=[{**weekday, "n": None} for weekday in WEEKDAYS])),
    form("rrule-bare-weekdays", rrule(byweekday=WEEKDAYS)),
    form("no-args", drop="args"),
    form("no-kwargs", drop="kwargs"),
    form("no-options", drop="options"),
    form("no-enabled", drop="enabled"),
    form("no-meta", meta=None),
    form("meta-never", meta={"last_run_at": None, "total_run_count": 0}),
    form("meta-without-count", meta={"last_run_at": None}),
    form("meta-short-moment", meta={**META, "last_run_at": without(moment(), "hour", "second")}),
    form("meta-zone", meta={"last_run_at": moment(timezone="Europe/Berlin"), "total_run_count": 1}),
    form("meta-offset", meta={"last_run_at": moment(timezone=3600.0), "total_run_count": 1}),
    form("kwargs-cron", kwargs={"x": {"__type__": "cron", "expression": "0 9 L * *"}}),
    form("kwargs-moment", kwargs={"x": moment(timezone="Europe/Berlin")}),
]
