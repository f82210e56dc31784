"""What a large schedule in a cluster costs one beat: options `url`, `broker`, `shards`, `way`, and its own.

Ways: `save` saves `count` entries by `save_many`. `tick` leads all shards, and ticks `rounds` times with
nothing due, then with one entry due in each shard, then with `due` entries due, spread over the shards: these
are claimed, sent, let be due again and sent once more.
`read` lists the first `page` entries, counts all, and asks who leads, `rounds` times.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from processor import processor_seconds, since
from subject import RoundTrips, lead, read_options, report, send_due

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.leadership.status import read_status
from redbeat.store.executor import run_all
from redbeat.store.schedule import fetch_due

TASK = "bench"
DAY = 86_400
#: by then it leads all shards
_PATIENCE_SECONDS = 60

options = read_options()
logging.basicConfig(level=logging.WARNING)
app = Celery("bench", set_as_current=False)
app.conf.update(broker_url=options.broker, redbeat_redis_url=options.url, result_expires=None)
app.conf.update({} if options.shards is None else {"redbeat_shards": options.shards})
app.task(name=TASK)(lambda number: None)


def save() -> dict[str, float]:
    entries = (
        Entry(f"customer-{number:09}", TASK, DAY, [f"{number:09}"], app=app)
        for number in range(options.count)
    )
    return worked(lambda: Entry.save_many(entries))


def worked(call: Callable[[], Any]) -> dict[str, float]:
    """What a call takes: on the clock, and of the processors, here and by all nodes."""
    pids = [os.getpid(), *options.server_pids]
    before, started = [processor_seconds(pid) for pid in pids], time.monotonic()
    call()
    seconds = time.monotonic() - started
    here, *nodes = (
        since(first, processor_seconds(pid)) or 0.0 for first, pid in zip(before, pids, strict=True)
    )
    return {"seconds": seconds, "here_seconds": here, "server_seconds": sum(nodes)}


def tick() -> dict[str, Any]:
    trips = RoundTrips()
    scheduler = lead(app)
    parts = list(scheduler.store.parts)
    locks = [keys.lock for keys in parts]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    client = app.redbeat_redis
    while not all(map(client.exists, locks)):
        assert time.monotonic() < deadline, "not all shards are led"
        scheduler.tick()
    for _ in range(20):
        scheduler.tick()
    idle: list[tuple[float, int]] = []
    idling = worked(lambda: idle.extend(timed(scheduler.tick, trips) for _ in range(options.rounds)))
    one_each = []
    for _ in range(5):
        let_be_due(client, parts, 1)
        one_each.append(timed(lambda: send_due(scheduler), trips))
    due = let_be_due(client, parts, options.due // len(parts))

    def fetch() -> None:
        led = scheduler._shards.led  # noqa: SLF001 - nothing public tells tokens
        run_all([fetch_due(shard.store, shard.leadership.fence, limit=options.due) for shard in led])

    fetches = [timed(fetch, trips) for _ in range(5)]
    burst = worked(lambda: send_due(scheduler))
    make_due(client, due)
    again = worked(lambda: send_due(scheduler))
    scheduler.close()
    found = {
        "burst": options.due // len(parts) * len(parts),
        "idle_here_seconds": idling["here_seconds"] / options.rounds,
        "idle_server_seconds": idling["server_seconds"] / options.rounds,
        **{f"burst_{name}": value for name, value in burst.items()},
        **{f"again_{name}": value for name, value in again.items()},
    }
    return found | medians("idle", idle) | medians("one_each", one_each) | medians("claim", fetches)


def medians(name: str, taken: list[tuple[float, int]]) -> dict[str, float]:
    seconds, trips = map(statistics.median, zip(*taken, strict=True))
    return {f"{name}_seconds": seconds, f"{name}_round_trips": trips}


def let_be_due(client: Any, parts: list[Any], count: int) -> dict[str, list[str]]:
    """Let the next entries of each part be due now; they aren't due again today. Return their keys."""
    due = {keys.schedule: client.zrange(keys.schedule, 0, count - 1) for keys in parts}
    make_due(client, due)
    return due


def make_due(client: Any, due: dict[str, list[str]]) -> None:
    since_a_second = time.time() - 1  # a score of 0 would ask for a run by hand, which is planned in full
    for key, members in due.items():
        client.zadd(key, dict.fromkeys(members, since_a_second), xx=True)


def timed(call: Callable[[], Any], trips: RoundTrips) -> tuple[float, int]:
    count, started = trips.count, time.perf_counter()
    call()
    return time.perf_counter() - started, trips.count - count


def read() -> dict[str, Any]:
    trips = RoundTrips()
    found: dict[str, Any] = {}
    for name, call in {
        "list": lambda: list(Entry.list(app, limit=options.page)),
        "count": lambda: Entry.count(app),
        "status": lambda: read_status(app),
    }.items():
        call()  # the first makes connections
        taken = [timed(call, trips) for _ in range(options.rounds)]
        found |= medians(name, taken)
    return {**found, "counted": Entry.count(app)}


report(**{"save": save, "tick": tick, "read": read}[options.way]())
