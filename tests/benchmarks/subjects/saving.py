"""Storing entries: options `way` and `count`.

Ways: `save` and `save_many` save entries that are made already. `statics` starts with a large
`beat_schedule`, until this is the leader and all is stored.
"""

from __future__ import annotations

import time

from celery.schedules import crontab, schedule
from fill import TASK
from subject import lead, make_app, read_options, report

from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import get_redis

options = read_options()
is_start = options.way == "statics"
beat_schedule = {
    f"static-{number}": {"task": TASK, "schedule": crontab(minute=number % 60) if number % 2 else 3600.0}
    for number in range(options.count if is_start else 0)
}
app = make_app(options.server, 1, beat_schedule=beat_schedule)
entries = [
    RedBeatSchedulerEntry(f"saved-{number}", TASK, schedule(3600), args=[number], app=app)
    for number in range(0 if is_start else options.count)
]
if not is_start:  # a start makes its own connections
    get_redis(app).ping()
started = time.perf_counter()
leader = None
if is_start:
    leader = lead(app)
elif options.way == "save":
    for entry in entries:
        entry.save()
else:
    RedBeatSchedulerEntry.save_many(entries)
seconds = time.perf_counter() - started
stored = get_redis(app).zcard("redbeat::schedule")
assert stored == options.count, f"{stored} entries are stored"
if leader is not None:
    leader.close()
report(seconds=seconds)
