"""What an entry is going to do: its next runs, and its schedule in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import chain, islice, takewhile
from typing import Any

from celery.schedules import crontab, schedule, solar

from redbeat.schedules import FIRST_OCCURRENCE_GRACE, clocked, cron, first_run, rrule, runs_after, zone_of
from redbeat.zones import in_utc

__all__ = ["describe", "next_runs", "runs_between"]

_INSTANT = timedelta(microseconds=1)
_UNITS = (
    (timedelta(days=1), "day"),
    (timedelta(hours=1), "hour"),
    (timedelta(minutes=1), "minute"),
    (timedelta(seconds=1), "second"),
)
#: L, W or #
_DAYS_IN_LISTS = re.compile(r"#|l(?:-\d+)?(?:,|$)|w(?:,|$)", re.IGNORECASE)


def next_runs(entry: Any, count: int, after: datetime | None, tz: tzinfo | None) -> list[datetime]:
    """Return the next runs of ``entry``, at most ``count``; see its method of the same name."""
    runs = islice(_runs(entry, None if after is None else in_utc(after)), count)
    shown_in = tz or zone_of(entry.schedule, entry.policy)
    return [due.astimezone(shown_in) for due in runs]


def runs_between(entry: Any, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the runs of ``entry`` from ``begin`` to ``end``, both included."""
    last = in_utc(end)
    shown_in = zone_of(entry.schedule, entry.policy)
    for due in takewhile(lambda due: due <= last, _runs(entry, in_utc(begin) - _INSTANT)):
        yield due.astimezone(shown_in)


def _runs(entry: Any, after: datetime | None) -> Iterator[datetime]:
    """Yield the runs of ``entry`` later than ``after``; None: from now on, and not before its first."""
    policy = entry.bounds()
    limit = 1 if policy.one_off else policy.max_runs
    left = None if limit is None else max(limit - entry.total_run_count, 0)
    anchor = None if entry.last_run_at is None else in_utc(entry.last_run_at)
    first = None
    if after is None:
        after = datetime.now(timezone.utc)
        if anchor is not None and not entry.total_run_count:
            first = first_run(entry.schedule, policy, anchor)
    if first is not None and first > after - FIRST_OCCURRENCE_GRACE:  # it is on its way
        runs: Iterator[datetime] = chain([first], runs_after(entry.schedule, policy, first, first))
    else:
        if anchor is not None and anchor > after:  # a look at times before it was made
            anchor = None
        runs = runs_after(entry.schedule, policy, after, anchor)
    return islice(runs, left)


def describe(entry: Any) -> str:
    """Return when ``entry`` runs, in English words."""
    policy = entry.policy
    zone = zone_of(entry.schedule, policy)
    words = [_describe_schedule(entry.schedule, zone)]
    if not isinstance(entry.schedule, (clocked, solar)) and type(entry.schedule) is not schedule:
        words[0] += f" ({getattr(zone, 'key', zone)})"
    if policy.start_time is not None:
        words.append(f"not before {_shown(policy.start_time, zone)}")
    if policy.end_time is not None:
        words.append(f"not after {_shown(policy.end_time, zone)}")
    if policy.one_off or policy.max_runs == 1:
        words.append("once")
    elif policy.max_runs is not None:
        words.append(f"{policy.max_runs} times at the most")
    if policy.exclude is not None:
        words.append(f"except on {policy.exclude}")
    if policy.jitter:
        words.append(f"up to {policy.jitter:g} s later")
    return ", ".join(words)


def _describe_schedule(schedule_: Any, zone: tzinfo) -> str:
    if isinstance(schedule_, cron):
        return _describe_cron(" ".join(schedule_.fields))
    if isinstance(schedule_, crontab):
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        given = [getattr(schedule_, f"_orig_{name}") for name in fields]
        if all(isinstance(field, (str, int)) for field in given):
            return _describe_cron(" ".join(str(field) for field in given))
        return f"crontab {schedule_}"
    if isinstance(schedule_, clocked):
        return f"At {schedule_.instant_in(zone).astimezone(zone).isoformat(' ')}"
    if isinstance(schedule_, rrule):
        return _shown_rule(schedule_, zone)
    if isinstance(schedule_, schedule):
        return f"Every {_shown_interval(schedule_.run_every)}"
    if isinstance(schedule_, solar):
        return f"At {schedule_.event.replace('_', ' ')} at {schedule_.lat}, {schedule_.lon}"
    return repr(schedule_)


def _shown_rule(rule: rrule, zone: tzinfo) -> str:
    try:
        until = rule.until and rule.until.astimezone(zone)
        return str(rule.rrule.replace(dtstart=rule.dtstart.astimezone(zone), until=until)).replace("\n", " ")
    except ValueError:  # one that dateutil knows to be in vain
        return repr(rule)


def _shown_interval(every: timedelta) -> str:
    for unit, name in _UNITS:
        count, rest = divmod(every, unit)
        if count and not rest:
            return name if count == 1 else f"{count} {name}s"
    return f"{every.total_seconds():f}".rstrip("0").rstrip(".") + " seconds"


def _describe_cron(expression: str) -> str:
    from cron_descriptor import Options, get_description  # here: beat has no use for it

    if any("," in field and _DAYS_IN_LISTS.search(field) for field in expression.split()[2:]):
        return f"cron {expression}"  # it takes such a list for something else
    options = Options()
    options.use_24hour_time_format = True
    try:
        # it says "or": for other crons either of the days is enough
        return str(get_description(expression.upper(), options)).replace(", or on ", ", and only on ")
    except Exception:  # noqa: BLE001 - words are no reason to fail, and it doesn't know all of ours
        return f"cron {expression}"


def _shown(moment: datetime, zone: tzinfo) -> str:
    shown = moment.astimezone(zone)
    return shown.isoformat(" ", timespec="auto" if shown.second or shown.microsecond else "minutes")
