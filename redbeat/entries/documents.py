"""Entries as JSON documents, one shape for all who show them.

An entry's document is its ``to_dict``, and ``list`` and ``show`` add what they know besides. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.fields import without_secrets
from redbeat.entries.runs import Last
from redbeat.errors import EntryError


def iso(moment: datetime | None) -> str | None:
    """Return ``moment`` in ISO 8601; None for None."""
    return None if moment is None else moment.isoformat()


def outcome_of(last: Last) -> dict[str, Any]:
    """Return what ``list`` and ``show`` add to an entry's document about its last runs."""
    return {"last_outcome": last.outcome, "failures_in_a_row": last.failures}


def document_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the document of an entry that was listed: its ``to_dict``, without secrets."""
    try:
        return without_secrets(entry.to_dict())
    except EntryError as exc:  # a schedule of a class that isn't registered here
        return {
            "name": entry.name,
            "task": entry.task,
            "schedule": None,
            "enabled": entry.enabled,
            "state": entry.state,
            "next_due_at": iso(entry.next_due_at),
            "description": entry.description,
            "error": entry.error or str(exc),
        }
