"""Many messages at once: options `way` (scheduler, loop or floor), `due`, `db`, `limit_seconds`.

All connections stand, and all scripts are loaded, before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
from fill import TASK, fill
from subject import QUEUE, RoundTrips, lead, make_app, peak_rss_bytes, read_options, report, time_limit

options = read_options()
app = make_app(options.server, options.db)
broker = redis.Redis.from_url(f"{options.server}0")
schedule = redis.Redis.from_url(f"{options.server}{options.db}")
round_trips = RoundTrips()

PIPELINE = 500


def scheduler() -> Callable[[], None]:
    """Tick until nothing is due."""
    leader = lead(app)

    def send() -> None:
        while leader.tick() <= 0:
            pass

    fill(schedule, 1, is_due=True)
    send()
    fill(schedule, options.due, is_due=True)
    return send


def loop() -> Callable[[], None]:
    """Send the task from a loop, with one producer: what Celery itself costs."""
    task = app.tasks[TASK]
    producer = app.amqp.producer_pool.acquire()

    def send(count: int = options.due) -> None:
        for _ in range(count):
            task.apply_async(producer=producer)

    send(1)
    return send


def floor() -> Callable[[], None]:
    """Put ready-made messages on the queue, in pipelines: what the server and redis-py cost."""
    app.tasks[TASK].apply_async()
    message: Any = broker.lindex(QUEUE, 0)

    def send() -> None:
        for first in range(0, options.due, PIPELINE):
            pipeline = broker.pipeline(transaction=False)
            for _ in range(min(PIPELINE, options.due - first)):
                pipeline.lpush(QUEUE, message)
            pipeline.execute()

    return send


send = {"scheduler": scheduler, "loop": loop, "floor": floor}[options.way]()
broker.delete(QUEUE)
round_trips.count = 0
started = time.perf_counter()
with time_limit(options.limit_seconds):
    send()
seconds = time.perf_counter() - started
count = round_trips.count
report(sent=broker.llen(QUEUE), seconds=seconds, round_trips=count, peak_rss_bytes=peak_rss_bytes())
