"""The JSON Schemas in docs/schema are in step with the code, and with what RedBeat writes and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, solar
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from docs.generate import generated
from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import DEFINITION_FIELDS
from redbeat.entries.failures import Failure
from redbeat.entries.forms import FORM_FIELDS, READ_ONLY_FIELDS
from redbeat.entries.loading import decode_entry
from redbeat.entries.query import STATES
from redbeat.errors import EntryCorrupt, EntryError
from redbeat.history import record_of
from redbeat.policy.policy import FIELDS, MAX_MISFIRE_LIMIT, ROWS
from redbeat.schedules import clocked
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.store.records import Stored, Write
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS
from tests.support.documents import NAMES, find_fault, find_fault_in, json_examples, schema_of
from tests.unit.entries.test_json import OFFSETS
from tests.unit.schedules.test_next_run_properties import rules

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


BERLIN = ZoneInfo("Europe/Berlin")


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Each schema in a schema."""
    yield schema
    for keyword in ("properties", "$defs"):
        for part in schema.get(keyword, {}).values():
            yield from _parts(part)


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_and_so_are_its_examples_and_defaults(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    for part in _parts(schema):
        own = Draft202012Validator({"$defs": schema.get("$defs", {}), **part})
        for value in [*part.get("examples", []), *([part["default"]] if "default" in part else [])]:
            own.validate(value)


def test_schemas_agree_where_they_describe_the_same() -> None:
    definition = schema_of("definition")
    assert schema_of("policy")["properties"].items() <= definition["properties"].items()
    for name in NAMES:
        for kind, described in schema_of(name).get("$defs", {}).items():
            assert described == definition["$defs"][kind], (name, kind)


def test_schemas_have_exactly_the_fields_of_the_code() -> None:
    definition, policy = schema_of("definition"), schema_of("policy")["properties"]
    assert list(policy) == list(FIELDS)
    assert set(definition["properties"]) == {*DEFINITION_FIELDS, *FIELDS}
    for kind, known in SCHEDULE_FIELDS.items():
        assert set(definition["$defs"][kind]["properties"]) == known, kind
    kinds = {option["$ref"].rpartition("/")[2] for option in definition["properties"]["schedule"]["oneOf"]}
    assert kinds == {*SCHEDULE_FIELDS, "cron_text"}
    assert set(definition["$defs"]["typed"]["properties"]["__type__"]["enum"]) == {
        *SCHEDULE_FIELDS, "weekday", "datetime",
    }  # fmt: skip
    shown = schema_of("entry")["properties"]
    assert set(shown) == {*FORM_FIELDS, *READ_ONLY_FIELDS, "history"} - set(FIELDS)
    assert shown["state"]["enum"] == [*STATES, None]
    assert set(schema_of("error")["properties"]) == {field.name for field in dataclass_fields(Failure)}
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run make generated"
    assert set(definition["$defs"]["solar"]["properties"]["event"]["enum"]) == EVENTS


def assert_written_well(entry: RedBeatSchedulerEntry, write: Write | None) -> None:
    """What a save writes, of each field of the hash, is as the schemas say."""
    assert write is not None
    for name, text in (("definition", write.definition), ("policy", write.policy), ("meta", write.meta)):
        assert not text or find_fault(name, text) is None, text
    assert write.definition
    assert find_fault_in("entry", entry.to_dict()) is None
    both = {**json.loads(write.definition), **json.loads(write.policy or "{}")}
    assert find_fault_in("definition", both) is None


@pytest.mark.parametrize(
    "members",
    [
        record_of("1769844600.25", id="0d3f3e5a-9f54-4c5e-8b0e-3a2f2f8f7f10", manual=True),
        record_of("1769844600", "skipped", why='too "late"'),
        record_of("1769844600", "merged", last="1769844700", why="too late", count=3),
        record_of("1769844600", "unsent", why="the broker is away"),
    ],
)
def test_record_of_a_run_is_written_as_its_schema_says(members: str) -> None:
    assert find_fault("history-record", f'{{"at":1769844600.000001,{members}}}') is None
    failure = Failure("no task", NOW.isoformat(timespec="microseconds"), "0" * 40).again(attempts=3, due="5")
    assert find_fault("error", failure.to_json()) is None


MOMENTS = st.datetimes(
    datetime(1971, 1, 1), datetime(9000, 1, 1), timezones=st.timezones() | OFFSETS | st.just(timezone.utc)
)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-1e9, 1e9), st.text(), MOMENTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


EVENTS = solar._all_events  # noqa: SLF001 - Celery has no other list of them


def cron_fields(low: int, high: int) -> st.SearchStrategy[Any]:
    numbers = st.integers(low, high)
    several = st.lists(numbers, min_size=1, max_size=4)
    texts = numbers.map("{0}-{0}".format) | several.map(lambda some: ",".join(map(str, some)))
    return st.just("*") | numbers | texts | several.map(set)


CRONTABS = (cron_fields(0, 59), cron_fields(0, 23), cron_fields(0, 6), cron_fields(1, 31), cron_fields(1, 12))


