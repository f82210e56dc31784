"""Failures: invalid and misplaced entries, and runs that cannot be sent or recorded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from logging import ERROR

from redbeat.config.masking import mask_secrets
from redbeat.delivery.failures import Origin, cause_of, origin_of, reason_of
from redbeat.errors import EntryCorrupt, RedBeatError, ReshardRefused
from redbeat.log import events
from redbeat.log.events import LogEvent
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable, shorten
from redbeat.process.memory import Memory
from redbeat.reshard.sweeping import misplaced as find_misplaced
from redbeat.reshard.sweeping import move_home
from redbeat.runs.outcomes import MAX_ERROR
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.decisions import Decision, Send, quarantine
from redbeat.scheduler.reports import Reports
from redbeat.signals import entry_quarantined, is_wanted
from redbeat.store.figures import count_once
from redbeat.store.records import Stored
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs

#: an entry that changed between fetch and record so many times in a row backs off: mostly its own sending
#: changes it, by a signal handler or the task's own ``apply_async``
MAX_CONFLICTS = 3

_CONTESTED = (
    "the entry changes each time while it is sent, so its run can't be recorded and isn't sent: look for a "
    "signal handler, a task's apply_async or another program that writes to it at each run"
)

#: log lines about failed runs
_LINES = {
    events.RUN_SKIPPED: "beat: Skipped a run of %s (%s), its own code raised an error: %s",
    events.RUN_FAILED_TO_SEND: "beat: Couldn't send %s (%s), trying again: %s",
    events.RUN_LOST: "beat: Lost a run of %s (%s), as redbeat_delivery is 'at_most_once': %s",
}


class Failures:
    """Failing entries of one beat.

    Arguments:
        reports: the log.
        quarantine_seconds: after how long an invalid entry is tried again.

    Attributes:
        conflicts: how often in a row an entry has changed between fetch and record, by key.
        count: how many runs could not be sent so far.
    """

    def __init__(self, reports: Reports, quarantine_seconds: float) -> None:
        self._reports = reports
        self._quarantine_seconds = quarantine_seconds
        self.conflicts = Memory[str, int]()
        self.count = 0

    # -- invalid entries

    def quarantine(self, batch: Batch, row: Stored, exc: BaseException) -> Decision:
        """Return the decision about an entry that cannot be planned; log it if it is news."""
        reason = str(exc) if isinstance(exc, EntryCorrupt) else f"{row.key}: {type(exc).__name__}: {exc}"
        if isinstance(exc, OverflowError):
            reason = f"{row.key}: one of its times is outside the years 1 to 9999 ({exc})."
        reason, name = shorten(printable(reason)), batch.store.keys.name(row.key)
        decision, is_news = quarantine(row, reason, batch.fetched.now, self._quarantine_seconds)
        if is_news or not row.can_hold_error:
            self._reports.report(
                ERROR,
                events.ENTRY_QUARANTINED,
                name,
                "beat: Quarantined invalid entry %s (left unchanged): %s",
                reason.removeprefix(f"{printable(row.key)}: "),
                once="" if row.can_hold_error else reason,
                reason=reason,
            )
        if is_news and is_wanted(entry_quarantined.name):
            batch.quarantined.append((name, {"reason": reason}))
        return decision

    def keep_home(self, batch: Batch, misplaced: Sequence[Stored]) -> Sequence[Stored]:
        """Return the fetched entries without those that belong to another shard, which are moved there.

        Their writer goes by another number of shards. They are not run here, as their twins may be at home.
        """
        store, rows = batch.store, {batch.store.keys.name(row.key): row for row in misplaced}
        try:
            moved = move_home(store, find_misplaced(store, store.keys, rows))
        except ReshardRefused as exc:
            for row in misplaced:
                problem = EntryCorrupt(f"{row.key}: this entry belongs to another shard: {exc}", row.key)
                batch.ready.append(self.quarantine(batch, row, problem))
        else:
            report_moved(moved)
            left = [row for name, row in rows.items() if name not in moved]
            if left:  # another process moves entries: they are tried again in a moment, and not at once
                batch.leave(left)
                batch.is_in_doubt = True
        keys = {row.key for row in misplaced}
        return [row for row in batch.fetched.rows if row.key not in keys]

    # -- runs that could not be sent

    def decide(self, batch: Batch, send: Send, exc: BaseException) -> Decision:
        """Return what becomes of a run that could not be sent: it is skipped, or tried again later."""
        origin, reason = origin_of(exc), reason_of(exc)
        decision: Decision | None = None
        if origin is Origin.TASK and send.known is not None:
            reason = f"task_always_eager is set, and its task has raised {reason}"
            decision = send.skip(reason, is_executed=True)
        elif origin is Origin.APPLICATION:
            decision = send.skip(reason)
        if decision is None:
            return self.retry(batch, send, exc)
        self._report(events.RUN_SKIPPED, send, exc, reason)
        return decision

    def retry(self, batch: Batch, send: Send, exc: BaseException) -> Decision:
        """Return the decision to try a run again that could not be sent because of ``exc``."""
        reason = reason_of(exc)
        decision, is_news = send.retry(reason, batch.fetched.now)
        self._report(events.RUN_FAILED_TO_SEND, send, exc, reason, is_news=is_news)
        return decision

    def note_lost(self, batch: Batch, send: Send, exc: BaseException) -> None:
        """Record that a run which was recorded as sent could not be, unless a worker has begun it by now."""
        reason, tracked, store = reason_of(exc), send.commit.run, batch.store
        with suppress(RedBeatError):  # then a tracked run never starts
            if tracked is None:
                count_once(store, send.commit.labels, "lost")
            else:
                record = RunRecord(send.task_id, tracked.due)
                problem = shorten(
                    f"its message couldn't be sent: {printable(mask_secrets(reason))}", MAX_ERROR
                )
                Runs(store).give_up(store.keys.name(send.due_entry.key), [record], problem)
        self._report(events.RUN_LOST, send, exc, reason)

    def report_doubtful(self, sends: Sequence[Send], exc: BaseException) -> None:
        """Log runs of which is not known whether they were recorded, so that they are not sent now.

        Those that were not are still due.
        """
        for send in sends:
            reason = f"{reason_of(exc)} (unless it was not recorded: then it is sent later)"
            self._report(events.RUN_LOST, send, exc, reason)

    def _report(
        self, event: LogEvent, send: Send, exc: BaseException, reason: str, *, is_news: bool = True
    ) -> None:
        """Log a failed run, unless many are skipped or retried because of one kind of error."""
        self.count += 1
        if send.span is not None:
            send.span.note_failed(exc)
        if is_news:
            what = "skipped" if event is events.RUN_SKIPPED else "not sent"
            self._reports.report(
                ERROR,
                event,
                send.name,
                _LINES[event],
                send.task,
                reason,
                many="" if event is events.RUN_LOST else f"{what} by {type(cause_of(exc)).__name__}",
                task=send.task,
                task_id=send.task_id,
                due=float(send.nominal),
                reason=reason,
                attempts=1 if send.failure is None else send.failure.attempts + 1,
            )

    # -- entries that change between fetch and record

    def note_conflict(self, key: str) -> None:
        """Count that an entry has changed before its run was recorded."""
        self.conflicts[key] = self.conflicts.get(key, 0) + 1

    def back_off(self, batch: Batch, send: Send) -> Decision | None:
        """Return the decision to pause an entry that changed too often; None: it may be tried."""
        key = send.due_entry.key
        if self.conflicts.get(key, 0) < MAX_CONFLICTS:
            return None
        self.conflicts[key] = MAX_CONFLICTS - 1  # it is tried once after each pause
        return self.retry(batch, send, RedBeatError(_CONTESTED))


def report_moved(names: Sequence[str]) -> None:
    """Log that entries were moved to the shards that they belong to."""
    if names:
        logger.warning(
            "beat: Moved %s to where they belong, as something writes by another number of shards: %s",
            counted(len(names)),
            ", ".join(names[:5]),
            extra=events.ENTRIES_MOVED.of(entries=list(names[:100])),
        )
