"""Checks of ``doctor --from-2x``: what changes when RedBeat 3 leads a schedule that celery-redbeat 2.x runs.

They run while a beat of 2.x leads. What 2.x does was observed with celery-redbeat 2.4.2, and tests/contract
tries it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

from celery.schedules import crontab
from kombu.transport.redis import Channel

from redbeat.config.settings import OPTIONS
from redbeat.declared.collection import read_static_entries
from redbeat.diagnostics.checks.beats import check_lock
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.downgrade import EFFECTS, find_ignored, find_trouble
from redbeat.diagnostics.findings import Finding, found
from redbeat.diagnostics.routes import scheduler_of
from redbeat.entries.due import defaults_of, next_due
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.upcoming import runs_between
from redbeat.entries.validation import find_name_problem
from redbeat.entries.wording import label_of
from redbeat.errors import StoreRefused
from redbeat.log.text import counted, printable
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.scheduler.overrides import UNUSED, UNUSED_OF_ENTRY, find_unused
from redbeat.schedulers import RedBeatScheduler
from redbeat.schedules.durations import seconds_in_words
from redbeat.schedules.occurrences import zone_of
from redbeat.schedules.recurrence import rrule
from redbeat.schedules.timezones import shown

#: an entry that has been due for longer is not just being sent
_LATE = timedelta(seconds=60)
#: how many missed runs are counted
_MAX_COUNTED = 1_000
#: a score beyond the year 9999, UNIX seconds
_MAX_SCORE = 253_402_300_800
_OLDEST_SERVER = (6, 2)


def check_takeover(context: Context) -> Iterator[Finding]:
    """Report who holds the lock, and when a beat of version 3 can lead."""
    leader, lock_key = context.status.leader, context.config.lock_key
    if lock_key is None:
        yield found("lock/none", "redbeat_lock_key")
    elif context.status.lock_key is None:
        yield found("lock/unknown", lock_key)
    elif leader is None:
        yield found("lock", lock_key)
    elif leader.host is not None:
        yield found("lock/version-3", lock_key, pid=leader.pid, host=leader.host)
    elif leader.ttl_seconds is None:
        yield from check_lock(context)
    else:
        rest = seconds_in_words(max(round(leader.ttl_seconds), 1))
        yield found("lock/version-2", lock_key, rest=rest, lock_key=lock_key)


def check_server_version(context: Context) -> Iterator[Finding]:
    """Find a server that is too old for the scripts."""
    try:
        version = str(context.server.info("server").get("redis_version", ""))
        parts = tuple(int(part) for part in version.split(".")[:2])
    except (StoreRefused, ValueError):
        return
    if parts and parts < _OLDEST_SERVER:
        yield found("server-version", "server", version=version)


def check_changed_settings(context: Context) -> Iterator[Finding]:
    """Find settings that version 3 reads differently."""
    config = context.config
    given = context.app.conf.broker_transport_options or {}
    ignored = sorted(set(given) - set(OPTIONS) - set(Channel.from_transport_options))
    if ignored and not config.is_key_in_conf("redbeat_redis_options"):
        options = ", ".join(map(repr, ignored))
        yield found("setting/not-passed", "broker_transport_options", options=options)
    if config.is_cluster and not config.is_key_in_conf("redbeat_key_prefix"):
        yield found("setting/prefix", "redbeat_key_prefix", prefix=config.key_prefix)


def check_zones(context: Context) -> Iterator[Finding]:
    """Find entries in the code whose time zone 2.x loses, because it does not store it."""
    own_zone = label_of(context.app.timezone)
    for static in read_static_entries(context.app):
        entry = static.entry
        if entry is None or entry.policy.timezone is not None:
            continue
        zone, old = zone_of(entry.schedule, entry.policy), ""
        if isinstance(entry.schedule, crontab) and label_of(zone) != own_zone:
            old = f"the app's time zone, {own_zone}, after its first run"
        elif isinstance(entry.schedule, rrule) and zone.utcoffset(None) is None:
            old = "the UTC offset of its dtstart, in summer and winter"
        if old:
            yield found("zone", printable(static.name), old=old, zone=label_of(zone))


def check_overrides(context: Context) -> Iterator[Finding]:
    """Find methods of 2.x that a scheduler of the application overrides, and that version 3 does not call."""
    try:
        scheduler = scheduler_of(context.app)
    except Exception:  # noqa: BLE001 - the application's own module; beat reports it
        return
    if not isinstance(scheduler, type) or not issubclass(scheduler, RedBeatScheduler):
        return  # beat is told by -S which scheduler it runs
    unused = [
        *find_unused(scheduler, RedBeatScheduler, UNUSED),
        *find_unused(scheduler.Entry, RedBeatSchedulerEntry, UNUSED_OF_ENTRY),
    ]
    for name, remedy in unused:
        yield found("override", name, remedy=f"{remedy[0].upper()}{remedy[1:]}")


def check_change(context: Context, row: Row) -> Iterator[Finding]:
    """Find what version 3 does differently with an entry, or with its missed runs."""
    name, stored, entry = row.name, row.stored, row.entry
    trouble = None if stored.unread_bytes else find_trouble(row.member, name, stored, "", context.now)
    if trouble is not None:
        key = "not-in-2x" if entry is None else "not-in-2x/in-3"
        yield found(key, name, effect=EFFECTS[trouble.effect], reason=trouble.reason)
    elif row.problem and stored.exists and trouble is None:
        yield found("not-in-3", name)
    if problem := find_name_problem(name, context.config.reserved_names):
        yield found("name", name, problem=problem)
    if entry is None:
        return
    if stored.score is None or stored.score < 0:  # neither version runs it
        return
    if stored.score >= _MAX_SCORE:
        yield found("score", name, score=stored.score)
    elif not entry.is_enabled_at(context.now):
        if stored.score < context.now.timestamp():
            yield found("disabled", name)
    else:
        for ignored in find_ignored(entry, context.now):
            yield found("policy", name, ignored=ignored)
        if stored.score == 0:
            yield found("score/zero", name)
        else:
            yield from _missed(context, row, entry)


def _missed(context: Context, row: Row, entry: Any) -> Iterator[Finding]:
    """Report what version 3 sends of the runs that are overdue."""
    now, defaults = context.now, defaults_of(entry)
    due = next_due(entry, row.stored, now)
    if due is None or due > now - _LATE:
        return
    try:
        rules = rules_of(entry.schedule, entry.policy, defaults)
        choice = choose_run(entry.schedule, entry.policy, due, now, rules)
        runs = len(list(islice(runs_between(entry, due, now), _MAX_COUNTED + 1))) or 1
    except (ValueError, OverflowError, RuntimeError):
        return  # check_future reports it
    count = f"More than {_MAX_COUNTED:,} runs" if runs > _MAX_COUNTED else counted(runs, "run", "runs")
    if choice.due is None:
        yield found("missed/none", row.name, count=count, due=shown(due), why=choice.why_late)
        return
    misfire, sent = entry.policy.misfire or defaults.misfire or "latest", f"the run of {shown(choice.due)}"
    if misfire == "all":
        limit = entry.policy.misfire_limit or defaults.misfire_limit or runs
        sent = counted(min(limit, runs), "run", "runs")
    yield found("missed", row.name, count=count, due=shown(due), sent=sent, misfire=misfire)
