"""Jitter: each run of an entry is sent later by an amount of its own. Pure.

The amount follows from the entry's key without shards and the run's due time, so every beat computes the
same, and nothing is stored.
Invariant: a run is always sent before the next one is due.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

from redbeat.keys import identity_of
from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import last_runs, next_run

_INSTANT = timedelta(microseconds=1)

#: jitter is at most this part of the time until the next run, so that a run that is a little late isn't taken
#: for the next one
_PART = 0.9


def delayed(key: str, schedule_: Any, policy: Policy, due: datetime) -> datetime:
    """Return when to send the run that is due at ``due``."""
    if not policy.jitter:
        return due
    return delayed_before(key, policy, due, next_run(schedule_, policy, due, due))


def delayed_before(key: str, policy: Policy, due: datetime, following: datetime | None) -> datetime:
    """Return when to send the run that is due at ``due``, if ``following`` is the next one; None: there is
    none.
    """
    room = timedelta(seconds=policy.jitter)
    if following is not None:
        room = min(room, (following - due) * _PART)
    identity = identity_of(key) if key[:1] == "{" else key
    digest = hashlib.sha256(f"{identity}\n{due.isoformat()}".encode("utf-8", "surrogateescape")).digest()
    return due + room * (int.from_bytes(digest[:6], "big") / 2**48)


def due_time_of(
    key: str, schedule_: Any, policy: Policy, at: datetime, last_run: datetime | None
) -> datetime:
    """Return the due time of the run whose jitter makes it be sent at ``at``; ``at`` itself: there is none.

    Arguments:
        last_run: the run before it, from which an interval counts.
    """
    if not policy.jitter:
        return at
    if last_run is not None:
        due = next_run(schedule_, policy, last_run, last_run)
        is_near = (
            due is not None and due - _INSTANT <= at <= due + timedelta(seconds=policy.jitter) + _INSTANT
        )
        if due is not None and is_near and _is_same(delayed(key, schedule_, policy, due), at):
            return due
    # it is the last run until ``at``, as no run is delayed beyond the next one
    earliest = at - timedelta(seconds=policy.jitter) - _INSTANT
    first = next_run(schedule_, policy, earliest, last_run)
    if first is None or first > at:
        return at
    due = last_runs(schedule_, policy, first, at, 1)[0][-1]
    return due if _is_same(delayed(key, schedule_, policy, due), at) else at


def _is_same(moment: datetime, other: datetime) -> bool:
    return abs(moment - other) <= _INSTANT
