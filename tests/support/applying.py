"""Files of entries that tests apply, and what stands in Redis then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from celery import Celery

from redbeat.manifest.format import Declared, read_file
from redbeat.manifest.plan import Plan, apply_plan, make_plan


def apply(app: Celery, text: str | Declared, owner: str = "billing", **options: Any) -> Plan:
    declared = read_file(text) if isinstance(text, str) else text
    plan = apply_plan(lambda: make_plan(app, declared, owner, **options))
    assert plan is not None
    return plan


def many(count: int, task: str = "echo") -> Declared:
    entry = {"task": task, "schedule": {"every": "1h"}, "kwargs": {"id": 1}}
    return Declared(entries={f"entry-{number}": entry for number in range(count)})


def state_of(client: redis.Redis) -> dict[str, Any]:
    """All there is; scores apart, as those of new entries are counted from now."""
    read: dict[str, Callable[[Any], Any]] = {
        "hash": lambda key: {**client.hgetall(key), "meta": "", "meta_crc32": ""},
        "zset": lambda key: sorted(client.zrange(key, 0, -1)),
        "set": lambda key: sorted(client.smembers(key)),
    }
    return {key: read[client.type(key)](key) for key in client.scan_iter()}
