"""The names of what an entry has, as forms and files have them."""

from __future__ import annotations

from redbeat.policy.policy import FIELDS

#: what says what an entry is
ENTRY_FIELDS = ("task", "schedule", "args", "kwargs", "options", "enabled", *FIELDS)
#: what ``export --history`` adds: lists, as they stand in Redis
PAST_FIELDS = ("history", "backfilled")
#: what ``export`` adds: what has become of it so far
STATE_FIELDS = ("last_run_at", "total_run_count", "next_run", "owner", "stored", *PAST_FIELDS)
#: what ``to_dict`` adds for readers: a file may have it, and nothing is made of it
READ_ONLY_FIELDS = ("state", "next_due_at", "description", "error", "next_runs")
