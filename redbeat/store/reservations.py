"""Reservations: a run is noted as in progress before its message is published, and holds back others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import (
    PUBLISHED,
    Fence,
    LockStatus,
    Reservation,
    Reserved,
    TrackedRun,
    held_of,
    text_of,
)
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

#: how long a reservation is kept that is neither published nor taken over, seconds
RESERVED_SECONDS = 60.0

_RESERVE_RUNS = Script("reserve_runs")

_RESERVED = {"reserved": Reserved.NOW, "known": Reserved.BEFORE}


class Reserving(NamedTuple):
    """A run that is about to be published.

    Attributes:
        key: of its entry.
        holds_seconds: for how long it holds other runs back unless it is recorded as published.
        is_published: it was reserved, and has been published since: record that.
    """

    key: str
    task_id: str
    run: TrackedRun
    holds_seconds: float = 0.0
    is_published: bool = False


def reserve_runs(store: Store, fence: Fence, runs: Sequence[Reserving]) -> list[Reservation]:
    """Reserve runs whose messages are about to be published; one round trip.

    Returns for each whether it may be published. One that another run holds back waits from now on, if its
    entry's policy says so.

    Raises:
        LockLost: another beat holds the lock; nothing was written.
    """
    if not runs:
        return []
    status, found = store.ask(reserve_call(store.keys, fence, runs))
    store.check_lock(status, fence)
    return found


def reserve_call(
    keys: Keys, fence: Fence, runs: Sequence[Reserving]
) -> Call[tuple[LockStatus, list[Reservation]]]:
    """Return the call of ``reserve_runs``."""
    rows = []
    for _, task_id, run, holds_seconds, is_published in runs:
        is_sent = is_published or run.overlap == "allow"
        rows.append(
            {
                "task_id": task_id,
                "due": run.due,
                "members": run.members,
                "overlap": PUBLISHED if is_published else run.overlap,
                "seconds": run.queue_seconds + 1 if is_sent else RESERVED_SECONDS,
                "holds_seconds": holds_seconds,
            }
        )
    running = [keys.running(one.key) for one in runs]
    return _RESERVE_RUNS.call(keys, fence=fence, running=running, rows=rows).reading(_reserved_of)


def _reserved_of(reply: Sequence[Any]) -> tuple[LockStatus, list[Reservation]]:
    status, answers = reply
    return LockStatus(status), [_reservation_of(text_of(answer)) for answer in answers]


def _reservation_of(answer: str) -> Reservation:
    kind, _, text = answer.partition(" ")
    return held_of(text) if kind == "held" else _RESERVED.get(kind, text)
