"""Random crontabs beside other programs: cronsim, dateutil and Celery.

Where both day fields are given, cronsim takes one OR the other, so it gets expressions with one of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from cronsim import CronSim, CronSimError
from dateutil.rrule import DAILY
from dateutil.rrule import rrule as dateutil_rrule

from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.schedules.occurrences import CRON_FIELDS, cron, next_run
from tests.faults.rounds import IS_LONG
from tests.support.ticks import memory_app
from tests.unit.schedules.simulator import DAY, UTC, changes_between

RUNS_EACH = 3

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]

#: lowest and highest number, and the names, of each field in the order of an expression
FIELDS: dict[str, tuple[int, int, list[str]]] = {
    "minute": (0, 59, []), "hour": (0, 23, []), "day_of_month": (1, 31, []), "month_of_year": (1, 12, MONTHS),
    "day_of_week": (0, 6, WEEKDAYS),
}  # fmt: skip


def random_element(chance: random.Random, name: str, with_names: bool) -> str:
    low, high, names = FIELDS[name]
    # a range of one number is every number to croniter, and from there on to cronsim where it has a step
    first, last = sorted(chance.sample(range(low, high + 1), 2))
    step = chance.randint(1, max((high - low) // 2, 2))
    if with_names and names and chance.random() < 0.2:
        return names[first - low]
    forms = [str(first), f"{first}-{last}", f"*/{step}", f"{first}-{last}/{step}"]
    return chance.choices(forms, weights=(4, 2, 2, 2))[0]


def random_field(chance: random.Random, name: str, with_names: bool = True) -> str:
    if chance.random() < 0.25:
        return "*"
    return ",".join(random_element(chance, name, with_names) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def random_fields(chance: random.Random, with_names: bool = True) -> dict[str, str]:
    return {name: random_field(chance, name, with_names) for name in CRON_FIELDS}


def random_moment(chance: random.Random) -> datetime:
    seconds = chance.randint(0, 80 * 365 * 86_400)
    return datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def our_runs(rule: crontab, after: datetime, policy: Policy = NO_POLICY) -> list[datetime]:
    runs: list[datetime] = []
    while len(runs) < RUNS_EACH and (due := next_run(rule, policy, after)) is not None:
        runs.append(due)
        after = due
    return runs


def runs_of_cronsim(expression: str, after: datetime) -> list[datetime]:
    try:
        return list(islice(CronSim(expression, after), RUNS_EACH))
    except CronSimError:  # no month has such a day
        return []


DAYS: list[Callable[[random.Random], tuple[str, str]]] = [
    *[lambda chance: (random_field(chance, "day_of_month"), "*")] * 4,
    *[lambda chance: ("*", random_field(chance, "day_of_week"))] * 4,
    lambda chance: ("L", "*"),
    lambda chance: ("LW", "*"),
    lambda chance: (f"{chance.randint(1, 28)},L", "*"),
    lambda chance: ("*", f"{chance.randint(0, 6)}#{chance.randint(1, 5)}"),
    lambda chance: ("*", f"{chance.choice(WEEKDAYS)}#{chance.randint(1, 5)}"),
    lambda chance: ("*", f"{chance.randint(0, 6)}L"),
    lambda chance: ("*", f"{chance.randint(0, 6)}#{chance.randint(1, 5)},{chance.randint(0, 6)}#1"),
    lambda chance: ("*", f"{chance.randint(0, 6)}L,{chance.randint(0, 6)}"),
    lambda chance: (f"*/{chance.randint(1, 9)}", f"{chance.randint(0, 6)}"),  # AND in cronsim
    lambda chance: ("*", "7"),
    lambda chance: ("*", f"{chance.randint(3, 6)}-7"),
    lambda chance: ("*", f"{chance.randint(0, 6)}/{chance.randint(1, 4)}"),
    lambda chance: (f"{chance.randint(1, 31)}/{chance.randint(1, 9)}", "*"),
]


@pytest.mark.parametrize("days", DAYS, ids=range(len(DAYS)))
def test_crontab_with_one_day_field_runs_as_in_cronsim(days: Any, chance: random.Random) -> None:
    for _ in range(800 if IS_LONG else 60):
        fields = random_fields(chance)
        fields["day_of_month"], fields["day_of_week"] = days(chance)
        expression, after = " ".join(fields.values()), random_moment(chance)
        ours, theirs = our_runs(cron(expression), after), runs_of_cronsim(expression, after)
        if len(theirs) < len(ours):  # cronsim looks no further than half a century
            assert ours[len(theirs)] - after >= 49 * 365 * DAY, f"{expression!r} after {after}"
        assert ours[: len(theirs)] == theirs, f"{expression!r} after {after}"


def test_crontab_with_both_day_fields_runs_on_days_that_match_both_as_in_dateutil(
    chance: random.Random,
) -> None:
    for _ in range(1500 if IS_LONG else 200):
        fields, after = random_fields(chance), random_moment(chance)
        expression = " ".join(fields.values())
        rule = cron(expression)
        ours = our_runs(rule, after)
        if ours:
            assert ours == runs_of_dateutil(rule, after, len(ours)), f"{expression!r} after {after}"
        else:
            assert not any(is_day_of(rule, after.date() + passed * DAY) for passed in range(29 * 366))


def is_day_of(rule: crontab, day: date) -> bool:
    return (
        day.month in rule.month_of_year
        and day.day in rule.day_of_month
        and day.isoweekday() % 7 in rule.day_of_week
    )


def runs_of_dateutil(rule: crontab, after: datetime, count: int) -> list[datetime]:
    walk = dateutil_rrule(
        DAILY,
        dtstart=after.replace(hour=0, minute=0, second=0),
        bymonth=sorted(rule.month_of_year),
        bymonthday=sorted(rule.day_of_month),
        byweekday=[(day - 1) % 7 for day in rule.day_of_week],
        byhour=sorted(rule.hour),
        byminute=sorted(rule.minute),
        bysecond=0,
    )
    return list(walk.xafter(after, count=count))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu"])
def test_on_days_without_a_clock_change_crontabs_run_as_in_celery(zone: str, chance: random.Random) -> None:
    app, policy, compared = memory_app(timezone=zone), Policy(timezone=zone), 0
    for _ in range(500 if IS_LONG else 120):
        fields = random_fields(chance, with_names=False)
        try:
            rule = crontab(**fields, app=app)
        except ValueError:  # Celery refuses the 30th of February
            continue
        after = random_moment(chance)
        due = next_run(rule, policy, after)
        assert due == next_run(cron(" ".join(fields.values())), policy, after)
        if due is None or due - after > 3 * 366 * DAY:  # where Celery gives up
            continue
        tz = rule.tz
        if changes_between(tz, after - DAY, min(due, after + 366 * DAY) + DAY):
            continue
        compared += 1
        local = after.astimezone(tz)
        for passed in (timedelta(0), (due - after) / 2, due - after - timedelta(seconds=1)):
            rule.nowfun = partial(datetime.astimezone, local + passed, tz)
            assert after + passed + rule.remaining_estimate(local) == due, f"{fields} after {after}"
            assert not rule.is_due(local).is_due
        rule.nowfun = partial(due.astimezone, tz)
        assert rule.is_due(local).is_due
        following = next_run(rule, policy, due)
        if following is not None and not changes_between(tz, due, following + DAY):
            assert rule.is_due(local).next == pytest.approx((following - due).total_seconds())
    print(f"{compared} in {zone}")
    assert compared > 25


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
        ("0 9 * * friL", [26]),
        ("0 9 * * 5L", [26]),
        ("0 9 * * FRIL,mon", [1, 8, 15, 22, 26, 29]),
        ("0 9 * * fri#2", [12]),
        ("0 9 l-2,1 * *", [1, 28]),
        ("0 9 13w * *", [12]),
        ("0 9 15W,2 * *", [2, 15]),
        ("0 9 LW,20 * *", [20, 30]),
    ],
)
def test_days_that_only_ours_knows_are_what_they_say(app: Celery, expression: str, days: list[int]) -> None:
    made = entry(app, expression)
    assert isinstance(made.schedule, cron)
    assert days_of(made) == days


@pytest.mark.parametrize(
    ("fields", "days"),
    [
        ({"day_of_week": "friL"}, [26]),
        ({"day_of_week": "fri#2"}, [12]),
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
    ("field", "text"), [("day_of_week", "bol"), ("day_of_week", "fri#9"), ("day_of_month", "friL")]
)
def test_an_invalid_stored_day_is_named_with_its_field(field: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: '"):
        decoded(**{field: text})


@pytest.mark.parametrize("weekdays", ["WED", "tue-wed", "wed,sun", "*"])
def test_weekdays_with_these_letters_in_them_are_a_plain_crontab(app: Celery, weekdays: str) -> None:
    """Only that one is what celery-redbeat 2.x reads."""
    for rule in (decoded(day_of_week=weekdays), entry(app, f"* * * * {weekdays}").schedule):
        assert type(rule) is crontab
        assert rule == crontab(day_of_week=weekdays)
        fields = {**dict.fromkeys(CRON_FIELDS, "*"), "day_of_week": weekdays}
        assert json.loads(json.dumps(rule, cls=RedBeatJSONEncoder)) == {"__type__": "crontab", **fields}
