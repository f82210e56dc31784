"""What the message of a run has by its entry's policy: its expiry, and headers for its worker. Pure.

It expires so long after its due time (``expires_after``), or so long after it was sent (``queue_timeout``),
whichever is earlier.
Invariant: where nothing but ``queue_timeout`` limits a message, and an option ``expires`` of the entry or its
task does so earlier, that option counts.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.schedules.timezones import instant_of, moment_of, time_of

#: the policy's field of that name: the worker lets a run that was given up begin, or not, by it
OVERLAP = "redbeat_overlap"
#: the policy's field of that name: the worker ends the run by it
TRACKS = "redbeat_tracks"
#: after how many seconds a message expires by ``queue_timeout``. Celery takes over the expiry of a message
#: when its task asks for a retry, which may be later than that: the worker sets it anew by this.
QUEUE_TIMEOUT = "redbeat_queue_timeout"
#: beside it, if the policy has ``expires_after``: that
EXPIRES_AFTER = "redbeat_expires_after"
#: Sentry waits for the end of the run: the entry's monitor. The end may reach it before the beginning does.
CHECK_IN = "redbeat_check_in"

NAMES = (OVERLAP, TRACKS, QUEUE_TIMEOUT, EXPIRES_AFTER, CHECK_IN)
#: no message is taken to wait for longer by its options, so that its expiry is in a year that exists; seconds
MAX_WAIT_SECONDS = 10.0**10


def queue_limit_of(
    policy: Policy, options: Mapping[str, Any], of_task: Mapping[str, Any], now: datetime, zone: tzinfo
) -> float | None:
    """Return how long after it may start the message of a run expires on its queue; None: not by that.

    Arguments:
        options: the entry's own.
        of_task: the options that its task brings.
        now: when it is sent.
        zone: of naive times in ``options``.
    """
    seconds = policy.message_queue_seconds
    if seconds is None or policy.expires_after is not None:  # that takes the place of an option
        return seconds
    own = options.get("expires", of_task.get("expires"))
    if own is None:
        return seconds
    limit = seconds + wait_seconds(options, now, zone)
    if _is_number(own):
        return None if own <= limit else seconds
    expires = instant_of_option(own, zone)
    return None if expires is None or expires <= now + timedelta(seconds=limit) else seconds


def wait_seconds(options: Mapping[str, Any], now: datetime, zone: tzinfo) -> float:
    """Return how long after ``now``, when it is sent, a run may start at the earliest by its options."""
    countdown, eta = options.get("countdown"), options.get("eta")
    if countdown:  # Celery looks at no eta then
        seconds = countdown if _is_number(countdown) else 0.0
    else:
        start = None if eta is None else instant_of_option(eta, zone)
        seconds = 0.0 if start is None else (start - now).total_seconds()
    return min(max(0.0, float(seconds)), MAX_WAIT_SECONDS)


def expiry_of(
    policy: Policy, due_at: datetime, now: float, limit_seconds: float | None
) -> tuple[datetime | None, float | None]:
    """Return when the message of a run expires, and how long after ``now`` that is; None, None: never.

    Arguments:
        now: when it is sent, UNIX seconds.
        limit_seconds: how long after that it expires by ``queue_timeout``; None: it doesn't.
    """
    lifetime = policy.expires_after
    if lifetime is not None:
        left = max(due_at.timestamp() + lifetime - now, 0.0)
        if limit_seconds is None or left <= limit_seconds:
            return due_at + timedelta(seconds=lifetime), left
    if limit_seconds is None:
        return None, None
    return moment_of(now) + timedelta(seconds=limit_seconds), limit_seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def instant_of_option(value: Any, zone: tzinfo) -> datetime | None:
    """Return the time that an option stands for; None: it is none, and Celery will say so."""
    try:
        moment = time_of(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            return None
        return instant_of(moment, zone) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def headers_of(policy: Policy, queue_seconds: float | None) -> dict[str, Any]:
    """Return the headers of messages with this policy.

    Arguments:
        queue_seconds: after how long they expire by ``queue_timeout``; None: they don't.
    """
    if policy is NO_POLICY:
        return {}
    headers: dict[str, Any] = {}
    if policy.overlap != NO_POLICY.overlap:
        headers[OVERLAP] = policy.overlap
    if policy.tracks != NO_POLICY.tracks:
        headers[TRACKS] = policy.tracks
    if queue_seconds is not None:
        headers[QUEUE_TIMEOUT] = queue_seconds
        if policy.expires_after is not None:
            headers[EXPIRES_AFTER] = policy.expires_after
    return headers
