"""Definitions and metas as JSON: what is written, what is read, and what is refused."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, MO, weekday
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import (
    DEFINITION_FIELDS,
    RedBeatJSONDecoder,
    RedBeatJSONEncoder,
    encode_definition,
    encode_meta,
)
from redbeat.entries.loading import decode_entry
from redbeat.entries.validation import read_fields
from redbeat.errors import EntryCorrupt
from redbeat.schedules import rrule
from redbeat.store.records import Stored
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS
from tests.support.fetched import fetched

NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)


NO_FIELDS = dict.fromkeys(
    ("wkst", "count", "bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster", "byweekno", "byweekday")
) | dict.fromkeys(("byhour", "byminute", "bysecond"))


RRULE = {"__type__": "rrule", "interval": 1, **NO_FIELDS}


STARS = dict.fromkeys(["minute", "hour", "day_of_week", "day_of_month", "month_of_year"], "*")


def written(value: Any) -> Any:
    return json.loads(json.dumps(value, cls=RedBeatJSONEncoder))


def read(value: Any) -> Any:
    return json.loads(value if isinstance(value, str) else json.dumps(value), cls=RedBeatJSONDecoder)


def datetime_json(**fields: Any) -> dict[str, Any]:
    whole = {"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}
    return {**whole, "microsecond": 0, "timezone": "UTC", **fields}


def shown(value: Any) -> str:
    """Return the repr without addresses of objects, which differ in each process."""
    return re.sub(r" at 0x\w+", "", repr(value))


EXAMPLES = [
    (schedule(10), {"__type__": "interval", "every": 10.0, "relative": False}),
    (schedule(timedelta(days=1), relative=True), {"__type__": "interval", "every": 86400, "relative": True}),
    (crontab(), {"__type__": "crontab", **STARS}),
    (
        crontab(minute="*/5", hour=7, day_of_week="mon-fri", day_of_month=[1, 15], month_of_year={4, 1}),
        {"__type__": "crontab", **dict(zip(STARS, ("*/5", 7, "mon-fri", [1, 15], [1, 4]), strict=True))},
    ),
    (rrule("DAILY", dtstart=NEW_YEAR), {**RRULE, "freq": 3, "dtstart": 1767225600, "dtstart_tz": 0.0}),
    (
        rrule(
            "MONTHLY",
            dtstart=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3))),
            until=NEW_YEAR + timedelta(days=365),
            byweekday=[MO(+1), FR],
            byhour=(7, 13),
        ),
        {
            **RRULE, "freq": 1, "byhour": [7, 13],
            "byweekday": [{"__type__": "weekday", "wkday": 0, "n": 1}, {"__type__": "weekday", "wkday": 4}],
            "dtstart": 1767236400, "dtstart_tz": -180.0, "until": 1798761600, "until_tz": 0.0,
        },
    ),
    (weekday(6, -1), {"__type__": "weekday", "wkday": 6, "n": -1}),
    (NEW_YEAR, datetime_json()),
    (NEW_YEAR.replace(tzinfo=ZoneInfo("Europe/Berlin")), datetime_json(timezone="Europe/Berlin")),
    (NEW_YEAR.replace(tzinfo=timezone(timedelta(minutes=-210))), datetime_json(timezone=-12600.0)),
]  # fmt: skip


DAILY = {"__type__": "rrule", "freq": 3, "dtstart": 1767225600}


DAY = '"__type__": "datetime", "year": 2026, "month": 1, "day": 1'


UNREADABLE = [
    ('{"__type__": "interval"}', "interval: 'every' is missing."),
    ('{"__type__": "interval", "every": "5"}', "interval: every must be a number of seconds, not '5'."),
    ('{"__type__": "interval", "every": 1e-9}', "interval: every must be more than 0 seconds"),
    ('{"__type__": "crontab", "minute": 99}', "crontab: Invalid crontab pattern"),
    ('{"__type__": "rrule", "freq": 9, "dtstart": 0}', "rrule: .*freq must be one of .*, not 9"),
    ('{"__type__": "weekday", "wkday": 9}', "weekday: wkday must be 0"),
    ('{"__type__": "datetime", "year": 2026, "month": 1}', "datetime: 'day' is missing."),
    ('{"__type__": "datetime", "year": 99999, "month": 1, "day": 1}', "datetime: "),
    (f'{{{DAY}, "timezone": "../x"}}', "datetime: unknown"),
]


@pytest.mark.parametrize(("value", "json_value"), EXAMPLES, ids=shown)
def test_value_is_written_and_read_as_in_2x(value: Any, json_value: dict[str, Any]) -> None:
    assert written(value) == json_value
    found = read(json_value)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_invalid_json_raises_value_error_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_text_for_a_boolean_is_read_as_it_says() -> None:
    texts = {"false": False, "0": False, "True": True}
    interval = {"__type__": "interval", "every": 60}
    assert {text: read({**interval, "relative": text}).relative for text in texts} == texts


@pytest.mark.parametrize(
    ("encoded", "change"),
    [
        ({"__type__": "interval", "every": 60}, lambda one: setattr(one, "run_every", timedelta(1))),
        ({"__type__": "crontab", "minute": "5"}, lambda one: one.minute.clear()),
        ({"__type__": "rrule", "freq": 3, "dtstart": 0, "byhour": [1, 2]}, lambda one: one.byhour.append(3)),
    ],
)
def test_changed_schedule_leaves_others_of_the_same_json_alone(encoded: Any, change: Any) -> None:
    first, before = read(encoded), shown(vars(read(encoded)))
    change(first)
    assert shown(vars(read(encoded))) == before
    assert shown(vars(first)) != before


YEARS = {"min_value": datetime(1950, 1, 1), "max_value": datetime(2150, 1, 1)}


OFFSETS = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@example(datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")))
@example(datetime(2030, 10, 27, 1, 30, fold=1, tzinfo=ZoneInfo("Europe/Lisbon")))  # that is at no offset
@given(st.datetimes(**YEARS, timezones=st.timezones() | OFFSETS | st.just(timezone.utc)))
def test_datetime_round_trip_keeps_its_offset(moment: datetime) -> None:
    found = read(written(moment))
    assert written(found) == written(moment)
    assert found.astimezone(timezone.utc) == moment.astimezone(timezone.utc)
    assert found.replace(tzinfo=None) == moment.replace(tzinfo=None)
    assert found.utcoffset() == moment.utcoffset()


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


INTERVAL_JSON = {"__type__": "interval", "every": 60.0, "relative": False}


def fields(**changes: Any) -> dict[str, Any]:
    plain = {"name": "n", "task": "t", "args": [1], "kwargs": {}, "options": {}, "enabled": True}
    values = {**plain, "schedule": schedule(60), **changes}
    return {name: values[name] for name in DEFINITION_FIELDS}


@pytest.mark.parametrize("stored", [None, "{oops", "[]", "null", "[" * 100_000])
def test_invalid_stored_definition_is_replaced_whole(stored: str | None) -> None:
    assert encode_definition(**fields(), stored=stored) == encode_definition(**fields())


def test_unknown_keys_are_kept_on_rewrite() -> None:
    rule = {**INTERVAL_JSON, "every": 5, "why": "x"}
    stored = json.dumps({"task": "old", "owner": "ops", "schedule": rule})
    found = json.loads(encode_definition(**fields(), stored=stored))
    assert found == {**fields(), "owner": "ops", "schedule": {**INTERVAL_JSON, "why": "x"}}


def test_meta_is_written_in_utc() -> None:
    for last_run_at in (NOON, NOON.astimezone(timezone(timedelta(hours=5)))):
        found = json.loads(encode_meta(last_run_at, 3))
        assert found == {"last_run_at": datetime_json(hour=12), "total_run_count": 3}


def test_meta_keeps_unknown_keys() -> None:
    found = json.loads(encode_meta(None, 0, '{"note": "x", "last_run_at": 5}'))
    assert found == {"last_run_at": None, "total_run_count": 0, "note": "x"}
    assert encode_meta(None, 0, "{oops") == encode_meta(None, 0)


GOOD: dict[str, Any] = {"task": "t", "schedule": schedule(60)}


@pytest.mark.parametrize(
    ("definition", "meta", "problem"),
    [
        (None, {}, "definition: .* not None"),
        ({**GOOD, "schedule": 60}, {}, "definition: schedule: .* interval, crontab, rrule, cron, .* not 60"),
        ({**GOOD, "options": {"headers": 1}}, {}, "definition: options: headers: .* not 1"),
        ({**GOOD, "enabled": "maybe"}, {}, "definition: enabled: .* not 'maybe'"),
        (GOOD, [], "meta: .* not a list"),
        (GOOD, {"last_run_at": 5}, "meta: last_run_at: .* not 5"),
        (GOOD, {"total_run_count": 1.5}, "meta: total_run_count: .* not 1.5"),
    ],
)
def test_invalid_entry_is_reported_with_field_and_value(definition: Any, meta: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_fields(definition, meta)


GOOD_TEXT = json.dumps({"task": "t", "schedule": INTERVAL_JSON})


BAD: dict[str, Any] = {name: (text, None) for name, text in BAD_DEFINITIONS.items()}


BAD |= {name: (GOOD_TEXT, text) for name, text in BAD_METAS.items()}


@pytest.mark.parametrize(("definition", "meta"), BAD.values(), ids=BAD)
def test_unusable_entry_raises_entry_corrupt(app: Celery, definition: str, meta: str | None) -> None:
    with pytest.raises(EntryCorrupt, match=r"^redbeat:x: (definition|meta): .") as caught:
        decode_entry(Entry, Stored("redbeat:x", definition, meta), app)
    assert caught.value.key == "redbeat:x"
    assert len(str(caught.value)) < 300


PLAIN = fields(options={"queue": "fast"}, kwargs={"deep": {"er": [None, 1.5]}}, schedule=INTERVAL_JSON)


def fetch(definition: Any, policy: Any = None) -> Stored:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    policy = policy if isinstance(policy, str | None) else json.dumps(policy)
    return fetched("redbeat:n", "1.000000", text, policy=policy)


class Plain(Entry):
    """A subclass without a constructor."""


class Built(Entry):
    """A subclass whose constructor makes its entries."""

    def __init__(self, name: Any = None, **given: Any) -> None:
        super().__init__(name, **given)


class SetsAppLast(Entry):
    """Calls no other constructor."""

    def __init__(self, **given: Any) -> None:
        for name in sorted(given, key="app".__eq__):
            setattr(self, name, given[name])


def test_constructor_of_a_subclass_may_set_the_app_after_the_schedule(app: Celery) -> None:
    app.conf.timezone = "Asia/Kolkata"
    text = json.dumps({"task": "t", "schedule": {"__type__": "crontab", "hour": 3}})
    entry = decode_entry(SetsAppLast, Stored("redbeat:x", text), app)
    assert (entry.app, entry.schedule.app) == (app, app)
    assert str(entry.schedule.tz) == "Asia/Kolkata"


@pytest.mark.parametrize("meta", [None, '{"total_run_count": 2}', '{"last_run_at": 1700000000}'])
def test_decoded_entry_is_as_a_constructor_makes_it(app: Celery, meta: str | None) -> None:
    text = json.dumps({"task": "t", "schedule": INTERVAL_JSON, "kwargs": None, "options": {"queue": "q"}})
    stored = Stored("redbeat:x", text, meta, policy='{"jitter": 5}')
    for plain in (decode_entry(Entry, stored, app), decode_entry(Plain, stored, app)):
        assert vars(plain) == vars(decode_entry(Built, stored, app))


def test_decoded_entries_share_nothing_that_an_application_may_change(app: Celery) -> None:
    text = json.dumps({"task": "t", "schedule": {"__type__": "crontab", "hour": "1"}, "args": [[1]]})
    one, other = (decode_entry(Entry, Stored(f"redbeat:{name}", text), app) for name in "ab")
    one.args[0].append(2)
    one.kwargs["k"], one.options["queue"] = 1, "q"
    one.schedule.hour.add(5)
    assert (other.args, other.kwargs, other.options, other.schedule.hour) == ([[1]], {}, {}, {1})
