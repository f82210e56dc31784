"""A clocked schedule with a naive time: in the entry's zone, else in the app's, and the same once stored."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.entries.loading import decode_entry
from redbeat.schedules import clocked
from redbeat.store.records import KeyType, Stored
from tests.support.ticks import memory_app

UTC = timezone.utc
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
NAIVE = datetime(2033, 7, 1, 9, 30)
IN_TOKYO = datetime(2033, 7, 1, 0, 30, tzinfo=UTC)
IN_BERLIN = datetime(2033, 7, 1, 7, 30, tzinfo=UTC)

ZONES = pytest.mark.parametrize(
    ("policy", "instant", "words"),
    [
        ({}, IN_TOKYO, "At 2033-07-01 09:30:00+09:00"),
        ({"timezone": "Europe/Berlin"}, IN_BERLIN, "At 2033-07-01 09:30:00+02:00"),
        ({"timezone": "UTC"}, NAIVE.replace(tzinfo=UTC), "At 2033-07-01 09:30:00+00:00"),
    ],
    ids=["app", "entry", "utc"],
)


@pytest.fixture(params=[True, False], ids=["enable_utc", "local"])
def tokyo_app(request: pytest.FixtureRequest) -> Celery:
    url = "redis://127.0.0.1:1/0"
    return memory_app(redbeat_redis_url=url, timezone="Asia/Tokyo", enable_utc=request.param)


def entry(app: Celery, rule: clocked, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", rule, app=app, last_run_at=NOW, **fields)


def told(made: RedBeatSchedulerEntry) -> tuple[Any, ...]:
    return made.due_at, made.score, made.next_runs(2, NOW), made.describe()


def saved(made: RedBeatSchedulerEntry) -> Stored:
    write = made.plan_save(Stored("redbeat:x"), NOW)
    assert write is not None
    policy = write.policy or None
    return Stored("redbeat:x", write.definition, write.meta, write.score, policy, type=KeyType.HASH)


@ZONES
def test_it_is_the_same_instant_before_it_is_saved_and_after(
    tokyo_app: Celery, policy: dict[str, str], instant: datetime, words: str
) -> None:
    made = entry(tokyo_app, clocked(NAIVE), **policy)
    expected = (instant, instant.timestamp(), [instant], words)
    assert told(made) == expected
    stored = saved(made)
    assert stored.score == instant.timestamp()
    assert told(made) == expected
    found = decode_entry(RedBeatSchedulerEntry, stored, tokyo_app)
    assert told(found) == expected
    assert found.policy == made.policy


@ZONES
def test_stored_it_means_the_same_to_an_app_in_another_zone(
    tokyo_app: Celery, app: Celery, policy: dict[str, str], instant: datetime, words: str
) -> None:
    stored = saved(entry(tokyo_app, clocked(NAIVE), **policy))
    assert decode_entry(RedBeatSchedulerEntry, stored, app).due_at == instant


def test_saved_again_with_its_naive_time_it_is_unchanged(tokyo_app: Celery) -> None:
    stored = saved(entry(tokyo_app, clocked(NAIVE)))
    again = entry(tokyo_app, clocked(NAIVE)).plan_save(stored, NOW)
    assert again is not None
    assert not again.changes(stored)


def test_its_json_has_the_zone_of_its_app(tokyo_app: Celery) -> None:
    rule = clocked(NAIVE, app=tokyo_app)
    found = json.loads(json.dumps(rule, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder)
    assert found.clocked_time == IN_TOKYO


def test_an_aware_time_keeps_its_zone(tokyo_app: Celery) -> None:
    moment = NAIVE.replace(tzinfo=ZoneInfo("America/New_York"))
    made = entry(tokyo_app, clocked(moment), timezone="Europe/Berlin")
    made.plan_save(Stored("redbeat:x"), NOW)
    assert (made.due_at, made.schedule.clocked_time) == (moment, moment)
    assert made.schedule.clocked_time.tzinfo == ZoneInfo("America/New_York")


@pytest.mark.parametrize(("seconds", "is_first"), [(0, True), (60, True), (61, False)])
def test_a_naive_time_of_just_now_still_comes(tokyo_app: Celery, seconds: int, is_first: bool) -> None:
    berlin = {"timezone": "Europe/Berlin"}
    wall = datetime.fromtimestamp(NOW.timestamp() - seconds, ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
    assert (entry(tokyo_app, clocked(wall), **berlin).due_at is not None) is is_first
