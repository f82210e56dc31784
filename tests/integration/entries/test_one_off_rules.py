"""A rule or a time that is "now", saved under a name that has run before: it runs once, and once only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery.schedules import BaseSchedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.schedules import clocked, rrule
from tests.support.schedule import score_of, sent_names

UTC = timezone.utc

NOW_ONCE: dict[str, Callable[[datetime], BaseSchedule]] = {
    "count=1": lambda now: rrule("DAILY", dtstart=now, count=1),
    "count=1, naive": lambda now: rrule("SECONDLY", dtstart=now.replace(tzinfo=None), count=1),
    "count=2": lambda now: rrule("DAILY", dtstart=now, count=2),
    "until": lambda now: rrule("DAILY", dtstart=now, until=now + timedelta(hours=1)),
    "until the start": lambda now: rrule("DAILY", dtstart=now, until=now),
    "clocked": clocked,
}


def saved(entry: Entry, now: datetime) -> None:
    entry.save()


def rescheduled(entry: Entry, now: datetime) -> None:
    entry.save().reschedule()


def rescheduled_to_its_start(entry: Entry, now: datetime) -> None:
    entry.save().reschedule(now)


def assigned(entry: Entry, now: datetime) -> None:
    entry.last_run_at = now
    entry.save()


def loaded_and_changed(entry: Entry, now: datetime) -> None:
    try:
        loaded = Entry.from_key(entry.key, app=entry.app)
    except KeyError:
        entry.save()
    else:
        loaded.schedule = entry.schedule
        loaded.save().reschedule(now)


WAYS = [saved, rescheduled, rescheduled_to_its_start, assigned, loaded_and_changed]


@pytest.mark.parametrize("kind", NOW_ONCE)
@pytest.mark.parametrize("way", WAYS)
def test_a_one_off_that_begins_now_runs_each_time_it_is_saved_anew(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, kind: str, way: Any
) -> None:
    for count in range(1, 5):  # often within one second, in which dtstart is the same
        now = datetime.now(UTC)
        entry = Entry("once", "t", NOW_ONCE[kind](now), app=scheduler.app)
        way(entry, now)
        assert score_of(client, "once") <= now.timestamp() + 1
        scheduler.tick()
        scheduler.tick()
        assert sent_names(broker) == ["once"] * count
        if kind != "count=2":
            assert score_of(client, "once") == -1


@pytest.mark.parametrize("kind", NOW_ONCE)
def test_a_one_off_that_has_run_does_not_run_again_when_nothing_is_new(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, kind: str
) -> None:
    entry = Entry("once", "t", NOW_ONCE[kind](datetime.now(UTC)), app=scheduler.app).save()
    scheduler.tick()
    entry.save()
    entry.args = [1]
    entry.save()
    Entry.from_key(entry.key, app=scheduler.app).save()
    Entry.from_key(entry.key, app=scheduler.app).reschedule()
    entry.reschedule()
    entry.save()
    scheduler.tick()
    assert sent_names(broker) == ["once"]


def test_a_rule_that_goes_on_is_not_run_by_each_start_of_the_program_that_saves_it(
    scheduler: RedBeatScheduler, broker: redis.Redis
) -> None:
    for _ in range(3):
        Entry("hourly", "t", rrule("HOURLY"), app=scheduler.app).save()
        scheduler.tick()
    assert sent_names(broker) == ["hourly"], "when it was new"
