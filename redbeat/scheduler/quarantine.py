"""Failures: decisions about invalid entries, and about runs that cannot be sent or recorded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redbeat.config.masking import mask_secrets
from redbeat.delivery.broker import kind_of, reason_of
from redbeat.delivery.origin import Origin, origin_of
from redbeat.errors import EntryCorrupt, RedBeatError
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory
from redbeat.runs.outcomes import MAX_ERROR
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.decisions import Decision, Quarantine, Send, quarantine
from redbeat.signals import entry_quarantined, is_wanted
from redbeat.store.events import Events
from redbeat.store.figures import Figures
from redbeat.store.records import DueEntry
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs
from redbeat.store.store import Store

#: an entry that changed between fetch and record so many times in a row backs off: mostly its own sending
#: changes it, by a signal handler or the task's own ``apply_async``
MAX_CONFLICTS = 3


class Failures:
    """What one beat knows of failing entries.

    Arguments:
        reports: the log.
        suspects: which runs are likely to fail.
        quarantine_seconds: after how long an invalid entry is tried again.

    Attributes:
        conflicts: how often in a row an entry has changed between fetch and record, by key.
        told: quarantines whose events are to be sent.
    """

    def __init__(self, reports: Any, suspects: Any, quarantine_seconds: float) -> None:
        self._reports = reports
        self._suspects = suspects
        self._quarantine_seconds = quarantine_seconds
        self.conflicts = Memory[str, int]()
        self.told: list[tuple[Store, str, str]] = []

    # -- invalid entries

    def quarantine(self, batch: Batch, row: DueEntry, exc: BaseException) -> Quarantine:
        """Return the decision about an entry that cannot be planned; log it if it is news."""
        reason = str(exc) if isinstance(exc, EntryCorrupt) else f"{row.key}: {type(exc).__name__}: {exc}"
        if isinstance(exc, OverflowError):
            reason = f"{row.key}: one of its times is outside the years 1 to 9999 ({exc})."
        reason = shorten(printable(reason))
        decision = quarantine(row, reason, batch.now, self._quarantine_seconds)
        self._reports.report_quarantined(row, reason, decision.is_news)
        if decision.is_news and is_wanted(entry_quarantined.name):
            self.told.append((batch.store, batch.store.keys.name(row.key), reason))
        return decision

    def tell(self) -> None:
        """Send the events of quarantines before these are recorded: after a kill in between, once more."""
        told, self.told = self.told, []
        by_store: dict[int, tuple[Store, list[tuple[str, str]]]] = {}
        for store, name, reason in told:
            by_store.setdefault(id(store), (store, []))[1].append((name, reason))
        for store, those in by_store.values():
            Events(store).add_quarantined(those)

    # -- runs that could not be sent

    def decide(self, batch: Batch, send: Send, exc: BaseException) -> Decision:
        """Return what becomes of a run that could not be sent: it is skipped, or tried again later."""
        origin, reason = origin_of(exc), reason_of(exc)
        decision: Decision | None = None
        if origin is Origin.TASK and send.known is not None:
            reason = f"task_always_eager is set, and its task has raised {reason}"
            decision = send.executed(reason)
        elif origin is Origin.APPLICATION:
            decision = send.skip(reason)
        if decision is None:
            return self.retry(batch, send, exc)
        if send.span is not None:
            send.span.note_failed(exc)
        self._reports.failures.report_skipped(send, reason, kind_of(exc))
        return decision

    def retry(self, batch: Batch, send: Send, exc: BaseException) -> Decision:
        """Return the decision to try a run again that could not be sent because of ``exc``."""
        if send.span is not None:
            send.span.note_failed(exc)
        self._suspects.mark(send)
        reason = reason_of(exc)
        decision, is_news = send.retry(reason, batch.now)
        if is_news:
            self._reports.failures.report_unsent(send, reason, kind_of(exc))
        return decision

    def note_lost(self, batch: Batch, send: Send, exc: BaseException) -> None:
        """Note that a run which was recorded as sent could not be, unless a worker has begun it by now."""
        if send.span is not None:
            send.span.note_failed(exc)
        reason, tracked, store = reason_of(exc), send.commit.run, batch.store
        if tracked is None:
            with suppress(RedBeatError):
                Figures(store).count(send.commit.labels, "lost")
        else:
            record = RunRecord(send.task_id, tracked.due)
            problem = shorten(f"its message couldn't be sent: {printable(mask_secrets(reason))}", MAX_ERROR)
            with suppress(RedBeatError):  # then it never starts
                Runs(store).give_up(store.keys.name(send.due_entry.key), [record], problem)
        self._reports.failures.report_lost(send, reason)

    # -- entries that change between fetch and record

    def note_conflict(self, key: str) -> None:
        """Count that an entry has changed before its run was recorded."""
        self.conflicts[key] = self.conflicts.get(key, 0) + 1

    def note_recorded(self, key: str) -> None:
        """Forget what was counted: a run of the entry was recorded."""
        self.conflicts.pop(key, None)

    def back_off(self, batch: Batch, send: Send) -> Decision | None:
        """Return the decision to pause an entry that changed too often; None: it may be tried."""
        key = send.due_entry.key
        if self.conflicts.get(key, 0) < MAX_CONFLICTS:
            return None
        self.conflicts[key] = MAX_CONFLICTS - 1  # it is tried once after each pause
        return send.retry(self._reports.report_contested(send.due_entry), batch.now)[0]
