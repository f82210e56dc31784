"""Why an entry can't be run: the ``error`` field of its hash.

Either the entry can't be used (it is quarantined), or its last run couldn't be sent (it is tried again). As
this is kept in the entry's hash, the next leader goes on where the last one was, and whoever lists the
schedule sees why.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any

from redbeat.log.text import sha1_of_text
from redbeat.store.records import Stored

#: longest pause between two tries to send one run, seconds
MAX_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """Why an entry doesn't run.

    Attributes:
        reason: a sentence.
        since: when it was noticed first; ISO 8601, UTC.
        definition_sha1: the SHA-1 of the definition that it is about.
        attempts: how often the run was tried; 0: the entry can't be used.
        due: when the run that couldn't be sent was due; UNIX seconds as the server writes them.
        retry_at: the score of its next try, likewise.
        is_asked: somebody has asked for that run, so it is sent whatever the schedule says then.
    """

    reason: str
    since: str
    definition_sha1: str
    attempts: int = 0
    due: str = ""
    retry_at: str = ""
    is_asked: bool = False

    def to_json(self) -> str:
        """Return the field's text."""
        return json.dumps(asdict(self))

    def is_about(self, due_entry: Stored, reason: str) -> bool:
        """Return True if the entry fails again for the same reason, so that nothing new is to be logged."""
        return self.definition_sha1 == sha1_of(due_entry) and self.reason == reason

    def backoff_seconds(self) -> float:
        """Return how long to wait before the run is tried again."""
        return with_jitter(min(2.0 ** min(self.attempts - 1, 10), MAX_BACKOFF_SECONDS))

    def is_waiting_for(self, due_entry: Stored) -> bool:
        """Return True if the entry was fetched to try this failure's run again, not for a new due time."""
        return bool(self.retry_at) and float(self.retry_at) == float(due_entry.nominal)

    def again(self, **changes: Any) -> Failure:
        """Return the record with some values changed."""
        return replace(self, **changes)


def with_jitter(seconds: float) -> float:
    """Return ``seconds``, or up to a quarter more: what fails together shouldn't return together."""
    return seconds * random.uniform(1, 1.25)  # noqa: S311 - no secret


def failure_of(due_entry: Stored) -> Failure | None:
    """Return the failure in an entry's hash; None: there is none, or it can't be read."""
    if not due_entry.error:
        return None
    try:
        record = json.loads(due_entry.error)
        known = {field.name: record[field.name] for field in fields(Failure) if field.name in record}
        failure = Failure(**known)
        is_ours = type(failure.attempts) is int and 0 <= failure.attempts < 2**31
        is_ours = is_ours and type(failure.is_asked) is bool
        float(failure.retry_at or 0)
        return failure if is_ours and 0 <= float(failure.due or 0) < 10**11 else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def failure_now(stored: Stored) -> Failure | None:
    """Return the failure of an entry that it hasn't got over yet.

    Beat writes a failure together with the score of the next try. With another score the entry has run since:
    a program has written the failure back that had read the hash before.
    """
    failure = failure_of(stored)
    if failure is None or not failure.retry_at or not stored.score:
        return failure
    return failure if float(failure.retry_at) == stored.score else None


def new_failure(due_entry: Stored, reason: str, now: float) -> Failure:
    """Return the record of a failure that is noticed at ``now`` (UNIX seconds)."""
    since = datetime.fromtimestamp(now, timezone.utc).isoformat()
    return Failure(reason=reason, since=since, definition_sha1=sha1_of(due_entry))


def sha1_of(due_entry: Stored) -> str:
    """Return the SHA-1 of the definition as it is in Redis."""
    return sha1_of_text(due_entry.definition or "")
