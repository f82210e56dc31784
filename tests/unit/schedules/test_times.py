"""A clocked schedule with a naive time: in the entry's zone, else in the app's, and the same once stored."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.schedules import clocked
from redbeat.schedules.durations import length_in_words, seconds_in_words
from redbeat.schedules.times import read_seconds
from redbeat.store.records import Stored
from tests.support.ticks import memory_app

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NAIVE = datetime(2033, 7, 1, 9, 30)
IN_TOKYO = datetime(2033, 7, 1, 0, 30, tzinfo=UTC)
IN_BERLIN = datetime(2033, 7, 1, 7, 30, tzinfo=UTC)


@pytest.fixture(params=[True, False], ids=["enable_utc", "local"])
def tokyo_app(request: pytest.FixtureRequest) -> Celery:
    url = "redis://127.0.0.1:1/0"
    return memory_app(redbeat_redis_url=url, timezone="Asia/Tokyo", enable_utc=request.param)


def entry(app: Celery, rule: clocked, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", rule, app=app, last_run_at=NOON, **fields)


def told(made: RedBeatSchedulerEntry) -> tuple[Any, ...]:
    return made.due_at, made.score, made.next_runs(2, NOON), made.describe()


def saved(made: RedBeatSchedulerEntry) -> Stored:
    write = made.plan_save(Stored("redbeat:x"), NOON)
    policy = write.policy or None
    return Stored("redbeat:x", write.definition, write.meta, write.score, policy, type="hash")


@pytest.mark.parametrize(
    ("policy", "instant", "words"),
    [
        ({}, IN_TOKYO, "At 2033-07-01 09:30:00+09:00"),
        ({"timezone": "Europe/Berlin"}, IN_BERLIN, "At 2033-07-01 09:30:00+02:00"),
        ({"timezone": "UTC"}, NAIVE.replace(tzinfo=UTC), "At 2033-07-01 09:30:00+00:00"),
    ],
    ids=["app", "entry", "utc"],
)
def test_naive_clocked_time_is_the_same_instant_once_stored(
    tokyo_app: Celery, app: Celery, policy: dict[str, str], instant: datetime, words: str
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
    assert decode_entry(RedBeatSchedulerEntry, stored, app).due_at == instant, "to an app in another zone"


def test_saved_again_with_its_naive_time_it_is_unchanged(tokyo_app: Celery) -> None:
    stored = saved(entry(tokyo_app, clocked(NAIVE)))
    again = entry(tokyo_app, clocked(NAIVE)).plan_save(stored, NOON)
    assert not again.changes(stored)


def test_an_aware_time_keeps_its_zone(tokyo_app: Celery) -> None:
    moment = NAIVE.replace(tzinfo=ZoneInfo("America/New_York"))
    made = entry(tokyo_app, clocked(moment), timezone="Europe/Berlin")
    made.plan_save(Stored("redbeat:x"), NOON)
    assert (made.due_at, made.schedule.clocked_time) == (moment, moment)
    assert made.schedule.clocked_time.tzinfo == ZoneInfo("America/New_York")


@pytest.mark.parametrize(("seconds", "is_first"), [(0, True), (60, True), (61, False)])
def test_a_naive_time_of_just_now_still_comes(tokyo_app: Celery, seconds: int, is_first: bool) -> None:
    berlin = {"timezone": "Europe/Berlin"}
    wall = datetime.fromtimestamp(NOON.timestamp() - seconds, ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
    assert (entry(tokyo_app, clocked(wall), **berlin).due_at is not None) is is_first


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0004, "0 ms"), (0.4, "400 ms"), (89, "89 s"), (119, "2 min"), (7200, "2 h"),
        (86_400, "24 h"), (172_800, "2 d"), (800 * 86_400, "2 y"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.25, "0.25 s"), (59, "59 s"), (60, "1 min"), (90, "1 min 30 s"), (3600, "1 h"),
        (5400, "1 h 30 min"), (90_061.5, "1 d 1 h 1 min 1.5 s"), (800 * 86_400, "800 d"),
    ],
)  # fmt: skip
def test_a_length_that_was_set_is_told_without_rounding(seconds: float, words: str) -> None:
    assert length_in_words(seconds) == words
    assert read_seconds(words) == seconds
