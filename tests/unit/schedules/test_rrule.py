"""rrule: dateutil's rules, without dateutil's walk from the very beginning."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from dateutil.rrule import DAILY, FR, MO, SU, weekday
from dateutil.rrule import rrule as dateutil_rrule
from hypothesis import event, example, given, reject
from hypothesis import strategies as st

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedules.recurrence import FREQUENCIES, rrule
from tests.support.stopwatch import lines_run

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday

#: freq to how far from dtstart a rule is looked at, so that dateutil's own walk stays short
REACH_DAYS = {0: 3650, 1: 900, 2: 400, 3: 200, 4: 30, 5: 1.5, 6: 0.03}


def some(low: int, high: int) -> st.SearchStrategy[list[int] | None]:
    return st.none() | st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> rrule:
    """Rules that match now and then: for one that never does, dateutil walks to the year 9999."""
    freq = draw(st.integers(0, 6))
    offset = timezone(timedelta(minutes=draw(st.sampled_from([0, 120, -210, 345]))))
    dtstart = draw(st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1), timezones=st.just(offset)))
    days = [{"byweekday": some(0, 6)}]
    if freq < 2:
        days += [{"byweekday": st.just([MO(+1), FR(-1)])}]
    if freq < 4:
        days += [{"bymonth": some(1, 12), "byweekday": some(0, 6)}]
    if freq in (0, 1, 3):
        days += [{"bymonthday": some(1, 28)}, {"bymonthday": some(-28, -1), "bymonth": some(1, 12)}]
    times = {"byhour": some(0, 23), "byminute": some(0, 59), "bysecond": some(0, 59)}
    fields = draw(st.fixed_dictionaries({**draw(st.sampled_from(days)), **times}))
    if any(fields.values()):
        fields["bysetpos"] = draw(st.sampled_from([None, 1, -1]))
    fields["interval"] = draw(st.sampled_from([1, 1, 2, 3, 5]))  # no multiple of a week's days
    fields["wkst"] = draw(st.sampled_from([None, MO, SU, 3]))
    if draw(st.booleans()):
        fields["until"] = dtstart + draw(st.floats(0, 1)) * timedelta(days=REACH_DAYS[freq])
    elif draw(st.booleans()):
        fields["count"] = draw(st.integers(1, 50))
    rule = rrule(freq, dtstart=dtstart, **fields)
    try:
        assert rule.rrule
    except ValueError:  # dateutil refuses hours that its steps never reach
        reject()
    return rule


@given(rules(), st.floats(-0.1, 1.1), st.booleans())
def test_an_occurrence_is_the_one_dateutil_finds(rule: rrule, at: float, inclusive: bool) -> None:
    after = rule.dtstart.astimezone(UTC) + at * timedelta(days=REACH_DAYS[rule.freq])
    first = rule.rrule.after(after)
    try:
        found = rule.occurrence(first or after, inclusive=inclusive)
    except ValueError as exc:
        refusal = str(exc)  # such as every second month from January, in February
    else:
        event("found" if found else "ended")
        assert found == rule.rrule.after(first or after, inc=inclusive)
        assert rule.occurrence(after, inclusive) == rule.rrule.after(after, inc=inclusive)
        return
    event("refused")
    assert "too sparse" in refusal
    assert first is None, "it has no occurrence at all"


@pytest.mark.parametrize(
    ("freq", "interval"), [("SECONDLY", 7), ("MINUTELY", 2), ("DAILY", 1), ("WEEKLY", 2)]
)
def test_a_rule_that_began_ten_years_ago_is_as_quick_as_one_of_today(freq: str, interval: int) -> None:
    step = {"SECONDLY": 1, "MINUTELY": 60, "HOURLY": 3600, "DAILY": 86400, "WEEKLY": 604800}[freq] * interval
    steps = timedelta(days=3650) // timedelta(seconds=step)
    old = NOON - steps * timedelta(seconds=step)
    rule = rrule(freq, dtstart=old, interval=interval, bysecond=[0, 30])
    assert lines_run(lambda: rule.occurrence(NOON)) < 2_000
    near = dateutil_rrule(FREQUENCIES[freq], dtstart=NOON, interval=interval, bysecond=[0, 30])
    assert rule.occurrence(NOON) == near.after(NOON)


@pytest.mark.parametrize(
    "arguments",
    [
        {"freq": "OFTEN"}, {"freq": 7}, {"freq": -1}, {"freq": None}, {"freq": DAILY, "interval": 0},
        {"freq": DAILY, "interval": 1.5}, {"freq": DAILY, "byhour": 99}, {"freq": DAILY, "bysetpos": 0},
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_a_value_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        rrule(dtstart=NOON, **arguments)


def test_hours_that_no_step_reaches_are_never_and_no_error() -> None:
    rule = rrule("HOURLY", dtstart=NOON, interval=2, byhour=[1, 13])
    assert rule.occurrence(NOON) is None
    assert rule.occurrence(NOON, tz=ZoneInfo("Asia/Kolkata")) == NOON + timedelta(hours=8)  # 01:30


def test_naive_times_are_utc_and_whole_seconds() -> None:
    naive = datetime(2026, 6, 1, 12, 0, 0, 999_999)
    rule = rrule("DAILY", dtstart=naive, until=naive)
    assert (rule.dtstart, rule.until) == (NOON, NOON)


END = NOON + timedelta(days=99)
FULL = rrule("MONTHLY", dtstart=NOON, until=END, byweekday=[MO(+1)], byhour=(7, 13), wkst=SU)


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy, copy.deepcopy, lambda rule: pickle.loads(pickle.dumps(rule)),
        lambda rule: json.loads(json.dumps(rule, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder),
    ],
    ids=["copy", "deepcopy", "pickle", "json"],
)  # fmt: skip
def test_a_copy_is_equal_and_has_the_same_occurrences(duplicate: Any) -> None:
    assert duplicate(FULL) == FULL
    assert duplicate(FULL).occurrence(NOON) == FULL.occurrence(NOON)


@pytest.mark.parametrize("change", [{"interval": 2}, {"byweekday": [MO(+2)]}, {"until": None}, {"wkst": MO}])
def test_another_rule_is_not_equal(change: dict[str, Any]) -> None:
    fields = {name: getattr(FULL, name) for name in rrule.FIELDS}
    assert rrule(**fields) == FULL
    assert rrule(**{**fields, **change}) != FULL
    assert crontab() != FULL


@pytest.mark.parametrize("hours", [(7, 13), {7, 13}, frozenset({7, 13}), range(7, 14, 6)])
def test_any_collection_of_numbers_is_equal_to_itself_when_saved_and_read(hours: Any) -> None:
    rule = rrule("DAILY", dtstart=NOON, byhour=hours)
    saved = json.loads(json.dumps(rule, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder)
    assert saved == rule == rrule("DAILY", dtstart=NOON, byhour=hours)
    assert sorted(rule.byhour) == [7, 13]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (NOON - timedelta(seconds=5), (False, 5)), (NOON, (True, 86400)),
        (NOON + timedelta(seconds=5), (True, 86395)), (NOON + timedelta(days=1), (True, None)),
    ],
)  # fmt: skip
def test_is_due_answers_as_celerys_schedules_do(now: datetime, expected: tuple[bool, float | None]) -> None:
    rule = rrule("DAILY", dtstart=NOON, count=2, nowfun=lambda: now)
    last_run_at = NOON - timedelta(days=1)
    assert rule.is_due(last_run_at) == expected
    assert rule.remaining_estimate(last_run_at) == NOON - now


@pytest.mark.parametrize(
    ("zone", "fields", "longest_days"),
    [
        ("America/New_York", {"freq": "HOURLY", "interval": 2, "byhour": list(range(24))}, 1),
        ("Australia/Lord_Howe", {"freq": "MINUTELY", "interval": 20, "byminute": [0, 20, 40]}, 183),
        ("Asia/Kolkata", {"freq": "MINUTELY", "interval": 20, "byminute": [10, 30, 50]}, 1),
        ("Europe/Berlin", {"freq": "HOURLY", "interval": 2, "byhour": [10, 12, 14]}, 1),
    ],
)
def test_a_rule_that_steps_by_hours_has_a_next_run_all_the_year(
    zone: str, fields: dict[str, Any], longest_days: int
) -> None:
    """On Lord Howe Island the clocks change by half an hour, and its minutes come in summer only."""
    rule = rrule(dtstart=datetime(2026, 1, 1, 9, tzinfo=UTC), **fields)
    waits = []
    for day in range(0, 365, 5):
        after = NOON + timedelta(days=day)
        due = rule.occurrence(after, tz=ZoneInfo(zone))
        waits.append(due - after)
    assert timedelta(0) < max(waits) <= timedelta(days=longest_days)
    assert min(waits) <= timedelta(hours=20)


@pytest.mark.parametrize("count", [10**10, 10**18])
def test_a_count_of_thousands_of_millions_is_quick_and_right(count: int) -> None:
    rule = rrule("SECONDLY", dtstart=datetime(1970, 1, 1, tzinfo=UTC), count=count)
    assert lines_run(lambda: rule.occurrence(NOON)) < 2_000
    assert rule.occurrence(NOON) == NOON + timedelta(seconds=1)
    assert rule.occurrence(NOON, inclusive=True) == NOON


@pytest.mark.parametrize(("freq", "interval"), [("MINUTELY", 10**8), ("SECONDLY", 86_401)])
def test_a_count_over_thousands_of_years_takes_no_walk_through_their_days(freq: str, interval: int) -> None:
    start = datetime(1900, 9, 25, 13, 20, 58, tzinfo=UTC)
    rule = rrule(freq, dtstart=start, interval=interval, count=5, byhour=list(range(24)))
    assert (
        lines_run(lambda: rule.occurrence(NOON.replace(year=3000))) < 2_000_000
    )  # a walk takes ten times more


@pytest.mark.parametrize(
    ("freq", "fields"),
    [
        ("HOURLY", {"bysetpos": 2}),
        ("HOURLY", {"byminute": [0, 30], "bysecond": [0, 1, 2], "bysetpos": [1, -7]}),
        ("MINUTELY", {"bysecond": [0, 30], "bysetpos": -3}),
        ("SECONDLY", {"bysecond": 0, "bysetpos": [1, -2]}),
    ],
)
def test_a_position_that_no_step_has_is_refused(freq: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bysetpos"):
        rrule(freq, dtstart=NOON, **fields)


@pytest.mark.parametrize(
    ("fields", "per_week"),
    [
        ({"bysecond": [0]}, 7 * 1440),
        ({"byhour": [7], "bysecond": 0}, 7 * 60),
        ({"byweekday": [MO, FR]}, 2 * 86_400),
    ],
)
def test_a_count_with_filters_that_are_the_same_each_week_is_counted_at_once(
    fields: dict[str, Any], per_week: int
) -> None:
    start = datetime(1600, 1, 3, tzinfo=UTC)  # a Monday
    last = start + timedelta(weeks=10_000, hours=7)
    rule = rrule("SECONDLY", dtstart=start, count=per_week * 10_000 + 1, **fields)
    assert rule.occurrence(last - timedelta(days=7)) is not None
    assert rule.occurrence(last + timedelta(days=1)) is None


some_days = st.one_of(
    st.none(), st.lists(st.sampled_from([1, 13, 28, 29, 30, 31, -1, -30, -31, 32]), min_size=1)
)
filters = st.fixed_dictionaries(
    {
        "bymonth": st.one_of(st.none(), st.integers(1, 12)),
        "bymonthday": some_days,
        "byyearday": st.one_of(st.none(), st.sampled_from([1, 59, 60, 366, -366, 400])),
        "byweekno": st.one_of(st.none(), st.sampled_from([1, 9, 53, -53])),
        "byeaster": st.one_of(st.none(), st.sampled_from([0, -47, 39, 1, 200])),
        "byweekday": st.one_of(
            st.none(),
            st.lists(st.integers(0, 6), min_size=1, max_size=2),
            st.builds(weekday, st.integers(0, 6), st.sampled_from([1, 5, -1])),
        ),
    }
)


def first_of(rule: dateutil_rrule) -> datetime | None:
    """The first occurrence; dateutil doesn't end before one in a week of 9999 that extends beyond it."""
    try:
        return next(iter(rule), None)
    except ValueError as exc:
        assert str(exc) == "year 10000 is out of range"  # noqa: PT017 - it may raise or not
        return None


@example("WEEKLY", {"byyearday": -366, "byweekday": [5]})
@given(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]), filters)
def test_no_rule_that_comes_true_is_called_impossible(freq: str, fields: dict[str, Any]) -> None:
    start = datetime(9985, 6, 1, 12)  # as far from the last year as dateutil walks quickly
    if rrule(freq, dtstart=start, **fields).occurrence(start.replace(tzinfo=UTC), inclusive=True) is None:
        assert first_of(dateutil_rrule(FREQUENCIES[freq], dtstart=start, **fields)) is None
