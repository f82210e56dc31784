"""What became of an entry's last runs: a list of JSON objects beside it, the newest first.

Owns the form of these records, and the outcomes. The script that records the run (``commit_runs.lua``) adds
the time to each, and the one that ends a run (``finish_run.lua``) what became of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Any

from redbeat.schedules.timezones import shown

#: what becomes of a run that was sent, where its workers track runs
ENDED_OUTCOMES = {
    "succeeded": "its task has returned",
    "failed": "its task has raised an error, for good",
    "revoked": "it was revoked",
    "expired": "no worker had taken it before it expired",
    "rejected": "its task has rejected it, or the worker has no such task",
    "ignored": "its task has ignored it, or replaced itself by a workflow",
    "lost": "its worker was killed, or not heard of any more",
    "never_started": "no worker has begun it in time",
    "superseded": "another run had the entry when a worker was about to begin it",
}
#: those of them that somebody should see to
FAILED_OUTCOMES = ("failed", "lost", "never_started")
#: those of them that count as failures in a row, as ``pause_after_failures`` does
COUNTED_OUTCOMES = ("failed", "lost")
#: how the error of a run begins whose task the worker doesn't know; the task's name follows
NOT_REGISTERED = "NotRegistered: "
#: what may have become of a run
OUTCOMES = {
    "sent": "it was sent; its outcome isn't known, or isn't yet",
    **ENDED_OUTCOMES,
    "skipped": "it was left out, as the entry's policy says, or as the application's code raised an error",
    "merged": "another run was sent that stands for it",
    "waiting": "it is sent when the run before it has ended",
    "unsent": "it couldn't be sent, and is tried again",
}
_SENT_OUTCOMES = frozenset(("sent", *ENDED_OUTCOMES))


@dataclass(frozen=True)
class PastRun:
    """One run of the past.

    Attributes:
        due: when it was due, UTC.
        at: when this was recorded, UTC; for a run that was sent: when it was sent.
        outcome: one of ``OUTCOMES``.
        task_id: the task id of its message; None: there was none.
        why: why it wasn't sent; '' if it was.
        is_manual: ``trigger``, ``backfill`` or ``rerun`` has sent it.
        last: for several runs that weren't sent: when the last of them was due, and ``due`` is that of the
            first; None: this is about one run.
        count: how many runs this is about; None: too many to count.
        wait_seconds: how long it waited on its queue; None: it hasn't begun, or nobody has tracked it.
        run_seconds: how long its task took, its last attempt where there were several; None: likewise.
        worker: the name of the worker that it ran on.
        attempt: 1, and one more for each of Celery's retries.
        error: the class and the first line of the exception; '' if there was none.
        ended: when its outcome was recorded, UTC; None: it wasn't.
        late: the outcome that came when the run had been given up as lost or never started.
        rerun_of: the task id of the run that it has repeated.
        held_by: the task id of the run that kept this one from being sent, or from being sent at once.
        held_on: the worker that had begun that run.
        since: since when that run was at work, or on its queue, UTC; if it waited for its next attempt, from
            when on that may begin.
        held_state: 'retrying' if that run waited for its next attempt, 'spawned' if its own task was over and
            its workflow wasn't, 'reserved' if its message was about to be published; None otherwise.
        held_attempt: that next attempt.
        behind: the task id of the run that waited already for that one, so that this one was left out.
    """

    due: datetime
    at: datetime
    outcome: str = "sent"
    task_id: str | None = None
    why: str = ""
    is_manual: bool = False
    last: datetime | None = None
    count: int | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    worker: str | None = None
    attempt: int | None = None
    error: str = ""
    ended: datetime | None = None
    late: str | None = None
    rerun_of: str | None = None
    held_by: str | None = None
    held_on: str | None = None
    since: datetime | None = None
    held_state: str | None = None
    held_attempt: int | None = None
    behind: str | None = None

    @property
    def is_sent(self) -> bool:
        """Whether its message was sent, whatever became of it then."""
        return self.outcome in _SENT_OUTCOMES

    @property
    def is_span(self) -> bool:
        """Whether it is about all runs from ``due`` to ``last`` that weren't sent, one or more."""
        return self.last is not None or (self.count is not None and not self.is_sent)

    def covers(self, due: datetime, tolerance: timedelta = timedelta(0)) -> bool:
        """Return True if it is about the run that was due at ``due``, if there was one."""
        return self.due - tolerance <= due <= (self.last or self.due) + tolerance

    @property
    def late_seconds(self) -> float:
        """How long after its due time it was recorded."""
        return (self.at - self.due).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, with times in ISO 8601."""
        values = {**asdict(self), "late_seconds": self.late_seconds}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
        }


def error_in_words(error: str) -> str:
    """Return the error of a run as people read it: that of a task which the worker doesn't know in words."""
    name = error.removeprefix(NOT_REGISTERED)
    return error if name == error else f"no such task on the worker: {name}"


