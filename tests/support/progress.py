"""Runs in progress as tests write and read them: sent as beat does, begun and ended as workers do."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
    leases: int = 0

    @property
    def runs(self) -> Runs:
        return Runs(Store(self.app))

    @property
    def now(self) -> float:
        return server_now(self.client)

    def history(self, name: str) -> list[dict[str, Any]]:
        return history_of(self.client, name)

    def running(self, name: str) -> dict[str, Any]:
        return running_of(self.client, name)

    def events(self, event: str = "") -> list[dict[str, Any]]:
        return events_of(self.client, event)

    def send(self, name: str, task_id: str, due: float = 1000.0, **limits: Any) -> None:
        """Record a run as sent, as beat does."""
        now = self.now
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
        given = {"token": f"delivery-{self.leases}", "worker": "celery@test", **others}
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

    def is_mine(self, delivery: Delivery) -> bool:
        """Whether a delivery holds the lease of its run, and no other run may have the entry."""
        record = self.runs.leased(delivery)
        return record is not None and not record.has_let_go

    def failing(self, *names: str) -> list[int]:
        """How many runs of each entry have failed in a row."""
        return self.runs.failing([NAMES.entry(name) for name in names])

    def deadline_of(self, name: str, task_id: str) -> float | None:
        """When beat must look at a run, UNIX seconds."""
        score: Any = self.client.zscore(NAMES.deadlines, f"{task_id}\0{NAMES.about(name).running}")
        return score

    def due_deadlines(self, at: float | str = "+inf") -> list[Deadline]:
        """The deadlines that have come at a time, by default all of them, as the server writes them."""
        script = "return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES')"
        found: Any = self.client.eval(script, 1, NAMES.deadlines, at)
        deadlines = []
        for member, score in zip(found[::2], found[1::2], strict=True):
            task_id, _, running = member.partition("\0")
            deadlines.append(Deadline(member, score, self.client.hget(running, task_id)))
        return deadlines

    def settle(self, at: float | None = None, only: str = "") -> list[Decision]:
        """Do what beat does about all deadlines, or those of one task id, as if it were later."""
        now = self.now if at is None else at
        found = [one for one in self.due_deadlines(at or "+inf") if only in ("", one.task_id)]
        decisions = [judge(one, now, LEASE_MS / 1000, watched_seconds=1e9) for one in found]
        self.runs.settle(Fence(), [decision.settlement(NAMES) for decision in decisions])
        return decisions
