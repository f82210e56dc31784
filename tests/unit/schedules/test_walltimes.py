"""Rules on a clock on the wall beside dateutil's own walk: of the last weeks of its calendar, or as far as it
comes in a fraction of a second."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pytest
from dateutil.rrule import weekday
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st

from redbeat.schedules.recurrence import rrule
from redbeat.schedules.walltimes import wall_times
from tests.faults.rounds import IS_LONG

#: dateutil gives up at the end of the year 9999, so that even in vain it hasn't far to go from here
LATE = datetime(9999, 12, 1)
ENOUGH = 40

Result = TypeVar("Result")

PER_DAY = {"DAILY": 1, "HOURLY": 24, "MINUTELY": 1440, "SECONDLY": 86_400}
#: what steps over hours, days and weeks, and is a part or a multiple of them, or neither
INTERVALS = {
    "DAILY": [1, 2, 7, 14, 5], "HOURLY": [1, 2, 5, 7, 24, 25, 48, 168],
    "MINUTELY": [1, 7, 15, 90, 720, 1440, 1441, 10_080], "SECONDLY": [1, 7, 3600, 86_400, 86_399, 604_800],
}  # fmt: skip


class TooLong(Exception):
    """dateutil doesn't come to an end."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block once it has used so much processor time."""

    def interrupt(_number: int, _frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def cheap(call: Callable[[], Result]) -> Result:
    """Return ``call()``, which takes a fraction of a second of processor time, whatever it raises."""
    began = time.thread_time()
    try:
        return call()
    finally:
        assert time.thread_time() - began < 1


def some(low: int, high: int) -> st.SearchStrategy[list[int] | None]:
    return st.none() | st.lists(st.integers(low, high), min_size=1, max_size=4)


@st.composite
def stepping_rules(draw: st.DrawFn) -> rrule:
    freq = draw(st.sampled_from(sorted(PER_DAY)))
    start = draw(st.datetimes(LATE, LATE + timedelta(days=20))).replace(microsecond=0)
    fields: dict[str, Any] = {
        "interval": draw(st.sampled_from(INTERVALS[freq])), "byhour": draw(some(0, 23)),
        "byminute": draw(some(0, 59)), "bysecond": draw(some(0, 59)),
    }  # fmt: skip
    days = {
        "byweekday": some(0, 6),
        "bymonthday": some(-31, 31).filter(lambda found: not found or 0 not in found),
    }
    days |= {"bymonth": st.sampled_from([None, 12]), "byyearday": st.sampled_from([None, [-1, -9, 350]])}
    for name in draw(st.sets(st.sampled_from(sorted(days)), max_size=2)):
        fields[name] = draw(days[name])
    if draw(st.booleans()):
        fields["count"] = draw(st.integers(1, 60))
    if freq == "DAILY" and any(fields[name] for name in ("byhour", "byminute", "bysecond")):
        fields["bysetpos"] = draw(st.none() | st.lists(st.sampled_from([1, 2, 3, -1, -2]), min_size=1))
    return rrule(freq, dtstart=start, **fields)


def own(rule: rrule, start: datetime) -> list[datetime]:
    found: list[datetime] = []
    upcoming = wall_times(rule, start).next(start, inclusive=True)
    while upcoming is not None and len(found) < ENOUGH and upcoming.year == LATE.year:
        found.append(upcoming)
        upcoming = wall_times(rule, start).next(upcoming)
    return found


@given(stepping_rules(), st.timedeltas(timedelta(0), timedelta(days=10)), st.booleans())
def test_occurrences_are_those_of_dateutil_from_anywhere(
    rule: rrule, passed: timedelta, inclusive: bool
) -> None:
    start = rule.dtstart.replace(tzinfo=None)
    try:
        expected = [one.replace(tzinfo=None) for one in islice(rule.rrule, ENOUGH)]
    except ValueError:  # dateutil knows that its steps never reach the hours, minutes or seconds
        expected = []
    event("none" if not expected else "some" if len(expected) < ENOUGH else "many")
    assert own(rule, start) == expected
    wall = start + passed
    later = [one for one in expected if one > wall or (inclusive and one == wall)]
    if later or len(expected) < ENOUGH:
        assert wall_times(rule, start).next(wall, inclusive) == (later[0] if later else None)


START = datetime(2026, 6, 1, 12)  # a Monday


#: lists that are as long as can be, besides short ones
def hostile(low: int, high: int) -> st.SearchStrategy[list[int]]:
    numbers = [number for number in range(low, high + 1) if number or low == 0]
    return st.just(numbers) | st.lists(st.sampled_from(numbers), min_size=1, max_size=4)


HOSTILE = {
    "bymonth": hostile(1, 12),
    "bymonthday": hostile(-31, 31),
    "byyearday": hostile(-366, 366),
    "byweekno": hostile(-53, 53),
    "byeaster": hostile(0, 200) | hostile(-80, -1),
    "byweekday": hostile(0, 6)
    | st.lists(st.builds(weekday, st.integers(0, 6), st.sampled_from([1, 2, -1, 5, -5, 20])), min_size=1),
    "byhour": hostile(0, 23),
    "byminute": hostile(0, 59),
    "bysecond": hostile(0, 59),
    "bysetpos": hostile(-366, 366),
}
FEW_OR_MANY = [1, 1, 1, 2, 3, 5, 7, 12, 13, 53, 60, 100, 1441, 86_399, 86_401, 604_800, 10**9]


@st.composite
def hostile_rules(draw: st.DrawFn) -> tuple[rrule, datetime]:
    year = draw(st.sampled_from([1, 2, 1900, 2000, 2024, 2026, 9985, 9998, 9999]))
    start = draw(st.datetimes(datetime(year, 1, 1), datetime(year, 12, 31))).replace(microsecond=0)
    names = draw(st.sets(st.sampled_from(sorted(HOSTILE)), max_size=5) | st.just(set(HOSTILE)))
    fields = {name: draw(HOSTILE[name]) for name in sorted(names)}
    fields["interval"] = draw(st.sampled_from(FEW_OR_MANY))
    fields["wkst"] = draw(st.none() | st.integers(0, 6))
    fields["count"] = draw(st.sampled_from([None, None, 1, 7, 100, 10**6, 10**9, 10**12]))
    try:
        return rrule(draw(st.integers(0, 6)), dtstart=start, **fields), start
    except ValueError:  # a position that there is none of
        reject()


@settings(max_examples=100 if IS_LONG else 15)
@given(hostile_rules())
def test_hostile_rule_has_the_occurrences_of_dateutil_or_is_refused_and_costs_little(
    ruled: tuple[rrule, datetime],
) -> None:
    rule, start = ruled
    expected: list[datetime] = []
    is_whole = True
    try:
        with interrupted_after(0.1):
            expected.extend(one.replace(tzinfo=None) for one in islice(rule.rrule, ENOUGH))
    except TooLong:
        is_whole = False
    except (ValueError, IndexError, TypeError):  # it gives up itself
        is_whole, expected = False, []
    event("whole" if is_whole else "some" if expected else "none")
    times = wall_times(rule, start)

    found: list[datetime] = []
    refusal = ""
    try:
        upcoming = cheap(lambda: times.next(start, inclusive=True))
        while upcoming is not None and len(found) < (ENOUGH if is_whole else len(expected)):
            found.append(upcoming)
            upcoming = cheap(partial(times.next, upcoming))
    except ValueError as exc:
        event("refused")
        assert found == expected[: len(found)]
        refusal = str(exc)
    if refusal:
        assert "too sparse" in refusal or "count" in refusal
        assert not expected or is_far(expected, found, start, rule)
        return
    assert found == expected
    if expected:
        back = times.backwards(expected[-1], start)
        with suppress(ValueError):
            assert cheap(lambda: list(islice(back, ENOUGH + 1))) == expected[::-1]


def is_far(expected: list[datetime], found: list[datetime], start: datetime, rule: rrule) -> bool:
    """Return True if a rule may be refused: its next occurrence is far away, or its count begins long ago."""
    last = found[-1] if found else start
    return len(found) >= len(expected) or rule.count is not None or expected[len(found)].year > last.year + 3


@pytest.mark.parametrize("moment", [START, START.replace(year=9000)])
@pytest.mark.parametrize("count", [None, 10**12])
@pytest.mark.parametrize("freq", [0, 3, 6])
@pytest.mark.parametrize("year", [1, 2026])
def test_with_every_list_full_a_rule_of_any_age_costs_no_more_than_a_plan_may(
    freq: int, count: int | None, year: int, moment: datetime
) -> None:
    """It comes every second; one of the year 1 is counted in some thousand steps, or refused in 9000."""
    full: dict[str, Any] = {
        "byyearday": [day for day in range(-366, 367) if day], "byhour": list(range(24)),
        "byminute": list(range(60)), "bysecond": list(range(60)),
    }  # fmt: skip
    started = datetime(year, 1, 1)
    times = wall_times(rrule(freq, dtstart=started, count=count, **full), started)
    elapsed = (moment - started).total_seconds()
    if count is not None and (year, moment.year) == (1, 9000) and elapsed + 1 >= count - 86_400 * 366:
        with pytest.raises(ValueError, match="count"):
            cheap(lambda: times.next(moment))
        return
    upcoming = cheap(lambda: times.next(moment))
    is_over = count is not None and elapsed + 1 >= count
    assert upcoming == (None if is_over else moment + timedelta(seconds=1))
    last = next(times.backwards(moment, started))
    assert last == (moment if count is None or elapsed < count else started + timedelta(seconds=count - 1))


def test_a_walk_back_over_decades_of_rare_occurrences_finds_all_of_them() -> None:
    started, until = datetime(2000, 1, 1), datetime(2026, 1, 1)
    times = wall_times(rrule("MINUTELY", dtstart=started, interval=7, byhour=3, bymonthday=1), started)
    back = list(times.backwards(until, started))
    assert len({one.date() for one in back}) == 26 * 12
    found, upcoming = [], times.next(started, inclusive=True)
    while upcoming is not None and upcoming <= until:
        found.append(upcoming)
        upcoming = times.next(upcoming)
    assert back == found[::-1]


def test_a_walk_back_to_new_year_has_the_last_days_of_a_week_that_began_before() -> None:
    started = datetime(2020, 1, 1)
    times = wall_times(rrule("WEEKLY", dtstart=started, byweekday=list(range(7)), bysetpos=-1), started)
    back = times.backwards(datetime(2027, 1, 12), datetime(2027, 1, 1))
    assert [one.day for one in back] == [10, 3], "the week of the 3rd began in December"