def record_of(due: str, outcome: str = "sent", *, last: str | None = None, **members: object) -> str:
    """Return the record of a run, without braces: the script that stores it adds more members.

    Arguments:
        due: when it was due, UNIX seconds as the server writes them.
        last: for several runs: when the last of them was due, likewise.
        members: others by their names; None and False are left out.
    """
    given = {"outcome": None if outcome == "sent" else outcome, **members}
    texts = {name: json.dumps(value) for name, value in given.items() if value not in (None, False)}
    if last is not None and last != due:
        texts["last"] = last
    return ",".join([f'"due":{due}', *(f'"{name}":{text}' for name, text in texts.items())])


def decode_history(records: Iterable[str], id_of: Callable[[datetime], str]) -> list[PastRun]:
    """Return the runs of ``records``; a record that can't be read is left out.

    Arguments:
        id_of: returns the task id that beat gives to the run with this due time.
    """
    runs = (_decode(record, id_of) for record in records)
    return [run for run in runs if run is not None]


def read_outcome(record: str) -> str | None:
    """Return the outcome in a record; None: it can't be read."""
    try:
        return str(json.loads(record).get("outcome", "sent"))
    except (ValueError, AttributeError, RecursionError):
        return None


def _decode(text: str, id_of: Callable[[datetime], str]) -> PastRun | None:
    try:
        record = json.loads(text)
        values = {
            name: read(record[member])
            for name, (member, read) in _MEMBERS.items()
            if record.get(member) is not None
        }
        if "held_by" in values and values.get("outcome") in ("skipped", "waiting"):
            values["held_on"] = values.pop("worker", None)
        if "task_id" not in values and values.get("outcome", "sent") in _SENT_OUTCOMES:
            values["task_id"] = id_of(values["due"])
        run = PastRun(**values)
        return run if run.held_by is None else replace(run, why=_told_of_holder(run))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    return float(value) if isfinite(float(value)) else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


#: the attributes of a run to the members of its record, and how each is read
_MEMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{name: (name, _moment) for name in ("due", "at", "last", "ended", "since")},
    **{name: (name, str) for name in ("outcome", "why", "worker", "error", "late", "rerun_of")},
    **{name: (name, str) for name in ("held_by", "held_state", "behind")},
    **{name: (name, int) for name in ("count", "attempt", "held_attempt")},
    "task_id": ("id", str),
    "is_manual": ("manual", bool),
    "wait_seconds": ("wait", _number),
    "run_seconds": ("ran", _number),
}


def _told_of_holder(run: PastRun) -> str:
    """Return why a run was held back: by which run, on which worker, and since when."""
    if run.outcome not in ("skipped", "waiting"):
        return f"it has waited for the run {run.held_by}"
    if run.behind is not None and run.behind == run.held_by:
        return f"another run waits already, {run.behind}"
    what = _told_of_held_state(run)
    if run.behind is not None:
        return f"another run waits already, {run.behind}, for the run {run.held_by}, which {what}"
    waits = "; it is sent when that one has ended" if run.outcome == "waiting" else ""
    return f"the run {run.held_by} {what}{waits}"


def _told_of_held_state(run: PastRun) -> str:
    """Return what the run did that has held this one back."""
    where = "" if run.held_on is None else f" on {run.held_on}"
    since = "" if run.since is None else f" since {shown(run.since)}"
    if run.held_state == "retrying":
        when = "" if run.since is None else f", which may begin from {shown(run.since)} on"
        return f"waited for attempt {run.held_attempt or 2}{when}"
    if run.held_state == "reserved":
        return "was about to be published"
    if run.held_state == "spawned":
        return f"had its own task behind it, and its workflow at work{since}"
    return f"was at work{where}{since}" if where else f"was on its queue{since}"
