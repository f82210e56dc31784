"""The scripts that look at a schedule and write nothing: the only place that knows their KEYS and replies."""

from __future__ import annotations

from typing import Any

from redbeat.store.records import Head, Vitals, text_of
from redbeat.store.scripts.script import Script

_READ_HEAD = Script("read_head")
_READ_STATUS = Script("read_status")


def read_head(client: Any, schedule_key: str, deadlines_key: str) -> Head:
    """Read the server's clock, when the first entry is due, and the first deadline; nothing is written."""
    now, score, deadline = _READ_HEAD(client, [schedule_key, deadlines_key], [])
    return Head(float(now), float(score) if score else None, float(deadline) if deadline else None)


def read_status(client: Any, schedule_key: str, lock_key: str | None, tick_key: str) -> Vitals:
    """Read who leads and how much is due; nothing is written."""
    keys = [schedule_key, lock_key or schedule_key, tick_key]
    now, token, rest_ms, tick, due, oldest = _READ_STATUS(client, keys, [])
    since = float(oldest) if oldest else None
    return Vitals(float(now), text_of(token), int(rest_ms), text_of(tick), int(due), since)
