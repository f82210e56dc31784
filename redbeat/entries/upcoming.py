"""What an entry runs next, as lists of many entries have it: the run that is in Redis, and those after it.

Invariant: the runs of one entry take no more than ``MOST_SECONDS`` of processor time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entry_of, read_all
from redbeat.entries.wording import local_time, one_line
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.store.store import Store

Item = TypeVar("Item")
#: when (UTC), the entry's name, the entry
NextRun = tuple[datetime, str, RedBeatSchedulerEntry]
_INSTANT = timedelta(microseconds=1)
_END = datetime.max.replace(tzinfo=timezone.utc)
#: how much processor time the runs of one entry may take; seconds
MOST_SECONDS = 2.0
#: entries in these states are going to run; paused ones if their pause ends by itself
RUNNING = ("scheduled", "due", "failing", "paused")


class FirstRuns(NamedTuple):
    """The next runs of all entries together.

    Attributes:
        runs: the first ones first.
        untold: of which entries not all runs are known, and why.
        is_complete: all entries were looked at that may have one of these runs; False: time was up before.
    """

    runs: list[NextRun]
    untold: list[str]
    is_complete: bool


def first_of_all(
    app: Any,
    wanted: int,
    after: datetime | None = None,
    match: str | None = None,
    *,
    max_seconds: float | None = None,
) -> FirstRuns:
    """Return the next runs of all entries together, or those later than ``after``, the first ones first.

    Entries come by their scores, and none is sent before its score, so those that are later than the last run
    that is wanted needn't be looked at.

    Arguments:
        wanted: at most so many runs.
        max_seconds: for how long entries are looked at; the runs of the last one may take longer. None: until
            it is complete.
    """
    found: list[NextRun] = []
    untold: list[str] = []
    store = Store(app)
    began = time.monotonic()
    for _, stored, now in read_all(store):
        score = -1.0 if stored.score is None else stored.score
        if score < 0 or (len(found) == wanted and score > found[-1][0].timestamp()):
            break
        if max_seconds is not None and time.monotonic() - began > max_seconds:
            return FirstRuns(found, untold, is_complete=False)
        if match is not None and not fnmatchcase(store.keys.name(stored.key), match):
            continue
        entry = entry_of(RedBeatSchedulerEntry, stored, app, now)
        due = entry.next_due_at
        if due is not None and entry.state in RUNNING and entry.schedule is not None:
            try:
                dues = upcoming(entry, due, wanted, after)
            except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
                untold.append(reason_of(entry, exc))
                dues = [due] if after is None or due > after else []
            # in UTC: two times of one zone are compared by the clock on the wall
            runs = ((local_time(run, timezone.utc), str(entry.name), entry) for run in dues)
            found = heapq.nsmallest(wanted, chain(found, runs), key=lambda run: run[:2])
    return FirstRuns(found, untold, is_complete=True)


def reason_of(entry: RedBeatSchedulerEntry, exc: Exception) -> str:
    """Return the name of ``entry``, and why its runs can't be computed."""
    return f"{one_line(entry.name)}: {one_line(str(exc).removeprefix(f'{printable(entry.key)}: '))}"


def in_time(
    entry: RedBeatSchedulerEntry, runs: Iterable[Item], most_seconds: float = MOST_SECONDS
) -> Iterator[Item]:
    """Yield the ``runs`` of ``entry`` while they don't take too much processor time together.

    Raises:
        EntryError: they do.
    """
    until = time.thread_time() + most_seconds
    for run in runs:
        yield run
        if time.thread_time() > until:
            words = f"its schedule has more of them than {most_seconds:g} s of processor time suffice for."
            raise EntryError(words, entry.key)


def upcoming(
    entry: RedBeatSchedulerEntry, due: datetime, wanted: int, after: datetime | None
) -> list[datetime]:
    """Return the run that ``entry`` has in Redis, at ``due``, and those that its schedule has after it.

    With ``after`` those that are later; they count among the runs that a policy allows from ``due`` on.
    """
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = wanted if most is None else max(most - entry.total_run_count, 0)
    begin = after if after is not None and due <= after else due
    if most is not None and begin > due:
        before = in_time(entry, entry.runs_between(due + _INSTANT, begin))
        left = max(left - 1 - sum(1 for _ in islice(before, left)), 0)
    first = [due] if begin == due and due != after else []
    later = in_time(entry, entry.runs_between(begin + _INSTANT, _END))
    return list(islice(chain(first, later), min(left, wanted)))
