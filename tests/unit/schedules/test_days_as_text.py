"""Days of a crontab that only ours knows, L, W and #, written in a string or in an entry's JSON by hand."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedules import cron
from redbeat.schedules.occurrences import CRON_FIELDS

#: the Friday of its end is the 26th, the 15th is a Monday, the 28th a Sunday and the 30th a Tuesday
JUNE = datetime(2026, 6, 1, tzinfo=timezone.utc)


def days_of(made: RedBeatSchedulerEntry, month: int = 6) -> list[int]:
    end = JUNE.replace(month=month + 1)
    return [run.day for run in made.runs_between(JUNE.replace(month=month), end) if run.month == month]


def entry(app: Celery, schedule: Any) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry("x", "t", schedule, app=app)


def decoded(**fields: Any) -> Any:
    return json.loads(json.dumps({"__type__": "crontab", **fields}), cls=RedBeatJSONDecoder)


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        *((f"0 9 * * {days}", [26]) for days in ("friL", "FRIL", "fril", "5L")),
        *((f"0 9 * * {days}", [1, 8, 15, 22, 26, 29]) for days in ("FRIL,mon", "mon,fril")),
        ("0 9 * * fri#2", [12]),
        ("0 9 l * *", [30]),
        ("0 9 l-2 * *", [28]),
        ("0 9 l-2,1 * *", [1, 28]),
        ("0 9 1,L * *", [1, 30]),
        ("0 9 13w * *", [12]),
        ("0 9 15w * *", [15]),
        ("0 9 15W,2 * *", [2, 15]),
        ("0 9 lw * *", [30]),
        ("0 9 LW,20 * *", [20, 30]),
    ],
)
def test_days_that_only_ours_knows_are_what_they_say(app: Celery, expression: str, days: list[int]) -> None:
    made = entry(app, expression)
    assert isinstance(made.schedule, cron)
    assert days_of(made) == days


def test_the_last_friday_is_another_day_each_month(app: Celery) -> None:
    made = entry(app, "0 9 * * friL")
    assert [days_of(made, month) for month in range(1, 12)] == [
        [30], [27], [27], [24], [29], [26], [31], [28], [25], [30], [27],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "days"),
    [
        ({"day_of_week": "friL"}, [26]),
        ({"day_of_week": "FRIL,mon"}, [1, 8, 15, 22, 26, 29]),
        ({"day_of_week": "fri#2"}, [12]),
        ({"day_of_month": "l-2"}, [28]),
        ({"day_of_month": "15w"}, [15]),
        ({"day_of_month": "lw"}, [30]),
    ],
)
def test_a_stored_crontab_means_the_same(app: Celery, fields: dict[str, str], days: list[int]) -> None:
    rule = decoded(minute="0", hour="9", **fields)
    assert days_of(entry(app, rule)) == days
    again = json.loads(json.dumps(rule, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder)
    assert days_of(entry(app, again)) == days


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("day_of_week", "bol", "day_of_week: 'bo' is no number from 0 to 7, or SUN, MON"),
        ("day_of_week", "8L", "day_of_week: '8' is no number from 0 to 7"),
        ("day_of_week", "fri#9", "day_of_week: 'fri#9' is no weekday with # and a number from 1 to 5"),
        ("day_of_month", "w", "day_of_month: 'w' is no number from 1 to 31"),
        ("day_of_month", "friL", "day_of_month: 'friL' is no number from 1 to 31"),
    ],
)
def test_a_stored_day_that_is_none_is_told_by_its_field(field: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decoded(**{field: text})


@pytest.mark.parametrize("weekdays", ["wed", "fri,wed", "WED", "tue-wed", "wed,sun", "mon-fri", "*", "3"])
def test_weekdays_with_these_letters_in_them_are_a_plain_crontab(app: Celery, weekdays: str) -> None:
    """Only that one is what celery-redbeat 2.x reads."""
    for rule in (decoded(day_of_week=weekdays), entry(app, f"* * * * {weekdays}").schedule):
        assert type(rule) is crontab
        assert rule == crontab(day_of_week=weekdays)
        fields = {**dict.fromkeys(CRON_FIELDS, "*"), "day_of_week": weekdays}
        assert json.loads(json.dumps(rule, cls=RedBeatJSONEncoder)) == {"__type__": "crontab", **fields}


@pytest.mark.parametrize("month", ["jul", "apr,jul", "JUL"])
def test_a_month_that_ends_like_the_last_day_is_no_day(app: Celery, month: str) -> None:
    made = entry(app, f"0 9 1 {month} *")
    assert days_of(made, month=7) == [1]
    assert isinstance(made.schedule, crontab)


@pytest.mark.parametrize("nth", ["fri#0", "fri#6", "#2", "fri#"])
def test_a_weekday_that_no_month_has_is_refused_with_an_example(nth: str) -> None:
    with pytest.raises(ValueError, match=f"'{nth}' is no weekday with # and a number .*, as 'fri#2'"):
        cron(f"0 9 * * {nth}")
