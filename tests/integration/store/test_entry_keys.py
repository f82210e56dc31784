"""Whatever is done with an entry, its data stand under the keys that one function of its name gives."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.store.store import Store
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.ticks import leader, make_due

#: the schedule's own keys, which name every entry
OWN = {
    f"redbeat::{name}"
    for name in ("schedule", "statics", "static-owners", "downgraded", "lock", "tick", "owner:", "owner:team")
}


def live(app: Celery) -> None:
    """Do with entries all that can be done."""
    now = datetime.now(timezone.utc)
    Calendar("holidays", ["2026-12-25"], app=app).save()
    entry = Entry("report", "tasks.report", 60, exclude="holidays", jitter=1, app=app).save()
    entry.update(args=[1])
    entry.pause("broken", until=now + timedelta(days=1))
    entry.resume()
    entry.trigger()
    entry.backfill(now - timedelta(minutes=3), now)
    Entry("broken", "tasks.report", 60, app=app).save()
    app.redbeat_redis.hset("redbeat:broken", "definition", "{oops")
    file = "entries: {filed: {task: tasks.report, schedule: 60}}\ncalendars: {filed: {days: [2026-12-26]}}"
    apply(app, file, owner="team")
    with leader(app) as scheduler:
        for _ in range(2):
            make_due(app, "report", "broken", "filed", "static")
            scheduler.tick()
    assert call(app, "downgrade", "--yes").exit_code == 0
    with leader(app) as scheduler:
        scheduler.tick()


def test_every_key_is_the_schedule_s_own_or_given_by_one_function_of_a_name(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    monkeypatch.setattr(Store, "on_round_trip", staticmethod(lambda: seen.update(client.keys("*"))))
    app.conf.beat_schedule = {"static": {"task": "tasks.report", "schedule": 60}}
    live(app)
    names = ("report", "broken", "filed", "static")
    about: dict[str, Any] = {name: app.redbeat_conf.keys.about(name) for name in names}
    calendars = {"redbeat::calendar:holidays", "redbeat::calendar:filed"}
    assert seen <= OWN | calendars | {key for keys in about.values() for key in keys}
    assert seen >= set(about["report"]), "all there are have been there"
    assert seen >= calendars | OWN
