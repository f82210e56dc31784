"""What is written when an entry is saved over what stands there: decided without a server."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import encode_meta
from redbeat.schedules import rrule
from redbeat.store.records import KeyType, Stored, Write

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
NOW = NOON + timedelta(seconds=20)
RAN = encode_meta(NOON, 7)


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(**{"name": "x", "task": "t", "schedule": schedule(60), "app": app, **fields})


def planned(made: RedBeatSchedulerEntry, stored: Stored, now: datetime = NOW) -> Write:
    write = made.plan_save(stored, now)
    assert write is not None
    return write


def stored(app: Celery, meta: str | None = RAN, score: float | None = None, **fields: Any) -> Stored:
    """What saving such an entry has left; its meta says it ran at noon."""
    definition = planned(entry(app, **fields), Stored("redbeat:x")).definition
    return Stored("redbeat:x", definition, meta, score=NOON.timestamp() + 60 if score is None else score)


def after_noon(seconds: float) -> float:
    return NOON.timestamp() + seconds


def test_a_new_entry_is_due_one_interval_after_the_servers_now(app: Celery) -> None:
    write = planned(entry(app), Stored("redbeat:x"))
    assert json.loads(write.definition)["schedule"]["every"] == 60
    assert (write.meta, write.score, write.must_exist) == (encode_meta(NOW, 0), after_noon(80), False)


@pytest.mark.parametrize("last_run_at", [NOON, NOON.replace(tzinfo=None)])
def test_a_new_entry_with_a_last_run_counts_from_it(app: Celery, last_run_at: datetime) -> None:
    write = planned(entry(app, last_run_at=last_run_at, total_run_count=3), Stored("redbeat:x"))
    assert (write.meta, write.score) == (encode_meta(NOON, 3), after_noon(60))


@pytest.mark.parametrize("hours", [0, 3, 30])
@pytest.mark.parametrize("every", [3600, 86_400])
def test_an_interval_that_has_never_run_counts_from_its_start_time_whenever_it_got_that(
    app: Celery, hours: int, every: int
) -> None:
    start = NOON - timedelta(days=9, minutes=10)
    now = NOW + timedelta(hours=hours)
    expected = start + ((now - start) // timedelta(seconds=every) + 1) * timedelta(seconds=every)
    saved = stored(app, encode_meta(NOW, 0), schedule=schedule(every))
    for made, before in (
        (entry(app, schedule=schedule(every), start_time=start), Stored("redbeat:x")),
        (entry(app, schedule=schedule(every), start_time=start), saved),
    ):
        assert planned(made, before, now).score == expected.timestamp()
        first, second = made.next_runs(2, after=now, tz=timezone.utc)
        assert (first, second - first) == (expected, timedelta(seconds=every))


def test_a_new_rule_runs_its_first_occurrence_though_it_took_a_moment_to_save(app: Celery) -> None:
    write = planned(entry(app, schedule=rrule("DAILY", dtstart=NOON)), Stored("redbeat:x"))
    assert write.score == after_noon(0)


def test_saved_again_it_keeps_its_meta_and_is_due_when_it_was(app: Celery) -> None:
    made = entry(app, args=[1])
    write = planned(made, stored(app))
    assert (write.meta, write.score) == ("", after_noon(60))
    assert (made.last_run_at, made.total_run_count) == (NOON, 7)


def test_saving_more_often_than_its_interval_does_not_starve_it(app: Celery) -> None:
    for late in range(0, 60, 7):
        assert planned(entry(app), stored(app), NOON + timedelta(seconds=late)).score == after_noon(60)


@pytest.mark.parametrize(
    "rule", [crontab(minute="*/5"), schedule(60), rrule("HOURLY", dtstart=NOON, byminute=(1, 2))]
)
def test_an_overdue_entry_saved_unchanged_stays_overdue(app: Celery, rule: Any) -> None:
    overdue = planned(entry(app, schedule=rule), stored(app, schedule=rule), NOW + timedelta(hours=1))
    assert overdue.score is not None
    assert overdue.score < after_noon(3600)


def test_a_run_that_another_beat_is_sending_is_left_to_it(app: Celery) -> None:
    leased = stored(app, score=after_noon(120))
    assert planned(entry(app), leased, NOON + timedelta(seconds=90)).score is None


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(schedule(7), 21), (schedule(3600), 3600), (crontab("*/5"), 300), (rrule("MINUTELY", dtstart=NOON), 60)],
)
def test_with_another_schedule_it_is_due_at_its_next_time(app: Celery, rule: Any, expected: float) -> None:
    app.conf.timezone = "UTC"
    write = planned(entry(app, schedule=rule), stored(app))
    assert (write.meta, write.score) == ("", after_noon(expected))


def test_enabled_again_it_does_not_make_up_for_the_runs_it_was_disabled_for(app: Celery) -> None:
    write = planned(entry(app), stored(app, enabled=False), NOW + timedelta(hours=1))
    assert write.score == after_noon(3660)


METAS = [None, RAN, encode_meta(None, 0), "{oops", "[]", '{"last_run_at": "x"}', '{"total_run_count": true}']
RULES = [schedule(60), schedule(60, relative=True), crontab(minute="*/5"), rrule("HOURLY", dtstart=NOON)]


@pytest.mark.parametrize("meta", METAS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("score", [None, -1.0, NOON.timestamp() + 60, NOW.timestamp() + 1e6])
@pytest.mark.parametrize("error", [None, "{}"])
def test_of_the_very_definition_it_is_decided_as_of_one_that_only_means_the_same(
    app: Celery, rule: Any, meta: str | None, score: float | None, error: str | None
) -> None:
    definition = planned(entry(app, schedule=rule), Stored("redbeat:x")).definition
    other_text = json.dumps(json.loads(definition), indent=1)
    writes = [
        planned(
            entry(app, schedule=rule), Stored("redbeat:x", text, meta, score, error=error, type=KeyType.HASH)
        )
        for text in (definition, other_text)
    ]
    assert writes[0] == writes[1]


def test_a_write_that_changes_nothing_is_known_as_such() -> None:
    before = Stored("redbeat:x", "d", "m", 5.0)
    for same in (Write(), Write("d", "m", 5.0), Write("d"), Write(meta="m", score=5.0, must_exist=True)):
        assert not same.changes(before), same
    for other in (Write("e", "m", 5.0), Write("d", "n", 5.0), Write("d", "m", 5.000001)):
        assert other.changes(before), other
    for with_error_or_off_the_schedule in (replace(before, error="{}"), replace(before, score=None)):
        assert Write("d", "m", 5.0).changes(with_error_or_off_the_schedule)


def test_disabled_it_keeps_its_place(app: Celery) -> None:
    assert planned(entry(app, enabled=False), stored(app)).score == after_noon(60)


@pytest.mark.parametrize("definition", ["{oops", "null", "", '{"task": "t"}'])
def test_over_a_definition_that_could_not_be_used_it_keeps_the_meta(app: Celery, definition: str) -> None:
    write = planned(entry(app), Stored("redbeat:x", definition, RAN, error="{}", score=after_noon(300)))
    assert (write.meta, write.score) == ("", after_noon(60))


@pytest.mark.parametrize("meta", ["{oops", "[1]", '{"last_run_at": "x"}'])
def test_over_a_meta_that_could_not_be_used_it_writes_a_new_one(app: Celery, meta: str) -> None:
    write = planned(entry(app), stored(app, meta=meta))
    assert (json.loads(write.meta)["total_run_count"], write.score) == (0, after_noon(80))


@pytest.mark.parametrize(("meta", "score"), [(None, 5.0), (encode_meta(None, 0), 5.0), (None, -1.0)])
def test_the_score_of_a_raw_entry_not_run_yet_is_kept(app: Celery, meta: str | None, score: float) -> None:
    definition = '{"task": "t", "schedule": {"__type__": "interval", "every": 60}}'
    assert planned(entry(app), Stored("redbeat:x", definition, meta, score=score)).score is None


def test_an_entry_that_fell_out_of_the_schedule_is_put_back(app: Celery) -> None:
    fallen = Stored("redbeat:x", stored(app).definition, RAN)
    assert planned(entry(app), fallen).score == after_noon(60)


def test_keys_of_others_survive(app: Celery) -> None:
    before = stored(app)
    foreign = json.dumps({**json.loads(before.definition or ""), "owner": "ops"})
    write = planned(entry(app), Stored("redbeat:x", foreign, before.meta, score=before.score))
    assert json.loads(write.definition)["owner"] == "ops"


def test_deciding_twice_decides_the_same(app: Celery) -> None:
    made = entry(app)
    assert planned(made, stored(app)) == planned(made, stored(app))
    again = entry(app)
    assert planned(again, Stored("redbeat:x")) == planned(again, Stored("redbeat:x"))


def test_the_users_objects_are_not_changed(app: Celery) -> None:
    options = {"queue": "q", "headers": {"mine": 1}}
    given: dict[str, Any] = {"args": [1], "kwargs": {"a": [NOON]}, "options": options}
    before = copy.deepcopy(given)
    planned(entry(app, **given), stored(app))
    assert given == before
