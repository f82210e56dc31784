"""The names of an entry's fields in forms and files, and how a secret among them is shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.config.ping_urls import mask_ping_url
from redbeat.policy.policy import FIELDS

#: what an entry is
ENTRY_FIELDS = ("task", "schedule", "args", "kwargs", "options", "enabled", *FIELDS)
#: what ``export --history`` adds: lists, as they are in Redis
PAST_FIELDS = ("history", "backfilled")
#: what ``export`` adds: the entry's bookkeeping
STATE_FIELDS = ("last_run_at", "total_run_count", "next_run", "owner", "stored", *PAST_FIELDS)
#: what ``celery redbeat list`` and ``show`` add about its runs, and after them what ``show`` alone adds
RUN_FIELDS = ("last_outcome", "failures_in_a_row", "running", "figures")
#: what ``to_dict`` and these commands add for readers; a file may have it, and it is ignored there
READ_ONLY_FIELDS = ("state", "next_due_at", "description", "error", "next_runs", *RUN_FIELDS)


def shown_value(field: str, value: Any) -> Any:
    """Return the value of ``field`` as it may be shown; only an export has secrets."""
    return mask_ping_url(value) if field == "ping_url" else value


def without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with secrets masked."""
    return {field: shown_value(field, value) for field, value in fields.items()}
