"""Runs of all entries within bounds: for pages, which mustn't read through a million histories.

Invariant: it takes no longer than it may, keeps no more runs than are wanted, and says what it has looked at.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from redbeat.entries.coverage import Coverage
from redbeat.entries.runs import (
    BEGINNING,
    IN_PROGRESS,
    in_progress_of,
    past_of,
    recorded_at,
    words_of,
)
from redbeat.history import FAILED_OUTCOMES, OUTCOMES
from redbeat.runs.run import Run, run_of_failure, run_of_record
from redbeat.store.members import count_members, entry_keys
from redbeat.store.runs import Runs
from redbeat.store.server import Server
from redbeat.store.store import Store

#: how many entries' histories are read at a time, and how many runs that have failed are looked through
SLICE, MAX_FAILURES = 50, 20_000
#: among how many runs in progress the newest are chosen
MAX_RUNNING = 20_000


@dataclass(frozen=True)
class FoundRuns(Coverage):
    """Runs that were found.

    Attributes:
        runs: those in progress, and after them the past ones, the newest first; no more than were wanted.
        count: how many were found.
        seen: how many entries' histories were looked through, and
        total: how many there are; 0: none had to be.
        is_whole: nothing was left out for want of time.
    """

    runs: Sequence[Run] = ()
    count: int = 0
    seen: int = 0
    total: int = 0
    is_whole: bool = True


class _Newest:
    """The newest of past runs."""

    def __init__(self, most: int) -> None:
        self._most, self._heap = most, list[tuple[datetime, int, Run]]()
        self.count = 0

    def add(self, run: Run) -> None:
        self.count += 1
        row = (recorded_at(run), -self.count, run)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, row)
        else:
            heapq.heappushpop(self._heap, row)

    def runs(self) -> list[Run]:
        return [run for *_, run in sorted(self._heap, key=lambda row: row[:2], reverse=True)]


def search_runs(
    app: Any,
    states: Sequence[str] | None = None,
    *,
    name: str | None = None,
    match: str | None = None,
    since: datetime | None = None,
    most: int,
    max_seconds: float,
    tell: Callable[[FoundRuns], object] = lambda _found: None,
) -> FoundRuns:
    """Return what :func:`redbeat.entries.runs.find_runs` does, as far as it can be found in this time.

    Arguments:
        states: None: those in progress, and with ``since`` all past ones.
        most: how many runs are returned.
        tell: is called with what is found so far.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    deadline, store = time.monotonic() + max_seconds, Store(app)
    wanted = set(states) if states is not None else {"running"} | (set() if since is None else set(OUTCOMES))

    def is_meant(one: str) -> bool:
        return (name is None or one == name) and (match is None or fnmatchcase(one, match))

    def has_time() -> bool:
        return time.monotonic() < deadline

    found = FoundRuns()
    now = Server(store).now()
    if wanted & IN_PROGRESS.keys():
        found = _find_running(store, wanted, name, is_meant, now, most, has_time)
        tell(found)
    newest = _Newest(max(most - len(found.runs), 0) or 1)
    others = wanted & OUTCOMES.keys()
    if wanted & set(FAILED_OUTCOMES):
        failures = Runs(store).failures(since or BEGINNING, MAX_FAILURES)
        for run in map(run_of_failure, failures):
            if run.outcome in wanted and is_meant(run.name):
                newest.add(run)
        others -= set(FAILED_OUTCOMES)
        found = replace(found, is_whole=found.is_whole and len(failures) < MAX_FAILURES)

    def so_far(seen: int, total: int, *, is_whole: bool) -> FoundRuns:
        runs = [*found.runs, *newest.runs()][:most]
        return FoundRuns(runs, found.count + newest.count, seen, total, found.is_whole and is_whole)

    if not others:
        return so_far(0, 0, is_whole=True)
    total, seen = 1 if name is not None else count_members(store), 0
    names = iter([name]) if name is not None else map(store.keys.name, entry_keys(store))
    while chunk := list(islice(names, SLICE)):
        for run in past_of(store, list(filter(is_meant, chunk)), now):
            if run.outcome in others and (since is None or recorded_at(run) >= since):
                newest.add(run)
        seen += len(chunk)
        if not has_time():
            return so_far(seen, total, is_whole=seen >= total)
        tell(so_far(seen, total, is_whole=False))
    return so_far(total, total, is_whole=True)


def _find_running(
    store: Store,
    wanted: set[str],
    name: str | None,
    is_meant: Callable[[str], bool],
    now: datetime,
    most: int,
    has_time: Callable[[], bool],
) -> FoundRuns:
    """Return the runs in progress; those without time to look at are left out."""
    meant = ((one, record) for one, record in in_progress_of(store, name) if is_meant(one))
    records = list(islice(_until(meant, has_time), MAX_RUNNING))
    is_whole = len(records) < MAX_RUNNING and has_time()
    rows = [(run_of_record(one, record, now), record) for one, record in records]
    rows = [(run, record) for run, record in rows if wanted & words_of(run)]
    rows.sort(key=lambda row: row[0].due, reverse=True)
    deadlines = Runs(store).deadlines([(store.keys.entry(run.name), record) for run, record in rows[:most]])
    runs = [
        run_of_record(run.name, record, now, deadline=deadline)
        for (run, record), deadline in zip(rows[:most], deadlines, strict=True)
    ]
    return FoundRuns(runs, len(rows), is_whole=is_whole)


def _until(rows: Iterable[Any], has_time: Callable[[], bool]) -> Iterator[Any]:
    for number, row in enumerate(rows):
        yield row
        if number % 100 == 0 and not has_time():
            return
