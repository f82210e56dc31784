"""Random values through JSON and back."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule
from dateutil.rrule import weekday
from hypothesis import example, given, reject
from hypothesis import strategies as st

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedules import rrule

YEARS = {"min_value": datetime(1950, 1, 1), "max_value": datetime(2150, 1, 1)}
OFFSETS = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def through_json(value: Any) -> Any:
    text = json.dumps(value, cls=RedBeatJSONEncoder)
    found = json.loads(text, cls=RedBeatJSONDecoder)
    assert json.dumps(found, cls=RedBeatJSONEncoder) == text, "written anew it is another text"
    return found


def cron_fields(low: int, high: int) -> st.SearchStrategy[Any]:
    """The forms a crontab's field may have."""
    numbers = st.integers(low, high)
    several = st.lists(numbers, min_size=1, max_size=4)
    return st.one_of(
        st.just("*"),
        numbers,
        numbers.map(str),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        several,
        several.map(set),
        several.map(tuple),
        several.map(lambda some: ",".join(map(str, some))),
    )


@st.composite
def rules(draw: st.DrawFn) -> rrule:
    starts = st.datetimes(**YEARS, timezones=OFFSETS)
    some = {"max_size": 3}
    fields = {
        "freq": draw(st.integers(0, 6)),
        "dtstart": draw(starts),
        "interval": draw(st.integers(1, 10)),
        "wkst": draw(st.none() | st.integers(0, 6) | st.integers(0, 6).map(weekday)),
        "bymonth": draw(st.none() | st.integers(1, 12) | st.sets(st.integers(1, 12), **some)),
        "byweekday": draw(
            st.none()
            | st.lists(st.builds(weekday, st.integers(0, 6), st.sampled_from([None, 1, -2])), **some)
        ),
        "byeaster": draw(st.none() | st.integers(-50, 50)),
    }
    ends = {"count": st.integers(0, 1000), "until": starts}
    end = draw(st.none() | st.sampled_from(sorted(ends)))
    return rrule(**fields, **({end: draw(ends[end])} if end else {}))


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=36_500)), st.booleans())
def test_an_interval_comes_back_to_the_microsecond(every: timedelta, relative: bool) -> None:
    found = through_json(schedule(every, relative=relative))
    assert abs(found.run_every - every) <= timedelta(microseconds=1)
    assert found.relative is relative


@given(cron_fields(0, 59), cron_fields(0, 23), cron_fields(0, 6), cron_fields(1, 31), cron_fields(1, 12))
def test_a_crontab_comes_back(minute: Any, hour: Any, day: Any, day_of_month: Any, month: Any) -> None:
    try:
        given_one = crontab(minute, hour, day, day_of_month, month)
    except ValueError:  # Celery refuses the 31st of February
        reject()
    assert through_json(given_one) == given_one


@given(rules())
def test_a_rule_comes_back(rule: rrule) -> None:
    found = through_json(rule)
    assert found == rule
    assert found.dtstart.utcoffset() == rule.dtstart.utcoffset()


@example(datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")))
@example(datetime(2030, 10, 27, 1, 30, fold=1, tzinfo=ZoneInfo("Europe/Lisbon")))  # that is at no offset
@given(st.datetimes(**YEARS, timezones=st.timezones() | OFFSETS | st.just(timezone.utc)))
def test_an_aware_datetime_comes_back_with_its_offset(moment: datetime) -> None:
    found = through_json(moment)
    assert found.astimezone(timezone.utc) == moment.astimezone(timezone.utc)
    assert found.replace(tzinfo=None) == moment.replace(tzinfo=None)
    assert found.utcoffset() == moment.utcoffset()


@given(st.datetimes(**YEARS))
def test_a_naive_datetime_comes_back_in_utc(moment: datetime) -> None:
    assert through_json(moment) == moment.replace(tzinfo=timezone.utc, fold=0)
