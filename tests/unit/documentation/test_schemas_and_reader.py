"""The JSON Schemas in docs/schema and the reader: what one takes and refuses, so does the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.errors import EntryCorrupt
from redbeat.policy.policy import FIELDS
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.store.records import KeyType, Stored
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS
from tests.support.documents import json_examples
from tests.support.schemas import find_fault, schema_of

#: what no schema can know, and what RedBeat says then
ONLY_REDBEAT_CAN_TELL = {
    "unknown time zone": "which zones there are",
    "must be more than jitter": "how two fields compare",
    "needs max_runtime": "that one field needs another",
    "needs pause_after_failures": "that one field needs another",
}
#: the same, of the bad entries that all tests share
BAD_ONLY_TO_REDBEAT = {"zone-mars": "which zones there are", "last-run-mars": "which zones there are"}


@pytest.mark.parametrize("example", json_examples())
def test_the_documentations_json_is_as_the_schemas_say(example: str) -> None:
    value = json.loads(example)
    name = next(
        name
        for name, member in (
            ("definition", "task"), ("meta", "last_run_at"), ("history-record", "at"), ("error", "since"),
        )
        if member in value
    )  # fmt: skip
    assert find_fault(name, example) is None


TOLERATED: dict[str, dict[str, Any]] = {
    "no more than is required": {},
    "nulls": dict.fromkeys(("args", "kwargs", "options", "enabled", *FIELDS)),
    "unknown keys": {"owner": {"team": ["ops"]}, "schedule": {"__type__": "crontab", "why": "x"}},
    "a policy's keys": {"timezone": "Europe/Berlin", "max_runs": 3, "start_time": "2026-01-01 08:30Z"},
    "a bare crontab": {"schedule": {"__type__": "crontab"}},
    "nulls in a crontab": {"schedule": {"__type__": "crontab", "minute": None, "hour": None}},
    "names of days": {"schedule": {"__type__": "crontab", "day_of_week": "Monday,fri-SUN"}},
    "blanks": {"schedule": {"__type__": "crontab", "minute": "0, 30"}},
    "an rrule's name": {"schedule": {"__type__": "rrule", "freq": "daily"}},
    "a short datetime": {"args": [{"__type__": "datetime", "year": 2026, "month": 1, "day": 1}]},
    "a type of somebody else's": {"kwargs": {"shape": {"__type__": "circle", "radius": 5}}},
    "text": {"schedule": " 5 4 * * SUN "},
    "a nickname": {"schedule": "@Daily"},
}  # fmt: skip


@pytest.mark.parametrize("change", TOLERATED.values(), ids=TOLERATED)
def test_what_redbeat_tolerates_the_schema_tolerates(app: Celery, change: dict[str, Any]) -> None:
    text = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}, **change})
    assert why_refused(app, definition=text) is None
    assert find_fault("definition", text) is None


def why_refused(app: Celery, **fields: Any) -> str | None:
    """What RedBeat has against an entry with these fields in its hash."""
    good = '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}'
    try:
        decode_entry(
            RedBeatSchedulerEntry,
            Stored("redbeat:x", type=KeyType.HASH, **{"definition": good, **fields}),
            app,
        )
    except EntryCorrupt as exc:
        return f"{exc} {exc.__cause__}"
    return None


def is_for_redbeat_alone(reason: str | None) -> bool:
    return any(words in (reason or "") for words in ONLY_REDBEAT_CAN_TELL)


@pytest.mark.parametrize("entry", [*BAD_DEFINITIONS, *BAD_METAS])
def test_a_bad_entry_is_refused_unless_only_redbeat_can_tell(app: Celery, entry: str) -> None:
    name = "definition" if entry in BAD_DEFINITIONS else "meta"
    text = {**BAD_DEFINITIONS, **BAD_METAS}[entry]
    assert why_refused(app, **{name: text}) is not None
    assert (find_fault(name, text) is None) == (entry in BAD_ONLY_TO_REDBEAT)


TIMES = {
    "2026-12-24": True, "2026-12-24T18": True, "2026-12-24T18:00": True, "2026-12-24 18:00:05": True,
    "2026-12-24T18:00:05.5": True, "2026-12-24T18:00:05.123456+01:00": True, "2026-12-24T18:00Z": True,
    "2026-12-24T18:00+0100": True, "2026-12-24T18:00-03": True, "2026-12-24T18:00 +01:00": False,
    "2026-12-24T25:00": False, "2026-12-24T18:60": False, "2026-13-24": False, "2026-12-32": False,
    "2026": False, "24.12.2026": False, "tomorrow": False, "": False,
}  # fmt: skip


@pytest.mark.parametrize(("time", "is_one"), TIMES.items(), ids=repr)
def test_a_time_in_iso_8601_is_the_same_to_both(app: Celery, time: str, is_one: bool) -> None:
    at_that_time = {"task": "t", "schedule": {"__type__": "clocked", "clocked_time": time}}
    for name, value in (("definition", at_that_time), ("policy", {"start_time": time})):
        text = json.dumps(value)
        assert (why_refused(app, **{name: text}) is None) == is_one
        assert (find_fault(name, text) is None) == is_one


WEEKDAY = {"__type__": "weekday", "wkday": 0, "n": 1}
MOMENT = {
    "__type__": "datetime", "year": 2026, "month": 1, "day": 31, "hour": 7, "minute": 30, "second": 0,
    "microsecond": 0, "timezone": "Europe/Berlin",
}  # fmt: skip
PARTS = {
    "name": "x", "task": "t", "args": [1, MOMENT], "kwargs": {"at": MOMENT, "on": WEEKDAY}, "enabled": True,
}  # fmt: skip
RULE = {
    "__type__": "rrule", "freq": 1, "interval": 1, "wkst": 0, "count": 5, "bysetpos": 1, "bymonth": 1,
    "bymonthday": 1, "byyearday": None, "byeaster": None, "byweekno": None, "byweekday": [WEEKDAY],
    "byhour": 7, "byminute": 30, "bysecond": 0, "dtstart": 1767225600, "dtstart_tz": 60,
    "until": None, "until_tz": None,
}  # fmt: skip
FIELDS_GIVEN = {
    "timezone": "Europe/Berlin", "start_time": "2026-01-01T00:00", "end_time": {**MOMENT, "year": 2027},
    "max_runs": 3, "one_off": True, "after_finish": "delete", "jitter": 1, "expires_after": 60,
    "misfire": "all", "misfire_limit": 5, "misfire_grace_time": 60, "run_missed": True, "paused": True,
    "pause_note": "x", "paused_by": "x", "paused_until": "2027-01-01", "exclude": "holidays",
    "overlap": "buffer_one", "max_runtime": 60, "revoke_overdue": True, "queue_timeout": 60,
    "pause_after_failures": 3, "resume_after": 60, "tracks": "workflow", "metrics": True,
    "ping_url": "https://hc-ping.com/abc-123",
}  # fmt: skip
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "parts": ("definition", {**PARTS, "options": {"headers": {"a": 1}}, "schedule": "0 9 * * *"}),
    "policy": ("policy", FIELDS_GIVEN),
    "policy in a definition": ("definition", {"task": "t", "schedule": "@daily", **FIELDS_GIVEN}),
    "meta": ("meta", {"last_run_at": MOMENT, "total_run_count": 1}),
    "rrule": ("definition", {"task": "t", "schedule": RULE}),
    "rrule with an end": (
        "definition",
        {"task": "t", "schedule": {**RULE, "count": None, "until": 2082758400, "until_tz": -60}},
    ),
    "clocked": ("definition", {"task": "t", "schedule": {"__type__": "clocked", "clocked_time": MOMENT}}),
    **{
        kind: ("definition", {"task": "t", "schedule": schema_of("definition")["$defs"][kind]["examples"][0]})
        for kind in sorted(SCHEDULE_FIELDS.keys() - {"rrule", "clocked"})
    },
}
JUNK: list[Any] = [True, 0, -1, 1.5, 10**12, "", "x", "60", [], ["x"], {}, {"a": 1}]
#: what RedBeat reads although nobody should write it
LOOSELY_READ = {("name",)}


def paths_in(value: Any, start: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where anything stands in a value."""
    if start:
        yield start
    for place in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths_in(value[place], (*start, place))


