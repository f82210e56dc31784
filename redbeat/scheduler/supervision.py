"""Looking after runs in progress: what beat does about those whose deadlines have come.

An entry that has failed as often as its ``pause_after_failures`` says is paused, with a note that says why.
Invariants: what can't be done about runs in progress keeps nothing from being sent. An entry is paused by
compare and set: one that was paused, deleted or given another policy meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from redbeat.connection.retry import is_refusal
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.pauses import rest
from redbeat.errors import LayoutChanged, LockLost, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.history import decode_history
from redbeat.log.events import ENTRY_PAUSED
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.memory import Memory
from redbeat.process.signals import let_through
from redbeat.runs.deadlines import Action, Decision, judge
from redbeat.scheduler.reports import Reports
from redbeat.store.entries import write_entries
from redbeat.store.events import add_paused_events
from redbeat.store.histories import read_history_texts
from redbeat.store.records import Fence, Fetched, Stored, Write
from redbeat.store.runs import Failing, Runs, Settlement
from redbeat.store.store import Store

#: when a run is looked at again that can't be settled
PUT_OFF_SECONDS = 60.0

#: who pauses entries that fail too often, and how their notes begin
PAUSED_BY, _NOTE = "redbeat", "paused after"
#: how many records of an entry's history are searched for the last error
_RECORDS = 20


class Supervision:
    """What one beat does about the deadlines of runs in progress.

    Arguments:
        entry_class: returns the scheduler's class of entries.
    """

    def __init__(
        self,
        store: Store,
        entry_class: Callable[[], type[RedBeatSchedulerEntry]],
        reports: Reports,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._reports = reports
        self._entry_class = entry_class
        self._lease_seconds = lease_seconds
        self._said = Memory[str, str]()
        self._is_in_trouble = False

    def settle(self, fetched: Fetched, fence: Fence, watched_seconds: float) -> bool:
        """Act on deadlines that have passed; return True if entries may be due by that: fetch again at once.

        Arguments:
            watched_seconds: for how long the server answers, so that workers could renew their leases.

        Raises:
            LockLost: another beat holds the lock.
            StoreUnavailable, StoreRefused: Redis can't be used at all.
        """
        if not fetched.deadlines:
            return False
        self._is_in_trouble = False
        keys = self._store.keys
        decisions = [
            judge(one, fetched.now, self._lease_seconds, watched_seconds) for one in fetched.deadlines
        ]
        looked_at = [one.deadline.running for one in decisions if one.action is Action.LOOK]
        settlements = [decision.settlement(keys) for decision in decisions]

        if looked_at:
            entries = [keys.entry_of_running(running) for running in looked_at]
            with self._surviving("An entry that fails too often can't be paused"):
                pause_failing(self._store, self._entry_class(), fence, entries)
        results = self._settle(fence, settlements)
        self._report(decisions, results)
        return not self._is_in_trouble  # else it would be tried again without a pause

    def _settle(self, fence: Fence, settlements: Sequence[Settlement]) -> list[str]:
        """Settle all of them; one that can't be settled is told of, and left. Return what the store does."""
        try:
            return Runs(self._store).settle(fence, settlements)
        except (StoreRefused, StoreCorrupt) as exc:
            if isinstance(exc, StoreRefused) and is_about_all(exc):
                raise
        results: list[str] = []
        for one in settlements:
            result = [""]
            with self._surviving(f"A run in progress of {one.name} can't be looked after"):
                try:
                    result = Runs(self._store).settle(fence, [one])
                except (StoreRefused, StoreCorrupt):
                    # else a hundred of them would be in the way of all others
                    put_off = one._replace(action=Action.POSTPONE.value, seconds=PUT_OFF_SECONDS)
                    Runs(self._store).settle(fence, [put_off])
                    raise
            results += result
        return results

    def _report(self, decisions: Sequence[Decision], results: Sequence[str]) -> None:
        """Log the runs that are lost, never_started or overdue from now on."""
        keys = self._store.keys
        settled = [
            (keys.name(keys.entry_of_running(one.deadline.running)), one.run, result)
            for one, result in zip(decisions, results, strict=True)
            if one.run is not None and result in ("lost", "never_started", "overdue")
        ]
        self._reports.report_settled(settled)
        for name, _, result in settled:
            if result == "never_started":
                has_workers = Runs(self._store.without_retry()).has_workers
                self._reports.report_untracked(name, "given up as never_started", has_workers)

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Tell once of what the server refuses in the block, or of a key of another type, and go on."""
        try:
            yield
        except StoreRefused as exc:
            if is_about_all(exc):
                raise
            self._tell(what, exc)
        except StoreCorrupt as exc:
            keys = self._store.keys
            if exc.key in (self._store.config.lock_key_in(keys), keys.schedule):
                raise
            self._tell(what, exc)

    def _tell(self, what: str, exc: Exception) -> None:
        self._is_in_trouble = True
        sentence = printable(f"{what}: {exc}")
        if self._said.is_news(what, sentence):
            logger.error("beat: %s", sentence)


def is_about_all(exc: StoreRefused) -> bool:
    """Tell whether the server refuses everything now: no run is at fault."""
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)


# -- entries that fail too often


def pause_failing(
    store: Store, entry_class: type[RedBeatSchedulerEntry], fence: Fence, keys: Sequence[str]
) -> None:
    """Pause those of the entries under ``keys`` that have failed as often as their policy says.

    Raises:
        LockLost: another beat holds the lock.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    for key, failing in zip(keys, Runs(store).counted(keys), strict=True):
        if failing.in_a_row:
            _pause(store, entry_class, fence, key, failing)


