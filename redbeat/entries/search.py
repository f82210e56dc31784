"""Stored entries by their names and in pages of an order, and searches that look through them slice by slice.

Owns the orders, and what one can search for. There are no indexes by task, state or outcome, as other
programs write entries, too, and would have to maintain them. Invariant: a search reads entries only until its
time is up or it has found enough, and then says where it goes on; nothing of it is kept between two of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fnmatch import fnmatchcase
from itertools import compress
from typing import Any, NamedTuple, Protocol

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import STATES, Coverage, entry_of, iter_names
from redbeat.entries.runs import read_last
from redbeat.errors import EntryNotFound
from redbeat.history import OUTCOMES
from redbeat.keys import Keys
from redbeat.store.downgrades import read_downgraded
from redbeat.store.entries import read_entries
from redbeat.store.figures import count_entry_states
from redbeat.store.members import count_members, place_after, read_slice, scores_of
from redbeat.store.owners import are_owned_by
from redbeat.store.parts import in_chunks
from redbeat.store.store import Store

#: the word for entries without any run in their history, among the last outcomes
NO_RUNS = "none"
#: how many entries are read at a time, and how many names are looked at where only those that match are read
SLICE, SLICE_OF_NAMES = 200, 2000
#: how many entries' states are counted by one script
STATES_SLICE = 60
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


def read_listed(app: Any, name: str) -> RedBeatSchedulerEntry:
    """Return the entry called ``name`` as :func:`list_entries` would: also one that can't be used.

    Raises:
        EntryNotFound: it is missing.
    """
    [entry] = entries_called(app, [name])
    if entry is None:
        key = ensure_conf(app).keys.entry(name)
        raise EntryNotFound(f"{key}: there is no such entry.", key)
    return entry


def entries_called(app: Any, names: Sequence[str]) -> list[RedBeatSchedulerEntry | None]:
    """Return the entries of these names as :func:`list_entries` would; None for a missing one."""
    store = Store(app)
    now, found = read_entries(store, [store.keys.entry(name) for name in names])
    lacking = [place for place, stored in enumerate(found) if stored.score is None]
    # a member may be a bare name, if that doesn't begin like the key of another entry
    scores = scores_of(store, [member for place in lacking for member in (found[place].key, names[place])])
    away = read_downgraded(store) if lacking else {}
    for place, by_key, by_name in zip(lacking, scores[::2], scores[1::2], strict=True):
        stored = found[place]
        score = by_name if by_key is None and store.keys.entry_of(names[place]) == stored.key else by_key
        is_away = score is None and stored.exists and stored.key in away
        found[place] = replace(stored, score=away[stored.key] or 0.0 if is_away else score, is_away=is_away)
    return [
        entry_of(RedBeatSchedulerEntry, stored, app, now)
        if stored.exists or stored.score is not None
        else None
        for stored in found
    ]


def scan_entries(app: Any, match: str | None = None) -> Iterator[RedBeatSchedulerEntry]:
    """Yield the stored entries in any order.

    Unlike with :func:`list_entries`, an entry that is there all the time is yielded exactly once, even if its
    due time is moved meanwhile.
    """
    names = (name for name in iter_names(app) if match is None or fnmatchcase(name, match))
    for chunk in in_chunks(names):
        yield from (entry for entry in entries_called(app, chunk) if entry is not None)


def pattern_problem(text: str) -> str | None:
    """Return what is wrong with a pattern that somebody asks for, a sentence; None: nothing is."""
    if len(text) <= MAX_PATTERN:
        return None
    return f"must have {MAX_PATTERN} characters at the most, not {len(text):,}."


def text_filter(text: str) -> Callable[[str], bool]:
    """Return a test of texts: by a pattern with * or ?, else by a part of them in any case."""
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
        return any(astuple(self))

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


def look_through(
    order: Order,
    place: Place,
    seconds: float,
    read: Callable[[Sequence[str]], Iterable[RedBeatSchedulerEntry | None]],
    is_named: Callable[[str], bool] = lambda _name: True,
) -> Iterator[tuple[RedBeatSchedulerEntry | None, Place | None]]:
    """Yield the wanted entries in ``order`` from ``place`` on, each with the place behind it.

    When the time is up, the last item is None with the place where a look goes on; when all was looked
    through, None without a place.

    Arguments:
        seconds: for how long; at least one slice is looked through.
        read: returns for each name the entry, or None if it is missing or not wanted.
        is_named: the names of rows that aren't left out before they are read.
    """
    ends_at = time.perf_counter() + seconds
    while rows := order.slice(offset := order.offset_of(place), SLICE_OF_NAMES):
        is_last = len(rows) < SLICE_OF_NAMES
        named = [(row.name, Place(row, offset + at)) for at, row in enumerate(rows, 1) if is_named(row.name)]
        for some in in_chunks(named, SLICE):
            for (_, place), entry in zip(some, read([name for name, _ in some]), strict=True):
                if entry is not None:
                    yield entry, place
            if time.perf_counter() >= ends_at and not (is_last and place.after == rows[-1]):
                yield None, place
                return
        # its place is found anew, as entries may be moved from before it to behind it meanwhile
        place = Place(rows[-1], offset + len(rows))
        if is_last:
            break
        if time.perf_counter() >= ends_at:
            yield None, place
            return
    yield None, None


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
        queue_of: returns the name of the queue to which an entry's messages go; '' where it can't be told.
    """
    store, is_task, total = Store(app), text_filter(wanted.task), order.count()

    def is_wanted(entry: RedBeatSchedulerEntry) -> bool:
        return (
            is_task(str(entry.task))
            and (not wanted.state or entry.state == wanted.state)
            and (not wanted.queue or fnmatchcase(queue_of(entry), wanted.queue))
        )

    def read(names: Sequence[str]) -> Iterable[RedBeatSchedulerEntry | None]:
        chosen = names
        if wanted.owner:  # asked by the names, which is quick
            are_theirs = are_owned_by(store, wanted.owner, names)
            chosen = list(compress(names, are_theirs))
        found = [one for one in entries_called(app, chosen) if one is not None and is_wanted(one)]
        if wanted.outcome:
            outcome = None if wanted.outcome == NO_RUNS else wanted.outcome
            lasts = read_last(app, [entry.key for entry in found])
            found = [one for one, last in zip(found, lasts, strict=True) if last.outcome == outcome]
        by_name = {str(entry.name): entry for entry in found}
        return map(by_name.get, names)

    found: list[RedBeatSchedulerEntry] = []
    following: Place | None = None
    for entry, behind in look_through(order, place, seconds, read, text_filter(wanted.match)):
        following = behind
        if entry is not None:
            found.append(entry)
        if len(found) == limit:
            break
    return Found(found, total if following is None else following.offset, total, following)


