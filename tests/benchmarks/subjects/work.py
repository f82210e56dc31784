"""A worker that takes many messages: options `way`, `count`, `db`, `limit_seconds`, `server_pid`.

`way` is `tracked`: runs of entries by a worker that tracks them; `untracked`: the same messages, by one that
doesn't; `others`: messages that no entry has sent, by one that tracks. Its pool is solo, so that all it does
is in this process, and one task follows the other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import redis
from celery.exceptions import WorkerShutdown
from celery.worker import state
from fill import TASK
from subject import make_app, measure, read_options, report

import redbeat

options = read_options()
app = make_app(options.server, options.db, worker_redirect_stdouts=False, worker_prefetch_multiplier=64)
if options.way != "untracked":
    redbeat.track_runs(app)
broker = redis.Redis.from_url(f"{options.server}0")
done = []


@app.task(name="count")
def count() -> None:
    """Do nothing, and end the worker after the last one."""
    done.append(True)
    if len(done) == options.count:
        state.should_stop = 0


def send() -> None:
    """Put the messages on the queue, as of runs that were due one after the other."""
    now = time.time()
    with app.producer_pool.acquire() as producer:
        for number in range(options.count):
            due = datetime.fromtimestamp(now + number / 1000, timezone.utc).isoformat(timespec="microseconds")
            headers = {"redbeat_entry": f"entry-{number % 100}", "redbeat_due": due}
            count.apply_async(headers=None if options.way == "others" else headers, producer=producer)


def commands() -> int:
    """How many scripts clients have called."""
    statistics: Any = broker.info("commandstats")
    return sum(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def work() -> None:
    """Take messages until the last of them is done."""
    with suppress(SystemExit, WorkerShutdown):
        app.Worker(pool="solo", without_gossip=True, without_mingle=True, without_heartbeat=True).start()


assert TASK in app.tasks
send()
before = commands()
taken = measure(work, options)
report(done=len(done), commands=commands() - before, **taken)
