"""Spikes: many entries that are due at one time, and known before it."""

from __future__ import annotations

from typing import Any

import redis

from redbeat import RedBeatScheduler

from .schedule import write_raw


def write_spike(client: redis.Redis, due: float, count: int = 300, **fields: Any) -> list[str]:
    """Write entries that are due at `due` and an hour later again; return their names."""
    names = [f"entry-{number:0{len(str(count))}}" for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            write_raw(pipeline, name, score=due, **fields)
        pipeline.execute()
    return names


def prepare(scheduler: RedBeatScheduler) -> int:
    """Prepare all that is due soon; return how many runs these are."""
    look_ahead = scheduler.look_ahead
    while look_ahead.is_wanted(look_ahead.now):
        look_ahead.prepare()
    return len(look_ahead)