@dataclass(frozen=True)
class StateCounts(Coverage):
    """How many entries are in each state, as far as they are counted.

    Attributes:
        states: each state to a number.
        seen: how many entries were counted.
        total: how many there are.
    """

    states: Mapping[str, int]
    seen: int
    total: int


def count_states(store: Store) -> Iterator[StateCounts]:
    """Count the entries by their states; yield after each step what is counted so far."""
    found, total = Counter[str](), count_members(store)
    for keys in store.all_parts:
        for _, counts in count_part(store, keys, SLICE):
            found.update(counts)
            yield StateCounts({state: found[state] for state in STATES}, found.total(), total)
    yield StateCounts({state: found[state] for state in STATES}, found.total(), found.total())


def count_part(store: Store, keys: Keys, limit: int) -> Iterator[tuple[float, Counter[str]]]:
    """Count the entries of a part by their states; yield each step's counts, with the server's UNIX seconds.

    Arguments:
        limit: how many entries whose state isn't obvious are read in one step.
    """
    cursor = ""
    while cursor != "0":
        page = count_entry_states(store, keys, cursor or "0", STATES_SLICE)
        cursor = page.cursor
        yield page.now, Counter(scheduled=page.scheduled, due=page.due)
        for names in in_chunks(map(store.keys.name, page.others), limit):
            entries = entries_called(store.config.app, names)
            yield page.now, Counter(entry.state or "" for entry in entries if entry is not None)
