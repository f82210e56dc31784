"""Runs in progress as tests write and read them: sent as beat does, begun and ended as workers do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery

from redbeat.keys import Keys
from redbeat.runs.deadlines import Deadline, Decision, judge
from redbeat.store.records import Fence
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.support.schedule import server_now

NAMES = Keys()
LEASE_MS = 30_000


def running_of(client: redis.Redis, name: str) -> dict[str, Any]:
    """The records of an entry's runs in progress, by task id; '': the one that waits."""
    found: Any = client.hgetall(NAMES.about(name).running)
    return {task_id: json.loads(text) for task_id, text in found.items()}


def history_of(client: redis.Redis, name: str) -> list[dict[str, Any]]:
    """The records of an entry's history, the newest first."""
    found: Any = client.lrange(NAMES.about(name).history, 0, -1)
    return [json.loads(text) for text in found]


def events_of(client: redis.Redis, event: str = "") -> list[dict[str, Any]]:
    """What was told of runs, the oldest first."""
    found: Any = client.xrange(NAMES.events)
    told = [{**values, **json.loads(values["run"])} for _, values in found]
    return [one for one in told if event in ("", one["event"])]


@dataclass
class Progress:
    """One app's runs, with a lease of 30 seconds."""

    app: Celery
    client: redis.Redis
    leases: int = field(default=0)

    @property
    def runs(self) -> Runs:
        return Runs(Store(self.app))

    def send(self, name: str, task_id: str, due: float = 1000.0, **limits: Any) -> None:
        """Record a run as sent, as beat does."""
        now = server_now(self.client)
        record = {"due": f"{due:.6f}", "state": "sent", "sent": f"{now:.6f}", **limits}
        running = NAMES.about(name).running
        self.client.hset(running, task_id, json.dumps(record))
        self.client.zadd(NAMES.deadlines, {f"{task_id}\0{running}": now + limits.get("queue", 86400) + 1})
        self.client.lpush(NAMES.about(name).history, f'{{"at":{now:.6f},"due":{due:.6f},"id":"{task_id}"}}')

    def wait(self, name: str, due: float = 2000.0) -> None:
        """Let a run of an entry wait for the one before it."""
        self.client.hset(NAMES.about(name).running, "", json.dumps({"due": f"{due:.6f}"}))

    def delivery(self, name: str, task_id: str, due: float = 1000.0, **others: Any) -> Delivery:
        """A delivery to a worker, with a token of its own."""
        self.leases += 1
        given: Mapping[str, Any] = {"token": f"delivery-{self.leases}", "worker": "celery@test", **others}
        return Delivery(name, task_id, f"{due:.6f}", **given)

    def begin(self, delivery: Delivery, *, is_expired: bool = False) -> str:
        return self.runs.begin(delivery, LEASE_MS, is_expired=is_expired).answer.value

    def started(self, name: str, task_id: str, due: float = 1000.0, **limits: Any) -> Delivery:
        """Send a run and begin it."""
        self.send(name, task_id, due, **limits)
        delivery = self.delivery(name, task_id, due)
        assert self.begin(delivery) == "go"
        return delivery

    def end(self, delivery: Delivery, outcome: str, **others: Any) -> None:
        self.runs.end([End(delivery, outcome, **others)])

    def failing(self, *names: str) -> list[int]:
        """How many runs of each entry have failed in a row."""
        return self.runs.failing([NAMES.entry(name) for name in names])

    def deadline_of(self, name: str, task_id: str) -> float | None:
        """When beat must look at a run, UNIX seconds."""
        score: Any = self.client.zscore(NAMES.deadlines, f"{task_id}\0{NAMES.about(name).running}")
        return score

    def due_deadlines(self, at: float | None = None) -> list[Deadline]:
        """The deadlines that have come at a time; None: all of them."""
        latest = "+inf" if at is None else at
        found: Any = self.client.zrangebyscore(NAMES.deadlines, "-inf", latest)
        deadlines = []
        for member in found:
            task_id, _, running = member.partition("\0")
            text: Any = self.client.hget(running, task_id)
            score: Any = self.client.eval(  # as the server writes it
                "return redis.call('ZSCORE', KEYS[1], ARGV[1])", 1, NAMES.deadlines, member
            )
            deadlines.append(Deadline(member, str(score), text))
        return deadlines

    def settle(
        self, *, at: float | None = None, watched: float = 1e9, only: str | None = None
    ) -> list[Decision]:
        """Do what beat does about all deadlines, or those of one task id, as if it were later."""
        now = server_now(self.client) if at is None else at
        meant = [one for one in self.due_deadlines(at) if only in (None, one.member.partition("\0")[0])]
        decisions = [judge(one, now, LEASE_MS / 1000, watched) for one in meant]
        self.runs.settle(Fence(), [decision.settlement(NAMES) for decision in decisions])
        return decisions
