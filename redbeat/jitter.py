"""Jitter: each run of an entry is so much later, by an amount that any beat finds out again. Pure.

The amount is made of the entry's key and the run's due time, so nothing needs to be remembered. A run never
comes as late as the next one is due.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from redbeat.policy import Policy
from redbeat.schedules import next_run, runs_after

__all__ = ["delayed", "due_time_of"]

_INSTANT = timedelta(microseconds=1)

#: how many runs may lie within one entry's jitter for their due times to be found again
_MAX_CANDIDATES = 1_000


def delayed(key: str, schedule_: Any, policy: Policy, due: datetime) -> datetime:
    """Return when to send the run that is due at ``due``."""
    if not policy.jitter:
        return due
    following = next_run(schedule_, policy, due, due)
    room = timedelta(seconds=policy.jitter)
    if following is not None:
        room = min(room, following - due - _INSTANT)
    digest = hashlib.sha256(f"{key}\n{due.isoformat()}".encode("utf-8", "surrogateescape")).digest()
    return due + room * (int.from_bytes(digest[:6], "big") / 2**48)


def due_time_of(key: str, schedule_: Any, policy: Policy, at: datetime, anchor: datetime | None) -> datetime:
    """Return the due time of the run that is sent at ``at``; ``at`` itself where no run is delayed to that.

    Arguments:
        anchor: a run that an interval counts from.
    """
    if not policy.jitter:
        return at
    earliest = at - timedelta(seconds=policy.jitter) - _INSTANT
    candidates = takewhile(lambda due: due <= at, runs_after(schedule_, policy, earliest, anchor))
    for _, due in zip(range(_MAX_CANDIDATES), candidates, strict=False):
        if abs(delayed(key, schedule_, policy, due) - at) <= _INSTANT:
            return due
    return at
