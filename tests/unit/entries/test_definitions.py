"""The two JSON documents of an entry as a whole: strictly written, with what others put there kept."""

from __future__ import annotations

import json
import time
from collections import UserDict
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat.decoder import DEFINITION_FIELDS, RedBeatJSONEncoder, encode_definition, encode_meta
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.validation import find_problem
from redbeat.errors import EntryCorrupt
from redbeat.store.records import Stored
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
INTERVAL_JSON = {"__type__": "interval", "every": 60.0, "relative": False}
NOON_JSON = {
    "__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": "UTC", "hour": 12, "minute": 0,
    "second": 0, "microsecond": 0,
}  # fmt: skip


def fields(**changes: Any) -> dict[str, Any]:
    plain = {"name": "n", "task": "t", "args": [1], "kwargs": {}, "options": {}, "enabled": True}
    return {name: {**plain, "schedule": schedule(60), **changes}[name] for name in DEFINITION_FIELDS}


def test_a_definition_is_written_with_exactly_the_keys_of_2x() -> None:
    assert json.loads(encode_definition(**fields())) == {**fields(), "schedule": INTERVAL_JSON}
    assert list(json.loads(encode_definition(**fields()))) == list(DEFINITION_FIELDS)
    assert set(DEFINITION_FIELDS) == {"name", "task", "schedule", "args", "kwargs", "options", "enabled"}


@pytest.mark.parametrize("stored", [None, "{oops", "[]", "null", "[" * 100_000])
def test_what_is_no_object_leaves_nothing_behind_when_it_is_written_over(stored: str | None) -> None:
    assert encode_definition(**fields(), stored=stored) == encode_definition(**fields())


def test_keys_of_others_are_kept_and_ours_are_replaced() -> None:
    rule = {**INTERVAL_JSON, "every": 5, "why": "x"}
    stored = json.dumps({"task": "old", "owner": "ops", "schedule": rule})
    found = json.loads(encode_definition(**fields(), stored=stored))
    assert found == {**fields(), "owner": "ops", "schedule": {**INTERVAL_JSON, "why": "x"}}


def test_keys_of_others_in_a_schedule_go_with_its_kind() -> None:
    stored = json.dumps({"schedule": {"__type__": "crontab", "minute": "5", "why": "x"}})
    assert json.loads(encode_definition(**fields(), stored=stored))["schedule"] == INTERVAL_JSON


def test_writing_the_same_again_gives_the_same_text() -> None:
    stored = json.dumps({"owner": "ops", "schedule": {"__type__": "crontab", "why": "x"}})
    once = encode_definition(**fields(schedule=crontab()), stored=stored)
    assert encode_definition(**fields(schedule=crontab()), stored=once) == once


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"options": {"priority": float("nan")}}, ValueError),
        ({"args": [object()]}, TypeError), ({"options": {"queue": b"x"}}, TypeError),
        ({"schedule": BaseSchedule()}, TypeError),
    ],
)  # fmt: skip
def test_what_has_no_form_in_json_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_definition(**fields(**change))


def test_arguments_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="Circular"):
        encode_definition(**fields(args=endless))


@pytest.mark.parametrize(
    ("last_run_at", "expected"),
    [(NOON, NOON_JSON), (NOON.astimezone(timezone(timedelta(hours=5))), NOON_JSON), (None, None)],
)
def test_a_meta_is_written_in_utc(last_run_at: datetime | None, expected: Any) -> None:
    assert json.loads(encode_meta(last_run_at, 3)) == {"last_run_at": expected, "total_run_count": 3}


@pytest.mark.parametrize(
    ("stored", "kept"), [('{"note": "x", "last_run_at": 5}', {"note": "x"}), ("{oops", {})]
)
def test_a_meta_keeps_the_keys_of_others(stored: str, kept: dict[str, Any]) -> None:
    found = json.loads(encode_meta(None, 0, stored))
    assert found == {"last_run_at": None, "total_run_count": 0, **kept}


def test_a_naive_last_run_is_utc_whatever_the_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        meta = encode_meta(NOON.replace(tzinfo=None), 3)
    time.tzset()
    assert json.loads(meta)["last_run_at"] == NOON_JSON


TYPES = "__type__ interval, crontab, rrule, cron, clocked, solar"
GOOD: dict[str, Any] = {"task": "t", "schedule": schedule(60)}


