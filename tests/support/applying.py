"""Files of entries that tests apply, and what stands in Redis then."""

from __future__ import annotations

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
    found: dict[str, Any] = {}
    for key in client.scan_iter():
        kind = client.type(key)
        found[key] = (
            client.hgetall(key)
            if kind == "hash"
            else sorted(client.zrange(key, 0, -1))
            if (kind == "zset")
            else sorted(client.smembers(key))
        )
    unlike = {"meta": "", "meta_sha1": ""}
    return {key: {**value, **unlike} if isinstance(value, dict) else value for key, value in found.items()}
