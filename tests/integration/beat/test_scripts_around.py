"""Habits of scripts around celery-redbeat 2.x that know the keys alone."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import date
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat.later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.diagnostics.checks import examine
from redbeat.diagnostics.checks.finding import Severity
from redbeat.reshard.resharding import Resharding
from tests.integration.conftest import MakeScheduler
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, score_of
from tests.support.ticks import take_messages


def test_a_script_that_deletes_all_keys_but_those_of_its_settings_leaves_delayed_tasks(
    app: Celery, client: redis.Redis, broker: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    app.conf.accept_content = ["json", "pickle"]
    redbeat.later.install(app)
    for number, serializer in enumerate(("json", "pickle")):
        app.send_task("echo", (number,), countdown=3600, task_id=f"id-{number}", serializer=serializer)
    for name in ("kept", "unknown"):
        Entry(name, "echo", 3600, app=app).save()
    for key in client.scan_iter("redbeat:*"):
        name = key.removeprefix("redbeat:")
        if not name.startswith(":") and name != "kept":
            client.delete(key)
            client.zrem(SCHEDULE, key)
    assert [entry.name for entry in Entry.list(app)] == ["kept"]
    assert redbeat.later.count(app) == 2
    for key in client.zrange("redbeat::later", 0, -1):
        client.zadd("redbeat::later", {key: 1})
    scheduler = make_scheduler(app)
    sent: list[str] = []

    def all_sent() -> bool:
        scheduler.tick()
        sent.extend(json.loads(text)["headers"]["id"] for text in broker.lpop("celery", 9) or ())
        return sorted(sent) == ["id-0", "id-1"]

    eventually(all_sent)


@pytest.mark.parametrize("wanted", [None, 4])
def test_an_entry_that_was_taken_out_of_the_schedule_stays_out(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, wanted: int | None
) -> None:
    Calendar.from_dates("holidays", [date(2020, 1, 1)], app=app).save()
    for name in ("out", "in"):
        Entry(name, "echo", 3600, exclude="holidays", app=app).save()
    before = client.hgetall("redbeat:out")
    assert client.zrem(SCHEDULE, "redbeat:out")
    scheduler = make_scheduler(app)
    scheduler.tick()
    Calendar.from_dates("holidays", [date(2021, 1, 1)], app=app).save()
    Entry.pause_many((entry.name for entry in Entry.list(app)), app)
    Entry.resume_many((entry.name for entry in Entry.list(app)), app)
    if wanted:
        Resharding(app, wanted).run()
    scheduler.close()
    assert "There is nothing that --fix can repair." in call(app, "doctor", "--fix").output
    [finding] = [one for one in examine(app).findings if one.kind == "unscheduled"]
    assert (finding.about, finding.severity, finding.repair) == ("out", Severity.NOTE, None)
    assert "celery redbeat set out --enabled" in finding.advice
    keys = app.redbeat_conf.keys
    assert client.hgetall(keys.entry("out")) == before
    assert [entry.name for entry in Entry.list(app)] == ["in"]
    assert call(app, "set", "out", "--enabled").exit_code == 0
    assert {entry.name for entry in Entry.list(app)} == {"in", "out"}


POLICIES: list[dict[str, Any]] = [
    {},
    {"misfire": "all"},
    {"misfire": "earliest"},
    {"run_missed": True},
    {"one_off": True},
    {"one_off": True, "after_finish": "disable"},
    {"one_off": True, "after_finish": "delete"},
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_whole_hash_that_was_read_before_a_run_and_written_back_after_it_runs_nothing_twice(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, policy: dict[str, Any]
) -> None:
    entry = Entry("report", "echo", 0.5, app=app, **policy).save()
    scheduler = make_scheduler(app)
    due: list[str] = []

    def has_run() -> bool:
        scheduler.tick()
        due.extend(message.due for message in take_messages(app))
        return len(due) > before

    ends_at = time.monotonic() + 4
    while time.monotonic() < ends_at:
        before, fields = len(due), client.hgetall("redbeat:report")
        if not fields or (score_of(client, "report") or -1) < 0:
            break
        eventually(has_run)
        definition = {**json.loads(fields["definition"]), "args": [before]}
        client.hset("redbeat:report", mapping={**fields, "definition": json.dumps(definition)})
    for _ in range(3):
        before = len(due)
        scheduler.tick()
        due.extend(message.due for message in take_messages(app))
    assert due
    assert max(Counter(due).values()) == 1
    if entry.policy.one_off:
        assert len(due) == 1


def test_an_error_that_was_written_back_with_a_whole_hash_is_not_told_of_and_goes_with_the_next_run(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    calendar = Calendar.from_dates("holidays", [date(2020, 1, 1)], app=app).save()
    Entry("report", "echo", 1, exclude="holidays", app=app).save()
    client.delete("redbeat::calendar:holidays")
    scheduler = make_scheduler(app)
    eventually(lambda: scheduler.tick() is not None and client.hexists("redbeat:report", "error"))
    fields = client.hgetall("redbeat:report")
    calendar.save()
    eventually(lambda: scheduler.tick() is not None and not client.hexists("redbeat:report", "error"))
    Entry.get("report", app).reschedule()
    client.hset("redbeat:report", mapping=fields)
    stored = Entry.get("report", app)
    assert (stored.error, stored.state) == ("", "scheduled")
    [listed] = Entry.list(app)
    assert (listed.error, listed.state) == ("", "scheduled")
    eventually(lambda: scheduler.tick() is not None and not client.hexists("redbeat:report", "error"))
