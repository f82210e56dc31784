"""One of several processes that send at the same time: options `way`, `db`, `share`, `go`, `limit_seconds`.

`way` is leader, sharer (a beat without a lock) or loop, which sends `share` messages. When all connections
stand and all scripts are loaded, it says so on the list `go`:ready and waits for a word on `go`.
"""

from __future__ import annotations

import time
from functools import partial

from fill import fill
from subject import connect, lead, make_app, read_options, report, send_due, sender, time_limit

from redbeat.schedulers import RedBeatScheduler

options = read_options()
settings = {"redbeat_lock_key": None} if options.way == "sharer" else {}
app = make_app(options.server, options.db, **settings)
_, schedule = connect(options)

if options.way == "loop":
    send = partial(sender(app), options.share)
else:
    send = partial(send_due, lead(app) if options.way == "leader" else RedBeatScheduler(app))
    fill(schedule, 1, is_due=True)
    send()

schedule.rpush(f"{options.go}:ready", "1")
schedule.blpop([options.go], timeout=options.limit_seconds)
started = time.monotonic()
with time_limit(options.limit_seconds):
    send()
report(started=started, ended=time.monotonic())
