"""One of several processes that send at the same time: options `way`, `db`, `share`, `go`, `limit_seconds`.

`way` is leader, sharer (a beat without a lock) or loop, which sends `share` messages. When all connections
stand and all scripts are loaded, it says so on the list `go`:ready and waits for a word on `go`.
"""

from __future__ import annotations

import time

import redis
from fill import TASK, fill
from subject import lead, make_app, read_options, report, time_limit

from redbeat.schedulers import RedBeatScheduler

options = read_options()
settings = {"redbeat_lock_key": None} if options.way == "sharer" else {}
app = make_app(options.server, options.db, **settings)
# by default the newest client waits no longer than 5 s
schedule = redis.Redis.from_url(f"{options.server}{options.db}", socket_timeout=None)

if options.way == "loop":
    task, producer = app.tasks[TASK], app.amqp.producer_pool.acquire()

    def send(count: int = options.share) -> None:
        for _ in range(count):
            task.apply_async(producer=producer)

    send(1)
else:
    scheduler = lead(app) if options.way == "leader" else RedBeatScheduler(app)

    def send(count: int = 0) -> None:
        while scheduler.tick() <= 0:
            pass

    fill(schedule, 1, is_due=True)
    send()

schedule.rpush(f"{options.go}:ready", "1")
schedule.blpop([options.go], timeout=options.limit_seconds)
started = time.monotonic()
with time_limit(options.limit_seconds):
    send()
report(started=started, ended=time.monotonic())
