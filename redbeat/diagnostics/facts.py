"""The facts about an entry and its runs: what is stored and recorded, who leads, and the schedule's times.

Invariant: reading them writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import schedule

from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import load_calendars
from redbeat.entries.due import anchor_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.runs import MOST_KEPT, deadlines_of, id_of
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.history import PastRun, decode_history
from redbeat.leadership.status import Status, read_status
from redbeat.policy.policy import NO_POLICY
from redbeat.runs.run import Run, in_progress, runs_of
from redbeat.schedules.occurrences import is_own_kind, last_runs, next_run, phase_before
from redbeat.store.entries import read_entry
from redbeat.store.histories import read_newest
from redbeat.store.records import Stored
from redbeat.store.runs import Runs
from redbeat.store.store import Store

#: a time that a user gives means the schedule's time, or the run, that is less than this away from it
TOLERANCE = timedelta(seconds=1)
#: a leader that hasn't ticked for this long is dead, or hangs
SILENT = timedelta(seconds=10)
#: how far back a schedule's last time is searched, step by step
_SPANS = tuple(timedelta(days=days) for days in (1 / 1440, 1 / 24, 1, 32, 400, 4000))


@dataclass(frozen=True)
class Facts:
    """What is known about an entry.

    Attributes:
        entry: with its calendar; None: it is invalid, and ``problem`` says why.
        history: the records of its last runs, the newest first.
        kept: how many runs are kept (``redbeat_history``); 0: none.
        misfire: the app's setting, for an entry without a misfire of its own.
        running: its runs in progress, as far as they are tracked.
        has_workers: a live worker tracks runs; True if that isn't known.
    """

    key: str
    entry: RedBeatSchedulerEntry | None
    stored: Stored
    problem: str
    history: Sequence[PastRun]
    kept: int
    status: Status
    misfire: str = "latest"
    running: Sequence[Run] = ()
    has_workers: bool = True

    @property
    def now(self) -> datetime:
        """The server's clock."""
        return self.status.now


def read_facts(app: Any, name: str) -> Facts:
    """Read what is known about the entry called ``name``.

    Raises:
        EntryNotFound: there is none.
        StoreUnavailable: Redis can't be reached, or doesn't answer in time.
    """
    config = ensure_conf(app)
    status = read_status(app)
    with Store.hasty(app) as store:
        key = config.keys.entry(name)
        stored = read_entry(store, key)[1]
        if not stored.exists:
            raise EntryNotFound(f"{key}: there is no such entry.", key)
        entry, problem = try_decode(stored, config.app)
        if entry is not None:
            load_calendars(store, [entry], {})
        [texts] = read_newest(store, [key], max(config.history, MOST_KEPT))
        records = in_progress(Runs(store).read([key])[0])
        running = runs_of(name, records, (), status.now, deadlines_of(store, key, records))
        has_workers = not any(run.state == "sent" for run in running) or Runs(store).has_workers()
        status = status.in_shard(config.layout.shard_of(store.parts.of(key)))
    history = decode_history(texts, lambda due: id_of(key, due))
    kept, misfire = config.history, config.misfire
    return Facts(key, entry, stored, problem, history, kept, status, misfire, running, has_workers)


def try_decode(stored: Stored, app: Any) -> tuple[RedBeatSchedulerEntry | None, str]:
    """Return the entry that ``stored`` describes, or why it is invalid."""
    try:
        return decode_entry(RedBeatSchedulerEntry, stored, app), ""
    except (EntryCorrupt, EntryNotFound) as exc:
        return None, str(exc)


def record_of(history: Sequence[PastRun], at: datetime) -> PastRun | None:
    """Return the record of the single run at ``at``: that it was sent, or else the latest one."""
    near = (run for run in history if abs(run.due - at) < TOLERANCE and run.last is None)
    return min(near, key=lambda run: (abs(run.due - at), not run.is_sent), default=None)


def span_of(history: Sequence[PastRun], at: datetime) -> PastRun | None:
    """Return the record of several unsent runs, one of which was due at ``at``; None: there is none."""
    near = (run for run in history if run.last is not None and run.covers(at, TOLERANCE))
    return min(near, key=lambda run: not run.covers(at), default=None)


def times_around(entry: RedBeatSchedulerEntry, at: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the schedule's last time at or before ``at``, and the first after it, whatever the policy says.

    None: there is none, or it can't be found.
    """
    rule, bare = entry.schedule, replace(NO_POLICY, timezone=entry.policy.timezone)
    try:
        if isinstance(rule, schedule) and not is_own_kind(rule, schedule):
            anchor = max(filter(None, (anchor_of(entry), entry.policy.start_time)), default=None)
            before = None if anchor is None else phase_before(rule, bare, anchor, at)
            return before, None if before is None else next_run(rule, bare, at, before)
        for span in _SPANS:
            first = next_run(rule, bare, at - span)
            if first is not None and first <= at:
                [before], after = last_runs(rule, bare, first, at, 1)
                return before, after
        return None, next_run(rule, bare, at)
    except (ValueError, OverflowError, RuntimeError):
        return None, None
