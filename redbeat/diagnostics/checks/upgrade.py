"""Checks of ``doctor --from-2x``: what changes when RedBeat 3 leads a schedule that celery-redbeat 2.x runs.

They run while a beat of 2.x leads. What 2.x does was observed with celery-redbeat 2.4.2, and tests/contract
tries it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from celery.schedules import crontab
from celery.utils.imports import load_extension_class_names
from kombu.transport.redis import Channel
from kombu.utils.imports import symbol_by_name

from redbeat.config.settings import OPTIONS
from redbeat.declared.static_entries import read_static_entries
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.diagnostics.checks.leader import check_lock
from redbeat.diagnostics.checks.server import SERVER_CHECKS
from redbeat.diagnostics.compatibility import EFFECTS, find_ignored, find_trouble
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
#: it does so in both versions, and save() doesn't
_PREVENT = "To prevent that, call reschedule() of the entry."


def check_takeover(context: Context) -> Iterator[Finding]:
    """Report who holds the lock, and when a beat of version 3 can lead."""
    leader, lock_key = context.status.leader, context.config.lock_key
    if lock_key is None:
        yield Finding(
            Severity.WARNING,
            "lock",
            "redbeat_lock_key",
            "There is no lock, so beats of 2.x and 3 would send each run twice.",
            "Stop every beat of 2.x before you start one of version 3.",
        )
    elif context.status.lock_key is None:
        yield Finding(
            Severity.NOTE,
            "lock",
            lock_key,
            "Which beat holds the lock is unknown, because the server refuses.",
            "Add the missing rights, or call the doctor as another user.",
        )
    elif leader is None:
        yield Finding(
            Severity.NOTE,
            "lock",
            lock_key,
            "No beat holds the lock.",
            "A beat of version 3 leads as soon as it starts.",
        )
    elif leader.host is not None:
        yield Finding(
            Severity.WARNING,
            "lock",
            lock_key,
            f"A beat of version 3 leads already: process {leader.pid} on {leader.host}.",
            "Nothing is left to compare; celery redbeat doctor checks the schedule.",
        )
    elif leader.ttl_seconds is None:
        yield from check_lock(context)
    else:
        rest = seconds_in_words(max(round(leader.ttl_seconds), 1))
        yield Finding(
            Severity.NOTE,
            "lock",
            lock_key,
            f"A beat of 2.x holds the lock, which expires in {rest} unless that beat extends it.",
            "Stop that beat with SIGTERM: it releases the lock, and a beat of version 3 leads within a "
            f"second. After kill -9 version 3 waits for {rest}, or until you call redis-cli DEL {lock_key}",
        )


def check_server_version(context: Context) -> Iterator[Finding]:
    """Find a server that is too old for the scripts."""
    try:
        version = str(context.server.info("server").get("redis_version", ""))
        parts = tuple(int(part) for part in version.split(".")[:2])
    except (StoreRefused, ValueError):
        return
    if parts and parts < _OLDEST_SERVER:
        yield Finding(
            Severity.ERROR,
            "server-version",
            "server",
            f"It is Redis {version}, and version 3 needs 6.2 or newer.",
            "Upgrade the server first.",
        )


def check_changed_settings(context: Context) -> Iterator[Finding]:
    """Find settings that version 3 reads differently."""
    config, conf = context.config, context.app.conf
    if not config.is_key_in_conf("redbeat_redis_options"):
        given = conf.broker_transport_options or {}
        ignored = sorted(set(given) - set(OPTIONS) - set(Channel.from_transport_options))
        if ignored:
            yield Finding(
                Severity.NOTE,
                "setting",
                "broker_transport_options",
                f"Version 3 does not pass {', '.join(map(repr, ignored))} to the client of the schedule.",
                "Put options of that client into redbeat_redis_options.",
            )
    if config.is_cluster and not config.is_key_in_conf("redbeat_key_prefix"):
        yield Finding(
            Severity.ERROR,
            "setting",
            "redbeat_key_prefix",
            f"In a cluster the default prefix of version 3 is {config.key_prefix}, and 2.x uses redbeat:",
            "Copy the keys to the new prefix while no beat runs: see 'Moving to a cluster' on the page about "
            "upgrading.",
        )


def check_zones(context: Context) -> Iterator[Finding]:
    """Find entries in the code whose time zone 2.x loses, because it does not store it."""
    own_zone = label_of(context.app.timezone)
    for static in read_static_entries(context.app):
        entry = static.entry
        if entry is None or entry.policy.timezone is not None:
            continue
        zone = zone_of(entry.schedule, entry.policy)
        if isinstance(entry.schedule, crontab) and label_of(zone) != own_zone:
            old = f"the app's time zone, {own_zone}, after its first run"
        elif isinstance(entry.schedule, rrule) and zone.utcoffset(None) is None:
            old = "the UTC offset of its dtstart, in summer and winter"
        else:
            continue
        yield Finding(
            Severity.WARNING,
            "zone",
            printable(static.name),
            f"beat_schedule: 2.x runs it by {old}. Version 3 runs it by {label_of(zone)}.",
            "Check its next runs with celery redbeat next, once version 3 leads.",
        )


def check_overrides(context: Context) -> Iterator[Finding]:
    """Find methods of 2.x that a scheduler of the application overrides, and that version 3 does not call."""
    resolve: Any = symbol_by_name
    try:
        aliases = dict(load_extension_class_names("celery.beat_schedulers"))
        scheduler = resolve(context.app.conf.beat_scheduler, aliases=aliases)
    except Exception:  # noqa: BLE001 - the application's own module; beat reports it
        return
    if not isinstance(scheduler, type) or not issubclass(scheduler, RedBeatScheduler):
        return  # beat is told by -S which scheduler it runs
    unused = [
        *find_unused(scheduler, RedBeatScheduler, UNUSED),
        *find_unused(scheduler.Entry, RedBeatSchedulerEntry, UNUSED_OF_ENTRY),
    ]
    for name, remedy in unused:
        advice = f"{remedy[0].upper()}{remedy[1:]}."
        yield Finding(Severity.WARNING, "override", name, "Version 3 does not call it.", advice)


def check_change(context: Context, row: Row) -> Iterator[Finding]:
    """Find what version 3 does differently with an entry, or with its missed runs."""
    name = context.name_of(row.key)
    for severity, kind, problem, advice in _changes(context, row, name):
        yield Finding(severity, kind, name, problem, advice)


_Change = tuple[Severity, str, str, str]


def _changes(context: Context, row: Row, name: str) -> Iterator[_Change]:
    stored, entry = row.stored, row.entry
    trouble = None if stored.unread_bytes else find_trouble(row.member, name, stored, "", context.now)
    if trouble is not None and not _has_number_as_name(row, name):
        yield (
            Severity.WARNING if entry is not None else Severity.NOTE,
            "not-in-2x",
            f"{EFFECTS[trouble.effect]}: {trouble.reason}",
            "Version 3 runs it." if entry is not None else "Version 3 keeps it, and does not run it.",
        )
    elif row.problem and stored.exists and trouble is None:
        yield (
            Severity.WARNING,
            "not-in-3",
            "2.x may run it, and version 3 quarantines it.",
            "Correct it before the upgrade.",
        )
    if problem := find_name_problem(name, context.config.reserved_names):
        yield Severity.ERROR, "name", problem, "Save it under another name, and delete this one."
    if entry is None:
        return
    if _has_number_as_name(row, name):
        yield (
            Severity.NOTE,
            "name",
            "Its name is stored as a number.",
            f"Version 3 calls it {name!r}, a text, in Python, in messages and in the log.",
        )
    if stored.score is None or stored.score < 0:  # neither version runs it
        return
    if stored.score >= _MAX_SCORE:
        yield (
            Severity.WARNING,
            "score",
            f"Its score is {stored.score:.0f}, after the year 9999, so neither version runs it.",
            "Write a score in seconds: milliseconds are a usual cause.",
        )
        return
    if not entry.is_enabled_at(context.now):
        if stored.score < context.now.timestamp():
            yield (
                Severity.NOTE,
                "disabled",
                "It is disabled, and its score is in the past. 2.x may run it at once when it is enabled.",
                "Version 3 runs it at the next time of its schedule. To run it at once as well, use trigger.",
            )
        return
    for ignored in find_ignored(entry, context.now):
        yield (
            Severity.NOTE,
            "policy",
            f"Version 3 obeys a field that 2.x ignores. With 2.x: {ignored}.",
            "Remove the field if that is not intended.",
        )
    yield from _missed(context, row)


def _has_number_as_name(row: Row, name: str) -> bool:
    try:
        definition = json.loads(row.stored.definition or "")
        given = definition.get("name")
    except (ValueError, RecursionError, AttributeError):
        return False
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return is_number and name == str(given)


def _missed(context: Context, row: Row) -> Iterator[_Change]:
    """Yield what version 3 sends of the runs that are overdue."""
    entry, stored, now = row.entry, row.stored, context.now
    if entry is None:
        return
    if stored.score == 0:
        yield (
            Severity.WARNING,
            "score",
            "Its score is 0: version 3 runs it at once, and 2.x asks its schedule first.",
            _PREVENT,
        )
        return
    due = next_due(entry, stored, now)
    if due is None or due > now - _LATE:
        return
    try:
        problem, advice = _sent_of_missed(entry, due, now)
    except (ValueError, OverflowError, RuntimeError):
        return  # check_future reports it
    yield Severity.WARNING, "missed", problem, advice


def _sent_of_missed(entry: Any, due: datetime, now: datetime) -> tuple[str, str]:
    defaults = defaults_of(entry)
    choice = choose_run(
        entry.schedule, entry.policy, due, now, rules_of(entry.schedule, entry.policy, defaults)
    )
    missed = list(islice(runs_between(entry, due, now), _MAX_COUNTED + 1))
    count = max(len(missed), 1)
    number = f"more than {_MAX_COUNTED:,} runs" if count > _MAX_COUNTED else counted(count, "run", "runs")
    problem = f"{number[0].upper()}{number[1:]} since {shown(due)} not sent."
    misfire = entry.policy.misfire or defaults.misfire or "latest"
    if choice.due is None:
        return problem, f"Version 3 sends none of them: {choice.why_late}."
    if misfire == "all":
        limit = entry.policy.misfire_limit or defaults.misfire_limit or count
        sent = counted(min(limit, count), "run", "runs")
    else:
        sent = f"the run of {shown(choice.due)}"
    advice = f"Version 3 sends {sent} when it leads (misfire is {misfire}). {_PREVENT}"
    return problem, advice


UPGRADE_CHECKS = (
    check_takeover,
    check_server_version,
    check_changed_settings,
    check_zones,
    check_overrides,
    *SERVER_CHECKS,
)
