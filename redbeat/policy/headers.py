"""What the message of a run tells its worker of its entry's policy, in headers. Pure.

Invariant: where the policy says nothing about runs, there are none.
"""

from __future__ import annotations

from typing import Any

from redbeat.policy.policy import NO_POLICY, Policy

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
