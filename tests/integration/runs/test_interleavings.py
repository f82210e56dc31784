"""Runs sent, delivered twice, begun late, retried, ended and given up in any order: always consistent."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
import redis

from redbeat.store.run_record import State
from redbeat.store.runs import Delivery
from tests.support.progress import LEASE_MS, NAMES, Progress, events_of, history_of
from tests.support.schedule import server_now

ENTRIES = ["a", "b"]
FINAL = ["succeeded", "failed", "ignored", "rejected", "revoked"]
LATER = 1e6  # seconds: all deadlines have come


@dataclass
class Chaos:
    """What beat and workers do, one thing after the other; entries have the overlap policy skip."""

    progress: Progress
    client: redis.Redis
    chance: random.Random
    sent: list[tuple[str, str, float]] = field(default_factory=list)
    at_work: list[Delivery] = field(default_factory=list)

    def send(self) -> None:
        name = self.chance.choice(ENTRIES)
        [records] = self.progress.runs.read([f"redbeat:{name}"])
        if not any(record.is_holding for record in records):  # as commit_runs decides
            run = (name, f"id-{len(self.sent)}", 1000.0 + len(self.sent))
            self.progress.send(*run, overlap="skip", queue=60)
            self.sent.append(run)

    def begin(self) -> None:
        if not self.sent:
            return
        name, task_id, due = self.chance.choice(self.sent[-6:])
        delivery = self.progress.delivery(name, task_id, due, overlap="skip")
        if self.progress.begin(delivery) == "go":
            self.at_work.append(delivery)

    def begin_once_more(self) -> None:
        if self.at_work:  # the reply got lost
            delivery = self.chance.choice(self.at_work)
            if self.progress.runs.is_mine(delivery):
                assert self.progress.begin(delivery) == "go"

    def end(self) -> None:
        if self.at_work:
            delivery = self.at_work.pop(self.chance.randrange(len(self.at_work)))
            outcome = self.chance.choice(FINAL)
            for _ in range(self.chance.choice([1, 1, 2])):
                self.progress.end(delivery, outcome)

    def retry(self) -> None:
        if self.at_work:
            delivery = self.at_work.pop(self.chance.randrange(len(self.at_work)))
            self.progress.end(delivery, self.chance.choice(["retrying", "requeued"]), retry_seconds=1)

    def renew(self) -> None:
        held = [(delivery, 1.0) for delivery in self.at_work]
        assert self.progress.runs.renew(held, LEASE_MS, "celery@test") == {}

    def give_up(self) -> None:
        self.progress.settle(at=server_now(self.client) + LATER)

    def check(self) -> None:
        """At most one delivery of an entry may think that the lease is its own."""
        holders = Counter(one.name for one in self.at_work if self.progress.runs.is_mine(one))
        assert not holders or max(holders.values()) == 1
        for records in self.progress.runs.read([f"redbeat:{name}" for name in ENTRIES]):
            assert sum(record.state is State.STARTED for record in records) <= 1


@pytest.mark.parametrize("turn", range(4))
def test_runs_in_any_order_end_once_and_leave_nothing(
    progress: Progress, client: redis.Redis, chance: random.Random, turn: int
) -> None:
    chaos = Chaos(progress, client, chance)
    deeds = [
        chaos.send,
        chaos.begin,
        chaos.begin_once_more,
        chaos.end,
        chaos.retry,
        chaos.renew,
        chaos.give_up,
    ]
    for _ in range(150):
        chance.choices(deeds, [4, 5, 1, 3, 2, 1, 1])[0]()
        chaos.check()
    for delivery in chaos.at_work:
        progress.end(delivery, "succeeded")
    chaos.give_up()
    records = [record for name in ENTRIES for record in history_of(client, name)]
    assert chaos.sent
    assert len(records) == len(chaos.sent)
    assert all("outcome" in record for record in records)
    told = Counter(event["task_id"] for event in events_of(client, "run_ended"))
    assert set(told.values()) == {1}
    assert told.keys() == {task_id for _, task_id, _ in chaos.sent}
    assert not client.exists(NAMES.deadlines, *(NAMES.about(name).running for name in ENTRIES))
