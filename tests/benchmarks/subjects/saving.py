"""Saving entries that are made already: options `way` (save or save_many) and `count`."""

from __future__ import annotations

import time

from celery.schedules import schedule
from fill import TASK
from subject import make_app, read_options, report

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import get_redis

options = read_options()
app = make_app(options.server, 1)
entries = [
    RedBeatSchedulerEntry(f"saved-{number}", TASK, schedule(3600), args=[number], app=app)
    for number in range(options.count)
]
get_redis(app).ping()
is_missing = not hasattr(RedBeatSchedulerEntry, options.way)
started = time.perf_counter()
if options.way == "save":
    for entry in entries:
        entry.save()
elif not is_missing:
    RedBeatSchedulerEntry.save_many(entries)
seconds = time.perf_counter() - started
stored = get_redis(app).zcard("redbeat::schedule")
assert is_missing or stored == options.count, f"{stored} entries are stored"
report(seconds=seconds, is_missing=is_missing)
