"""A run as people and programs look at it: in progress, or past. Pure.

Owns how the record of a run in progress and that of a past one become one thing. Invariant: a run is either
in progress and has a state, or it is past and has an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from redbeat.history import PastRun
from redbeat.store.run_record import MAX_TIME, RunRecord, State
from redbeat.store.runs import FailedRun

#: how far a run in progress is
STATES = {
    "sent": "it is on its queue",
    "started": "a worker has begun it",
    "retrying": "it waits for its next attempt",
    "spawned": "its own task is over, and tasks that it has sent aren't",
}


@dataclass(frozen=True)
class Run:
    """A run of an entry, in progress or past.

    Attributes:
        name: the entry's.
        due: when it was due, UTC.
        task_id: the task id of its message; None: there was none.
        state: how far it is: 'sent' (it is on its queue), 'started', 'retrying' (it waits for its next
            attempt), or 'spawned' (its own task is over, and others of its workflow aren't); None: it is
            past.
        outcome: what became of it, as in :class:`redbeat.history.PastRun`; None: it is in progress.
        sent_at: when beat recorded it as sent, UTC; None: it wasn't, or that isn't known.
        started_at: when its task began, UTC; None: likewise.
        ended_at: when its outcome was recorded, UTC; None: likewise.
        worker: the name of the worker that has begun it.
        attempt: 1, and one more for each of Celery's retries; None: not known.
        wait_seconds: how long it waited on its queue.
        run_seconds: how long its task took.
        age_seconds: of one in progress: since when it is at work, or else on its queue.
        is_overdue: it is in progress, and takes longer than its entry's ``max_runtime``.
        held_until: of one in progress that lets no other one start: until when it holds its entry at most,
            UTC, unless a worker begins it or renews its lease; None: it doesn't, or that isn't known.
        retry_at: of one that waits for its next attempt: when that may begin, UTC; None: not known.
        error: the class and the first line of the exception; '' if there was none.
        why: why it wasn't sent; '' if it was.
        late: the outcome that came when it had been given up as lost or never started.
        is_manual: ``trigger``, ``backfill`` or ``rerun`` has sent it.
        rerun_of: the task id of the run that it repeats.
        last: of several runs that weren't sent: when the last of them was due.
        count: how many these are; None: too many to count, or it is one.
    """

    name: str
    due: datetime
    task_id: str | None = None
    state: str | None = None
    outcome: str | None = None
    sent_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    attempt: int | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    age_seconds: float | None = None
    is_overdue: bool = False
    held_until: datetime | None = None
    retry_at: datetime | None = None
    error: str = ""
    why: str = ""
    late: str | None = None
    is_manual: bool = False
    rerun_of: str | None = None
    last: datetime | None = None
    count: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is in progress."""
        return self.state is not None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, with times in ISO 8601."""
        given = asdict(self).items()
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given}


def run_of_record(
    name: str,
    record: RunRecord,
    now: datetime,
    past: PastRun | None = None,
    deadline: float | None = None,
) -> Run:
    """Return a run in progress.

    Arguments:
        now: the server's clock.
        past: what its history says of it.
        deadline: when beat must look at it, UNIX seconds; None: that isn't known.
    """
    held_until = record.held_until(deadline)
    since = record.sent if record.started is None else record.started
    return Run(
        name,
        _moment(float(record.due)),
        record.task_id,
        state=record.state.value,
        sent_at=None if record.sent is None else _moment(record.sent),
        started_at=None if record.started is None else _moment(record.started),
        worker=record.worker,
        attempt=record.attempt,
        wait_seconds=record.wait_seconds,
        run_seconds=record.run_seconds,
        age_seconds=None if since is None else max(now.timestamp() - since, 0.0),
        is_overdue=record.is_overdue,
        held_until=None if held_until is None else _moment(held_until),
        retry_at=None if record.eta is None or record.state is not State.RETRYING else _moment(record.eta),
        error=record.error or "",
        is_manual=past is not None and past.is_manual,
        rerun_of=None if past is None else past.rerun_of,
    )


def run_of_past(name: str, past: PastRun) -> Run:
    """Return a past run, or several that weren't sent."""
    waited = past.wait_seconds
    return Run(
        name,
        past.due,
        past.task_id,
        outcome=past.outcome,
        sent_at=past.at if past.is_sent else None,
        started_at=past.at + timedelta(seconds=waited) if past.is_sent and waited is not None else None,
        ended_at=past.ended,
        worker=past.worker,
        attempt=past.attempt,
        wait_seconds=waited,
        run_seconds=past.run_seconds,
        error=past.error,
        why=past.why,
        late=past.late,
        is_manual=past.is_manual,
        rerun_of=past.rerun_of,
        last=past.last,
        count=past.count,
    )


def run_of_failure(failed: FailedRun) -> Run:
    """Return a run that is listed among those that have failed."""
    return Run(
        failed.name,
        failed.due,
        failed.task_id,
        outcome=failed.outcome,
        ended_at=failed.at,
        worker=failed.worker or None,
        error=failed.error,
    )


def in_progress(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return those of ``records`` that are runs in progress: not over, not tasks of a workflow, and not only
    reserved.
    """
    return [
        one
        for one in records
        if one.state is not State.ENDED and not one.is_reserved and one.root is None and _has_due(one)
    ]


def runs_of(
    name: str,
    records: Sequence[RunRecord],
    history: Sequence[PastRun],
    now: datetime,
    deadlines: Mapping[str, float | None] | None = None,
) -> list[Run]:
    """Return the runs of an entry, each once, the newest first: those in progress, and then those past.

    Arguments:
        records: of its runs in progress, the oldest first.
        history: the newest first.
        deadlines: when beat must look at those in progress, UNIX seconds, by their task ids.
    """
    by_id = deadlines or {}
    pasts = {past.task_id: past for past in reversed(history) if past.is_sent}
    running = in_progress(records)
    ids = {record.task_id for record in running}
    found = [
        run_of_record(name, one, now, pasts.get(one.task_id), by_id.get(one.task_id))
        for one in reversed(running)
    ]
    return found + [run_of_past(name, past) for past in history if past.task_id not in ids]


def _has_due(record: RunRecord) -> bool:
    try:
        return 0 <= float(record.due) < MAX_TIME
    except ValueError:
        return False


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
