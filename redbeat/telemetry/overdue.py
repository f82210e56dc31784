"""Which entries are overdue: not sent for longer than a minute, or without a success for longer than their
own schedule allows.

By when an entry's next run must have succeeded stands in Redis, where runs are tracked: the script that
records a success notes it. That is where to look; whether it is so is decided here, by what the entry says
now. Invariant: an entry that was changed, paused or deleted since isn't overdue by what it was before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import try_decode
from redbeat.entries.runs import id_of
from redbeat.history import PastRun, decode_history
from redbeat.keys import Keys
from redbeat.runs.tracking import is_tracked
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import moment_of
from redbeat.store.entries import read_entries
from redbeat.store.figures import expect_runs, forget_streaks, read_late, read_streaks
from redbeat.store.histories import read_newest
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
    app, moment = store.config.app, moment_of(now)
    _, found = read_entries(store, candidates)
    at_work, failing = Runs(store).read(candidates), Runs(store).failing(candidates)
    histories = read_newest(store, candidates, MAX_HISTORY)
    judged: dict[str, float | None] = {}
    for stored, records, failures, history in zip(found, at_work, failing, histories, strict=True):
        entry, score = try_decode(RedBeatSchedulerEntry, stored, app), stored.score
        if entry is None or score is None or score < 0 or not entry.is_enabled_at(moment):
            judged[stored.key] = None
        elif not (is_tracked(app) or entry.policy.needs_tracking):
            judged[stored.key] = None  # its successes aren't recorded any more
        else:
            pasts = decode_history(history, partial(id_of, stored.key))
            has_failed = failures > 0 or any(record.state is State.SENT for record in records)
            again = _judge(entry, records, pasts, now, score or now, has_failed=has_failed)
            if again is not None:
                judged[stored.key] = None if again == math.inf else again
    return judged


def _judge(
    entry: RedBeatSchedulerEntry,
    at_work: Sequence[RunRecord],
    pasts: Sequence[PastRun],
    now: float,
    next_due: float,
    *,
    has_failed: bool,
) -> float | None:
    """Return when to look at an entry again, UNIX seconds, or inf for never; None: it is overdue.

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
    if last is not None:
        following = next_run(entry.schedule, entry.bounds(), last, last)
        if following is None:
            return math.inf
        expected_at = following.timestamp() + _allowed_seconds(entry, (following - last).total_seconds())
        if expected_at > now:
            return expected_at
    # what it says now may never have asked for the run that is missed: it was paused, or had another schedule
    has_missed = any(past.outcome not in _LEFT_OUT for past in pasts if last is None or past.due > last)
    expected_at = next_due + _allowed_seconds(entry, MAX_SECONDS)
    return expected_at if expected_at > now and not has_failed and not has_missed else None


def _allowed_seconds(entry: RedBeatSchedulerEntry, period_seconds: float) -> float:
    """Return how long after its due time a run may take that is so far from the one before it."""
    return max(entry.policy.max_runtime or min(period_seconds, MAX_SECONDS), MIN_SECONDS)


def streaks_of(store: Store, parts: Sequence[Keys], limit: int, now: float) -> dict[Keys, Mapping[str, int]]:
    """Return for each of these parts how many of their last runs have failed in a row, of the entries with
    most, by their names.

    Entries that don't run at ``now``, the server's UNIX seconds, are left out.
    """
    entries = read_streaks(store, limit, parts)
    counts = dict(zip(entries, Runs(store).failing(entries), strict=True))
    # a user has reset the count, or deleted the entry
    forget_streaks(store, [key for key, count in counts.items() if not count])
    _, found = read_entries(store, [key for key, count in counts.items() if count])
    app, moment = store.config.app, moment_of(now)
    running = set()
    for stored in found:
        entry = try_decode(RedBeatSchedulerEntry, stored, app)
        if entry is not None and entry.is_enabled_at(moment):
            running.add(stored.key)
    return {keys: {keys.name(key): counts[key] for key in running if keys.owns(key)} for keys in parts}
