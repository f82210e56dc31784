"""The JSON Schemas in docs/schema: they are in step with the code, and say what RedBeat writes."""

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

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import DEFINITION_FIELDS
from redbeat.entries.failures import Failure
from redbeat.entries.forms import FORM_FIELDS, READ_ONLY_FIELDS
from redbeat.entries.query import STATES
from redbeat.errors import EntryError
from redbeat.history import dropped_record, sent_record, skipped_record, unsent_record
from redbeat.policy.policy import AFTER_FINISH, FIELDS, MAX_MISFIRE_LIMIT, MISFIRES, OVERLAPS, TRACKS
from redbeat.schedules import clocked, cron
from redbeat.schedules.codec import SCHEDULE_FIELDS
from redbeat.store.records import Stored, Write
from tests.contract.kinds import entries
from tests.support.schemas import FOLDER, NAMES, find_fault, find_fault_in, schema_of
from tests.unit.entries.test_json import OFFSETS, cron_fields, rules

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
BERLIN = ZoneInfo("Europe/Berlin")


# -- the schemas themselves


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_valid_schema_that_explains_itself(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for member in ("$id", "title", "description", "examples"):
        assert schema[member], member
    for field, described in schema["properties"].items():
        assert described["title"], field
    for kind, described in schema.get("$defs", {}).items():
        assert described["title"], kind


def test_no_schema_is_overlooked() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_schemas_own_examples_and_defaults_are_good(name: str) -> None:
    schema = schema_of(name)
    checked = 0
    for part in _parts(schema):
        own = Draft202012Validator({"$defs": schema.get("$defs", {}), **part})
        for value in [*part.get("examples", []), *([part["default"]] if "default" in part else [])]:
            own.validate(value)
            checked += 1
    assert checked


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Each schema in a schema."""
    yield schema
    for keyword in ("properties", "$defs"):
        for part in schema.get(keyword, {}).values():
            yield from _parts(part)


def test_the_schemas_agree_where_they_are_about_the_same() -> None:
    definition, policy = schema_of("definition"), schema_of("policy")
    for field in FIELDS:
        assert definition["properties"][field] == policy["properties"][field], field
    for name in NAMES:
        for kind, described in schema_of(name).get("$defs", {}).items():
            assert described == definition["$defs"][kind], (name, kind)


def test_the_schemas_have_just_the_fields_that_the_code_has() -> None:
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
    assert set(shown) == {*FORM_FIELDS, *READ_ONLY_FIELDS} - set(FIELDS)
    assert shown["state"]["enum"] == [*STATES, None]
    assert set(schema_of("error")["properties"]) == {field.name for field in dataclass_fields(Failure)}
    assert policy["after_finish"]["enum"] == [*AFTER_FINISH, None]
    assert policy["misfire"]["enum"] == [*MISFIRES, None]
    assert policy["overlap"]["enum"] == [*OVERLAPS, None]
    assert policy["tracks"]["enum"] == [*TRACKS, None]
    assert policy["misfire_limit"]["maximum"] == MAX_MISFIRE_LIMIT
    assert set(definition["$defs"]["solar"]["properties"]["event"]["enum"]) == EVENTS


# -- what RedBeat writes


def assert_written_well(entry: RedBeatSchedulerEntry, write: Write | None = None) -> None:
    """What a save writes, of each field of the hash, is as the schemas say."""
    write = write or entry.plan_save(Stored(entry.key), NOW)
    assert write is not None
    for name, text in (("definition", write.definition), ("policy", write.policy), ("meta", write.meta)):
        assert not text or find_fault(name, text) is None, text
    assert write.definition
    assert find_fault_in("entry", entry.to_dict()) is None
    both = {**json.loads(write.definition), **json.loads(write.policy or "{}")}
    assert find_fault_in("definition", both) is None


def newer_kinds() -> dict[str, Any]:
    return {
        "cron": cron("0 9 LW * FRI#2"),
        "cron-nickname": cron("@daily"),
        "crontab-own": "5/15 0 L-3 * *",
        "clocked": clocked(datetime(2026, 12, 24, 18, tzinfo=BERLIN)),
        "clocked-naive": clocked(datetime(2026, 12, 24, 18, 0, 0, 5)),
        "solar": solar("sunset", 52.5, 13.4),
        "text": "*/15 7-18 * * mon-fri",
    }


@pytest.mark.parametrize("name", entries())
def test_each_kind_of_entry_of_2x_is_written_well(app: Celery, name: str) -> None:
    assert_written_well(RedBeatSchedulerEntry(name, app=app, **entries()[name]))


@pytest.mark.parametrize("name", newer_kinds())
def test_each_newer_kind_is_written_well(app: Celery, name: str) -> None:
    assert_written_well(RedBeatSchedulerEntry(name, "tasks.report", newer_kinds()[name], app=app))


def test_failures_are_written_well() -> None:
    failure = Failure("no task", NOW.isoformat(timespec="microseconds"), "0" * 40)
    assert find_fault("error", failure.to_json()) is None
    assert find_fault("error", failure.again(attempts=3, due="5", retry_at="1769844700.25").to_json()) is None


@pytest.mark.parametrize(
    "members",
    [
        sent_record("1769844600"),
        sent_record("1769844600.25", "0d3f3e5a-9f54-4c5e-8b0e-3a2f2f8f7f10", is_manual=True),
        skipped_record("1769844600", 'too "late"'),
        dropped_record("1769844600", "too late", "1769844600", 1, is_merged=False),
        dropped_record("1769844600", "too late", "1769844700", None, is_merged=True),
        unsent_record("1769844600", "the broker is away"),
    ],
)
def test_records_of_runs_are_written_well(members: str) -> None:
    assert find_fault("history-record", f'{{"at":1769844600.000001,{members}}}') is None


MOMENTS = st.datetimes(
    datetime(1971, 1, 1), datetime(9000, 1, 1), timezones=st.timezones() | OFFSETS | st.just(timezone.utc)
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-1e9, 1e9), st.text(), MOMENTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
EVENTS = solar._all_events  # noqa: SLF001 - Celery has no other list of them
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
    "one_off": st.booleans(), "after_finish": st.sampled_from(AFTER_FINISH), "jitter": SECONDS,
    "expires_after": SECONDS, "misfire": st.sampled_from(MISFIRES),
    "misfire_limit": st.integers(1, MAX_MISFIRE_LIMIT), "misfire_grace_time": SECONDS,
    "run_missed": st.booleans(), "paused": st.booleans(), "pause_note": st.text(), "paused_by": st.text(),
    "paused_until": MOMENTS, "overlap": st.sampled_from(OVERLAPS), "max_runtime": SECONDS,
    "revoke_overdue": st.booleans(), "queue_timeout": SECONDS, "pause_after_failures": st.integers(1),
    "resume_after": SECONDS, "tracks": st.sampled_from(TRACKS), "metrics": st.booleans(),
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
def test_whatever_redbeat_writes_is_as_the_schemas_say(
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


def test_those_are_all_fields_of_a_policy() -> None:
    assert {*POLICY_VALUES, "exclude"} == {*FIELDS}
