"""What happens to a due entry: a ``Decision``, with the row that records it. Pure.

A ``Send`` is the decision that a run leaves. Any other one leaves nothing: the entry gets another score or
leaves the schedule, its run is recorded as skipped, or the entry is quarantined. A ``Send`` that fails
becomes another decision: ``Send.retry``, ``Send.skip``, ``Send.held`` and ``Send.declined`` return it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redbeat.entries.dropped import Dropped
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import MAX_BACKOFF_SECONDS, Failure, failure_of, new_failure, with_jitter
from redbeat.history import record_of
from redbeat.runs.limits import dropped_run
from redbeat.store.records import Commit, Ending, Held, Push, Stored, score_text

if TYPE_CHECKING:  # it needs OpenTelemetry
    from redbeat.telemetry.spans import RunSpan

#: seconds to wait for the hash of a member of the schedule, because some writers add it after the member
MISSING_GRACE_SECONDS = 1.0

NO_HEADERS: Mapping[str, Any] = {}


@dataclass(slots=True)
class Decision:
    """What happens to a due entry.

    Attributes:
        due_entry: as it was fetched.
        commit: the row that records the decision.
        dropped: runs that are not sent, to be logged when the row is written.
        is_recorded: the row was written as it is.
    """

    due_entry: Stored
    commit: Commit
    dropped: Sequence[Dropped] = field(default=(), kw_only=True)
    is_recorded: bool = field(default=False, kw_only=True)


@dataclass(slots=True)
class Send(Decision):
    """A run leaves.

    Attributes:
        name, task: of the entry.
        nominal: due time of the run, UNIX seconds as the server writes them.
        due: the same in ISO 8601, as in the header ``redbeat_due``.
        task_id: derived from entry key and due time, unless the entry has its own.
        expires: when its message expires by the policy, UTC; None: never.
        expiration_seconds: how long after now that is; None: never.
        headers: of the message, for workers.
        valid_until: until when it may be sent as it was planned, UNIX seconds.
        failure: what the entry's hash says of an earlier failure; None: nothing.
        skip_score: next due time of its entry if it is skipped; '': it has none, or is to run only once.
        known: what the planner keeps of the entry; None: nothing.
        entry: what the scheduler's ``apply_async`` is given; None: it is made when Celery makes the message.
        pushes: its message; (): it is not made yet, or not collected.
        frames: its message from a template for RabbitMQ; None: there is none.
        template: of its message; None: Celery makes it.
        events: task-sent events that Celery has made with the message.
        span: OpenTelemetry's span of the run; None: it has none.
    """

    name: str
    task: str
    nominal: str
    due: str
    task_id: str
    expires: datetime | None = None
    expiration_seconds: float | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    valid_until: float = 0.0
    failure: Failure | None = None
    skip_score: str = ""
    known: Any = None
    entry: RedBeatSchedulerEntry | None = None
    pushes: tuple[Push, ...] = ()
    frames: Any = None
    template: Any = None
    events: Sequence[Push] = ()
    span: RunSpan | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the run could not be sent before."""
        return self.failure is not None and self.failure.attempts > 0

    @property
    def may_be_held(self) -> bool:
        """Whether another run of its entry may hold it back."""
        return self.commit.run is not None and self.commit.run.overlap != "allow"

    def retry(self, reason: str, now: float) -> tuple[Decision, bool]:
        """Return the decision to try the run again later, and whether its reason is news.

        The run keeps its due time, and is coalesced with the entry's later runs when they come due.

        Arguments:
            now: the server's clock, UNIX seconds.
        """
        row, before = self.due_entry, self.failure
        failure, is_news = _failure_now(row, before, reason, now)
        if row.next_score:
            return wait_on(row), is_news
        failure = failure.again(attempts=before.attempts + 1 if before is not None else 1)
        failure = _waiting(failure, row, before, now + failure.backoff_seconds()).again(due=self.nominal)
        dropped = self.dropped if failure.attempts == 1 else ()  # the next try begins with this run
        commit = commit_of(row, failure.retry_at, dropped, new_error=failure.to_json())
        commit.is_for_this_definition, commit.labels = True, self.commit.labels
        if is_news:
            commit.records = (*commit.records, record_of(self.nominal, "unsent", why=reason))
        if failure.attempts == 1:
            commit.counted += " unsent"
        return Decision(row, commit, dropped=self.dropped), is_news

    def skip(self, reason: str, *, is_executed: bool = False) -> Decision | None:
        """Return the decision to skip the run; None: it has no next run, or is to run only once.

        Arguments:
            is_executed: its task was executed while it was sent, and has failed.
        """
        row, commit = self.due_entry, self.commit
        if not is_executed:
            if not self.skip_score:
                return None
            commit = commit_of(row, self.skip_score)
            commit.is_for_this_definition = True
        commit.records = (*records_of(self.dropped), record_of(self.nominal, "skipped", why=reason))
        commit.counted, commit.labels = f"{counted(self.dropped)} skipped/error", self.commit.labels
        commit.sent, commit.task_id = "", self.task_id
        # a reservation, or that it has waited for another run to end, is over
        commit.run = None if self.commit.run is None else dropped_run(self.nominal)
        return Decision(row, commit, dropped=self.dropped)

    def declined(self, until: float) -> Decision:
        """Return the decision about a run that a subclass does not send before ``until``."""
        row = self.due_entry
        return wait_on(row) if row.next_score else Decision(row, commit_of(row, score_text(until)))

    def held(self, by: Held) -> Decision:
        """Return the decision about a run that another run of its entry holds back."""
        tracked = self.commit.run
        assert tracked is not None  # noqa: S101 - else nothing holds it back
        *before, record = tracked.held_records
        commit = commit_of(self.due_entry, tracked.held_score)
        commit.records = (*before, f"{record},{by.members}")
        commit.counted, commit.labels = self.commit.counted, self.commit.labels
        commit.counted += "" if by.is_waiting else " skipped/overlap"
        return Decision(self.due_entry, commit, dropped=self.dropped)