@pytest.mark.parametrize(
    ("definition", "meta"),
    [
        (GOOD, {}),
        ({**GOOD, "args": None, "kwargs": None, "options": None, "enabled": None}, {"last_run_at": None}),
        ({**GOOD, "enabled": False, "options": {"headers": None}}, {"total_run_count": 5}),
        ({**GOOD, "enabled": 0, "kwargs": UserDict()}, {}),  # other programs write 1 and 0
        ({**GOOD, "enabled": 1}, {}),
        ({**GOOD, "anything": object()}, {"last_run_at": NOON, "anything": object()}),
    ],
)
def test_a_good_entry_has_no_problem(definition: Any, meta: Any) -> None:
    assert find_problem(definition, meta) is None


@pytest.mark.parametrize(
    ("definition", "meta", "problem"),
    [
        (None, {}, "definition: must be an object, not None."),
        ([], {}, "definition: must be an object, not a list."),
        ('{"kwargs": {}}', {}, "definition: must be an object, not text."),
        ({**GOOD, "task": {"a": 1}}, {}, "definition: task: must be the name of a task, not an object."),
        ({"task": "t"}, {}, "definition: schedule: is missing."),
        ({**GOOD, "schedule": 60}, {}, f"definition: schedule: 60 is no object with one of the {TYPES}."),
        ({"schedule": schedule(60)}, {}, "definition: task: is missing."),
        ({**GOOD, "task": ""}, {}, "definition: task: must be the name of a task, not ''."),
        ({**GOOD, "args": {"a": 1}}, {}, "definition: args: must be a list, not an object."),
        ({**GOOD, "args": "x" * 200}, {}, "definition: args: must be a list, not text."),
        ({**GOOD, "kwargs": [1]}, {}, "definition: kwargs: must be an object, not a list."),
        ({**GOOD, "options": "x"}, {}, "definition: options: must be an object, not text."),
        ({**GOOD, "options": {"headers": 1}}, {}, "definition: options: headers: must be an object, not 1."),
        ({**GOOD, "enabled": "maybe"}, {}, "definition: enabled: must be true or false, not 'maybe'."),
        (GOOD, [], "meta: must be an object, not a list."),
        (GOOD, {"last_run_at": 5}, "meta: last_run_at: must be a datetime object or null, not 5."),
        (GOOD, {"total_run_count": 1.5}, "meta: total_run_count: must be a whole number, not 1.5."),
        (GOOD, {"total_run_count": True}, "meta: total_run_count: must be a whole number, not True."),
    ],
)
def test_a_problem_is_a_sentence_that_says_where_and_what(definition: Any, meta: Any, problem: str) -> None:
    assert find_problem(definition, meta) == problem


@pytest.mark.parametrize(("year", "hours"), [(1, 5), (9999, -5)])
def test_a_last_run_that_no_calendar_has_in_utc_is_a_problem(app: Celery, year: int, hours: int) -> None:
    edge = datetime(1, 1, 1) if year == 1 else datetime(9999, 12, 31, 23, 59)
    moment = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    problem = find_problem(GOOD, {"last_run_at": moment})
    assert problem == f"meta: last_run_at: is out of range: {moment}."
    meta = json.dumps({"last_run_at": moment}, cls=RedBeatJSONEncoder)
    definition = json.dumps({"task": "t", "schedule": INTERVAL_JSON})
    with pytest.raises(EntryCorrupt, match="last_run_at: is out of range"):
        decode_entry(RedBeatSchedulerEntry, Stored("redbeat:x", definition, meta), app)


GOOD_TEXT = json.dumps({"task": "t", "schedule": INTERVAL_JSON})
BAD: dict[str, Any] = {name: (text, None) for name, text in BAD_DEFINITIONS.items()}
BAD |= {name: (GOOD_TEXT, text) for name, text in BAD_METAS.items()}


@pytest.mark.parametrize(("definition", "meta"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_one_error_in_short(app: Celery, definition: str, meta: str | None) -> None:
    with pytest.raises(EntryCorrupt, match=r"^redbeat:x: (definition|meta): .") as caught:
        decode_entry(RedBeatSchedulerEntry, Stored("redbeat:x", definition, meta), app)
    assert caught.value.key == "redbeat:x"
    assert len(str(caught.value)) < 300
