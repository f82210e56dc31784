"""What an entry is going to do: its next runs, and its schedule in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice, takewhile
from typing import Any

from celery.schedules import crontab, schedule, solar
from celery.utils.time import humanize_seconds

from redbeat.saving import in_utc
from redbeat.schedules import clocked, cron, first_run, rrule, runs_after, zone_of

__all__ = ["describe", "next_runs", "runs_between"]

_INSTANT = timedelta(microseconds=1)


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
    if after is None:
        after = datetime.now(timezone.utc)
        if anchor is not None and not entry.total_run_count:
            first = first_run(entry.schedule, policy, anchor)
            after = after if first is None else max(first - _INSTANT, after)
    if anchor is not None and anchor > after:  # a look at times before it was made
        anchor = None
    return islice(runs_after(entry.schedule, policy, after, anchor), left)


def describe(entry: Any) -> str:
    """Return when ``entry`` runs, in English words."""
    policy, words = entry.policy, [_describe_schedule(entry.schedule)]
    zone = zone_of(entry.schedule, policy)
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


def _describe_schedule(schedule_: Any) -> str:
    if isinstance(schedule_, cron):
        return _describe_cron(schedule_.expression)
    if isinstance(schedule_, crontab):
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        given = [getattr(schedule_, f"_orig_{name}") for name in fields]
        if all(isinstance(field, (str, int)) for field in given):
            return _describe_cron(" ".join(str(field) for field in given))
        return f"crontab {schedule_}"
    if isinstance(schedule_, clocked):
        return f"At {schedule_.clocked_time.isoformat(' ')}"
    if isinstance(schedule_, rrule):
        return str(schedule_.rrule).replace("\n", " ")
    if isinstance(schedule_, schedule):
        return f"Every {humanize_seconds(schedule_.run_every.total_seconds(), microseconds=True)}"
    if isinstance(schedule_, solar):
        return f"At {schedule_.event.replace('_', ' ')} at {schedule_.lat}, {schedule_.lon}"
    return repr(schedule_)


def _describe_cron(expression: str) -> str:
    try:
        from cron_descriptor import Options, get_description  # an extra
    except ImportError:
        return f"cron {expression}"
    options = Options()
    options.use_24hour_time_format = True
    try:
        return str(get_description(expression, options))
    except Exception:  # noqa: BLE001 - words are no reason to fail, and it doesn't know all of ours
        return f"cron {expression}"


def _shown(moment: datetime, zone: tzinfo) -> str:
    return moment.astimezone(zone).isoformat(" ", timespec="minutes")
