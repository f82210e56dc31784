"""What became of an entry's last runs: a list of JSON objects beside it, the newest first.

Owns their form. They are written in the step that records the run (``commit_runs.lua``), which adds the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

__all__ = ["PastRun", "decode_history", "dropped_record", "failed_record", "sent_record", "skipped_record"]


@dataclass(frozen=True)
class PastRun:
    """One run of the past.

    Attributes:
        due: its nominal time, UTC.
        at: when that was recorded, UTC: for one that was sent, when it was sent.
        outcome: 'sent', 'skipped', 'merged' (another run was sent that stands for it), or 'failed' (it is
            tried again).
        task_id: of its message; None: it has none.
        why: why it wasn't sent; '' for one that was.
        is_manual: somebody asked for it; the schedule didn't.
        last: the nominal time of the last of several runs that weren't sent, ``due`` that of the first; None:
            it is about one run.
        count: how many runs it is about; None: too many to count, or it was written by an older version.
    """

    due: datetime
    at: datetime
    outcome: str = "sent"
    task_id: str | None = None
    why: str = ""
    is_manual: bool = False
    last: datetime | None = None
    count: int | None = None

    @property
    def is_span(self) -> bool:
        """Whether it tells which runs weren't sent, one, or all from the first to the last."""
        return self.last is not None or (self.count is not None and self.outcome != "sent")

    def covers(self, due: datetime, tolerance: timedelta = timedelta(0)) -> bool:
        """Tell whether it is about the run that was due at ``due``, if there was one."""
        return self.due - tolerance <= due <= (self.last or self.due) + tolerance

    @property
    def late_seconds(self) -> float:
        """How long after its due time it was recorded."""
        return (self.at - self.due).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON has it, times in ISO 8601."""
        return {
            **asdict(self),
            "due": self.due.isoformat(),
            "at": self.at.isoformat(),
            "last": self.last and self.last.isoformat(),
            "late_seconds": self.late_seconds,
        }


def sent_record(due: str, own_task_id: str | None = None, is_manual: bool = False) -> str:
    """Return the record of a run that was sent.

    Arguments:
        due: its nominal time, UNIX seconds as the server writes them.
        own_task_id: None where it is the one that beat gives the run, which follows from the key and ``due``.
    """
    record = f'"due":{due}'
    if own_task_id is not None:
        record += f',"id":{json.dumps(str(own_task_id))}'
    return record + ',"manual":true' if is_manual else record


def skipped_record(due: str, why: str) -> str:
    """Return the record of a run that was due at ``due`` and won't be sent."""
    return f'"due":{due},"outcome":"skipped","why":{json.dumps(why)}'


def dropped_record(due: str, why: str, last: str, count: int | None, *, is_merged: bool) -> str:
    """Return the record of the ``count`` runs from ``due`` to ``last`` that won't be sent.

    ``count`` None: they are too many to count.
    """
    outcome = "merged" if is_merged else "skipped"
    record = f'"due":{due},"outcome":"{outcome}","why":{json.dumps(why)}'
    if last != due:
        record += f',"last":{last}'
    return record if count is None else f'{record},"count":{count}'


def failed_record(due: str, why: str) -> str:
    """Return the record of a run that was due at ``due``, couldn't be sent, and is tried again."""
    return f'"due":{due},"outcome":"failed","why":{json.dumps(why)}'


def decode_history(records: Iterable[str], id_of: Callable[[datetime], str]) -> list[PastRun]:
    """Return the runs that ``records`` tell of; a record that can't be read is left out.

    Arguments:
        id_of: the task id that beat gives a run that is due then.
    """
    runs = (_decode(record, id_of) for record in records)
    return [run for run in runs if run is not None]


def _decode(text: str, id_of: Callable[[datetime], str]) -> PastRun | None:
    try:
        record = json.loads(text)
        due, outcome, task_id = _moment(record["due"]), str(record.get("outcome", "sent")), record.get("id")
        if task_id is None and outcome == "sent":
            task_id = id_of(due)
        return PastRun(
            due=due,
            at=_moment(record["at"]),
            outcome=outcome,
            task_id=None if task_id is None else str(task_id),
            why=str(record.get("why", "")),
            is_manual=bool(record.get("manual")),
            last=_moment(record["last"]) if "last" in record else None,
            count=int(record["count"]) if "count" in record else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
