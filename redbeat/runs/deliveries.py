"""What a run's message says about the run: its headers, read and written. Pure.

Invariant: a message that has no entry, or no due time that can be read, is no run's; nor is one that says
something about its run that can't be kept in Redis.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from celery.utils.time import maybe_iso8601

from redbeat.log.text import is_utf8
from redbeat.policy.messages import EXPIRES_AFTER, OVERLAP, QUEUE_TIMEOUT, TRACKS
from redbeat.policy.policy import NO_POLICY
from redbeat.runs.outcomes import is_number
from redbeat.store.records import score_text
from redbeat.store.runs import Delivery

#: the headers of a run's message that those of its workflow's other tasks have, too
SHARED_HEADERS = ("redbeat_entry", "redbeat_due", TRACKS, OVERLAP)
#: in a message that a run's task has sent with the run's own task id: its delivery
FOLLOWS = "redbeat_follows"
#: more attempts than Celery can make, and few enough to be counted exactly in a script
_MAX_ATTEMPT = 2**31


class Ticket(NamedTuple):
    """What the process that runs a task is told about the run.

    Attributes:
        headers: RedBeat's own in its message.
        expires: when its message expires, as in its headers.
        lease_ms: how long its lease lives without being renewed.
        is_acked_early: its message is gone from its queue by now.
        is_expired: its message had expired when it came once more, which it does if its worker was killed.
        is_redelivered: it comes once more.
        main_pid: the worker's main process.
    """

    delivery: Delivery
    headers: Mapping[str, Any]
    expires: Any
    lease_ms: int
    is_acked_early: bool
    is_expired: bool = False
    is_redelivered: bool = False
    main_pid: int = 0

    @property
    def is_doubtful(self) -> bool:
        """Whether its run may have been given up, so that the gate waits longer for an answer.

        A run that was ``lost`` had been begun before, and what was ``never_started`` has expired.
        """
        return self.is_expired or (self.is_redelivered and bool(self.delivery.overlap))

    @property
    def is_workflow(self) -> bool:
        """Whether the run is over only when the tasks that it sends are."""
        return self.headers.get(TRACKS) == "workflow"


def read_delivery(headers: Mapping[str, Any], worker: str, *, is_soft: bool) -> Delivery | None:
    """Return the delivery of the message with ``headers`` to ``worker``, or None if it is no run's."""
    name, due, task_id = headers.get("redbeat_entry"), headers.get("redbeat_due"), headers.get("id")
    if not (_is_name(name) and due and isinstance(due, str) and _is_kept(task_id) and _is_kept(worker)):
        return None
    try:
        instant = maybe_iso8601(due).timestamp()
        attempt = int(headers.get("retries") or 0) + 1
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    root, overlap, follows = headers.get("redbeat_root"), headers.get(OVERLAP), headers.get(FOLLOWS)
    if not 1 <= attempt <= _MAX_ATTEMPT or (root and isinstance(root, str) and not _is_kept(root)):
        return None
    return Delivery(
        name,
        task_id,
        score_text(instant),
        secrets.token_hex(8),
        worker,
        attempt,
        root if _is_kept(root) and root != task_id else "",
        is_soft,
        # a value that only a newer beat knows must not mean that runs may overlap
        "" if overlap in (None, NO_POLICY.overlap) else overlap if _is_kept(overlap) else "unknown",
        follows if _is_kept(follows) else "",
    )


def _is_name(text: Any) -> TypeGuard[str]:
    """Return True if ``text`` can be an entry's name."""
    return isinstance(text, str) and bool(text) and is_utf8(text)


def _is_kept(text: Any) -> TypeGuard[str]:
    """Return True if ``text`` can be an id, or a worker's name: in a deadline a NUL ends the task id."""
    return _is_name(text) and "\0" not in text


def may_have_begun(headers: Mapping[str, Any], due_at: float, now: float) -> bool:
    """Return True if a message that has expired, and comes once more, may be of a run that was begun in time.

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
