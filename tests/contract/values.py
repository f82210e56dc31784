"""Entries with values that programs give to celery-redbeat 2.x, for both packages to save and to send.

python values.py URL, run by the environment of 2.4.2, prints {case: outcome}; the tests call ``outcomes``.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import redis
from celery import Celery
from celery.schedules import schedstate, schedule
from kombu import Exchange, Queue

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=timezone.utc)


class Own(schedule):
    """A subclass that overrides something: 2.x stores it as its interval."""

    def is_due(self, last_run_at: datetime) -> schedstate:
        return super().is_due(last_run_at)


def cases() -> dict[str, dict[str, Any]]:
    """Name to what differs from a usual entry."""
    return {
        **{f"name {name!r}": {"name": name} for name in (5, 1.5, UUID(int=5), "text")},
        **{f"enabled {value!r}": {"enabled": value} for value in (True, False, 0, 1, 2, "true", "", None)},
        **{f"args {value!r}": {"args": value} for value in ([], (), None, {}, "", [1, "a"], (1, 2))},
        **{f"kwargs {value!r}": {"kwargs": value} for value in ({}, None, [], "", 0, {"a": 1})},
        **{f"options {value!r}": {"options": value} for value in ({}, None, [], "", 0)},
        **{f"argument {value!r}": {"args": [value]} for value in ARGUMENTS},
        **{f"option {name} {value!r}": {"options": {name: value}} for name, value in OPTIONS},
        **{f"last_run_at {value!r}": {"last_run_at": value} for value in (None, 0, NOON)},
        **{f"total_run_count {value!r}": {"total_run_count": value} for value in (None, 3, "3")},
        "schedule of its own": {"schedule": Own(45)},
    }


ARGUMENTS = (
    *(float("nan"), float("inf"), float("-inf"), 2**70, None, True, "é\u2028", NOON),
    *([1, [2]], {"a": {"b": None}}, {"__type__": "own", "x": 1}),
    *(UUID(int=7), Decimal("1.50"), date(2026, 1, 2), time(3, 4), b"raw", b"\xff"),
    *(timedelta(minutes=5), {2, 1}, frozenset({"a"})),
)
OPTIONS = (
    *(("expires", value) for value in (60, 1.5, NOON.replace(year=2099), "2099-01-01T00:00:00", "60")),
    *(("expires", timedelta(minutes=1)), ("countdown", 5), ("countdown", "5"), ("countdown", timedelta(5))),
    *(("eta", "2099-01-01T00:00:00+00:00"), ("eta", "soon"), ("queue", "other"), ("queue", Queue("other"))),
    *(("exchange", Exchange("other")), ("priority", 3), ("headers", {"a": 1}), ("time_limit", 30)),
)


def outcome_of(app: Celery, fields: dict[str, Any], broker: redis.Redis) -> dict[str, Any]:
    usual = {"name": "entry", "task": "echo", "schedule": schedule(60)}
    try:
        entry = RedBeatSchedulerEntry(app=app, **{**usual, **fields}).save()
    except Exception as exc:  # noqa: BLE001 - that it is refused, and how, is the answer
        return {"refused": type(exc).__name__}
    broker.delete("celery", "other")
    loaded = RedBeatSchedulerEntry.from_key(entry.key, app=app)
    found = {
        "key": entry.key,
        "enabled": bool(loaded.enabled),
        "every": loaded.schedule.run_every.total_seconds(),
    }
    scheduler = RedBeatScheduler(app, lazy=True)
    try:
        scheduler.apply_async(loaded, advance=False)
    except Exception as exc:  # noqa: BLE001 - likewise
        return {**found, "not sent": type(exc).__name__}
    sent: list[Any] = broker.lrange("celery", 0, -1) + broker.lrange("other", 0, -1)
    if not sent:  # an exchange that no queue is bound to
        return found
    args, kwargs, _ = json.loads(base64.b64decode(json.loads(sent[0])["body"]))
    headers = json.loads(sent[0])["headers"]
    return {**found, "args": args, "kwargs": kwargs, "expires": bool(headers["expires"])}


def outcomes(url: str) -> dict[str, Any]:
    app = Celery("values", broker=url, set_as_current=True)
    app.conf.redbeat_redis_url = url
    app.task(name="echo")(print)
    with redis.Redis.from_url(url) as broker:
        return {name: outcome_of(app, fields, broker) for name, fields in cases().items()}


if __name__ == "__main__":
    print(json.dumps(outcomes(sys.argv[1])))
