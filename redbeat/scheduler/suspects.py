"""Runs that are likely to fail: they go last, and share a quarter of the time, so that others leave in time.

A run is suspect if it couldn't be sent before, or if it is like one that couldn't: the same task, the same
names of options, the same route. Where there is no time for them, those of a batch are tried until one
fails, beginning with the latest that hasn't failed itself: so what is only like one that fails isn't late.
The others are left behind: they stay due, and the next fetches begin after them. They have turns of their
own, as the time for them allows. Invariant: a run that isn't suspect never waits for those that are, however
many they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redbeat.process.memory import Memory
from redbeat.scheduler.decisions import Send
from redbeat.store.records import DueEntry

#: which part of the time suspect runs may take that fail, and how much they may save up; seconds
SHARE, MOST_SECONDS = 0.25, 0.1

#: how long a run that fails takes to be planned and sent, until that was measured; seconds
COST_SECONDS = 0.002

#: so many routes of one kind are told apart, and so many kinds; when there are more, all are suspect
MAX_ROUTES, MAX_KINDS = 20, 100

#: the options that choose a route
_ROUTE = ("queue", "exchange", "routing_key", "serializer", "compression")
#: a kind isn't looked up in a longer definition, as that would take long itself; characters
_MAX_LOOKED_UP = 16_384

#: what runs of one kind have in common, and what their routes are
_Kind = tuple[Any, ...]


class Suspects:
    """Which kinds of runs have failed, and how much time those that fail may still take; of one beat.

    Attributes:
        failures: how many runs have failed so far.
        routes: those of runs that have failed, by kind; empty: no other runs are like one that has failed.
    """

    def __init__(self) -> None:
        self.routes = Memory[_Kind, set[_Kind]](limit=MAX_KINDS + 1)
        self._seconds, self._counted_at = MOST_SECONDS, time.monotonic()
        self._run_began_at = 0.0
        self._cost_seconds = COST_SECONDS
        self.failures = 0

    @property
    def has_time(self) -> bool:
        """Whether another suspect run may be tried now."""
        now = time.monotonic()
        self._seconds = min(self._seconds + SHARE * (now - self._counted_at), MOST_SECONDS)
        self._counted_at = now
        return self._seconds > 0

    def seconds_left(self) -> float:
        """Return the seconds until another suspect run may be tried."""
        return 0.0 if self.has_time else -self._seconds / SHARE

    def split(self, rows: Sequence[DueEntry]) -> tuple[Sequence[DueEntry], list[DueEntry]]:
        """Return the fetched rows that aren't suspect, and the suspect ones in the order to try them.

        Without ``routes``, and rows that have failed, there is nothing to split.
        """
        suspect = [row for row in rows if self.is_suspect(row)]
        if not suspect:
            return rows, []
        keys = {row.key for row in suspect}
        if not self.has_time:
            suspect.reverse()
        suspect.sort(key=lambda row: bool(row.error))
        return [row for row in rows if row.key not in keys], suspect

    def is_suspect(self, row: DueEntry) -> bool:
        """Return True if a run of this entry is likely to fail."""
        if row.error:
            return True
        if not self.routes or row.message is not None:
            return False
        if len(self.routes) > MAX_KINDS:
            return True
        kind, route = _kind_of(row)
        routes = self.routes.get(kind, ())
        return len(routes) >= MAX_ROUTES or route in routes

    def order(self, runs: Iterable[Send]) -> list[Send]:
        """Return ``runs`` with the suspect ones last."""
        runs = list(runs)
        if not self.routes and not any(run.due_entry.error for run in runs):
            return runs
        return sorted(runs, key=lambda run: self.is_suspect(run.due_entry))

    def is_left_behind(self, run: Send) -> bool:
        """Return True if ``run`` isn't tried now: it is suspect, and there is no time for such runs."""
        return not self.has_time and self.is_suspect(run.due_entry)

    def note_begun(self) -> None:
        """Note that a run is being sent now."""
        self._run_began_at = time.monotonic()

    def note_failed(self, run: Send) -> bool:
        """Note that ``run``, which was begun last, couldn't be sent; return True if its kind is new."""
        self.failures += 1
        self._seconds -= max(time.monotonic() - self._run_began_at, self._cost_seconds)
        return self.mark(run)

    def note_cost(self, seconds: float) -> None:
        """Note how long a suspect run took to be planned and sent."""
        self._cost_seconds = (self._cost_seconds + seconds) / 2

    def mark(self, run: Send) -> bool:
        """Let runs like ``run`` be suspect; return True if they weren't."""
        if run.due_entry.message is not None:  # stored messages have little in common
            return False
        kind, route = _kind_of(run.due_entry)
        if kind not in self.routes:
            self.routes[kind] = set()
        routes = self.routes[kind]
        is_new = route not in routes and len(routes) < MAX_ROUTES
        if is_new:
            routes.add(route)
        return is_new

    def note_sent(self, run: Send) -> None:
        """Note that ``run`` was sent: runs like it aren't suspect any more."""
        if not self.routes or run.due_entry.message is not None:
            return
        kind, route = _kind_of(run.due_entry)
        routes = self.routes.get(kind)
        if routes is not None:
            routes.discard(route)
            if not routes:
                del self.routes[kind]


def _kind_of(row: DueEntry) -> tuple[_Kind, _Kind]:
    """Return what makes runs of entries alike: their kind, and their route."""
    definition = row.definition or ""
    if len(definition) > _MAX_LOOKED_UP:
        return ("",), ()
    try:
        found = json.loads(definition)
        options = found.get("options") or {}
        headers = options.get("headers") or ()
        kind = str(found.get("task")), tuple(sorted(options)), tuple(sorted(map(str, headers)))
        return kind, tuple(str(options.get(name)) for name in _ROUTE)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ("",), ()
