"""What users' unit tests do with entries: any broker, and a fake that is injected or takes redis-py's
place.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from unittest.mock import patch

import fakeredis
import pytest
import time_machine
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.connection import get_redis
from redbeat.errors import ConfigurationError, EntryNotFound
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import apply_plan, make_plan
from redbeat.schedulers import RedBeatScheduler
from redbeat.schedules import cron, rrule
from redbeat.testing import SimulatedRun, simulate
from redbeat.testing.outages import Outages
from tests.faults.rounds import IS_LONG
from tests.support.ticks import fake_redis_app
from tests.unit.testing.played import Played, play

BROKERS: list[Any] = ["memory://", "amqp://a//;amqp://b//", None, "redis://[", [None]]


def app_on(broker: Any, client: Any = None) -> Celery:
    app = Celery("users-tests", broker=broker, set_as_current=False)
    app.redbeat_redis = client
    return app


@pytest.mark.parametrize("broker", BROKERS, ids=repr)
def test_whatever_the_broker_is_the_configuration_can_be_read(broker: Any) -> None:
    app = app_on(broker)
    assert RedBeatConfig(app).schedule_key == "redbeat::schedule"
    assert ensure_conf(app) is app.redbeat_conf
    assert Entry("report", "proj.report", 60, app=app).key == "redbeat:report"
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_url"):
        get_redis(app)


@pytest.mark.parametrize("broker", ["memory://", "redis://h"])
def test_a_fake_in_the_place_of_from_url_is_used(broker: str) -> None:
    fake, app = fakeredis.FakeRedis(decode_responses=True), app_on(broker)
    with patch("redis.StrictRedis.from_url", return_value=fake):
        Entry("report", "proj.report", 60, app=app).save()
    assert fake.exists("redbeat:report")


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("broker", ["memory://", None])
def test_all_that_an_entry_can_do_it_does_on_an_injected_fake(broker: Any, decodes: bool) -> None:
    app = app_on(broker, fakeredis.FakeRedis(decode_responses=decodes))
    wake = app.redbeat_redis.pubsub()
    wake.subscribe("redbeat::wake")
    long_text = "x" * 10_000  # longer texts are compared by their SHA-1
    entry = Entry("report", "proj.report", crontab("30", "7"), args=["ann", long_text], app=app).save()
    assert any(message["type"] == "message" for message in iter(wake.get_message, None)), "beat is woken"

    found = Entry.get("report", app)
    assert (found.task, found.args, found.state) == ("proj.report", ["ann", long_text], "scheduled")
    assert ([one.name for one in Entry.list(app)], Entry.count(app)) == (["report"], 1)
    found.args = ["bob", long_text]
    found.save(if_unchanged=True)
    assert Entry.from_key("redbeat:report", app).args[0] == "bob"
    found.update(kwargs={"a": 1})
    found.pause("not now", by="me", until=datetime(2100, 1, 1, tzinfo=timezone.utc))
    assert Entry.get("report", app).state == "paused"
    found.resume()
    ran_at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    found.reschedule(ran_at)
    assert Entry.get("report", app).last_run_at == ran_at
    Calendar("holidays", ["2026-12-25"], app=app).save()
    assert Calendar.change("holidays", ["2026-12-26"], app=app).days.keys() == {"2026-12-25", "2026-12-26"}
    off = Entry("off", "proj.off", timedelta(days=1), exclude="holidays", overlap="skip", app=app)
    assert Entry.save_many([off, found]).new == ("off",)
    assert (entry.rank, off.rank) == (0, 1)
    assert Entry.delete_many(["off"], app) == 1
    assert off.rank is None
    file = "entries: {sync: {task: a, schedule: {every: 5m}}, long: {task: b, schedule: {every: 1h}, args: [%s]}}"  # noqa: E501
    for is_new in (True, False):
        plan = apply_plan(lambda: make_plan(app, read_file(file % long_text), "me"))
        assert bool(plan) == is_new
    found.delete()
    with pytest.raises(EntryNotFound):
        Entry.get("report", app)
    Entry.clear(app)
    assert Entry.count(app) == 0


def test_a_beat_goes_by_calendars_on_a_fake(fake_app: Celery) -> None:
    """Which asks the server for the SHA-1 of each, and a fake has none."""
    fake_app.conf.redbeat_lock_key = None
    Calendar("holidays", ["2026-12-25"], app=fake_app).save()
    entry = Entry("report", "proj.report", 60, exclude="holidays", app=fake_app).save()
    fake_app.redbeat_redis.zadd("redbeat::schedule", {entry.key: 0})
    scheduler = RedBeatScheduler(fake_app)
    scheduler.tick()
    scheduler.tick()
    scheduler.close()
    assert [run.outcome for run in entry.history()] == ["sent"]


def test_new_entry_counts_from_a_clock_that_was_moved_after_the_last_one_was_saved(fake_app: Celery) -> None:
    begin = datetime(2026, 6, 1, tzinfo=timezone.utc)
    with time_machine.travel(begin, tick=False) as clock:
        for name in ("first", "second"):  # the next one is taken to be new, too
            Entry(name, "proj.report", 60, app=fake_app).save()
        clock.shift(timedelta(days=2))
        entry = Entry("third", "proj.report", 60, app=fake_app).save()
    assert Entry.get(entry.name, fake_app).due_at == begin + timedelta(days=2, minutes=1)


UTC = timezone.utc
ROUNDS = range(60 if IS_LONG else 1)
ENTRIES = 10 if IS_LONG else 3
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
HOLIDAYS = ["2026-03-28/2026-03-29", "2026-03-30T10:00+00:00/2026-03-30T14:30+00:00", "2026-04-02"]

#: what waits for another run goes when beat looks, and that is a moment after the other one has ended
MOMENT = timedelta(milliseconds=5)

#: from a quarter of an hour to a day
DENSE: list[Any] = [crontab("*/15"), crontab("0", "*/2"), schedule(1800), schedule(2700), schedule(4000)]
SPARSE: list[Any] = [
    crontab("30", "2"), crontab("0", "0,3,12"), cron("0 9 * * mon-fri"), schedule(20_000),
    schedule(timedelta(hours=3), relative=True), rrule("HOURLY", dtstart=datetime(2026, 1, 1), interval=5),
    rrule("DAILY", dtstart=datetime(2026, 1, 1, 2, 30), byhour=[2, 14]),
]  # fmt: skip


def random_policy(chance: random.Random, start: datetime, end: datetime) -> dict[str, Any]:
    def moment() -> datetime:
        return start + timedelta(minutes=chance.randrange(int((end - start).total_seconds() // 60)))

    fields: dict[str, Any] = {
        "misfire": lambda: chance.choice(["latest", "all", "earliest", "skip"]),
        "misfire_limit": lambda: chance.choice([1, 3, 1000]),
        "misfire_grace_time": lambda: chance.choice([30, 3600, 20_000]),
        "jitter": lambda: chance.choice([1, 45.5, 1000]),
        "expires_after": lambda: chance.choice([1800, 9000]),  # longer than any jitter
        "start_time": moment,
        "end_time": moment,
        "max_runs": lambda: chance.choice([1, 5, 30]),
        "exclude": lambda: "holidays",
        "paused_until": moment,
        "run_missed": lambda: True,
    }
    chosen = {name: make() for name, make in fields.items() if chance.random() < 0.25}
    if "start_time" in chosen and "end_time" in chosen:
        chosen["start_time"], chosen["end_time"] = sorted([chosen["start_time"], chosen["end_time"]])
    if "paused_until" in chosen:
        chosen |= {"paused": True, "enabled": False, "pause_note": "a look at it"}
    return chosen


def random_outages(chance: random.Random, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    spans = []
    for _ in range(chance.choice([0, 1, 1, 3])):
        begin = start + timedelta(seconds=chance.randrange(int((end - start).total_seconds())))
        length = chance.choice([20, 400, 7200, 86_400])
        spans.append((begin, begin + timedelta(seconds=chance.randrange(1, length))))
    return spans


def compare(simulated: list[SimulatedRun], played: Played, end: datetime) -> None:
    """What was sent, when, how that ended; of each run that wasn't sent, the reason that is recorded."""
    assert [run.due for run in simulated] == sorted({run.due for run in simulated}), "each once, in order"
    end -= MOMENT
    sent = {run.due: run.sent_at for run in simulated if run.sent_at is not None and run.sent_at <= end}
    played_sent = {due: at for due, at in played.sent.items() if due <= end and at <= end}
    assert sent.keys() == played_sent.keys()
    assert all(abs(played_sent[due] - at) <= MOMENT for due, at in sent.items())
    ended = {
        run.due: (run.outcome, run.ends_at)
        for run in simulated
        if run.outcome in ("succeeded", "revoked") and run.ends_at is not None and run.ends_at <= end
    }
    played_ended = {due: told for due, told in played.ended.items() if told[1] <= end}
    assert ended.keys() == played_ended.keys()
    for due, (outcome, ends_at) in ended.items():
        assert outcome == played_ended[due][0]
        assert abs(played_ended[due][1] - ends_at) <= MOMENT
    for record in played.history:
        if record.is_sent or record.outcome == "waiting" or record.due > end:
            continue
        covered = [run for run in simulated if not run.is_sent and record.covers(run.due)]
        if record.count is not None and (record.last or record.due) <= end:
            assert len(covered) >= record.count, f"{record}: {covered}"
        said = {(run.outcome, run.why) for run in covered}
        assert (record.outcome, record.why) in said or (record.held_by and record.outcome == "skipped"), said
        if record.held_by and covered:
            assert {run.outcome for run in covered} == {"skipped"}


