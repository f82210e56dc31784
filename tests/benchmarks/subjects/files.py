"""A schedule as a file: `export` writes it, `plan` compares with one that changes all; option `count`."""

from __future__ import annotations

import time
from datetime import timedelta

from celery.schedules import crontab
from fill import TASK
from subject import make_app, read_options, report

from redbeat import RedBeatSchedulerEntry
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import make_plan
from redbeat.manifest.transfer import export_entries

options = read_options()
app = make_app(options.server, 1)
schedules = [lambda n: timedelta(minutes=1 + n % 100), lambda n: crontab(minute=n % 60, hour=n % 24)]
RedBeatSchedulerEntry.save_many(
    RedBeatSchedulerEntry(
        f"shop.job-{number}",
        TASK,
        schedules[number % 2](number),
        args=[number],
        kwargs={"tenant": number},
        timezone=None if number % 3 else "Europe/Berlin",
        app=app,
    )
    for number in range(options.count)
)
clocks = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}
started = {name: clock() for name, clock in clocks.items()}
text = write_file(export_entries(app).declared)
exported = {name: clock() - started[name] for name, clock in clocks.items()}
declared = read_file(text)
for fields in declared.entries.values():
    fields["kwargs"] = {"tenant": "another"}
started = {name: clock() for name, clock in clocks.items()}
plan = make_plan(app, declared, "benchmark")
planned = {name: clock() - started[name] for name, clock in clocks.items()}
assert len(plan.difference.changed) == options.count, len(plan.difference.changed)
report(exported=exported, planned=planned)
