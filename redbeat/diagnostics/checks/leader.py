"""Checks of the leader: whether there is one, whether it is alive, and whether it is a RedBeat 3."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta

from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.leadership.status import Leader
from redbeat.log.text import counted
from redbeat.schedules.durations import seconds_in_words
from redbeat.schedules.timezones import in_utc

#: an entry that has been due for longer than this isn't just being sent; seconds
LATE_SECONDS = 60.0
#: a leader that has ticked within this time is alive, whatever its process id says; seconds
ALIVE_SECONDS = 10.0

_TOKEN_OF_2X = re.compile("[0-9a-f]{32}")


def check_leader(context: Context) -> Iterator[Finding]:
    """Find a schedule that nobody works on, or not fast enough."""
    status = context.status
    oldest = status.seconds_since(status.oldest_due)
    since = f", the oldest for {seconds_in_words(oldest)}" if oldest else ""
    due = f"{counted(status.backlog)} {'is' if status.backlog == 1 else 'are'} due"
    if status.shards and status.unled:
        yield from _unled(context)
    elif status.leader is None and status.lock_key is not None:
        if status.backlog:
            yield Finding(
                Severity.ERROR,
                "no-leader",
                status.lock_key,
                f"No beat holds the lock, and {due}{since}.",
                "Start a beat; where one runs, compare its settings with these: server, database, prefix.",
            )
    elif status.obstacle and status.silent_leader is None:
        yield Finding(
            Severity.ERROR,
            "blocked",
            context.place,
            f"The leader sends nothing, and {due}{since}: {status.obstacle}",
            "Beat's log has the reason, and beat sends by itself when that is over.",
        )
    elif oldest is not None and oldest > LATE_SECONDS:
        yield Finding(
            Severity.ERROR,
            "late",
            context.place,
            f"Beat is late: {due}{since}.",
            "Look into beat's log: the broker may be away, beat may hang, or more is due than it can send.",
        )


def _unled(context: Context) -> Iterator[Finding]:
    """Find shards that nobody leads: some are late only if beats run that should lead them."""
    status = context.status
    for one in status.unled:
        if not one.backlog and not status.beats:
            continue  # nothing is to be done now, as without shards
        due = f", and {counted(one.backlog)} {'is' if one.backlog == 1 else 'are'} due" if one.backlog else ""
        if status.beats:
            beats = counted(len(status.beats), "beat runs", "beats run")
            problem = f"No beat leads shard {one.name}, though {beats}{due}."
            advice = "Look into the beats' logs: one of them should take its lock within seconds."
        else:
            problem = f"No beat leads shard {one.name}{due}."
            advice = (
                "Start a beat; where one runs, compare its settings with these: server, database, prefix."
            )
        yield Finding(Severity.ERROR, "no-leader", one.lock_key or context.place, problem, advice)


def check_lock_name(context: Context) -> Iterator[Finding]:
    """Find a lock whose key looks like an entry's, so that whoever may write entries may write it."""
    lock_key, keys = context.store.config.lock_key, context.store.keys
    if lock_key is not None and keys.may_be_entry(lock_key):
        yield Finding(
            Severity.NOTE,
            "open-lock",
            "redbeat_lock_key",
            f"The lock's name {lock_key} could be an entry's, so a user with the documented rights of a "
            "writer may overwrite it and stop all beats.",
            f"Stop all beats, set redbeat_lock_key to '{context.config.base_keys.lock}' or leave it out, and "
            "start them again; where no other users write, leave it as it is.",
        )


def check_lock(context: Context) -> Iterator[Finding]:
    """Find a lock whose holder isn't alive."""
    status = context.status
    if status.shards:
        for one in status.shards:
            yield from _check_lock(context, one.leader, one.lock_key)
    else:
        yield from _check_lock(context, status.leader, status.lock_key)


def _check_lock(context: Context, leader: Leader | None, lock_key: str | None) -> Iterator[Finding]:
    if leader is None or lock_key is None:
        return
    if leader.ttl_seconds is None:
        yield Finding(
            Severity.ERROR,
            "lock-for-ever",
            lock_key,
            f"The lock never ends, so no beat can lead: somebody has set it by hand ({leader.token}).",
            f"Delete it: redis-cli DEL {lock_key}",
        )
    elif leader.host is None:
        what = (
            "its token seems to be a celery-redbeat 2.x's"
            if _TOKEN_OF_2X.fullmatch(leader.token)
            else f"its token isn't one of RedBeat 3: {leader.token}"
        )
        yield Finding(
            Severity.WARNING,
            "foreign-leader",
            lock_key,
            f"A program other than RedBeat 3 holds the lock, for {leader.ttl_seconds:.0f} s more: {what}.",
            "RedBeat 3 doesn't take it over: stop that program, and delete the lock if it stays behind. "
            "celery-redbeat 2.x ignores policies, and can't run schedules that it doesn't have.",
        )
    elif leader.host == socket.gethostname() and _is_dead(leader, context.now):
        yield Finding(
            Severity.WARNING,
            "dead-leader",
            lock_key,
            f"Process {leader.pid} of this machine holds the lock, but seems to have died.",
            "A standby takes it over within seconds; where there is none, start a beat.",
        )
    elif leader.last_tick is not None and context.now - leader.last_tick > timedelta(seconds=LATE_SECONDS):
        yield Finding(
            Severity.WARNING,
            "silent-leader",
            lock_key,
            f"The leader, process {leader.pid} on {leader.host}, has done nothing for "
            f"{seconds_in_words(context.status.seconds_since(leader.last_tick) or 0)}.",
            "Check whether that process runs, and look into its log; if it has died, a standby takes over.",
        )


def _is_dead(leader: Leader, now: datetime) -> bool:
    """Tell whether the leader's process is gone; one that ticks may be in another container of that host."""
    if leader.last_tick is not None and now - leader.last_tick < timedelta(seconds=ALIVE_SECONDS):
        return False
    if os.name != "posix" or not leader.pid:
        return False
    try:
        os.kill(leader.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it belongs to another user, or the system doesn't tell
    return False


def check_writer(context: Context, row: Row) -> Iterator[Finding]:
    """Find runs that a celery-redbeat 2.x seems to have recorded while a RedBeat 3 leads.

    What it leaves is a meta that isn't our own, a whole-second score, and a run that was counted. An
    application that moves last_run_at leaves the count as it was, but that can't be seen: hence "seems".
    """
    leader, entry = context.status.leader, row.entry
    if context.store.parts.is_divided:
        return  # 2.x doesn't see what is in shards
    if leader is None or leader.since is None or entry is None or entry.last_run_at is None:
        return
    score = row.stored.score
    if (
        entry.total_run_count > 0
        and row.stored.is_meta_foreign
        and score is not None
        and score > 0
        and float(score).is_integer()
        and leader.since + timedelta(seconds=ALIVE_SECONDS) < in_utc(entry.last_run_at) <= context.now
    ):
        yield Finding(
            Severity.WARNING,
            "mixed-versions",
            row.key,
            f"A celery-redbeat 2.x seems to have run it at {in_utc(entry.last_run_at):%Y-%m-%d %H:%M:%S} UTC"
            f", while the beat of RedBeat 3 on {leader.host} leads.",
            "Look for a beat of 2.x with another lock, or with none, and stop it: runs may be sent twice.",
        )


LEADER_CHECKS = (check_leader, check_lock_name, check_lock)
