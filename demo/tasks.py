"""The demo's one task, and the record that it leaves of each run.

The worker pushes a record on a list in Redis, the demo pops it there and prints it. RedBeat tells a task
which entry it runs for, and when that run was due, in two message headers.
"""

import json
import time
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import redis
from celery import Task, shared_task

RUNS_KEY = "demo:runs"


class Run(NamedTuple):
    """One run of `say`: by which entry, with what words, when, and how long after its due time."""

    entry: str
    words: str
    started_at: float  # UNIX seconds
    late_ms: float | None  # None when the task was not sent by RedBeat


@cache
def connect(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url)


@shared_task(bind=True, name="demo.tasks.say", ignore_result=True)
def say(self: Task, words: str = "") -> None:
    """Record that this task ran."""
    now = time.time()
    headers: dict[str, Any] = self.request.headers or {}
    due = headers.get("redbeat_due")
    late_ms = (now - datetime.fromisoformat(due).timestamp()) * 1000 if due else None
    run = Run(headers.get("redbeat_entry", "(sent by hand)"), words, now, late_ms)
    connect(self.app.conf.broker_url).rpush(RUNS_KEY, json.dumps(run))
