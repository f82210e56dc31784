"""Supervision of runs in progress: what beat does about those whose deadlines have passed.

An entry that has failed as often as its ``pause_after_failures`` says is paused, with a note that says why.
Invariants: an error here keeps nothing from being sent. An entry is paused by compare and set: one that was
paused, deleted or given another policy meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from logging import WARNING

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.pauses import rest
from redbeat.errors import LockLost, RedBeatError, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.history import decode_history
from redbeat.log.events import ENTRY_PAUSED, RUN_LOST, RUN_NEVER_STARTED, RUN_OVERDUE
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.signals import let_through
from redbeat.runs.deadlines import Action, judge
from redbeat.scheduler.reports import Reports
from redbeat.schedules.timezones import moment_of, shown
from redbeat.store.entries import write_entries
from redbeat.store.events import add_paused_events
from redbeat.store.histories import read_newest
from redbeat.store.records import Fence, Fetched, Stored, Write
from redbeat.store.run_record import RunRecord
from redbeat.store.runs import Runs
from redbeat.store.store import Store

#: seconds until a run is looked at again that cannot be settled
PUT_OFF_SECONDS = 60.0

#: what is logged of a run that is given up, or overdue from now on, and why
_SETTLED = {
    "lost": (RUN_LOST, "its lease ran out, so its worker or the machine is gone"),
    "never_started": (RUN_NEVER_STARTED, "no worker that tracks runs has begun it within queue_timeout"),
    "overdue": (RUN_OVERDUE, "it takes longer than its max_runtime"),
}

#: the name that pauses entries that fail too often, and how their notes begin
PAUSED_BY, _NOTE = "redbeat", "paused after"
#: how many records of an entry's history are searched for the last error
_RECORDS = 20


def settle_deadlines(
    store: Store,
    reports: Reports,
    entry_class: type[RedBeatSchedulerEntry],
    fetched: Fetched,
    fence: Fence,
    watched_seconds: float,
) -> bool:
    """Act on deadlines that have passed; return True if entries may be due by that: fetch again at once.

    Arguments:
        watched_seconds: for how long the server has answered, so that workers could renew their leases.

    Raises:
        LockLost: another beat holds the lock.
        StoreUnavailable, StoreRefused, StoreCorrupt: nothing of the shard can be written.
    """
    keys, runs, lease_seconds = store.keys, Runs(store), store.config.run_lease
    decisions = [judge(one, fetched.now, lease_seconds, watched_seconds) for one in fetched.deadlines]
    settlements = [decision.settlement(keys) for decision in decisions]
    is_well = False  # else the same deadlines would be tried again without a pause
    with reports.surviving(store, "An entry that fails too often can't be paused"):
        looked_at = [keys.entry(one.name) for one in settlements if one.action == Action.LOOK.value]
        pause_failing(store, reports, entry_class, fence, looked_at)
        is_well = True
    results = runs.settle(fence, settlements)
    for decision, one, result in zip(decisions, settlements, results, strict=True):
        if isinstance(result, RedBeatError):
            is_well = False
            with reports.surviving(store, f"A run in progress of {one.name} can't be settled"):
                raise result
            # else a hundred of them would be in the way of all others
            runs.settle(fence, [one._replace(action=Action.POSTPONE.value, seconds=PUT_OFF_SECONDS)])
        elif decision.run is not None and result in _SETTLED:
            report_settled(reports, one.name, decision.run, result)
            if result == "never_started":
                reports.report_untracked(store, one.name, "given up as never_started")
    return is_well


def report_settled(reports: Reports, name: str, run: RunRecord, word: str) -> None:
    """Log a run that is given up, or overdue from now on: ``word``."""
    event, why = _SETTLED[word]
    since = run.sent if run.started is None else run.started
    begun = "sent" if run.started is None else f"begun on {printable(run.worker or 'an unknown worker')}"
    reason = f"{why}; it was {begun} at {shown(None if since is None else moment_of(since))}"
    reports.report(
        WARNING,
        event,
        name,
        "beat: A run of %s, %s, is %s: %s.",
        printable(run.task_id),
        word,
        reason,
        many=f"with a run that is {word}",
        task_id=run.task_id,
        due=run.due or None,
        worker=run.worker,
        reason=reason,
    )


def pause_failing(
    store: Store,
    reports: Reports,
    entry_class: type[RedBeatSchedulerEntry],
    fence: Fence,
    keys: Sequence[str],
) -> None:
    """Pause those of the entries under ``keys`` that have failed as often as their policy says.

    Raises:
        LockLost: another beat holds the lock.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    for key, failures in zip(keys, Runs(store).failing(keys), strict=True):
        try:
            if failures:
                _pause(store, reports, entry_class, fence, key, failures)
        except (LockLost, StoreCorrupt, StoreRefused, StoreUnavailable):
            raise
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: its class may be the application's
            let_through(exc)
            name, reason = printable(store.keys.name(key)), str(exc).removeprefix(f"{printable(key)}: ")
            logger.error("beat: Entry %s fails too often and can't be paused: %s", name, reason)  # noqa: TRY400


def _pause(
    store: Store,
    reports: Reports,
    entry_class: type[RedBeatSchedulerEntry],
    fence: Fence,
    key: str,
    failures: int,
) -> None:
    """Pause one entry if it has failed too often, send the event, and count anew.

    After a kill in between, the next beat finds the count and sends the event.
    """
    found: RedBeatSchedulerEntry | None = None

    def decide(stored: Stored, now: datetime) -> Write | None:
        nonlocal found
        found = decode_entry(entry_class, stored, store.config.app) if stored.exists else None
        limit = None if found is None else found.policy.pause_after_failures
        if found is None or limit is None or failures < limit:
            found = None
            return None
        if not found.is_enabled_at(now):
            return None
        after = found.policy.resume_after
        until = None if after is None else now + timedelta(seconds=after)
        rest(found, now, _note_of(store, key, failures), until, PAUSED_BY)
        return found.plan_save(stored, now)

    [outcome] = write_entries(store, [key], decide, fence)
    if found is None:
        return
    name, note, until = store.keys.name(key), found.pause_note or "", found.paused_until
    if outcome == "changed":
        reports.report(WARNING, ENTRY_PAUSED, name, "beat: Paused %s: %s", note, until=until, reason=note)
    if found.paused_by == PAUSED_BY and note.startswith(_NOTE):
        add_paused_events(store, [(name, until)], note, PAUSED_BY)
    Runs(store).forget_failures(key)


def _note_of(store: Store, key: str, failures: int) -> str:
    note = f"{_NOTE} {'a failure' if failures == 1 else f'{failures} failures in a row'}"
    for run in decode_history(read_newest(store, [key], _RECORDS)[0], lambda _due: ""):
        if run.outcome in ("failed", "lost"):
            last = run.error or f"the run due at {run.due:%Y-%m-%d %H:%M:%S} UTC was lost"
            return shorten(printable(f"{note}; the last: {last}"))
    return note
