"""What next_run and those who ask it hold to, for random schedules in random zones."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import DAILY, weekday
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from redbeat.config.settings import MISFIRE_LIMIT
from redbeat.decoder import decode, encode_definition
from redbeat.policy.misfires import SKIP_SECONDS, Choice, choose_run, rules_of
from redbeat.policy.policy import NO_POLICY, ROWS, Policy
from redbeat.schedules.exclusions import Exclusions
from redbeat.schedules.occurrences import clocked, cron, first_run, last_runs, next_run, rrule, runs_after
from tests.faults.rounds import IS_LONG
from tests.unit.schedules.simulator import DAY, INSTANT, SECOND, UTC

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Nuuk", "Africa/Casablanca",
    "Asia/Kathmandu", "Pacific/Chatham", "Antarctica/Troll", "America/Havana",
]  # fmt: skip

moments = st.datetimes(datetime(2024, 1, 1), datetime(2031, 1, 1), timezones=st.just(UTC))
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
#: most of them near a change of the clocks in some zone
moments_near_changes = st.builds(
    lambda change, passed: datetime.fromisoformat(change).replace(tzinfo=UTC) + passed,
    st.sampled_from(["2026-03-29T01:00", "2026-10-25T01:00", "2026-11-01T06:00", "2026-04-04T15:00"]),
    st.timedeltas(-DAY, DAY) | st.integers(-120, 120).map(lambda minutes: timedelta(minutes=minutes)),
)
starts = moments | moments_near_changes

intervals = st.timedeltas(timedelta(milliseconds=1), 400 * DAY).map(schedule)
relative_intervals = st.timedeltas(INSTANT, 400 * DAY).map(lambda every: schedule(every, relative=True))


@st.composite
def crontabs(draw: st.DrawFn) -> crontab:
    minutes = draw(st.sampled_from(["*", "0", "30", "*/7", "*/20", "10-50/20", "59"]) | st.integers(0, 59))
    hours = draw(st.sampled_from(["*", "*/2", "2", "1,2,3", "0", "23", "9-17"]) | st.integers(0, 23))
    weekdays = draw(st.sampled_from(["*", "*", "0", "1-5", "6"]))
    days = draw(st.sampled_from(["*", "*", "*", "1", "29", "31", "10-20"]))
    months = draw(st.sampled_from(["*", "*", "2", "3,10", "*/4"]))
    try:
        return crontab(minutes, hours, weekdays, days, months)
    except ValueError:  # Celery refuses the 31st of February
        return cron(f"{minutes} {hours} {days} {months} {weekdays}")


crons = st.builds(
    lambda time, days: cron(f"{time} {days}"),
    st.sampled_from(["30 2", "0 0", "*/15 *", "0 1-3", "59 23"]),
    st.sampled_from(["L * *", "LW * *", "15W * *", "* * FRI#2", "* * SUNL", "L-2 2 *", "29 2 *", "30 2 *"]),
)


@st.composite
def rules(draw: st.DrawFn) -> rrule:
    fields: dict[str, Any] = {
        "freq": draw(st.integers(0, 6)),
        "dtstart": draw(starts),
        "interval": draw(st.sampled_from([1, 1, 2, 7, 25])),
    }
    if draw(st.booleans()):
        fields["byweekday"] = [weekday(day) for day in draw(st.sets(st.integers(0, 6), min_size=1))]
    if fields["interval"] == 1 and draw(st.booleans()):
        hours = st.integers(0, 23)
        fields["byhour"] = draw(st.just(0) | hours | st.lists(hours, min_size=1, max_size=4))
    if draw(st.booleans()):
        fields["bymonth"] = draw(st.integers(1, 12))
    end = draw(st.sampled_from([None, None, "until", "count"]))
    if end == "until":
        fields["until"] = fields["dtstart"] + draw(st.timedeltas(timedelta(0), 900 * DAY))
    if end == "count":
        fields["count"] = draw(st.integers(1, 50))
    return rrule(**fields)


clocks = st.builds(clocked, starts)
schedules = st.one_of(intervals, crontabs(), crons, rules(), clocks)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    start, end = (draw(st.none() | starts) for _ in range(2))
    if start is not None and end is not None and end < start:
        start, end = end, start
    return Policy(timezone=draw(st.sampled_from(ZONES)), start_time=start, end_time=end)


zoned = st.builds(Policy, timezone=st.sampled_from(ZONES))


def first_runs(
    schedule_: Any, policy: Policy, after: datetime, count: int, anchor: datetime | None = None
) -> list[datetime]:
    return list(islice(runs_after(schedule_, policy, after, anchor), count))


@given(schedules | relative_intervals, policies(), starts)
def test_runs_strictly_increase_and_are_never_past(schedule_: Any, policy: Policy, after: datetime) -> None:
    runs = [after, *first_runs(schedule_, policy, after, 10)]
    assert all(earlier < later for earlier, later in pairwise(runs))
    assert all(run.tzinfo is UTC for run in runs)


@given(schedules, policies(), starts, st.data())
def test_the_same_run_follows_whenever_one_asks_before_it(
    schedule_: Any, policy: Policy, after: datetime, data: st.DataObject
) -> None:
    anchor = data.draw(st.sampled_from([after, after - timedelta(hours=7), after - 1000 * DAY]))
    runs = first_runs(schedule_, policy, after, 5, anchor)
    for earlier, later in pairwise([after, *runs]):
        assert next_run(schedule_, policy, earlier, anchor) == later
        assert next_run(schedule_, policy, later - INSTANT, anchor) == later
        between = data.draw(st.datetimes(*(moment.replace(tzinfo=None) for moment in (earlier, later))))
        if between.replace(tzinfo=UTC) < later:
            assert next_run(schedule_, policy, between.replace(tzinfo=UTC), anchor) == later
    if len(runs) < 5:
        assert next_run(schedule_, policy, (runs or [after])[-1], anchor) is None


@given(rules(), st.integers(0, 25))
@example(rrule(DAILY, dtstart=NEW_YEAR, until=NEW_YEAR + 3 * DAY), 25)
@example(rrule(DAILY, dtstart=NEW_YEAR, count=4), 25)
def test_in_utc_a_rule_runs_as_in_dateutil(rule: rrule, passed: int) -> None:
    """Which walks all the way from the start, and takes no step for granted."""
    # it would walk to the year 9999
    assume(rule.interval == 1 or rule.freq != DAILY or rule.byweekday is None)
    occurrences = [moment.astimezone(UTC) for moment in islice(rule.rrule, passed + 3)]
    for earlier, later in pairwise([rule.dtstart - SECOND, *occurrences][-4:]):
        assert next_run(rule, Policy(timezone="UTC"), earlier) == later
    if len(occurrences) < passed + 3:
        assert next_run(rule, Policy(timezone="UTC"), (occurrences or [rule.dtstart])[-1]) is None


@given(crontabs() | crons | rules(), policies(), starts)
def test_bounds_take_runs_away_and_move_none(schedule_: Any, policy: Policy, after: datetime) -> None:
    free = Policy(timezone=policy.timezone)
    begin = max(after, policy.start_time - INSTANT) if policy.start_time else after
    runs = first_runs(schedule_, free, begin, 10)
    expected = [run for run in runs if policy.end_time is None or run <= policy.end_time]
    assert first_runs(schedule_, policy, after, 10) == expected


@given(intervals, policies(), starts)
def test_a_start_time_is_an_intervals_first_run(interval: schedule, policy: Policy, after: datetime) -> None:
    start = policy.start_time
    assume(start is not None)
    for anchor in (None, after - DAY):
        expected = start + interval.run_every * max(-(-(after + INSTANT - start) // interval.run_every), 0)
        if anchor is None or anchor < start:
            is_over = policy.end_time is not None and expected > policy.end_time
            assert next_run(interval, policy, after, anchor) == (None if is_over else expected)


@given(schedules, policies(), starts)
def test_a_schedule_read_again_has_the_same_runs(schedule_: Any, policy: Policy, after: datetime) -> None:
    text = encode_definition("a", "b", [], {}, {}, schedule_, True)
    again = decode(text)["schedule"]
    assert (type(again), again) == (type(schedule_), schedule_)
    assert first_runs(again, policy, after, 5) == first_runs(schedule_, policy, after, 5)
    assert first_run(again, policy, after) == first_run(schedule_, policy, after)


def naive_walk(
    schedule_: Any, policy: Policy, nominal: datetime, count: int
) -> tuple[list[datetime], datetime | None]:
    """Return ``nominal`` and the next ``count`` runs at the most, and the one after them."""
    runs = [nominal, *first_runs(schedule_, policy, nominal, count + 1, nominal)]
    return runs[: count + 1], runs[count + 1] if len(runs) == count + 2 else None


@st.composite
def outages(
    draw: st.DrawFn, kinds: st.SearchStrategy[Any] = schedules
) -> tuple[Any, Policy, list[datetime], datetime | None, datetime]:
    """A schedule and its policy, what it missed, what follows, and when a beat is back."""
    schedule_, policy = draw(kinds), draw(policies())
    nominal = draw(starts)
    if draw(st.booleans()):  # else somebody has put it off
        nominal = next_run(schedule_, policy, nominal) or nominal
    runs, following = naive_walk(schedule_, policy, nominal, draw(st.integers(0, 2) | st.integers(0, 30)))
    late = draw(st.timedeltas(timedelta(0), 3 * DAY))
    now = runs[-1] + late
    if following is not None and now >= following:
        now = following - INSTANT
    return schedule_, policy, runs, following, now


def test_runs_are_found_though_the_outage_was_longer_than_the_calendars_cycle() -> None:
    sundays = crontab(minute="0", hour="0", day_of_month="29", month_of_year="2", day_of_week="0")
    nominal, now = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2432, 3, 1, tzinfo=UTC)
    runs, following = naive_walk(sundays, Policy(), nominal, 14)
    assert (runs[1].year, runs[-1].year) == (2032, 2432)
    assert last_runs(sundays, Policy(), nominal, now, 20) == (runs, following)


@st.composite
def calendars(draw: st.DrawFn) -> Exclusions:
    """Days and spans of minutes to years, around the moments that are drawn for schedules."""
    fields = []
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(starts)
        end = begin + draw(st.timedeltas(timedelta(minutes=1), 3 * DAY) | st.timedeltas(DAY, 900 * DAY))
        is_span = draw(st.booleans())
        fields.append("/".join(str(one.isoformat() if is_span else one.date()) for one in (begin, end)))
    return Exclusions(fields)


@given(
    schedules | relative_intervals,
    policies(),
    st.none() | calendars(),
    starts,
    st.integers(0, 25),
    st.integers(1, 35),
)
def test_the_last_runs_are_those_of_a_naive_walk(
    schedule_: Any, policy: Policy, calendar: Exclusions | None, begin: datetime, passed: int, limit: int
) -> None:
    policy = policy.with_calendar(calendar)
    nominal = next_run(schedule_, policy, begin) or begin
    runs, following = naive_walk(schedule_, policy, nominal, passed)
    for now in (runs[-1], runs[-1] + 400 * DAY if following is None else following - INSTANT):
        assert last_runs(schedule_, policy, nominal, now, limit) == (runs[-limit:], following)


@given(schedules, policies(), st.none() | calendars(), starts, st.integers(1, 150))
def test_many_runs_in_a_row_are_those_that_are_found_one_by_one(
    schedule_: Any, policy: Policy, calendar: Exclusions | None, after: datetime, count: int
) -> None:
    policy = policy.with_calendar(calendar)
    anchor = after
    for due in first_runs(schedule_, policy, after, count, after):
        assert due == next_run(schedule_, policy, after, anchor)
        after = anchor = due


#: four runs of an hourly schedule, the last of them half an hour ago
FOUR_HOURS = [NEW_YEAR + timedelta(hours=hour) for hour in range(4)]
FOUR_MISSED = (
    schedule(3600), NO_POLICY, FOUR_HOURS, NEW_YEAR + timedelta(hours=4), NEW_YEAR + timedelta(hours=3.5),
)  # fmt: skip


@settings(max_examples=300 if IS_LONG else 100)
@example(FOUR_MISSED, "earliest", None, 5400.0, None, NO_POLICY)
@example(FOUR_MISSED, "all", None, 5400.0, None, NO_POLICY)
@example(FOUR_MISSED, "earliest", None, None, 5400.0, NO_POLICY)
@given(
    outages(),
    st.sampled_from([None, *ROWS["misfire"].values]),
    st.none() | st.integers(1, 5),
    st.none() | st.floats(0, 10**6),
    st.none() | st.floats(0, 10**6),
    st.sampled_from([NO_POLICY, Policy(misfire_grace_time=3600), Policy(misfire="all", misfire_limit=3)]),
)
def test_the_run_that_makes_up_is_the_one_that_the_policy_says(
    outage: Any, way: Any, limit: int | None, grace: float | None, expires: float | None, defaults: Policy
) -> None:
    schedule_, bounds, runs, following, now = outage
    missed = {"misfire": way, "misfire_limit": limit, "misfire_grace_time": grace}
    policy = replace(bounds, **missed, expires_after=expires)
    expected = naive_choice(schedule_, policy, runs, following, now, defaults)
    assert choose_run(schedule_, policy, runs[0], now, rules_of(schedule_, policy, defaults)) == expected


class AfterLastRun(BaseSchedule):
    """A class of an application's own whose next run counts from the last one."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__()
        self.pause = pause

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return last_run_at + self.pause - self.now()


