"""After many runs with every kind of end, what is left of them is their histories, and what is capped."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime

import redis

import redbeat
from redbeat.store.runs import Delivery, End
from tests.conftest import MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.progress import LEASE_MS, NAMES, Progress
from tests.support.schedule import SCHEDULE, messages, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader

ENTRIES = 500
ROUNDS = 200 if IS_LONG else 4
FINAL = ["succeeded", "failed", "revoked", "expired", "rejected", "ignored"]
INTERVAL = {"__type__": "interval", "every": 60}
#: keys that are there once, whatever the number of runs
SINGLE = {f":{name}" for name in ("schedule", "lock", "tick", "released", "failures", "events")}


def deliver(progress: Progress, broker: redis.Redis, chance: random.Random) -> int:
    """Let workers take all messages: most runs end, some are begun and never heard of again, or not begun."""
    sent = messages(broker)
    broker.delete("celery")
    ends = []
    for message in sent:
        headers = message["headers"]
        due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
        token = headers["id"][:8]
        delivery = Delivery(headers["redbeat_entry"], headers["id"], f"{due:.6f}", token, "celery@test")
        way = chance.random()
        if way > 0.02:
            progress.runs.begin(delivery, LEASE_MS)
        if way > 0.04:
            ends.append(End(delivery, chance.choice(FINAL), "ValueError: no", 0.5))
    progress.runs.end(ends)
    return len(sent)


def test_runs_leave_histories_and_nothing_else(
    make_app: MakeApp, client: redis.Redis, server: Server, chance: random.Random
) -> None:
    app = make_app()
    redbeat.track_runs(app)
    progress = Progress(app, client)
    names = [f"entry-{number}" for number in range(ENTRIES)]
    total = 0
    with leader(app) as scheduler, server.client(db=0) as broker:
        for name in names:
            write_raw(client, name, schedule=INTERVAL)
        for _ in range(ROUNDS):
            now = server_now(client)
            client.zadd(SCHEDULE, {f"redbeat:{name}": f"{now - 1:.6f}" for name in names})
            while scheduler.tick() == 0:
                pass
            total += deliver(progress, broker, chance)
            scheduler.tick()
            progress.settle(at=server_now(client) + 1e6)
    assert total == ENTRIES * ROUNDS
    kinds = Counter(kind_of(key) for key in client.scan_iter("*", count=1000))
    print(f"{total} runs; keys: {dict(kinds)}")
    assert kinds.pop("history") == ENTRIES
    assert kinds.pop("entry") == ENTRIES
    assert kinds.pop("failing", 0) <= ENTRIES
    assert set(kinds) <= {
        ":schedule",
        ":lock",
        ":tick",
        ":failures",
        ":events",
        ":statics",
        ":released",
        *(":figures", ":expected", ":streaks"),
    }
    assert max(client.zcard(NAMES.expected), client.zcard(NAMES.streaks)) <= ENTRIES
    assert client.hlen(NAMES.figures) < 10_000, "there are labels for 200 entries"
    assert max(client.llen(NAMES.about(name).history) for name in names) <= 20
    assert client.xlen(NAMES.events) <= 11_000
    assert client.xlen(NAMES.failures) <= 11_000


def kind_of(key: str) -> str:
    name = key.removeprefix("redbeat:")
    if name.startswith((":history:", ":failing:")):
        return name.split(":")[1]
    return name if name.startswith(":") else "entry"
