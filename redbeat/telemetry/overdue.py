"""Which entries are overdue: not sent for longer than a minute, or without a success for longer than their
own schedule allows.

By when an entry's next run must have succeeded stands in Redis, where runs are tracked: the script that
records a success notes it. That is where to look; whether it is so is decided here, by what the entry says
now. Invariant: an entry that was changed, paused or deleted since isn't overdue by what it was before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.runs import id_of
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.history import PastRun, decode_history
from redbeat.keys import Keys
from redbeat.runs.tracking import is_tracked
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import moment_of
from redbeat.store.entries import read_entries
from redbeat.store.figures import expect_runs, forget_streaks, read_late, read_streaks
from redbeat.store.histories import read_newest
from redbeat.store.records import Stored
from redbeat.store.run_record import RunRecord, State
from redbeat.store.runs import Runs
from redbeat.store.store import Store

#: an entry that is due for longer than this is overdue; seconds
LATE_SECONDS = 60.0
#: how many entries are looked at in one go, and how many are named; more are counted
MAX_LOOKED_AT, MAX_NAMED = 500, 100
#: when an entry is looked at again whose run is at work; seconds
AGAIN_SECONDS = 60.0
#: how long a run may take that doesn't say so: as long as its entry's runs are apart, and an hour at most;
#: seconds. As in ``run_records.lua``
MIN_SECONDS, MAX_SECONDS = 60.0, 3600.0
#: what becomes of runs that another one stands for, or that the entry's policy leaves out
_LEFT_OUT = ("skipped", "merged")
#: in how many of its last runs a success is looked for
MAX_HISTORY = 20


class Overdue(NamedTuple):
    """The entries that are overdue.

    Attributes:
        not_sent: how many are due for longer than a minute.
        not_succeeded: how many have had no success in time.
        names: of the first of them, each once.
    """

    not_sent: int = 0
    not_succeeded: int = 0
    names: Sequence[str] = ()


def find_overdue(store: Store, parts: Sequence[Keys], now: float) -> dict[Keys, Overdue]:
    """Return for each of these parts the entries that are overdue at ``now``, the server's UNIX seconds."""
    late = read_late(store, now - LATE_SECONDS, MAX_NAMED, parts, are_expected=False)
    missed = read_late(store, now, MAX_LOOKED_AT, parts, are_expected=True)
    expected = _judge_all(store, [key for _, found in missed.values() for key in found], now)
    expect_runs(store, expected)
    overdue = {}
    for keys, (not_sent, first) in late.items():
        count, found = missed[keys]
        left = [key for key in found if key not in expected]
        names = dict.fromkeys(map(keys.name, [*first, *left]))
        not_succeeded = count - (len(found) - len(left))
        overdue[keys] = Overdue(not_sent, not_succeeded, list(names)[:MAX_NAMED])
    return overdue


def _judge_all(store: Store, candidates: Sequence[str], now: float) -> dict[str, float | None]:
    """Return when to look at those entries again that aren't overdue, by their keys; None: never."""
    if not candidates:
        return {}
    app = store.config.app
    _, found = read_entries(store, candidates)
    at_work, failing = Runs(store).read(candidates), Runs(store).failing(candidates)
    histories = read_newest(store, candidates, MAX_HISTORY)
    judged: dict[str, float | None] = {}
    for stored, records, failures, history in zip(found, at_work, failing, histories, strict=True):
        try:
            entry = decode_entry(RedBeatSchedulerEntry, stored, app)
            is_running = (
                stored.score is not None and stored.score >= 0 and entry.is_enabled_at(moment_of(now))
            )
            # nobody tells of successes any more if its runs aren't tracked now
            if not is_running or not (is_tracked(app) or entry.policy.needs_tracking):
                judged[stored.key] = None
                continue
            pasts = decode_history(history, partial(id_of, stored.key))
            has_failed = failures > 0 or any(record.state is State.SENT for record in records)
            again = judge(entry, records, pasts, now, stored.score or now, has_failed=has_failed)
        except (EntryNotFound, EntryCorrupt):  # what is quarantined shows elsewhere
            judged[stored.key] = None
            continue
        if again is not None:
            judged[stored.key] = None if again == math.inf else again
    return judged


def judge(
    entry: RedBeatSchedulerEntry,
    at_work: Sequence[RunRecord],
    pasts: Sequence[PastRun],
    now: float,
    next_due: float,
    *,
    has_failed: bool,
) -> float | None:
    """Return when to look at an entry again, UNIX seconds, or never; None: it is overdue.

    Arguments:
        at_work: its runs in progress.
        pasts: its last runs.
        now: UNIX seconds.
        next_due: when its next run is due, UNIX seconds.
        has_failed: its last run has failed or was lost, or no worker has begun it yet.
    """
    states = (State.STARTED, State.RETRYING, State.SPAWNED)
    if any(record.state in states and not record.is_overdue for record in at_work):
        return now + AGAIN_SECONDS
    successes = [past.due for past in pasts if "succeeded" in (past.outcome, past.late)]
    last = max(successes, default=None)
    if last is not None and (expected_at := expected_after(entry, last)) > now:
        return expected_at
    # what it says now may never have asked for the run that is missed: it was paused, or had another schedule
    has_missed = any(past.outcome not in _LEFT_OUT for past in pasts if last is None or past.due > last)
    expected_at = next_due + _allowed_seconds(entry, None)
    return expected_at if expected_at > now and not has_failed and not has_missed else None


def expected_after(entry: RedBeatSchedulerEntry, due: datetime) -> float:
    """Return by when the run after the one of ``due`` must have succeeded, UNIX seconds; inf: none."""
    bounds = entry.bounds()
    following = next_run(entry.schedule, bounds, due, due)
    if following is None:
        return math.inf
    seconds = _allowed_seconds(entry, following - due)
    return (following + timedelta(seconds=seconds)).timestamp()


def _allowed_seconds(entry: RedBeatSchedulerEntry, period: timedelta | None) -> float:
    """Return how long a run may take after its due time; ``period``: how far it is from the one before it."""
    seconds = MAX_SECONDS if period is None else min(period.total_seconds(), MAX_SECONDS)
    return max(entry.policy.max_runtime or seconds, MIN_SECONDS)


def streaks_of(store: Store, parts: Sequence[Keys], limit: int, now: float) -> dict[Keys, Mapping[str, int]]:
    """Return for each of these parts how many of their last runs have failed in a row, of the entries with
    most, by their names.

    Entries that don't run at ``now``, the server's UNIX seconds, are left out: whoever has paused one knows.
    """
    entries = read_streaks(store, limit, parts)
    counts = dict(zip(entries, Runs(store).failing(entries), strict=True))
    # somebody has reset the count, or deleted the entry
    forget_streaks(store, [key for key, count in counts.items() if not count])
    _, found = read_entries(store, [key for key, count in counts.items() if count])
    app, moment = store.config.app, moment_of(now)
    running = [one.key for one in found if _runs_at(one, moment, app)]
    return {keys: {keys.name(key): counts[key] for key in running if keys.owns(key)} for keys in parts}


def _runs_at(stored: Stored, moment: datetime, app: Any) -> bool:
    """Tell whether an entry is enabled; what can't be used isn't, and shows elsewhere."""
    try:
        return decode_entry(RedBeatSchedulerEntry, stored, app).is_enabled_at(moment)
    except (EntryNotFound, EntryCorrupt):
        return False