@pytest.mark.parametrize("is_dense_first", [True, False])
def test_last_runs_of_an_own_kind_with_uneven_gaps_are_those_of_a_naive_walk(is_dense_first: bool) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    class Uneven(BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            is_dense = (last_run_at < begin + timedelta(hours=6)) is is_dense_first
            step = timedelta(minutes=1 if is_dense else 60)
            return last_run_at - (last_run_at - begin) % step + step - self.now()

    runs, following = naive_walk(Uneven(), Policy(), begin, 400)
    assert last_runs(Uneven(), Policy(), begin, runs[-1], 3) == (runs[-3:], following)


own_kinds = st.timedeltas(timedelta(minutes=1), 400 * DAY).map(AfterLastRun)


@settings(max_examples=300 if IS_LONG else 100)
@given(
    outages(schedules | own_kinds | relative_intervals),
    st.sampled_from(ROWS["misfire"].values),
    st.integers(1, 5),
)
def test_the_next_run_after_an_outage_is_the_one_that_last_run_at_names(
    outage: Any, way: Any, limit: int
) -> None:
    """Otherwise beat takes its own score for one of celery-redbeat 2.x, and drops that run."""
    schedule_, bounds, runs, _, now = outage
    policy = replace(bounds, misfire=way, misfire_limit=limit)
    choice = choose_run(schedule_, policy, runs[0], now, rules_of(schedule_, policy, NO_POLICY))
    if choice.due is not None:
        assert next_run(schedule_, policy, choice.ran_at, choice.ran_at) == choice.following


def test_schedule_class_that_goes_back_in_time_loses_no_run() -> None:
    """In the repeated hour Celery's own arithmetic finds a run before the one that was due."""
    due, now = (
        datetime(2026, 10, 25, 1, tzinfo=timezone.utc),
        datetime(2026, 10, 25, 0, 1, tzinfo=timezone.utc),
    )
    policy = Policy(timezone="Europe/Berlin", misfire="latest", misfire_limit=1)
    minutely = AfterLastRun(timedelta(minutes=1))
    assert choose_run(minutely, policy, due, now, rules_of(minutely, policy, NO_POLICY)).due == due


def naive_choice(
    schedule_: Any, policy: Policy, runs: list[datetime], following: Any, now: datetime, defaults: Policy
) -> Choice:
    way = policy.misfire or defaults.misfire or "latest"
    grace = defaults.misfire_grace_time if policy.misfire_grace_time is None else policy.misfire_grace_time
    if grace is None and way == "skip":
        grace = SKIP_SECONDS
    patiences = [seconds for seconds in (grace, policy.expires_after) if seconds is not None]
    in_time = [run for run in runs if all(now - run <= timedelta(seconds=patience) for patience in patiences)]
    if not in_time:
        return Choice(None, now, following, is_skipped=True)
    if way == "all":
        kept = in_time[-(policy.misfire_limit or defaults.misfire_limit or MISFIRE_LIMIT) :]
        return Choice(kept[0], kept[0], [*kept, following][1], is_skipped=kept[0] != runs[0])
    due = in_time[0] if way == "earliest" else in_time[-1]
    ran_at = runs[-1] if isinstance(schedule_, schedule) else now
    return Choice(due, ran_at, following, is_skipped=way == "skip" and due != runs[0])


@given(st.sampled_from(ZONES), moments_near_changes, st.sampled_from(["DAILY", "WEEKLY", "YEARLY", "HOURLY"]))
def test_a_rule_begins_with_its_dtstart_in_any_pass(zone: str, start: datetime, freq: str) -> None:
    start = start.replace(second=0, microsecond=0)
    for count in (None, 1):
        rule = rrule(freq, dtstart=start.astimezone(ZoneInfo(zone)), count=count)
        assert next_run(rule, Policy(timezone=zone), start - SECOND) == start
        assert first_run(rule, NO_POLICY, start + SECOND) == start
