"""The record of a run in progress: one field of its entry's hash of runs, by its task id.

Owns the form of that JSON. Times in it are texts of UNIX seconds, as the server has written them. Invariant:
a record that can't be read holds nothing back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any


class State(Enum):
    """How far a run is."""

    #: its message is on its queue, or about to be published
    SENT = "sent"
    #: a worker has begun it, and renews its lease
    STARTED = "started"
    #: its task has asked for another attempt, which waits for its time, or on its queue
    RETRYING = "retrying"
    #: its own task is over, and tasks that it has sent aren't
    SPAWNED = "spawned"
    #: it is over, and beat is still to note that
    ENDED = "ended"


@dataclass(frozen=True)
class RunRecord:
    """A run in progress.

    Attributes:
        task_id: of its message.
        due: its nominal due time, UNIX seconds as text.
        sent: when beat recorded it as sent; None: beat hasn't.
        holds: until when a reservation holds its entry before its message is published; None: it is
            published, or it holds nothing.
        overlap: the policy of its entry when it was sent.
        queue: how long it may wait on its queue, seconds.
        max: how long it may take, seconds; None: any time.
        is_revoked_overdue: it is revoked when it takes longer.
        started: when its task began, or None.
        worker: the name of the worker that has begun it.
        delivery: which delivery of its message holds the lease.
        attempt: 1 for the first, one more for each of Celery's retries.
        eta: when that attempt may begin, if it waits for its time; None: it doesn't.
        terminate: why its worker is to terminate it: 'replaced' or 'overdue'; None: it isn't.
        is_overdue: it has taken longer than ``max``, and doesn't hold its entry any more.
        root: the run whose workflow this task belongs to; None: it is the run itself.
        outcome, error: of one that has ended or spawned.
        wait_seconds, run_seconds: how long it waited on its queue, and how long its task took.
    """

    task_id: str
    due: str = ""
    state: State = State.SENT
    sent: float | None = None
    holds: float | None = None
    overlap: str = "allow"
    queue: float | None = None
    max: float | None = None
    is_revoked_overdue: bool = False
    started: float | None = None
    worker: str | None = None
    delivery: str | None = None
    attempt: int = 1
    eta: float | None = None
    terminate: str | None = None
    is_overdue: bool = False
    root: str | None = None
    outcome: str | None = None
    error: str | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None

    @property
    def is_reserved(self) -> bool:
        """Whether its message is about to be published, or never was: nobody has recorded that it left."""
        return self.state is State.SENT and (self.sent is None or self.holds is not None)

    @property
    def has_let_go(self) -> bool:
        """Whether another run of its entry may be at work though runs mustn't overlap: it is overdue."""
        return self.is_overdue and self.overlap != "allow"

    def held_until(self, deadline: float | None) -> float | None:
        """Return until when it holds its entry at most if nothing more is heard of it, UNIX seconds.

        None: it doesn't hold it, or that isn't known.

        Arguments:
            deadline: when beat must look at it; None: that isn't known.
        """
        has_ended = self.state is State.ENDED or self.is_overdue
        if self.overlap == "allow" or has_ended or self.is_reserved or self.root is not None:
            return None
        if deadline is None and self.state is State.SENT and self.sent is not None and self.queue is not None:
            deadline = self.sent + self.queue
        return deadline if deadline is not None and 0 <= deadline < MAX_TIME else None


#: a time from then on is nonsense, as is one below 0: the year 5138, UNIX seconds
MAX_TIME = 10**11

#: attributes that have another name in JSON
_NAMES = {
    "is_revoked_overdue": "revoke",
    "is_overdue": "overdue",
    "wait_seconds": "wait",
    "run_seconds": "ran",
}
_TIMES = frozenset({"sent", "holds", "started", "eta"})
_TYPES: Mapping[str, Any] = {"State": State, "str": str, "float": float, "int": int, "bool": bool}


def decode_record(task_id: str, text: str) -> RunRecord | None:
    """Return the run with this record; None: it can't be read."""
    try:
        found = json.loads(text)
        values: dict[str, Any] = {}
        for one in fields(RunRecord)[1:]:
            value = found.get(_NAMES.get(one.name, one.name))
            if value is None:
                continue
            value = values[one.name] = _TYPES[str(one.type).partition(" ")[0]](value)
            if isinstance(value, float) and not (math.isfinite(value) and _is_possible(one.name, value)):
                return None
        return RunRecord(task_id, **values)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _is_possible(name: str, seconds: float) -> bool:
    return name not in _TIMES or 0 <= seconds < MAX_TIME
