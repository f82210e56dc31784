"""Values of a policy that would do harm, and are refused; and what isn't refused with them."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.entries.entry import EntryArguments
from redbeat.entries.loading import decode_entry
from redbeat.entries.management import CHANGEABLE, Changes
from redbeat.errors import EntryCorrupt, EntryError
from redbeat.policy.policy import FIELDS, NO_POLICY, PolicyFields
from redbeat.store.records import KeyType, Stored


def entry(app: Celery, **fields: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", schedule(60), app=app, **fields)


@pytest.mark.parametrize("field", ["misfire_grace_time", "expires_after"])
@pytest.mark.parametrize("nothing", [0, 0.0, timedelta(0)])
def test_a_patience_of_nothing_is_refused(app: Celery, field: str, nothing: Any) -> None:
    words = f"^x: {field}: must be more than 0 seconds, or nothing ever runs"
    with pytest.raises(EntryError, match=words):
        entry(app, **{field: nothing})
    made = entry(app)
    with pytest.raises(EntryError, match=words):
        setattr(made, field, nothing)
    assert made.policy == NO_POLICY


@pytest.mark.parametrize("field", ["misfire_grace_time", "expires_after"])
@pytest.mark.parametrize("wrong", [-1, True, "5", float("nan"), 1e11])
def test_a_patience_is_a_number_of_seconds(app: Celery, field: str, wrong: Any) -> None:
    words = f"^x: {field}: must be a number of seconds above 0 and up to 10000000000, not "
    with pytest.raises(EntryError, match=words):
        entry(app, **{field: wrong})


@pytest.mark.parametrize("wrong", [0, -1, 1e11])
def test_a_limit_of_runs_says_what_is_allowed(app: Celery, wrong: float) -> None:
    words = f"^x: max_runtime: must be a number of seconds above 0 and up to 10000000000, not {wrong!r}"
    with pytest.raises(EntryError, match=re.escape(words).replace(r"\^", "^")):
        entry(app, max_runtime=wrong)
    with pytest.raises(EntryError, match="jitter: must be a number of seconds from 0 to 10000000000, not -1"):
        entry(app, jitter=-1)


def test_a_short_patience_and_no_jitter_are_allowed(app: Celery) -> None:
    made = entry(app, misfire_grace_time=0.5, expires_after=timedelta(seconds=1), jitter=0)
    assert (made.misfire_grace_time, made.expires_after, made.jitter) == (0.5, 1.0, 0)
    made.set_policy({"misfire_grace_time": None, "expires_after": None})
    assert made.policy == NO_POLICY


NO_ZONES = [
    "localtime", "LocalTime", "posixrules", "Factory", "factory", "right/UTC", "right/Europe/Berlin",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_ZONES)
def test_a_file_that_is_no_zone_is_refused_as_one(app: Celery, name: str) -> None:
    with pytest.raises(EntryError, match=f"^x: timezone: '{name}' can't be used as a zone: it differs"):
        entry(app, timezone=name)
    definition = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})
    stored = Stored("redbeat:x", definition, policy=json.dumps({"timezone": name}), type=KeyType.HASH)
    with pytest.raises(EntryCorrupt, match=f"^redbeat:x: policy: timezone: '{name}' can't be used as a zone"):
        decode_entry(RedBeatSchedulerEntry, stored, app)


@pytest.mark.parametrize("name", ["Europe/Berlin", "UTC", "Etc/GMT+5", "EST5EDT"])
def test_a_zone_is_one(app: Celery, name: str) -> None:
    assert entry(app, timezone=name).timezone == name


def test_a_zone_in_another_folder_of_the_machine_is_known_in_arguments() -> None:
    try:
        zone = ZoneInfo("posix/UTC")
    except ZoneInfoNotFoundError:
        pytest.skip("this machine has no posix/UTC")
    moment = datetime(2026, 6, 1, 12, 30, 5, 7, tzinfo=zone)
    text = json.dumps([moment], cls=RedBeatJSONEncoder)
    [found] = json.loads(text, cls=RedBeatJSONDecoder)
    assert (found, found.tzinfo) == (moment, zone)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-24T18:00", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24 18:00:00.5", "2026-12-24T18:00:00.500000+00:00"),
        ("2026-12-24T18:00Z", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24T18:00:00.123456+01:00", "2026-12-24T17:00:00.123456+00:00"),
        ("20261224T180000", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24", "2026-12-24T00:00:00+00:00"),
    ],
)
def test_a_time_in_iso_8601_is_read_alike_by_every_python(app: Celery, text: str, expected: str) -> None:
    start = entry(app, start_time=text).start_time
    assert start is not None
    assert start.isoformat() == expected


@pytest.mark.parametrize(
    "text", ["2026", "2026-12", "tomorrow", "18:00", "", "2026-13-01", "2026-12-24T25:00"]
)
def test_what_is_no_time_in_iso_8601_is_refused(app: Celery, text: str) -> None:
    with pytest.raises(EntryError, match=r"^x: start_time: .* is no time"):
        entry(app, start_time=text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"misfire_limit": 1001}, "misfire_limit: must be 1000 at the most"),
        ({"expires_after": 60, "jitter": 60}, "expires_after: must be more than jitter"),
        ({"start_time": datetime(1969, 12, 31)}, "start_time: must be in the years 1970 to 9998"),
        ({"end_time": datetime(9999, 1, 1)}, "end_time: must be in the years 1970 to 9998"),
    ],
)
def test_what_would_take_too_long_or_never_arrive_is_refused(
    app: Celery, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(EntryError, match=f"^x: {words}"):
        entry(app, **fields)


def test_the_bounds_themselves_are_allowed(app: Celery) -> None:
    fields = {"misfire_limit": 1000, "expires_after": 60, "jitter": 59.5, "start_time": datetime(1970, 1, 2)}
    assert entry(app, **fields).misfire_limit == 1000


def test_editors_and_type_checkers_know_every_field() -> None:
    assert PolicyFields.__optional_keys__ == set(FIELDS)
    assert Changes.__optional_keys__ == {*FIELDS, *CHANGEABLE}
    others = {"app", "last_run_at", "relative", "total_run_count"}
    assert EntryArguments.__optional_keys__ == {*FIELDS, *others}