def quarantine(row: Stored, reason: str, now: float, retry_seconds: float) -> tuple[Decision, bool]:
    """Return the decision to quarantine an entry, and whether its hash does not say so yet.

    It is tried again after ``retry_seconds``.
    """
    before = failure_of(row)
    failure, is_news = _failure_now(row, before, reason, now)
    if row.next_score:  # it is reported when the entry's own time comes
        return wait_on(row), False
    failure = _waiting(failure, row, before, now + retry_seconds)
    commit = Commit(row, failure.retry_at)
    if row.can_hold_error:
        commit.new_error, commit.is_for_this_definition = failure.to_json(), not row.unread_bytes
    if is_news:
        commit.records = (record_of(failure.due, "unsent", why=reason),)
    return Decision(row, commit), is_news


def put_off(row: Stored, now: float) -> Decision:
    """Return the decision to try a run that has failed before later, as there is no time for it now."""
    if row.next_score:
        return wait_on(row)
    before = failure_of(row)
    failure = before or new_failure(row, "its error could not be read", now)
    failure = _waiting(failure, row, before, now + with_jitter(MAX_BACKOFF_SECONDS))
    commit = Commit(row, failure.retry_at, new_error=failure.to_json(), is_for_this_definition=True)
    return Decision(row, commit)


def _failure_now(row: Stored, before: Failure | None, reason: str, now: float) -> tuple[Failure, bool]:
    """Return why an entry fails, and whether that is news; ``before``: what its hash says."""
    if before is not None and before.is_about(row, reason):
        return before, False
    return new_failure(row, reason, now), True


def _waiting(failure: Failure, row: Stored, before: Failure | None, retry_at: float) -> Failure:
    """Return ``failure`` with the run that is tried again: that of ``before``, if the entry waits for it."""
    is_same_run = before is not None and before.due and before.is_waiting_for(row)
    due = before.due if before is not None and is_same_run else row.nominal
    return failure.again(due=due, retry_at=score_text(retry_at), is_asked=is_asked(row, before))


def missing(row: Stored, now: float, *, is_known: bool) -> Decision:
    """Return the decision about a member without a hash: look again, or remove it."""
    if is_known:
        return Decision(row, Commit(row, Ending.UNSCHEDULE))
    return Decision(row, Commit(row, score_text(now + MISSING_GRACE_SECONDS)))


def wait_on(row: Stored) -> Decision:
    """Return the decision that a run which waits for another one to end waits a little longer.

    The deadline of its entry makes it due again.
    """
    return Decision(row, Commit(row, row.next_score))


def is_asked(row: Stored, failure: Failure | None) -> bool:
    """Return True if this run was requested by a score of 0, now or before it failed."""
    return row.is_asked or (failure is not None and failure.is_asked and failure.is_waiting_for(row))


def commit_of(
    row: Stored, new_score: str, dropped: Sequence[Dropped] = (), new_error: str | None = None
) -> Commit:
    """Return the row that gives an entry a new score, and removes its error unless there is a new one."""
    error = new_error or ("" if row.error else None)
    return Commit(row, new_score, new_error=error, records=records_of(dropped), counted=counted(dropped))


def records_of(dropped: Sequence[Dropped]) -> tuple[str, ...]:
    """Return the history records of runs that are not sent."""
    return tuple([one.record for one in dropped])


def counted(dropped: Sequence[Dropped]) -> str:
    """Return what is counted of runs that are not sent."""
    return "".join([one.counted for one in dropped])