def _pause(
    store: Store, entry_class: type[RedBeatSchedulerEntry], fence: Fence, key: str, failing: Failing
) -> None:
    """Pause one entry if it has failed too often, send the event, and count from the beginning.

    The count is marked meanwhile, so that a beat sends the event after a kill in between.
    """
    found: RedBeatSchedulerEntry | None = None
    runs = Runs(store)
    name, note = store.keys.name(key), ""

    def decide(stored: Stored, now: datetime) -> Write | None:
        nonlocal found, note
        found = None
        if not stored.exists:
            return None
        entry = decode_entry(entry_class, stored, store.config.app)
        policy = entry.policy
        if policy.pause_after_failures is None or failing.in_a_row < policy.pause_after_failures:
            return None
        found = entry
        if not entry.is_enabled_at(now):
            return None
        runs.mark_being_paused(key, failing)
        note = note or _note_of(store, key, failing.in_a_row)
        until = None if policy.resume_after is None else now + timedelta(seconds=policy.resume_after)
        rest(entry, now, note, until, PAUSED_BY)
        return entry.plan_save(stored, now)

    try:
        write_entries(store, [key], decide, fence)
    except (LockLost, StoreCorrupt, StoreRefused, StoreUnavailable):
        raise
    except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: the entry's class may be the application's
        let_through(exc)
        reason = str(exc).removeprefix(f"{printable(key)}: ")
        logger.error("beat: Entry %s fails too often and can't be paused: %s", printable(name), reason)  # noqa: TRY400
        return
    if found is None:
        return
    if note:
        logger.warning(
            "beat: Paused %s: %s",
            printable(name),
            note,
            extra=ENTRY_PAUSED.of(entry=name, until=found.paused_until, reason=note),
        )
    is_paused = found.paused_by == PAUSED_BY and (found.pause_note or "").startswith(_NOTE)
    if is_paused and (note or failing.is_being_paused):
        add_paused_events(store, [(name, found.paused_until)], found.pause_note, PAUSED_BY)
    runs.forget_failures(key)


def _note_of(store: Store, key: str, failures: int) -> str:
    note = f"{_NOTE} {'a failure' if failures == 1 else f'{failures} failures in a row'}"
    with suppress(StoreCorrupt):  # nothing depends on a history
        for run in decode_history(read_history_texts(store, key, _RECORDS), lambda _due: ""):
            if run.outcome in ("failed", "lost"):
                last = run.error or f"the run due at {run.due:%Y-%m-%d %H:%M:%S} UTC was lost"
                return shorten(printable(f"{note}; the last: {last}"))
    return note