def put(document: Any, path: tuple[Any, ...], *replacement: Any) -> str:
    """JSON of the document with another value there, or with none."""
    changed = copy.deepcopy(document)
    inner = changed
    for place in path[:-1]:
        inner = inner[place]
    if replacement:
        inner[path[-1]] = replacement[0]
    else:
        del inner[path[-1]]
    return json.dumps(changed)


@pytest.mark.few_cases(4)
@pytest.mark.filterwarnings("ignore:Using both 'count' and 'until'")  # junk for one of them
@pytest.mark.parametrize(("name", "whole"), WHOLE.values(), ids=WHOLE)
def test_what_redbeat_refuses_anywhere_schemas_refuse(app: Celery, name: str, whole: dict[str, Any]) -> None:
    assert why_refused(app, **{name: json.dumps(whole)}) is None
    assert find_fault(name, json.dumps(whole)) is None
    for path in paths_in(whole):
        for junk in JUNK:
            text = put(whole, path, junk)
            reason = why_refused(app, **{name: text})
            if reason is not None and not is_for_redbeat_alone(reason):
                assert find_fault(name, text) is not None, (path, junk, reason)


@pytest.mark.parametrize(("name", "whole"), WHOLE.values(), ids=WHOLE)
def test_what_may_be_missing_or_null_is_same_to_both(app: Celery, name: str, whole: dict[str, Any]) -> None:
    for path in paths_in(whole):
        for text in (put(whole, path), put(whole, path, None)):
            reason, fault = why_refused(app, **{name: text}), find_fault(name, text)
            is_good = reason is None or is_for_redbeat_alone(reason)
            # in a definition, what is called like a field of a policy may be another program's
            is_loose = path in LOOSELY_READ or (name == "definition" and path[0] in FIELDS)
            assert is_good == (fault is None) or is_loose, (path, reason, fault)
