"""Definitions and metas that nobody can run, as people and programs have written them."""

from __future__ import annotations

import json
from typing import Any

_EVERY_HOUR = {"__type__": "interval", "every": 3600}
_DATETIME = {"__type__": "datetime", "year": 2024, "month": 1, "day": 1}


def _definition(**fields: Any) -> str:
    return json.dumps({"name": "entry", "task": "echo", "schedule": _EVERY_HOUR, **fields})


def _interval(every: str) -> str:
    return f'{{"task": "echo", "schedule": {{"__type__": "interval", "every": {every}}}}}'


def _crontab(**fields: Any) -> str:
    return _definition(schedule={"__type__": "crontab", **fields})


def _rrule(**fields: Any) -> str:
    return _definition(schedule={"__type__": "rrule", "freq": 4, **fields})


#: name to the definition's text
BAD_DEFINITIONS: dict[str, str] = {
    "empty": "",
    "brace": "{oops",
    "text": '"echo"',
    "no-schedule": '{"task": "echo"}',
    "no-task": json.dumps({"schedule": _EVERY_HOUR}),
    "task-null": _definition(task=None),
    "schedule-untyped": _definition(schedule={"every": 60}),
    "type-unknown": _definition(schedule={"__type__": "lunar", "every": 60}),
    "minute-99": _crontab(minute="99"),
    "minute-float": _crontab(minute=1.5),
    "day-name": _crontab(day_of_week="someday"),
    "every-0": _interval("0"),
    "every-nan": _interval("NaN"),
    "every-1e300": _interval("1e300"),
    "every-null": _interval("null"),
    "args-object": _definition(args={"a": 1}),
    "kwargs-list": _definition(kwargs=[1]),
    "options-text": _definition(options="queue=fast"),
    "headers-list": _definition(options={"headers": [1]}),
    "enabled-text": _definition(enabled="maybe"),
    "nested-lists": "[" * 100_000,
    "nested-args": _definition(args=["@"]).replace('"@"', "[" * 100_000 + "]" * 100_000),
    "surrogate-task": _definition(task="\ud800"),
    "rrule-freq": _rrule(freq=99),
    "rrule-weekday": _rrule(byweekday=["nonsense"]),
    "weekday-missing": _rrule(byweekday=[{"__type__": "weekday"}]),
    "year-99999": _definition(args=[{**_DATETIME, "year": 99999}]),
    "zone-mars": _definition(kwargs={"at": {**_DATETIME, "timezone": "Mars/Base"}}),
}

#: valid rules that need more steps than a search or a count may take
HOSTILE_RULES: dict[str, dict[str, Any]] = {
    name: {"__type__": "rrule", "dtstart": 0, **fields}
    for name, fields in {
        "sparse": {"freq": 5, "interval": 5003, "bymonth": 12, "byyearday": [254, 249, -55], "bysecond": 24},
        "counted": {"freq": 6, "interval": 13, "byhour": [6, 8], "byweekday": [0, 2, 4], "count": 10**9},
        "positions": {"freq": 2, "byeaster": [-80, 200], "byweekno": [-36], "bysetpos": -300},
        "easter": {"freq": 2, "interval": 5, "byyearday": [-152, 182], "byeaster": [-3, 20]},
    }.items()
}

#: name to the meta's text, beside a definition that is good
BAD_METAS: dict[str, str] = {
    "meta-brace": "{oops",
    "meta-nested": "[" * 100_000,
    "last-run-text": '{"last_run_at": "2024-01-01"}',
    "last-run-mars": json.dumps({"last_run_at": {**_DATETIME, "timezone": "Mars/Base"}}),
    "count-text": '{"total_run_count": "many"}',
}