@pytest.mark.parametrize("holds", [False, True], ids=["runs end at once", "runs hold each other back"])
@pytest.mark.parametrize("number", ROUNDS)
def test_simulated_runs_are_those_that_a_beat_sends(chance: random.Random, number: int, holds: bool) -> None:
    start = datetime(2026, 3, 27, chance.randrange(24), chance.randrange(60), 17, tzinfo=UTC)
    # a beat looks at a run that holds another one back once a minute: many ticks
    end = start + timedelta(hours=77 if not holds else 29 if IS_LONG else 8)
    for place in range(ENTRIES):
        app, policy = fake_redis_app(), random_policy(chance, start, end)
        calendar = Calendar("holidays", HOLIDAYS, app=app).save()
        rule = chance.choice(DENSE if holds else SPARSE if place % 4 == 0 else [*DENSE, *SPARSE])
        if holds:
            policy.pop("exclude", None)
            policy["overlap"] = chance.choice(["skip", "buffer_one", "replace", "allow"])
            if policy["overlap"] in ("buffer_one", "replace"):
                # of several missed runs at one instant beat may look at one or two before the one that waits
                policy.pop("misfire", None)
            if chance.random() < 0.4:
                policy["max_runtime"] = chance.choice([600, 3000, 9000])
                policy["revoke_overdue"] = chance.random() < 0.5
        else:
            policy["timezone"] = chance.choice(ZONES)
        outages = random_outages(chance, start, end)
        seed, longest = chance.random(), chance.choice([1000, 4000, 12_000])
        print(f"{place}: {rule!r}, {policy}, {start}, outages={outages}, {longest=}")

        def duration_of(due: datetime) -> timedelta:
            return timedelta(seconds=random.Random(f"{seed} {due}").randint(1, longest) + 0.1371)  # noqa: B023

        make_entry = partial(RedBeatSchedulerEntry, f"entry-{place}", "tasks.x", rule, app=app, **policy)
        given: dict[str, Any] = {"outages": outages, "calendars": {"holidays": calendar}}
        if holds:
            given["durations"] = lambda run: duration_of(run.due)
        simulated = list(simulate(make_entry(), start, end, **given))
        lasting = [duration_of] if holds else []
        played = play(app, make_entry, start, end, Outages(outages).end_around, *lasting)
        compare(simulated, played, end)
