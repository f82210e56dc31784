"""Spikes: many entries that fall due at one instant, known before it, so that beat may prepare their runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from redbeat import RedBeatScheduler

from .deadlines import patience
from .polling import eventually
from .schedule import calls_of, server_now, write_raw

#: `redbeat_lookahead` of a beat that is to prepare a spike, however busy the machine is; seconds
LOOKAHEAD = 60


@dataclass(frozen=True)
class Spike:
    """Entries by their names, and when all of them are due, UNIX seconds by the server's clock."""

    names: list[str]
    due: float


def write_spike(client: redis.Redis, due: float, count: int = 300, **fields: Any) -> list[str]:
    """Entries that are due at one time, and an hour later again. Returns their names."""
    names = [f"entry-{number:0{len(str(count))}}" for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            write_raw(pipeline, name, score=due, **fields)
        pipeline.execute()
    return names


def prepare(scheduler: RedBeatScheduler) -> int:
    """Let it prepare all that falls due soon; return how many runs these are."""
    look_ahead = scheduler.look_ahead
    while look_ahead.is_wanted(look_ahead.now):
        look_ahead.prepare()
    return len(look_ahead)


def write_prepared_spike(client: redis.Redis, seconds: float, count: int, **fields: Any) -> Spike:
    """Write a spike that is due in so many seconds, and wait until a running beat has read all of it.

    It is due later on a busy machine, so beat should look `LOOKAHEAD` ahead. Nothing else may be due
    meanwhile. Raises AssertionError where it reads them only when they are due.
    """
    before = calls_of(client, "hmget")
    due = round(server_now(client) + patience(seconds), 6)
    names = write_spike(client, due, count, **fields)
    wanted = before + count
    eventually(lambda: calls_of(client, "hmget") >= wanted or server_now(client) >= due, interval=0.005)
    assert server_now(client) < due, "it wasn't read ahead of its time"
    return Spike(names, due)


def seconds_after(client: redis.Redis, names: Sequence[str], due: float) -> list[float]:
    """How long after `due` the last runs of the entries left, by the server's clock; of those that ran."""
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.lindex(f"redbeat::history:{name}", 0)
        records: list[Any] = pipeline.execute()
    return [json.loads(record)["at"] - due for record in records if record]
