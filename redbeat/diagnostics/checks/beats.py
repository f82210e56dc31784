"""Checks of the beats and their locks: whether one leads, whether it works, and whether it is a RedBeat 3."""

from __future__ import annotations

import re
from collections.abc import Iterator

from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.facts import SILENT
from redbeat.diagnostics.findings import Finding, found
from redbeat.leadership.status import LATE_AFTER_SECONDS, Leader
from redbeat.log.text import counted
from redbeat.schedules.durations import seconds_in_words

_TOKEN_OF_2X = re.compile("[0-9a-f]{32}")


def check_leader(context: Context) -> Iterator[Finding]:
    """Find shards that no beat leads, and a leader that is too slow."""
    status = context.status
    for one in status.unled:
        if one.backlog or (status.beats and status.is_divided):  # else nothing is to be done now
            what = f"shard {one.name}" if status.is_divided else "the schedule"
            due = _due(one.backlog, status.seconds_since(one.oldest_due))
            beats = counted(len(status.beats or ()), "beat runs", "beats run")
            key = "no-leader/beats" if status.beats else "no-leader"
            yield found(key, one.lock_key or context.place, what=what, due=due, beats=beats)
    if status.unled:
        return
    oldest = status.seconds_since(status.oldest_due)
    due = _due(status.backlog, oldest)
    if status.obstacle and status.silent_leader is None:
        yield found("blocked", context.place, due=due, obstacle=status.obstacle)
    elif oldest is not None and oldest > LATE_AFTER_SECONDS:
        yield found("late", context.place, due=due)


def _due(backlog: int, oldest_seconds: float | None) -> str:
    since = f", the oldest for {seconds_in_words(oldest_seconds)}" if oldest_seconds else ""
    return f"{counted(backlog)} {'is' if backlog == 1 else 'are'} due{since}"


def check_lock_name(context: Context) -> Iterator[Finding]:
    """Find a lock whose key looks like an entry's, so that a user who may write entries may write it."""
    lock_key, keys = context.store.config.lock_key, context.store.keys
    if lock_key is not None and keys.may_be_entry(lock_key):
        better = context.config.base_keys.lock
        yield found("open-lock", "redbeat_lock_key", lock_key=lock_key, better=better)


def check_lock(context: Context) -> Iterator[Finding]:
    """Find locks whose holder isn't alive, or isn't a RedBeat 3."""
    for one in context.status.parts:
        if one.leader is not None and one.lock_key is not None:
            yield from _check_lock(context, one.leader, one.lock_key)


def _check_lock(context: Context, leader: Leader, lock_key: str) -> Iterator[Finding]:
    silent_seconds = context.status.seconds_since(leader.last_tick) or 0.0
    if leader.ttl_seconds is None:
        yield found("lock-for-ever", lock_key, token=leader.token, lock_key=lock_key)
    elif leader.host is None:
        is_2x = _TOKEN_OF_2X.fullmatch(leader.token) is not None
        what = "its token seems to be a celery-redbeat 2.x's" if is_2x else f"its token is {leader.token}"
        yield found("foreign-leader", lock_key, seconds=leader.ttl_seconds, what=what)
    elif silent_seconds > SILENT.total_seconds():
        since = seconds_in_words(silent_seconds)
        yield found("silent-leader", lock_key, pid=leader.pid, host=leader.host, since=since)
