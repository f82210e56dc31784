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
from typing import NamedTuple

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.runs import id_of
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.history import PastRun, decode_history
from redbeat.runs.tracking import is_tracked
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import moment_of
from redbeat.store.figures import Figures
from redbeat.store.histories import Histories
from redbeat.store.run_record import RunRecord, State
from redbeat.store.runs import Runs
from redbeat.store.store import Store

#: an entry that is due for longer than this is overdue; seconds
LATE_SECONDS = 60.0
#: how many entries are looked at in one go; more are counted, and not looked at
MAX_LOOKED_AT = 100
#: when an entry is looked at again whose run is at work; seconds
AGAIN_SECONDS = 60.0
#: how long a run may take that doesn't say so: as long as its entry's runs are apart, and an hour at most;
#: seconds. As in ``run_records.lua``
MIN_SECONDS, MAX_SECONDS = 60.0, 3600.0
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


def find_overdue(store: Store, now: float) -> Overdue:
    """Return the entries that are overdue at ``now``, the server's UNIX seconds."""
    keys, figures = store.keys, Figures(store)
    not_sent, late = figures.read_late(now - LATE_SECONDS, MAX_LOOKED_AT)
    total, candidates = figures.read_expected(now, MAX_LOOKED_AT)
    expected = _judge_all(store, candidates, now)
    figures.expect(expected)
    missed = [key for key in candidates if key not in expected]
    names = dict.fromkeys(map(keys.name, [*late, *missed]))
    return Overdue(not_sent, total - len(expected), list(names)[:MAX_LOOKED_AT])


def _judge_all(store: Store, candidates: Sequence[str], now: float) -> dict[str, float | None]:
    """Return when to look at those entries again that aren't overdue, by their keys; None: never."""
    if not candidates:
        return {}
    app = store.config.app
    _, found = store.read_entries(candidates)
    at_work = Runs(store).read(candidates)
    histories = Histories(store).newest(candidates, MAX_HISTORY)
    judged: dict[str, float | None] = {}
    for stored, records, history in zip(found, at_work, histories, strict=True):
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
            again = judge(entry, records, pasts, now)
        except (EntryNotFound, EntryCorrupt):  # what is quarantined shows elsewhere
            judged[stored.key] = None
            continue
        if again is not None:
            judged[stored.key] = None if again == math.inf else again
    return judged


def judge(
    entry: RedBeatSchedulerEntry, at_work: Sequence[RunRecord], pasts: Sequence[PastRun], now: float
) -> float | None:
    """Return when to look at an entry again, UNIX seconds, or never; None: it is overdue.

    Arguments:
        at_work: its runs in progress.
        pasts: its last runs.
        now: UNIX seconds.
    """
    states = (State.STARTED, State.RETRYING, State.SPAWNED)
    if any(record.state in states and not record.is_overdue for record in at_work):
        return now + AGAIN_SECONDS
    successes = [past.due for past in pasts if "succeeded" in (past.outcome, past.late)]
    if not successes:
        return None
    expected_at = expected_after(entry, max(successes))
    return expected_at if expected_at > now else None


def expected_after(entry: RedBeatSchedulerEntry, due: datetime) -> float:
    """Return by when the run after the one of ``due`` must have succeeded, UNIX seconds; inf: none."""
    bounds = entry.bounds()
    following = next_run(entry.schedule, bounds, due, due)
    if following is None:
        return math.inf
    period = following - due
    seconds = entry.policy.max_runtime or min(period.total_seconds(), MAX_SECONDS)
    return (following + timedelta(seconds=max(seconds, MIN_SECONDS))).timestamp()


def streaks_of(store: Store, limit: int) -> Mapping[str, int]:
    """Return how many of their last runs have failed in a row, of the entries with most, by their names."""
    figures = Figures(store)
    entries = figures.read_streaks(limit)
    counts = dict(zip(entries, Runs(store).failing(entries), strict=True))
    # somebody has reset the count, or deleted the entry
    figures.forget_streaks([key for key, count in counts.items() if not count])
    return {store.keys.name(key): count for key, count in counts.items() if count}
