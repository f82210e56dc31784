"""What exporting and planning cost, as multiples of reading and writing as much JSON in the same run."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.files import read_file, write_file
from redbeat.plans import make_plan
from redbeat.transfers import export_entries

ENTRIES = 1_000


def fill(app: Celery) -> list[str]:
    entries = [
        RedBeatSchedulerEntry(
            f"shop.job-{number}",
            "shop.work",
            crontab(minute=number % 60, hour=number % 24) if number % 2 else 60 + number % 100,
            args=[number],
            kwargs={"tenant": number},
            timezone=None if number % 3 else "Europe/Berlin",
            app=app,
        )
        for number in range(ENTRIES)
    ]
    RedBeatSchedulerEntry.save_many(entries)
    return [entry.encode(entry.stored) for entry in RedBeatSchedulerEntry.list(app=app)]


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Processor time, the least of some: whatever else the machine does only adds to it."""
    times = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def test_export_and_plan_cost_a_few_times_what_their_json_does(app: Celery) -> None:
    definitions = fill(app)
    base = cpu_seconds(lambda: [json.dumps(json.loads(text)) for text in definitions])
    declared = read_file(write_file(export_entries(app).declared))
    for fields in declared.entries.values():
        fields["kwargs"] = {"tenant": "another"}

    exporting = cpu_seconds(lambda: export_entries(app))
    writing = cpu_seconds(lambda: write_file(declared))
    planning = cpu_seconds(lambda: make_plan(app, declared, "billing"))

    times = {"export": exporting / base, "write": writing / base, "plan": planning / base}
    print({name: f"{ratio:.1f} x" for name, ratio in times.items()})
    assert len(make_plan(app, declared, "billing").difference.changed) == ENTRIES
    assert times["export"] < 24
    assert times["plan"] < 46
