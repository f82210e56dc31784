"""Runs that are sent once more: those that have failed for good, were lost, or never started.

A rerun has the due time of the run that it repeats, a task id of its own that follows from the entry's key,
that time and its number, and the header ``redbeat_rerun_of``. Invariant: a run that has failed is repeated
once, however many people ask for that at the same time, unless somebody names it by its due time. A rerun
that has failed itself is a run that has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult

from redbeat.entries.runs import BEGINNING, MOST_KEPT, read_failures, read_history
from redbeat.entries.sending import send
from redbeat.errors import EntryBusy, EntryError, EntryNotFound
from redbeat.history import FAILED_OUTCOMES, PastRun, record_of
from redbeat.process.signals import hold_interrupts
from redbeat.runs.run import Run, run_of_past
from redbeat.schedules.timezones import in_utc, shown
from redbeat.store.histories import are_backfilled, backfilling, note_backfilled
from redbeat.store.records import score_text
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.task_ids import rerun_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: a due time that a user gives means the run that was due less than this away from it
TOLERANCE = timedelta(seconds=1)


def rerun_one(entry: RedBeatSchedulerEntry, due: datetime | None) -> tuple[Run, AsyncResult]:
    """Send a run of ``entry`` once more; return which one, and the result of the new one."""
    repeater = _Repeater(entry)
    with backfilling(Store(entry.app), entry.key):
        run = repeater.choose(due)
        return run, repeater.send(run, is_alone=True)


def choose_run(entry: RedBeatSchedulerEntry, due: datetime | None) -> Run:
    """Return the run that ``rerun`` would send once more."""
    return _Repeater(entry).choose(due)


def rerun_each(
    entry: RedBeatSchedulerEntry, runs: Sequence[Run], progress: Callable[[Run, str], object]
) -> str:
    """Send failed runs of ``entry`` once more, except those that were repeated already.

    A run that the entry's overlap policy holds back is left; return why the first of these was, '' if none
    was. ``progress`` is called with each run that was sent, and its new task id.

    Raises:
        EntryError: a part of the entry can't be sent.
        LockNotAcquired: another process sends runs of it by hand.
    """
    repeater, held = _Repeater(entry), ""
    with backfilling(Store(entry.app), entry.key) as hold:
        for run in runs:
            if not repeater.is_to_do(run):
                continue
            with hold_interrupts(5.0):  # a run is sent and noted, or neither
                hold()
                try:
                    task_id = str(repeater.send(run).id)
                except EntryBusy as exc:
                    held = held or str(exc)
                    continue
            progress(run, task_id)
    return held


@dataclass
class Reruns:
    """What ``rerun`` of all entries would send once more.

    Attributes:
        runs: by the entry's name, in the order of names; no list is empty.
        entries: the entries that have failed runs, by their names.
        failed: why other entries are invalid, by their names.
    """

    runs: dict[str, list[Run]] = field(default_factory=dict)
    entries: dict[str, RedBeatSchedulerEntry] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def find_reruns(
    kind: type[RedBeatSchedulerEntry],
    app: Any,
    since: datetime,
    match: str = "*",
    chosen: Collection[tuple[str, datetime]] | None = None,
) -> Reruns:
    """Return the runs of all matching entries that have failed since a time, and weren't repeated yet.

    Arguments:
        kind: the class of entries.
        chosen: only these, by their names and due times.
    """
    found = Reruns()
    wanted = None if chosen is None else {(name, round(due.timestamp(), 3)) for name, due in chosen}
    failures = dict[str, dict[Any, Run]]()
    for run in reversed(read_failures(Store(app), since)):
        is_wanted = wanted is None or (run.name, round(run.due.timestamp(), 3)) in wanted
        if is_wanted and fnmatchcase(run.name, match):
            failures.setdefault(run.name, {})[run.task_id, run.due] = run
    for name in {name for name, _ in wanted or ()} - failures.keys():
        found.failed[name] = f"{name}: no failed run with this due time is known."
    for name, listed in sorted(failures.items()):
        try:
            entry = found.entries[name] = kind.get(name, app)
        except EntryNotFound as exc:
            if chosen is not None:
                found.failed[name] = str(exc)
            continue
        except EntryError as exc:
            found.failed[name] = str(exc)
            continue
        runs = [*filter(_Repeater(entry).is_to_do, listed.values())]
        if runs:
            found.runs[name] = runs
    return found


class _Repeater:
    """Sends runs of one entry once more."""

    def __init__(self, entry: RedBeatSchedulerEntry) -> None:
        self._entry = entry
        self._store = Store(entry.app)

    @cached_property
    def _past(self) -> dict[Any, PastRun]:
        """The runs in its history, by task id and due time, the oldest first."""
        history = reversed(read_history(self._entry, MOST_KEPT))
        return {(run.task_id, run.due): run for run in history if run.is_sent}

    def choose(self, due: datetime | None) -> Run:
        """Return the run that was due then, of several the one that was sent last.

        Without a due time it is the last run that has failed and wasn't repeated.
        """
        name, key = str(self._entry.name), self._entry.key
        runs = [run_of_past(name, past) for past in reversed(self._past.values())]
        # the list of failures goes back further than the history
        runs += [run for run in read_failures(self._store, BEGINNING) if run.name == name]
        if due is not None:
            moment = in_utc(due)
            near = [run for run in runs if abs(run.due - moment) < TOLERANCE]
            if near:
                return min(near, key=lambda run: abs(run.due - moment))
            reason = f"no run is known that was due at {shown(moment)}; backfill sends any runs"
            raise EntryError(f"{key}: rerun: {reason}.", key)
        failed = [run for run in runs if run.outcome in FAILED_OUTCOMES]
        for run in sorted(failed, key=lambda run: run.ended_at or run.due, reverse=True):
            if self.is_to_do(run):
                return run
        reason = "none has failed, was lost or never started"
        if failed:
            reason = "all that have failed were sent once more; name one by its due time"
        raise EntryError(f"{key}: rerun: of the runs that are known {reason}.", key)

    def is_to_do(self, run: Run) -> bool:
        """Return True if a failed run is still to be repeated: it wasn't, and hasn't succeeded late."""
        past = self._past.get((run.task_id, run.due))
        if past is not None and past.late == "succeeded":
            return False
        done = self._reruns_of(run)
        ids = [self._id_of(run, number) for number in range(1, done + 1)]
        number = ids.index(run.task_id) + 1 if run.task_id in ids else 0
        return number == done

    def send(self, run: Run, *, is_alone: bool = False) -> AsyncResult:
        """Send ``run`` once more, and note that; one of many may wait on its queue for ever."""
        now = Server(self._store).now()
        key, nominal, number = self._entry.key, score_text(run.due.timestamp()), self._reruns_of(run) + 1
        task_id = self._id_of(run, number)
        record = None
        if (task_id, run.due) not in self._past:  # else it was sent before, by somebody who was killed then
            record = record_of(nominal, id=task_id, manual=True, rerun_of=run.task_id)
        overrides = {"task_id": task_id, "headers": {"redbeat_rerun_of": run.task_id}}
        result = send(self._entry, run.due, overrides, record, now, is_alone=is_alone)
        # after it is sent: after a kill in between it is sent again, with the same id
        note_backfilled(self._store, key, _mark_of(nominal, number))
        return result

    def _reruns_of(self, run: Run) -> int:
        """Return how often what was due when ``run`` was has been repeated."""
        nominal, size = score_text(run.due.timestamp()), 8
        for first in count(1, size):
            marks = [_mark_of(nominal, number) for number in range(first, first + size)]
            known = are_backfilled(self._store, self._entry.key, marks)
            if not all(known):
                return first - 1 + known.index(False)
        raise AssertionError("count() has no end")

    def _id_of(self, run: Run, number: int) -> str:
        return rerun_id_of(self._entry.key, run.due.isoformat(timespec="microseconds"), number)


def _mark_of(nominal: str, number: int) -> str:
    """Return what is noted beside the due times that ``backfill`` has sent: the due time, and which rerun."""
    return f"{nominal} {number}"
