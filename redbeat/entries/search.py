"""Pages of the stored entries in an order, and searches that look through them slice by slice.

Owns the orders, and what one can search for. There are no indexes by task, state or outcome, as other
programs write entries, too, and would have to maintain them. Invariant: a search reads entries only until its
time is up or it has found enough, and then says where it goes on; nothing of it is kept between two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from redbeat.entries.coverage import Coverage
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import STATES, entries_at, entries_called
from redbeat.entries.runs import read_last_outcomes
from redbeat.history import OUTCOMES
from redbeat.log.text import as_stored
from redbeat.store.downgrades import read_downgraded
from redbeat.store.members import count_members, place_after, read_slice, scores_of
from redbeat.store.owners import are_owned_by, candidates_of
from redbeat.store.store import Store

#: the word for entries without any run in their history, among the last outcomes
NO_RUNS = "none"
#: how many entries are read at a time, and how many names are looked at where only those that match are read
SLICE, SLICE_OF_NAMES = 200, 2000
#: an owner with more entries has no order of its own: the schedule is looked through
MAX_OWNED = 5000
#: how many characters a pattern has at most: Python takes long to prepare one, and remembers it
MAX_PATTERN = 300


class Row(NamedTuple):
    """An entry in an order.

    Attributes:
        name: the entry's.
        member: of the schedule; '': it isn't known.
        score: that member's; None: it isn't known.
    """

    name: str
    member: str = ""
    score: float | None = None


class Place(NamedTuple):
    """Where a page or a search begins.

    Attributes:
        after: the row before; None: ``offset`` counts.
        offset: how many rows are before.
    """

    after: Row | None = None
    offset: int = 0


class Order(Protocol):
    """The rows of a schedule in one order."""

    def count(self) -> int:
        """Return about how many there are."""
        ...

    def offset_of(self, place: Place) -> int:
        """Return how many rows are before ``place``."""
        ...

    def slice(self, offset: int, count: int) -> Sequence[Row]:
        """Return at most ``count`` rows from ``offset`` on."""
        ...


class ByNextRun:
    """The order of due times; those that never run again are behind, and last those of version 2.x."""

    def __init__(self, app: Any) -> None:
        self._store = Store(app)

    def count(self) -> int:
        """Return how many there are."""
        return count_members(self._store) + len(read_downgraded(self._store))

    def offset_of(self, place: Place) -> int:
        """Return how many rows are before ``place``."""
        if place.after is None or place.after.score is None:
            return place.offset
        return place_after(self._store, place.after.member, place.after.score)

    def slice(self, offset: int, count: int) -> Sequence[Row]:
        """Return at most ``count`` rows from ``offset`` on."""
        keys = self._store.keys
        found = [
            Row(keys.name(member), member, score) for member, score in read_slice(self._store, offset, count)
        ]
        if len(found) < count and (downgraded := read_downgraded(self._store)):
            first = max(offset - count_members(self._store), 0)
            away = sorted(downgraded)[first : first + count - len(found)]
            found += [Row(keys.name(key)) for key in away]
        return found


class Listed:
    """The order of a list that is in memory.

    Arguments:
        rows: sorted by ``key``.
    """

    def __init__(self, rows: Sequence[Row], key: Callable[[Row], Any]) -> None:
        self._rows, self._key = rows, key

    def count(self) -> int:
        """Return how many there are."""
        return len(self._rows)

    def offset_of(self, place: Place) -> int:
        """Return how many rows are before ``place``."""
        if place.after is None:
            return place.offset
        last = self._key(place.after)
        return sum(1 for row in self._rows if self._key(row) <= last)

    def slice(self, offset: int, count: int) -> Sequence[Row]:
        """Return at most ``count`` rows from ``offset`` on."""
        return self._rows[offset : offset + count]


def owned(app: Any, owner: str, *, by_name: bool) -> Listed | None:
    """Return the rows of the entries that may be ``owner``'s; None: they are too many.

    Arguments:
        by_name: in the order of names, not of due times.
    """
    store = Store(app)
    found = candidates_of(store, owner, MAX_OWNED)
    if found is None:
        return None
    names = sorted(found, key=as_stored)
    if by_name:
        return Listed([Row(name) for name in names], lambda row: as_stored(row.name))
    keys = [store.keys.entry(name) for name in names]
    scores = scores_of(store, keys)
    rows = [
        Row(name, key, score) if score is not None else Row(name)  # it may be a member by its bare name
        for name, key, score in zip(names, keys, scores, strict=True)
    ]
    return Listed(sorted(rows, key=_by_due_time), _by_due_time)


def _by_due_time(row: Row) -> tuple[bool, bool, float, bytes]:
    score = row.score
    return score is None, score is not None and score < 0, score or 0.0, as_stored(row.name)


def read_rows(app: Any, rows: Sequence[Row]) -> list[RedBeatSchedulerEntry | None]:
    """Return the entries of ``rows`` as ``RedBeatSchedulerEntry.list`` would; None for one that is gone."""
    found: list[RedBeatSchedulerEntry | None] = [None] * len(rows)
    scored = [place for place, row in enumerate(rows) if row.score is not None]
    others = [place for place, row in enumerate(rows) if row.score is None]
    if scored:
        members = [(rows[place].member, rows[place].score or 0.0) for place in scored]
        for place, entry in zip(scored, entries_at(RedBeatSchedulerEntry, app, members), strict=True):
            found[place] = entry
    if others:
        names = [rows[place].name for place in others]
        for place, one in zip(others, entries_called(RedBeatSchedulerEntry, app, names), strict=True):
            found[place] = one
    return found


def pattern_problem(text: str) -> str | None:
    """Return what is wrong with a pattern that somebody asks for, a sentence; None: nothing is."""
    if len(text) <= MAX_PATTERN:
        return None
    return f"must have {MAX_PATTERN} characters at the most, not {len(text):,}."


def text_filter(text: str) -> Callable[[str], bool]:
    """Return what tells whether a text matches: a pattern with * or ?, else a part of it in any case."""
    if any(char in text for char in "*?"):
        return lambda given: fnmatchcase(given, text)
    part = text.casefold()
    return lambda given: part in given.casefold()


@dataclass(frozen=True)
class Wanted:
    """What is searched for; '': it doesn't matter.

    Attributes:
        match: a pattern of the name, or a part of it.
        task: likewise of the task.
        state: one of ``STATES``.
        queue: a pattern of the queue.
        owner: of the entry: that of the file from which it was applied, or of its ``beat_schedule``.
        outcome: what became of its last run: one of ``OUTCOMES``, or ``NO_RUNS``.
    """

    match: str = ""
    task: str = ""
    state: str = ""
    queue: str = ""
    owner: str = ""
    outcome: str = ""

    def __bool__(self) -> bool:
        return any((self.match, self.task, self.state, self.queue, self.owner, self.outcome))

    def problem(self) -> str | None:
        """Return why nothing can be found, a sentence; None: something can."""
        for name in ("match", "task", "queue"):
            if words := pattern_problem(getattr(self, name)):
                return f"{name}: {words}"
        if self.state and self.state not in STATES:
            return f"There is no state {self.state!r}; there are {', '.join(STATES)}."
        if self.outcome and self.outcome not in (*OUTCOMES, NO_RUNS):
            return f"There is no outcome {self.outcome!r}; there are {', '.join(OUTCOMES)} and {NO_RUNS}."
        return None


@dataclass(frozen=True)
class Found(Coverage):
    """What a search has found.

    Attributes:
        entries: in order.
        seen: how many rows are before the place where it has stopped.
        total: about how many rows there are.
        place: where it goes on; None: there is no more.
    """

    entries: Sequence[RedBeatSchedulerEntry]
    seen: int
    total: int
    place: Place | None

    @property
    def is_whole(self) -> bool:
        """Whether there is no more."""
        return self.place is None


def search(
    app: Any,
    order: Order,
    wanted: Wanted,
    place: Place,
    *,
    limit: int,
    seconds: float,
    queue_of: Callable[[RedBeatSchedulerEntry], str],
) -> Found:
    """Look through ``order`` from ``place`` on until ``limit`` entries are found or the time is up.

    Arguments:
        seconds: for how long; at least one slice is looked through.
        queue_of: returns the name of the queue to which an entry's messages go; '' where it can't be told.
    """
    ends_at = time.perf_counter() + seconds
    is_named = text_filter(wanted.match) if wanted.match else None
    size = SLICE if is_named is None else SLICE_OF_NAMES
    filters = _Filters(app, wanted, queue_of)
    found: list[RedBeatSchedulerEntry] = []
    count, offset = order.count(), order.offset_of(place)
    while rows := order.slice(offset, size):
        matching = [at for at, row in enumerate(rows) if is_named is None or is_named(row.name)]
        for some in (matching[first : first + SLICE] for first in range(0, len(matching), SLICE)):
            chosen = filters.choose([rows[at] for at in some])
            last = some[-1]
            if len(found) + len(chosen) >= limit:
                del chosen[limit - len(found) :]
                last = some[chosen[-1][0]]
            found += [entry for _, entry in chosen]
            is_over = len(found) >= limit or time.perf_counter() >= ends_at
            if is_over and (last + 1 < len(rows) or len(rows) == size):
                return Found(found, offset + last + 1, count, Place(rows[last], offset + last + 1))
        offset += len(rows)
        if len(rows) < size:
            break
        place = Place(rows[-1], offset)
        if time.perf_counter() >= ends_at:
            return Found(found, offset, count, place)
        offset = order.offset_of(place)  # entries may have been moved from before it to behind it meanwhile
    return Found(found, offset, count, None)


class _Filters:
    """What is asked of an entry besides its name."""

    def __init__(self, app: Any, wanted: Wanted, queue_of: Callable[[RedBeatSchedulerEntry], str]) -> None:
        self._app, self._wanted = app, wanted
        self._is_task = text_filter(wanted.task)
        self._queue_of = queue_of

    def choose(self, rows: Sequence[Row]) -> list[tuple[int, RedBeatSchedulerEntry]]:
        """Return the entries that are meant, each with the index of its row."""
        wanted, entries = self._wanted, read_rows(self._app, rows)
        chosen = [
            (at, entry) for at, entry in enumerate(entries) if entry is not None and self._is_meant(entry)
        ]
        if wanted.owner and chosen:
            names = [str(entry.name) for _, entry in chosen]
            are_theirs = are_owned_by(Store(self._app), wanted.owner, names)
            chosen = [one for one, is_theirs in zip(chosen, are_theirs, strict=True) if is_theirs]
        if wanted.outcome and chosen:
            outcome = None if wanted.outcome == NO_RUNS else wanted.outcome
            lasts = read_last_outcomes(self._app, [entry.key for _, entry in chosen])
            chosen = [one for one, last in zip(chosen, lasts, strict=True) if last == outcome]
        return chosen

    def _is_meant(self, entry: RedBeatSchedulerEntry) -> bool:
        wanted = self._wanted
        return (
            (not wanted.task or self._is_task(str(entry.task)))
            and (not wanted.state or entry.state == wanted.state)
            and (not wanted.queue or fnmatchcase(self._queue_of(entry), wanted.queue))
        )
