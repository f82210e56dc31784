"""Signals, in the style of Celery's: what has happened to runs, entries and the leader.

::

    from redbeat.signals import run_ended

    @run_ended.connect
    def tell(sender, entry, run, **kwargs):
        if run.outcome in ("failed", "lost"):
            ...

Owns the signals, and the form of what their receivers are given. All of them fire in beat, in a thread of its
own: a slow receiver delays no run. ``sender`` is the Celery app. Of runs and entries each is told at least
once; ``entry`` is the entry's name, and ``run`` a ``Run``. Receivers must take ``**kwargs``: later
versions may give them more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from celery.utils.dispatch import Signal

__all__ = [
    "Run",
    "entry_paused",
    "entry_quarantined",
    "leader_changed",
    "run_ended",
    "run_overdue",
    "run_sent",
    "run_skipped",
    "run_started",
]

#: a run's message was sent
run_sent = Signal(name="run_sent", providing_args={"entry", "run"})
#: a run wasn't sent; ``run.why`` says why
run_skipped = Signal(name="run_skipped", providing_args={"entry", "run"})
#: a worker has begun a run
run_started = Signal(name="run_started", providing_args={"entry", "run"})
#: a run is over; ``run.outcome`` says how
run_ended = Signal(name="run_ended", providing_args={"entry", "run"})
#: a run has taken longer than its entry's ``max_runtime``
run_overdue = Signal(name="run_overdue", providing_args={"entry", "run"})
#: somebody, or RedBeat itself, has paused an entry: ``note``, ``by`` and ``until`` as ``pause()`` has them
entry_paused = Signal(name="entry_paused", providing_args={"entry", "note", "by", "until"})
#: an entry can't be used; ``reason`` says why
entry_quarantined = Signal(name="entry_quarantined", providing_args={"entry", "reason"})
#: this beat has become leader: ``leader`` and ``previous`` have ``host``, ``pid`` and ``since``; ``previous``
#: is None where it isn't known
leader_changed = Signal(name="leader_changed", providing_args={"leader", "previous"})

OF_RUNS = {one.name: one for one in (run_sent, run_skipped, run_started, run_ended, run_overdue)}
OF_ENTRIES = {one.name: one for one in (entry_paused, entry_quarantined)}
#: those that are told from the stream of events
OF_EVENTS: Mapping[str, Any] = {**OF_RUNS, **OF_ENTRIES}
ALL: Mapping[str, Any] = {**OF_EVENTS, leader_changed.name: leader_changed}


@dataclass(frozen=True)
class Run:
    """What a signal tells of a run; None: not known, or it doesn't apply.

    Attributes:
        task_id: of its message; '' for a run that wasn't sent.
        due: when it was due, UTC.
        outcome: what became of it, one of those of ``entry.history()``; '': it isn't over.
        why: why it wasn't sent; '' if it was.
        worker: the name of the worker that has begun it.
        attempt: 1 for the first, one more for each of Celery's retries.
        wait_seconds: how long it waited on its queue.
        run_seconds: how long its task took.
        error: the error of its task, such as ``'ValueError: no such customer'``; '' if there is none.
        max_runtime: how long it may take, seconds.
        is_manual: ``trigger``, ``backfill`` or ``rerun`` has sent it.
        last: for several runs that weren't sent for one reason: when the last of them was due, UTC.
        count: how many runs this is about; None: too many to count.
    """

    task_id: str
    due: datetime | None = None
    outcome: str = ""
    why: str = ""
    worker: str | None = None
    attempt: int = 1
    wait_seconds: float | None = None
    run_seconds: float | None = None
    error: str = ""
    max_runtime: float | None = None
    is_manual: bool = False
    last: datetime | None = None
    count: int | None = 1


def is_wanted(*names: str) -> bool:
    """Tell whether this process has a receiver of one of these signals."""
    return any(ALL[name].receivers for name in names)


def arguments_of(fields: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what the receivers of an event are given; None: it can't be read.

    Arguments:
        fields: of the event in the stream.
    """
    try:
        entry = fields["entry"]
        if fields["event"] in OF_RUNS:
            return {"entry": entry, "run": _run_of(json.loads(fields["run"]))}
        details = json.loads(fields["details"])
        if fields["event"] == entry_quarantined.name:
            return {"entry": entry, "reason": str(details["reason"])}
        until = details.get("until")
        return {
            "entry": entry,
            "note": details.get("note"),
            "by": details.get("by"),
            "until": None if until is None else datetime.fromisoformat(until),
        }
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def _run_of(found: Mapping[str, Any]) -> Run:
    def seconds(name: str) -> float | None:
        return None if found.get(name) is None else float(found[name])

    due = seconds("due")
    return Run(
        task_id=str(found.get("task_id") or found.get("id") or ""),
        due=None if due is None else datetime.fromtimestamp(due, timezone.utc),
        outcome=str(found.get("outcome") or ""),
        why=str(found.get("why") or ""),
        worker=found.get("worker"),
        attempt=int(found.get("attempt") or 1),
        wait_seconds=seconds("wait"),
        run_seconds=seconds("ran"),
        error=str(found.get("error") or ""),
        max_runtime=seconds("max"),
        is_manual=bool(found.get("manual")),
    )
