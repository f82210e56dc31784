"""What an event in the stream says, as the receivers of its signal are given it. Pure.

An event is written by the script that records what has happened. Those of beat's own commits are records of
histories; those of workers, and of runs that beat gives up, are of a few members. Invariant: what can't be
read is left out, as later versions may write more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from redbeat import signals
from redbeat.history import decode_history
from redbeat.keys import Keys
from redbeat.runs.run import Run, run_of_past
from redbeat.task_ids import task_id_of


def arguments_of(fields: Mapping[str, str], keys: Keys) -> dict[str, Any] | None:
    """Return what the receivers of an event are given; None: it can't be read.

    Arguments:
        fields: of the event in the stream.
    """
    try:
        if "key" in fields:
            run = _run_of_record(fields["key"], fields["run"], keys)
            return None if run is None else {"entry": run.name, "run": run}
        entry, event = fields["entry"], fields["event"]
        if event in signals.OF_RUNS:
            return {"entry": entry, "run": _run_of(entry, event, json.loads(fields["run"]))}
        details = json.loads(fields["details"])
        if event == signals.entry_quarantined.name:
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


def _run_of_record(key: str, text: str, keys: Keys) -> Run | None:
    """Return the run that a record of the history of the entry under ``key`` is about."""

    def id_of(due: datetime) -> str:
        return task_id_of(key, due.isoformat(timespec="microseconds"))

    pasts = decode_history([text], id_of)
    return run_of_past(keys.name(key), pasts[0]) if pasts else None


def _run_of(name: str, event: str, found: Mapping[str, Any]) -> Run:
    def seconds(member: str) -> float | None:
        return None if found.get(member) is None else float(found[member])

    def moment(member: str) -> datetime | None:
        at = seconds(member)
        return None if at is None else datetime.fromtimestamp(at, timezone.utc)

    is_over = event == signals.run_ended.name
    return Run(
        name,
        datetime.fromtimestamp(float(found["due"]), timezone.utc),
        str(found["task_id"]),
        state=None if is_over else "started",
        outcome=str(found["outcome"]) if is_over else None,
        started_at=moment("at" if event == signals.run_started.name else "started"),
        ended_at=moment("at") if is_over else None,
        worker=found.get("worker"),
        attempt=None if found.get("attempt") is None else int(found["attempt"]),
        wait_seconds=seconds("wait"),
        run_seconds=seconds("ran"),
        is_overdue=event == signals.run_overdue.name,
        error=str(found.get("error") or ""),
    )