SCHEDULES = st.one_of(
    st.integers(1, 10**9),
    st.floats(0.001, 1e9),
    st.tuples(*CRONTABS),
    rules(),
    MOMENTS.map(clocked),
    st.builds(solar, st.sampled_from(sorted(EVENTS)), st.floats(-90, 90), st.floats(-180, 180)),
    st.sampled_from(["@hourly", "0 0 L * *", "1,2-4,*/7 5 15W 1-3 sun", "0 5 * * FRIL"]),
)


PING_URLS = ["https://hc-ping.com/abc-123", "HTTP://[::1]:8000?x=%20", "http://a_b.example.com./a/b?c=d&e"]


SECONDS = st.integers(1, 10**6) | st.floats(0.001, 1e6)


POLICY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "timezone": st.timezone_keys(), "start_time": MOMENTS, "end_time": MOMENTS, "max_runs": st.integers(1),
    "one_off": st.booleans(), "after_finish": st.sampled_from(ROWS["after_finish"].values), "jitter": SECONDS,
    "expires_after": SECONDS, "misfire": st.sampled_from(ROWS["misfire"].values),
    "misfire_limit": st.integers(1, MAX_MISFIRE_LIMIT), "misfire_grace_time": SECONDS,
    "run_missed": st.booleans(), "paused": st.booleans(), "pause_note": st.text(), "paused_by": st.text(),
    "paused_until": MOMENTS, "overlap": st.sampled_from(ROWS["overlap"].values), "max_runtime": SECONDS,
    "revoke_overdue": st.booleans(), "queue_timeout": SECONDS, "pause_after_failures": st.integers(1),
    "resume_after": SECONDS, "tracks": st.sampled_from(ROWS["tracks"].values), "metrics": st.booleans(),
    "ping_url": st.sampled_from(PING_URLS),
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    when=SCHEDULES,
    args=st.lists(VALUES, max_size=3),
    kwargs=st.dictionaries(st.text(), VALUES, max_size=3),
    enabled=st.booleans(),
    policy=st.fixed_dictionaries({}, optional=POLICY_VALUES),
    ran=st.none() | MOMENTS,
    count=st.integers(0, 10**9),
)
def test_any_entry_is_written_as_the_schemas_say(
    app: Celery, when: Any, args: Any, kwargs: Any, enabled: bool, policy: Any, ran: Any, count: int
) -> None:
    try:
        made = crontab(*when) if isinstance(when, tuple) else when
        entry = RedBeatSchedulerEntry(
            "report", "tasks.report", made, args, kwargs, enabled=enabled, app=app, **policy,
            last_run_at=ran, total_run_count=count,
        )  # fmt: skip
        write = entry.plan_save(Stored(entry.key), NOW)
    except (ValueError, EntryError):  # the 31st of February; an end before the start; text that is no UTF-8
        assume(False)
    assert_written_well(entry, write)


#: the same, of the bad entries that all tests share
BAD_ONLY_TO_REDBEAT = {"zone-mars": "which zones there are", "last-run-mars": "which zones there are"}


@pytest.mark.parametrize("example", json_examples())
def test_json_of_the_documentation_is_as_the_schemas_say(example: str) -> None:
    value = json.loads(example)
    names = {"task": "definition", "last_run_at": "meta", "at": "history-record", "since": "error"}
    assert find_fault(next(names[key] for key in names if key in value), example) is None


TOLERATED: dict[str, dict[str, Any]] = {
    "no more than is required": {},
    "nulls": dict.fromkeys(("args", "kwargs", "options", "enabled", *FIELDS)),
    "unknown keys": {"owner": {"team": ["ops"]}, "schedule": {"__type__": "crontab", "why": "x"}},
    "a policy's keys": {"timezone": "Europe/Berlin", "max_runs": 3, "start_time": "2026-01-01 08:30Z"},
    "a bare crontab": {"schedule": {"__type__": "crontab"}},
    "names of days": {"schedule": {"__type__": "crontab", "day_of_week": "Monday,fri-SUN"}},
    "a type of somebody else's": {"kwargs": {"shape": {"__type__": "circle", "radius": 5}}},
    "text": {"schedule": " 5 4 * * SUN "},
}  # fmt: skip


@pytest.mark.parametrize("change", TOLERATED.values(), ids=TOLERATED)
def test_schema_tolerates_what_the_reader_tolerates(app: Celery, change: dict[str, Any]) -> None:
    text = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}, **change})
    assert why_refused(app, definition=text) is None
    assert find_fault("definition", text) is None


def why_refused(app: Celery, **fields: Any) -> str | None:
    """What RedBeat has against an entry with these fields in its hash."""
    good = '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}'
    stored = Stored("redbeat:x", type="hash", **{"definition": good, **fields})
    try:
        decode_entry(RedBeatSchedulerEntry, stored, app)
    except EntryCorrupt as exc:
        return f"{exc} {exc.__cause__}"
    return None


@pytest.mark.parametrize("entry", [*BAD_DEFINITIONS, *BAD_METAS])
def test_invalid_entry_is_refused_by_reader_and_schema(app: Celery, entry: str) -> None:
    name = "definition" if entry in BAD_DEFINITIONS else "meta"
    text = {**BAD_DEFINITIONS, **BAD_METAS}[entry]
    assert why_refused(app, **{name: text}) is not None
    assert (find_fault(name, text) is None) == (entry in BAD_ONLY_TO_REDBEAT)
