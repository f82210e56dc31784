"""A start with a large `beat_schedule`, until this is the leader and all is stored: option `count`."""

from __future__ import annotations

import time

from celery.schedules import crontab
from fill import TASK
from subject import lead, make_app, read_options, report

import redbeat.schedulers

options = read_options()
beat_schedule = {
    f"static-{number}": {"task": TASK, "schedule": crontab(minute=number % 60) if number % 2 else 3600.0}
    for number in range(options.count)
}
app = make_app(options.server, 1, beat_schedule=beat_schedule)
started = time.perf_counter()
leader = lead(app)
seconds = time.perf_counter() - started
stored = redbeat.schedulers.get_redis(app).zcard("redbeat::schedule")
assert stored == options.count, f"{stored} entries are stored"
leader.close()
report(seconds=seconds)
