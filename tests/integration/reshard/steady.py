"""Entries that run steadily, a few seconds apart, and make up for all that they miss: whatever is done to
their schedule meanwhile, each of their runs is to be sent once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

import redis


@dataclass(frozen=True)
class Steady:
    """So many entries, each of which runs every so many seconds; their due times are spread over these."""

    entries: int
    every: float

    def write(self, client: redis.Redis, beginning: float) -> None:
        """Write them by hand to a schedule without shards; the first is due at `beginning`, UNIX seconds."""
        with client.pipeline(transaction=False) as pipeline:
            for number in range(self.entries):
                key = f"redbeat:entry-{number}"
                due = beginning + self.every * number / self.entries + 0.000123
                schedule = {"__type__": "interval", "every": self.every}
                definition = {"name": f"entry-{number}", "task": "echo", "schedule": schedule}
                meta = {"last_run_at": _stored(due - self.every), "total_run_count": 0}
                pipeline.hset(key, "definition", json.dumps(definition))
                pipeline.hset(key, "meta", json.dumps(meta))
                pipeline.hset(key, "policy", json.dumps({"misfire": "all"}))
                pipeline.zadd("redbeat::schedule", {key: f"{due:.6f}"})
            pipeline.execute()

    def dues(self, broker: redis.Redis) -> dict[str, list[float]]:
        """When the runs of each entry were due whose messages are on the queue."""
        dues: dict[str, list[float]] = {}
        for message in broker.lrange("celery", 0, -1):
            headers = json.loads(message)["headers"]
            due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
            dues.setdefault(headers["redbeat_entry"], []).append(due)
        return dues

    def faults(self, dues_by_name: Mapping[str, Sequence[float]]) -> list[str]:
        """What is wrong: runs that were sent twice, and those that are missing between others.

        Arguments:
            dues_by_name: when the runs of each entry were due that were sent.
        """
        found: list[str] = []
        for name, dues in dues_by_name.items():
            found += [f"{name}: twice: {due}" for due, count in Counter(dues).items() if count > 1]
            for earlier, later in pairwise(sorted(set(dues))):
                if round((later - earlier) / self.every, 3) != 1.0:
                    found.append(f"{name}: nothing between {earlier} and {later}")
        return found


def _stored(at: float) -> dict[str, object]:
    moment = datetime.fromtimestamp(at, timezone.utc)
    fields = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    return {"__type__": "datetime", **{name: getattr(moment, name) for name in fields}, "timezone": "UTC"}
