"""What a run's message says about the run: its headers, read and written. Pure.

Invariant: a message that has no entry, or no due time that can be read, is no run's.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601

from redbeat.policy.headers import EXPIRES_AFTER, OVERLAP, QUEUE_TIMEOUT, TRACKS
from redbeat.runs.outcomes import is_number
from redbeat.store.records import score_text
from redbeat.store.runs import Delivery

#: the headers of a run's message that those of its workflow's other tasks have, too
SHARED_HEADERS = ("redbeat_entry", "redbeat_due", TRACKS, OVERLAP)
#: in a message that a run's task has sent with the run's own task id: its delivery
FOLLOWS = "redbeat_follows"
_OVERLAPS = ("skip", "buffer_one", "replace")


class Ticket(NamedTuple):
    """What the process that runs a task is told about the run.

    Attributes:
        headers: RedBeat's own in its message.
        expires: when its message expires, as in its headers.
        lease_ms: how long its lease lives without being renewed.
        is_acked_early: its message is gone from its queue by now.
        is_expired: its message had expired when it came once more, which it does if its worker was killed.
    """

    delivery: Delivery
    headers: Mapping[str, Any]
    expires: Any
    lease_ms: int
    is_acked_early: bool
    is_expired: bool = False

    @property
    def is_workflow(self) -> bool:
        """Whether the run is over only when the tasks that it sends are."""
        return self.headers.get(TRACKS) == "workflow"


def read_delivery(headers: Mapping[str, Any], worker: str, *, is_soft: bool) -> Delivery | None:
    """Return the delivery of the message with ``headers`` to ``worker``, or None if it is no run's."""
    name, due, task_id = headers.get("redbeat_entry"), headers.get("redbeat_due"), headers.get("id")
    if not (name and isinstance(name, str) and due and isinstance(due, str) and isinstance(task_id, str)):
        return None
    try:
        instant = maybe_iso8601(due).timestamp()
        attempt = int(headers.get("retries") or 0) + 1
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    root, overlap, follows = headers.get("redbeat_root"), headers.get(OVERLAP), headers.get(FOLLOWS)
    return Delivery(
        name,
        task_id,
        score_text(instant),
        secrets.token_hex(8),
        worker,
        attempt,
        root if isinstance(root, str) and root != task_id else "",
        is_soft,
        overlap if overlap in _OVERLAPS else "",
        follows if isinstance(follows, str) else "",
    )


def may_have_begun(headers: Mapping[str, Any], due_at: float, now: float) -> bool:
    """Tell whether a message that has expired, and comes once more, may be of a run that was begun in time.

    ``queue_timeout`` limits only how long it waits for that. Any other expiry counts whatever was begun.

    Arguments:
        due_at: when the run was due, UNIX seconds, as ``now``.
    """
    after: Any = headers.get(EXPIRES_AFTER)
    return QUEUE_TIMEOUT in headers and (after is None or (is_number(after) and now < due_at + after))


def kept_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``headers`` that the messages of a run's other attempts have, too: RedBeat's own."""
    return {name: value for name, value in headers.items() if name.startswith("redbeat_")}


def shared_headers(ticket: Ticket) -> dict[str, Any]:
    """Return the headers for the other tasks of a workflow that the run sends."""
    delivery = ticket.delivery
    shared = {name: ticket.headers[name] for name in SHARED_HEADERS if name in ticket.headers}
    return {**shared, "redbeat_root": delivery.root or delivery.task_id}
