"""rrule: dateutil's rules, without dateutil's walk from the very beginning."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from dateutil.rrule import DAILY, FR, MO, SU, TU
from dateutil.rrule import rrule as dateutil_rrule
from hypothesis import event, given, reject
from hypothesis import strategies as st

from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedules import rrule
from redbeat.schedules.recurrence import FREQUENCIES
from tests.support.stopwatch import lines_run

UTC = timezone.utc
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday

#: freq to how far from dtstart a rule is looked at, so that dateutil's own walk stays short
REACH_DAYS = {0: 3650, 1: 1500, 2: 700, 3: 400, 4: 60, 5: 3, 6: 0.05}


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
    found = rule.occurrence(first or after, inclusive=inclusive)
    event("found" if found else "ended")
    assert found == rule.rrule.after(first or after, inc=inclusive)
    assert rule.occurrence(after, inclusive) == rule.rrule.after(after, inc=inclusive)


@pytest.mark.parametrize("freq", ["SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY"])
@pytest.mark.parametrize("interval", [1, 2, 7])
def test_a_rule_that_began_ten_years_ago_is_as_quick_as_one_of_today(freq: str, interval: int) -> None:
    step = {"SECONDLY": 1, "MINUTELY": 60, "HOURLY": 3600, "DAILY": 86400, "WEEKLY": 604800}[freq] * interval
    steps = timedelta(days=3650) // timedelta(seconds=step)
    old = NOON - steps * timedelta(seconds=step)
    rule = rrule(freq, dtstart=old, interval=interval, bysecond=[0, 30])
    assert lines_run(lambda: rule.occurrence(NOON)) < 2_000
    near = dateutil_rrule(FREQUENCIES[freq], dtstart=NOON, interval=interval, bysecond=[0, 30])
    assert rule.occurrence(NOON) == near.after(NOON)


@pytest.mark.parametrize("inclusive", [True, False])
def test_a_rule_in_a_zone_of_its_own_keeps_its_steps_after_the_clocks_change(inclusive: bool) -> None:
    summer = datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    after = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
    minutely = rrule("MINUTELY", dtstart=summer)
    assert minutely.occurrence(after, inclusive) == datetime(2026, 11, 20, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (rrule("MONTHLY", dtstart=NOON, byweekday=MO(+1)), [(6, 1), (7, 6), (8, 3)]),
        (rrule("MONTHLY", dtstart=NOON, byweekday=FR(-1)), [(6, 26), (7, 31), (8, 28)]),
        (rrule("WEEKLY", dtstart=NOON, interval=2, byweekday=[SU, TU], wkst=MO), [(6, 2), (6, 7), (6, 16)]),
        (rrule("WEEKLY", dtstart=NOON, interval=2, byweekday=[SU, TU], wkst=SU), [(6, 2), (6, 14), (6, 16)]),
        (rrule("WEEKLY", dtstart=NOON, interval=2, byweekday=[SU, MO], wkst=MO), [(6, 1), (6, 7), (6, 15)]),
        (rrule("WEEKLY", dtstart=NOON, interval=2, byweekday=[SU, MO], wkst=SU), [(6, 1), (6, 14), (6, 15)]),
        (rrule("DAILY", dtstart=NOON, count=2), [(6, 1), (6, 2), None]),
        (rrule("DAILY", dtstart=NOON, until=NOON + timedelta(days=1)), [(6, 1), (6, 2), None]),
        (rrule("DAILY", dtstart=NOON, count=1, byhour=11), [(6, 2), None]),
    ],
    ids=repr,
)
def test_the_first_occurrences(rule: rrule, expected: list[tuple[int, int] | None]) -> None:
    found: list[tuple[int, int] | None] = []
    moment: datetime | None = NOON - timedelta(seconds=1)
    while moment and len(found) < len(expected):
        moment = rule.occurrence(moment)
        found.append((moment.month, moment.day) if moment else None)
    assert found == expected


def test_an_occurrence_is_in_utc_whatever_the_rules_zone() -> None:
    rule = rrule("DAILY", dtstart=NOON.astimezone(timezone(timedelta(hours=5))))
    found = rule.occurrence(NOON)
    assert found is not None
    assert found.tzinfo is UTC


@pytest.mark.parametrize("freq", [*FREQUENCIES, *map(str.lower, FREQUENCIES), *FREQUENCIES.values()])
def test_a_frequency_is_a_word_or_dateutils_number(freq: Any) -> None:
    number = freq if isinstance(freq, int) else FREQUENCIES[freq.upper()]
    assert rrule(freq, dtstart=NOON).freq == number


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


def test_dtstart_is_now_when_it_is_not_given() -> None:
    assert rrule("DAILY", nowfun=lambda: NOON).dtstart == NOON


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


@pytest.mark.parametrize(
    "change",
    [
        {"freq": "YEARLY"}, {"interval": 2}, {"byweekday": [MO(+2)]}, {"byhour": 7}, {"until": None},
        {"wkst": MO},
    ],
)  # fmt: skip
def test_another_rule_is_not_equal(change: dict[str, Any]) -> None:
    fields = {name: getattr(FULL, name) for name in rrule.FIELDS}
    assert rrule(**fields) == FULL
    assert rrule(**{**fields, **change}) != FULL


@pytest.mark.parametrize("other", [crontab(), schedule(5), None, "rrule"], ids=repr)
def test_a_rule_is_not_equal_to_another_kind_of_schedule(other: Any) -> None:
    assert other != FULL
    assert other not in [FULL]


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
        assert due is not None
        waits.append(due - after)
    assert timedelta(0) < max(waits) <= timedelta(days=longest_days)
    assert min(waits) <= timedelta(hours=20)


def test_a_rule_without_a_time_at_any_offset_of_its_zone_has_none() -> None:
    rule = rrule("MINUTELY", dtstart=datetime(2026, 1, 1, 9, tzinfo=UTC), interval=20, byminute=[5])
    for zone in ("Australia/Lord_Howe", "Europe/Berlin", "UTC"):
        assert rule.occurrence(NOON, tz=ZoneInfo(zone)) is None
