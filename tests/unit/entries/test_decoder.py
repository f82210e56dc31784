"""The JSON: what is written is what celery-redbeat 2.x writes, and what is read is read leniently."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, MO, weekday

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder, decode, from_timestamp, to_timestamp
from redbeat.schedules import rrule

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
    """The same in every process: without the addresses of objects."""
    return re.sub(r" at 0x\w+", "", repr(value))


EXAMPLES = [
    (schedule(10), {"__type__": "interval", "every": 10.0, "relative": False}),
    (schedule(timedelta(days=1), relative=True), {"__type__": "interval", "every": 86400, "relative": True}),
    (crontab(), {"__type__": "crontab", **STARS}),
    (
        crontab(minute="*/5", hour=7, day_of_week="mon-fri", day_of_month=[1, 15], month_of_year={4, 1}),
        {"__type__": "crontab", **dict(zip(STARS, ("*/5", 7, "mon-fri", [1, 15], [1, 4]), strict=True))},
    ),
    (crontab(hour={13, 7}), {"__type__": "crontab", **STARS, "hour": [7, 13]}),
    (crontab(hour=(8, 9)), {"__type__": "crontab", **STARS, "hour": [8, 9]}),
    (crontab(hour=iter([8, 9])), {"__type__": "crontab", **STARS, "hour": [8, 9]}),
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
    (weekday(6), {"__type__": "weekday", "wkday": 6}),
    (weekday(6, -1), {"__type__": "weekday", "wkday": 6, "n": -1}),
    (NEW_YEAR, datetime_json()),
    (NEW_YEAR.replace(hour=7, microsecond=5), datetime_json(hour=7, microsecond=5)),
    (NEW_YEAR.replace(tzinfo=ZoneInfo("Europe/Berlin")), datetime_json(timezone="Europe/Berlin")),
    (NEW_YEAR.replace(tzinfo=timezone(timedelta(minutes=-210))), datetime_json(timezone=-12600.0)),
    (NEW_YEAR.replace(tzinfo=timezone(timedelta(0))), datetime_json()),
]  # fmt: skip

DAILY = {"__type__": "rrule", "freq": 3, "dtstart": 1767225600}
DAY = '"__type__": "datetime", "year": 2026, "month": 1, "day": 1'
# What people write by hand, and what it means.
LENIENT = [
    ({"__type__": "interval", "every": 5}, schedule(5)),
    ({"__type__": "interval", "every": 0.25, "relative": None, "colour": "red"}, schedule(0.25)),
    ({"__type__": "crontab"}, crontab()),
    ({"__type__": "crontab", "hour": 7, "minute": None}, crontab(hour=7)),
    ({"__type__": "crontab", "hour": "7", "colour": "red"}, crontab(hour=7)),
    ({**DAILY, "freq": "DAILY"}, rrule("DAILY", dtstart=NEW_YEAR)),
    ({"__type__": "rrule", "freq": 3, "dtstart": datetime_json()}, rrule("DAILY", dtstart=NEW_YEAR)),
    ({**DAILY, "dtstart_tz": None, "x": 1}, rrule("DAILY", dtstart=NEW_YEAR)),
    ({"__type__": "weekday", "wkday": 0, "n": None}, MO),
    ({"__type__": "datetime", "year": 2026, "month": 1, "day": 1}, NEW_YEAR),
    ({"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": "Z"}, NEW_YEAR),
    ({"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": 0}, NEW_YEAR),
    ({"__type__": "birthday", "year": 2026}, {"__type__": "birthday", "year": 2026}),
    ({"__type__": 7}, {"__type__": 7}),
    ({"plain": {"every": 5}}, {"plain": {"every": 5}}),
]

UNREADABLE = [
    ('{"__type__": "interval"}', "interval: 'every' is missing."),
    ('{"__type__": "interval", "every": "5"}', "interval: every must be a number of seconds, not '5'."),
    ('{"__type__": "interval", "every": true}', "interval: every must be a number of seconds, not True."),
    ('{"__type__": "interval", "every": 0}', "interval: every must be more than 0 seconds"),
    ('{"__type__": "interval", "every": -5}', "interval: every must be more than 0 seconds"),
    ('{"__type__": "interval", "every": 1e-9}', "interval: every must be more than 0 seconds"),
    ('{"__type__": "interval", "every": NaN}', "interval: "),
    ('{"__type__": "interval", "every": 1e300}', "interval: "),
    ('{"__type__": "crontab", "minute": 99}', "crontab: Invalid crontab pattern"),
    ('{"__type__": "crontab", "minute": 1.5}', "crontab: "),
    ('{"__type__": "rrule"}', "rrule: "),
    ('{"__type__": "rrule", "freq": 9, "dtstart": 0}', "rrule: .*freq must be one of .*, not 9"),
    ('{"__type__": "rrule", "freq": "OFTEN", "dtstart": 0}', "rrule: .*freq must be one of .*, not 'OFTEN'"),
    ('{"__type__": "rrule", "freq": 3, "interval": 0}', "rrule: .*interval must be 1 or more, not 0"),
    ('{"__type__": "rrule", "freq": 3, "byhour": "x"}', "rrule: "),
    ('{"__type__": "rrule", "freq": 3, "dtstart": 1e300}', "rrule: "),
    ('{"__type__": "weekday"}', "weekday: 'wkday' is missing."),
    ('{"__type__": "weekday", "wkday": 9}', "weekday: wkday must be 0"),
    ('{"__type__": "weekday", "wkday": "MO"}', "weekday: wkday must be 0"),
    ('{"__type__": "weekday", "wkday": 0, "n": "1"}', "weekday: wkday must be 0"),
    ('{"__type__": "datetime", "year": 2026, "month": 1}', "datetime: 'day' is missing."),
    ('{"__type__": "datetime", "year": 99999, "month": 1, "day": 1}', "datetime: "),
    (f'{{{DAY}, "timezone": "Mars/Base"}}', "datetime: unknown"),
    (f'{{{DAY}, "timezone": "../x"}}', "datetime: unknown"),
    (f'{{{DAY}, "timezone": true}}', "datetime: timezone True"),
    (f'{{{DAY}, "timezone": 1e6}}', "datetime: "),
    ("{oops", "property name"),
]


@pytest.mark.parametrize(("value", "expected"), EXAMPLES, ids=shown)
def test_a_value_is_written_as_2x_writes_it(value: Any, expected: dict[str, Any]) -> None:
    assert written(value) == expected


@pytest.mark.parametrize(("value", "json_value"), EXAMPLES, ids=shown)
def test_what_2x_wrote_is_read_as_the_same_value(value: Any, json_value: dict[str, Any]) -> None:
    found = read(json_value)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(("json_value", "expected"), LENIENT, ids=repr)
def test_what_people_write_by_hand_is_read(json_value: Any, expected: Any) -> None:
    assert read(json_value) == expected


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_what_makes_no_sense_is_a_value_error_that_says_what(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_the_zone_of_a_datetime_survives() -> None:
    assert read(datetime_json(timezone="Europe/Berlin")).tzinfo == ZoneInfo("Europe/Berlin")


def test_datetimes_are_found_however_deep_they_stand() -> None:
    assert read(written({"args": [[{"at": NEW_YEAR}]]})) == {"args": [[{"at": NEW_YEAR}]]}


@pytest.mark.parametrize("value", [object(), {1, 2}, timedelta(1), b"x", 1j])
def test_what_has_no_form_in_json_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        written(value)


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        (NEW_YEAR, 1767225600),
        (NEW_YEAR.replace(tzinfo=None), 1767225600),
        (NEW_YEAR.replace(tzinfo=timezone(timedelta(hours=1))), 1767222000),
        (NEW_YEAR.replace(microsecond=999_999), 1767225600),
    ],
)
def test_a_timestamp_is_whole_unix_seconds(moment: datetime, seconds: int) -> None:
    assert to_timestamp(moment) == seconds
    assert isinstance(to_timestamp(moment), int)


@pytest.mark.parametrize("minutes", [0, 60, -210, 345])
def test_from_timestamp_shows_the_instant_at_an_offset(minutes: int) -> None:
    moment = from_timestamp(1767225600, minutes)
    assert moment == NEW_YEAR
    assert moment.utcoffset() == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("encoded", "change"),
    [
        ({"__type__": "interval", "every": 60}, lambda one: setattr(one, "run_every", timedelta(1))),
        ({"__type__": "crontab", "minute": "5"}, lambda one: one.minute.clear()),
        ({"__type__": "rrule", "freq": 3, "dtstart": 0, "byhour": [1, 2]}, lambda one: one.byhour.append(3)),
    ],
)
def test_changing_a_schedule_changes_no_other_one_of_the_same_json(encoded: Any, change: Any) -> None:
    first, before = read(encoded), shown(vars(read(encoded)))
    change(first)
    assert shown(vars(read(encoded))) == before
    assert shown(vars(first)) != before


def test_values_that_are_equal_and_of_other_types_are_told_apart() -> None:
    assert read({"__type__": "interval", "every": 1}).run_every == timedelta(seconds=1)
    with pytest.raises(ValueError, match="every must be a number of seconds, not True"):
        read({"__type__": "interval", "every": True})
    assert read({"__type__": "crontab", "minute": 1})._orig_minute == 1  # noqa: SLF001 - Celery has no other name for it
    assert read({"__type__": "crontab", "minute": "1"})._orig_minute == "1"  # noqa: SLF001 - Celery has no other name for it


@pytest.mark.parametrize("text", ["{}", " [1]", "\n{}\n", "{} "])
def test_white_space_around_a_text_is_read_over(text: str) -> None:
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize("text", ["{} x", "", " ", "{", "[1]]", '{"a": }', '"\x00"'])
def test_bad_json_is_refused_in_the_words_of_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError, match=re.escape(str(expected.value))):
        decode(text)
