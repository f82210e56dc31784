"""Which runs are tracked, and what is noted of one while it is in progress. Pure, but for the app's settings.

A run is tracked if the app asks for it, or if its entry's policy cannot be enforced otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from redbeat.history import record_of
from redbeat.policy.policy import Policy
from redbeat.runs.tracking import is_tracked
from redbeat.store.records import DROPPED, TrackedRun


def limits_of(policy: Policy) -> str:
    """Return the limits as members of a JSON object, each after a comma; what is a default is left out."""
    limits: dict[str, Any] = {
        "overlap": None if policy.overlap == "allow" else policy.overlap,
        "queue": policy.queue_seconds,
        "max": policy.max_runtime,
        "revoke": int(policy.revoke_overdue),
        "pause": policy.pause_after_failures,
        "workflow": int(policy.tracks == "workflow"),
    }
    return "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in limits.items() if value)


class Tracking:
    """What is noted of the runs with one policy."""

    def __init__(self, policy: Policy) -> None:
        self._overlap = policy.overlap
        self._queue_seconds = policy.queue_seconds
        self._limits = limits_of(policy)

    def run(
        self,
        due: str,
        held_score: str,
        dropped: tuple[str, ...] = (),
        wait_seconds: float = 0.0,
        overlap: str = "",
    ) -> TrackedRun:
        """Return what is noted of a run that is due at ``due``, UNIX seconds as the server writes them.

        Arguments:
            held_score: when its entry is due next if another run holds this one back.
            dropped: records of the runs before it that aren't sent.
            wait_seconds: how long its message waits by options of its own before a worker may begin it.
            overlap: instead of the policy's.
        """
        overlap, queue_seconds = overlap or self._overlap, self._queue_seconds + wait_seconds
        if overlap == "allow":
            return TrackedRun(due, self._limits, queue_seconds, overlap)
        held_records = (*dropped, record_of(due))
        return TrackedRun(due, self._limits, queue_seconds, overlap, held_records, held_score)


def dropped_run(due: str) -> TrackedRun:
    """Return the run that was due at ``due``, has waited for another one to end, and won't be sent."""
    return TrackedRun(due, "", 0.0, DROPPED)


#: returns whether the runs of an entry with a policy are tracked
Tracks = Callable[[Policy], bool]


def read_tracks(app: Any) -> Tracks:
    """Return which policies' runs are tracked now."""
    if is_tracked(app):
        return lambda _policy: True
    return lambda policy: policy.needs_tracking
