"""What exporting and planning cost: calls of functions for each entry, however fast the machine is."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import make_plan
from redbeat.manifest.transfer import export_entries
from tests.integration.conftest import ONE_SERVER

ENTRIES = 1_000


def fill(app: Celery) -> None:
    RedBeatSchedulerEntry.save_many(
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
    )


def calls_per_entry(work: Callable[[], object]) -> float:
    """How many functions are called for each entry once what is kept for all of them is kept."""
    work()
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls / ENTRIES  # type: ignore[attr-defined,no-any-return]


@ONE_SERVER
def test_export_and_plan_call_a_few_hundred_functions_an_entry(app: Celery) -> None:
    fill(app)
    declared = read_file(write_file(export_entries(app).declared))
    for fields in declared.entries.values():
        fields["kwargs"] = {"tenant": "another"}

    calls = {
        "export": calls_per_entry(lambda: export_entries(app)),
        "write": calls_per_entry(lambda: write_file(declared)),
        "plan": calls_per_entry(lambda: make_plan(app, declared, "billing")),
    }
    print({name: round(count) for name, count in calls.items()})
    assert len(make_plan(app, declared, "billing").difference.changed) == ENTRIES
    assert calls["export"] < 800
    assert calls["plan"] < 1_300
