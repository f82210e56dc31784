"""What became of one delivery of a run, from what Celery tells a worker's main process. Pure.

Invariant: each way in which a task can end has one outcome. Which it is follows from the exception, from what
Celery did about the message meanwhile, and from what the process that ran the task told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery.exceptions import Ignore, Reject, Retry, Terminated
from celery.utils.serialization import UnpickleableExceptionWrapper
from celery.utils.time import maybe_iso8601, maybe_make_aware

from redbeat.config.masking import mask_secrets
from redbeat.history import NOT_REGISTERED
from redbeat.log.text import printable
from redbeat.policy.messages import EXPIRES_AFTER, QUEUE_TIMEOUT

#: how many characters of an error are kept
MAX_ERROR = 200

#: two times that differ by less are the same, as some are rounded to milliseconds
SAME_SECONDS = 0.002

#: why a run was terminated, by the word in its record
REASONS = {"replaced": "replaced by the next run", "overdue": "longer than max_runtime"}


class Superseded(Ignore):
    """A run isn't begun, as another run holds its entry."""


class Expired(Ignore):
    """A message has expired before a worker has begun its run."""


class Duplicate(Ignore):
    """A message was delivered twice: the task that was begun first goes on, or a later attempt has ended."""


class Busy(Reject):
    """The same, where the message may be needed again: it is put back."""


class Told(NamedTuple):
    """What the process that ran a task tells the worker's main process.

    Attributes:
        run_seconds: how long the task took.
        successor_seconds: the task has sent a message with its own id, by ``retry`` or ``replace``, that may
            be begun so many seconds later; None: it hasn't.
    """

    run_seconds: float
    successor_seconds: float | None = None


@dataclass
class Seen:
    """What happened to a delivery in the main process.

    Attributes:
        is_requeued: its message was put back on its queue.
        is_revoked: Celery has announced that it is terminated.
        events: the types of the events that Celery has sent, or would have.
        terminated_for: why beat wanted it to be terminated; '': it didn't.
    """

    is_requeued: bool = False
    is_revoked: bool = False
    events: tuple[str, ...] = ()
    terminated_for: str = ""


class Verdict(NamedTuple):
    """An outcome, as in :class:`redbeat.store.runs.End`."""

    outcome: str
    error: str = ""
    retry_seconds: float = 0.0


def judge_return(told: Told | None, seen: Seen) -> Verdict:
    """Return the outcome of a task that has returned; ``told`` is None if it was killed, as greenlets are."""
    if told is None:
        return _revoked(seen)
    if told.successor_seconds is not None:
        return Verdict("retrying", retry_seconds=told.successor_seconds)
    return Verdict("succeeded")


def judge_failure(exc: BaseException, told: Told | None, seen: Seen, retry_delay: float) -> Verdict | None:
    """Return the outcome of a task that has raised ``exc``, or whose process has ended.

    None: this delivery has no outcome, as another delivery of the same message goes on.

    Arguments:
        retry_delay: how long Celery waits before it tries a task again whose process was lost.
    """
    if isinstance(exc, (Busy, Duplicate)):
        return None
    if isinstance(exc, Superseded):
        return Verdict("superseded")
    if isinstance(exc, Expired):
        return Verdict("expired")
    if seen.is_requeued:
        return Verdict("requeued", _reason_of(exc) if isinstance(exc, Reject) else error_of(exc))
    if told is not None and told.successor_seconds is not None:
        cause = getattr(exc, "exc", None) if isinstance(exc, Retry) else None
        return Verdict("retrying", error_of(cause) if cause else "", told.successor_seconds)
    if isinstance(exc, Retry):
        return Verdict("retrying", error_of(exc.exc) if exc.exc else "", seconds_until(exc.when))
    if isinstance(exc, Terminated) or (seen.is_revoked and told is None):
        return _revoked(seen)
    if isinstance(exc, Reject):
        return Verdict("rejected", _reason_of(exc))
    if isinstance(exc, Ignore):
        return Verdict("ignored")
    if "task-succeeded" in seen.events:  # its result was stored, and its process was lost then
        return Verdict("succeeded")
    if "task-retried" in seen.events:
        return Verdict("retrying", error_of(exc), retry_delay)
    return Verdict("failed", error_of(exc))


def _reason_of(reject: Any) -> str:
    reason = reject.reason
    if isinstance(reason, BaseException):
        return error_of(reason)
    return "" if reason is None else _clean(_text_of(reason))


def _revoked(seen: Seen) -> Verdict:
    return Verdict("revoked", REASONS.get(seen.terminated_for, seen.terminated_for) or "terminated")


def error_of(exc: BaseException) -> str:
    """Return the class of ``exc`` and the first line of its text, printable, with passwords masked."""
    name, text = type.__dict__["__name__"].__get__(type(exc)), _text_of(exc)
    if isinstance(exc, UnpickleableExceptionWrapper):
        name, text = str(exc.exc_cls_name), exc.text or ""
    if text.startswith(f"{name}(") and text.endswith(")"):  # a repr, as billiard's time limits have
        text = text[len(name) + 1 : -1].removesuffix(",")
    text = text.strip()
    return _clean(f"{name}: {text}" if text else name)


def error_of_unknown(task: str) -> str:
    """Return the error of a run whose task the worker doesn't know."""
    return _clean(f"{NOT_REGISTERED}{task}")


def _text_of(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - its own class may do anything
        return ""


def _clean(text: str) -> str:
    """Return the first line of ``text``, printable and cut, with passwords masked."""
    line = (text.lstrip()[: 10 * MAX_ERROR].splitlines() or [""])[0]
    line = printable(mask_secrets(line))
    return line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 3]}..."


def seconds_until(when: Any, now: datetime | None = None) -> float:
    """Return how long it is until ``when``: an ISO date, a datetime, a number of seconds, or None."""
    if isinstance(when, (int, float)):
        return max(float(when), 0.0)
    if when is None:
        return 0.0
    return max(_timestamp(when) - (now or datetime.now(timezone.utc)).timestamp(), 0.0)


def expiry_of_successor(
    headers: Mapping[str, Any], was: Any, due_at: float, now: datetime | None = None
) -> datetime | None:
    """Return when the message of a run's next attempt expires; None: when it says.

    Celery takes the expiry of the first attempt along. Where that only limits how long a message waits on its
    queue, the time counts from when the next attempt may begin.

    Arguments:
        headers: of that message.
        was: the expiry of the attempt before, as in its headers.
        due_at: when the run was due, UNIX seconds.
    """
    expires = headers.get("expires")
    queue_timeout: Any = headers.get(QUEUE_TIMEOUT)
    expires_after: Any = headers.get(EXPIRES_AFTER)
    if not is_number(queue_timeout) or not expires or not was:
        return None
    if abs(_timestamp(expires) - _timestamp(was)) > SAME_SECONDS:
        return None
    now = now or datetime.now(timezone.utc)
    at = now.timestamp() + seconds_until(headers.get("eta"), now) + queue_timeout
    if is_number(expires_after):
        at = min(at, due_at + expires_after)
    return datetime.fromtimestamp(at, timezone.utc)


def is_number(value: Any) -> bool:
    """Return True if a header's value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _timestamp(when: Any) -> float:
    return float(maybe_make_aware(maybe_iso8601(when), timezone.utc).timestamp())
