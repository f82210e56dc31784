"""What became of an entry's last runs: a list of JSON objects beside it, the newest first.

Owns the form of these records. The script that records the run (``commit_runs.lua``) adds the time to each.
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
        due: when it was due, UTC.
        at: when this was recorded, UTC; for a run that was sent: when it was sent.
        outcome: 'sent', 'skipped', 'merged' (another run was sent that stands for it), or 'failed' (it is
            tried again).
        task_id: the task id of its message; None: there was none.
        why: why it wasn't sent; '' if it was.
        is_manual: ``trigger`` or ``backfill`` has sent it.
        last: for several runs that weren't sent: when the last of them was due, and ``due`` is that of the
            first; None: this is about one run.
        count: how many runs this is about; None: too many to count, or an older version wrote it.
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
        """Whether it is about all runs from ``due`` to ``last`` that weren't sent, one or more."""
        return self.last is not None or (self.count is not None and self.outcome != "sent")

    def covers(self, due: datetime, tolerance: timedelta = timedelta(0)) -> bool:
        """Tell whether it is about the run that was due at ``due``, if there was one."""
        return self.due - tolerance <= due <= (self.last or self.due) + tolerance

    @property
    def late_seconds(self) -> float:
        """How long after its due time it was recorded."""
        return (self.at - self.due).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON, with times in ISO 8601."""
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
        due: when it was due, UNIX seconds as the server writes them.
        own_task_id: its task id; None: the one that follows from the entry's key and ``due``.
    """
    record = f'"due":{due}'
    if own_task_id is not None:
        record += f',"id":{json.dumps(str(own_task_id))}'
    return record + ',"manual":true' if is_manual else record


def skipped_record(due: str, why: str) -> str:
    """Return the record of a run that was due at ``due`` and won't be sent."""
    return f'"due":{due},"outcome":"skipped","why":{json.dumps(why)}'


def dropped_record(due: str, why: str, last: str, count: int | None, *, is_merged: bool) -> str:
    """Return the record of the runs from ``due`` to ``last`` that won't be sent.

    ``count``: how many they are; None: too many to count.
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
    """Return the runs of ``records``; a record that can't be read is left out.

    Arguments:
        id_of: returns the task id that beat gives to the run with this due time.
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
