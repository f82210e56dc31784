"""The runs of all entries together: the first ones to come, and how many fall into which stretch of time.

Invariant: what a timeline keeps grows with the rows that are shown and with MAX_GROUPS, not with the entries.
"""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, takewhile
from operator import add
from typing import Any, NamedTuple

from celery.schedules import schedule

from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import load_calendars
from redbeat.entries.documents import iso
from redbeat.entries.dropped import crontab_key
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entry_of, read_all
from redbeat.entries.runs import id_of
from redbeat.entries.upcoming import in_time, reason_of, runs_from
from redbeat.entries.wording import local_time
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.log.text import shorten
from redbeat.process.memory import Memory
from redbeat.schedules.occurrences import is_own_kind
from redbeat.store.histories import read_newest
from redbeat.store.members import count_members
from redbeat.store.parts import in_chunks
from redbeat.store.server import Server
from redbeat.store.store import Store

#: when (UTC), the entry's name, the entry
NextRun = tuple[datetime, str, RedBeatSchedulerEntry]
#: entries in these states are going to run; paused ones if their pause ends by itself
RUNNING = ("scheduled", "due", "failing", "paused")

#: possible lengths of a column, minutes
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080)
_TICK = timedelta(microseconds=1)
#: how many crontabs are remembered while a timeline is made
MAX_SHARED = 2000
#: how many tasks and prefixes have rows of their own, and how many characters of their names count
MAX_GROUPS, MAX_NAME = 5_000, 300
#: the row of the others
OTHERS = "(all others)"
#: how many entries of which not all runs are known are named
MAX_UNTOLD = 1000
#: how many entries are counted at a time, and how many records of the history of one are read at most
_CHUNK, _MAX_RECORDS = 50, 500

#: what a row stands for, by the value of --by
GROUPS: dict[str, Callable[[Any], str]] = {
    "load": lambda entry: str(entry.name),
    "task": lambda entry: str(entry.task),
    "prefix": lambda entry: _prefix_of(str(entry.name)),
    "next": lambda entry: str(entry.name),
}

#: how runs of the past ended, the worst first; all other outcomes count as sent
HAPPENED = ("lost", "failed", "skipped", "sent")
_HAPPENED = {"never_started": "lost", "merged": "skipped", **{word: word for word in HAPPENED}}


def _prefix_of(name: str) -> str:
    """Return the pattern of ``name`` up to its first separator, as 'billing.*' of 'billing.send-invoices'."""
    found = re.match(r".+?[.:/_\-\s]+", name)
    return f"{found[0]}*" if found is not None else name


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
                dues = list(islice(runs_from(entry, due, after), wanted))
            except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
                untold.append(reason_of(entry, exc))
                dues = [due] if after is None or due > after else []
            # in UTC: two times of one zone are compared by the clock on the wall
            runs = ((local_time(run, timezone.utc), str(entry.name), entry) for run in dues)
            found = heapq.nsmallest(wanted, chain(found, runs), key=lambda run: run[:2])
    return FirstRuns(found, untold, is_complete=True)


# -- how many runs fall into which stretch of time


@dataclass(frozen=True)
class Chart:
    """Columns of equal length."""

    begin: datetime
    step: timedelta
    columns: int

    @property
    def end(self) -> datetime:
        """Where the last column ends."""
        return self.begin + self.columns * self.step

    def column_of(self, moment: datetime) -> int:
        """Return the number of the column that ``moment`` is in; one before the first is negative."""
        return (moment - self.begin) // self.step


def chart_from(since: datetime, zone: tzinfo, hours: float, room: int) -> Chart:
    """Return a chart whose columns begin at full hours in ``zone``, or at parts of them; at most ``room``."""
    minutes = next((step for step in _STEPS if hours * 60 / step <= room), _STEPS[-1])
    step = timedelta(minutes=minutes)
    local = since.astimezone(zone)
    into = timedelta(hours=local.hour, minutes=local.minute, seconds=local.second)
    # in UTC: the distance of two times of one zone is counted by the clock on the wall
    begin = since.replace(microsecond=0).astimezone(timezone.utc) - into % step
    return Chart(begin, step, max(min(int(-(-hours * 60 // minutes)), room), 1))


@dataclass
class Row:
    """The runs of an entry, of a task, of the names with a prefix, or of all entries.

    Attributes:
        counts: how many are planned in each column.
        happened: how many have ended in the past as ``HAPPENED`` says, in columns; without words of which
            there are none.
        score: of an entry.
    """

    name: str
    counts: list[int]
    happened: dict[str, list[int]] = field(default_factory=dict)
    score: float = 0.0

    @property
    def runs(self) -> int:
        """How many are planned."""
        return sum(self.counts)

    def add(self, other: Row) -> None:
        """Add the runs of ``other``."""
        self.counts = [*map(add, self.counts, other.counts)]
        for word, counts in other.happened.items():
            self.happened[word] = [*map(add, self.happened.get(word, [0] * len(counts)), counts)]


@dataclass(frozen=True)
class Timeline:
    """The runs of the entries that were looked at.

    Attributes:
        now: when it was begun, by the server's clock.
        looked_at: how many entries were looked at.
        entries: how many there are.
        total: the row of all of them.
        rows: the first rows by each of ``GROUPS``.
        row_counts: how many rows there are by each.
        untold: sentences about entries of which not all runs are known.
        known_since: before this not all histories say how runs ended; None: they all do.
    """

    chart: Chart
    now: datetime
    looked_at: int
    entries: int
    total: Row
    rows: Mapping[str, Sequence[Row]]
    row_counts: Mapping[str, int]
    untold: Sequence[str]
    known_since: datetime | None

    @property
    def has_past(self) -> bool:
        """Whether a whole column of it is in the past."""
        return self.chart.begin + self.chart.step <= self.now

    @property
    def is_whole(self) -> bool:
        """Whether all entries were looked at."""
        return self.looked_at >= self.entries

    def to_dict(self, group: str) -> dict[str, Any]:
        """Return what is planned as plain JSON, with the rows of one group."""
        return {
            "begin": iso(self.chart.begin),
            "end": iso(self.chart.end),
            "column_seconds": self.chart.step.total_seconds(),
            "total": self.total.counts,
            "entries": [{"name": row.name, "runs": row.counts} for row in self.rows[group]],
        }


class Counting:
    """Counts the runs of all entries.

    Arguments:
        since: when it begins; before now: with the runs that the schedules had from then on. None: now.
        match: a pattern of names; None: all entries.
        max_rows: how many rows of each group are kept.
        with_outcomes: for the past also how runs ended.
    """

    def __init__(
        self,
        app: Any,
        chart: Chart,
        since: datetime | None,
        *,
        match: str | None = None,
        max_rows: int,
        with_outcomes: bool = False,
    ) -> None:
        self.chart, self.looked_at = chart, 0
        self._store = Store(app)
        self._app, self._match, self._max_rows = app, match, max_rows
        self._now = Server(self._store).now()
        self._since = since or self._now
        self._entries = count_members(self._store)
        has_past = with_outcomes and chart.begin + chart.step <= self._now
        self._records = min(ensure_conf(app).history, _MAX_RECORDS) if has_past else 0
        self._total, self._row_count = Row("", [0] * chart.columns), 0
        self._rows: dict[str, list[Row]] = {"load": [], "next": []}
        self._sums: dict[str, dict[str, Row]] = {"task": {}, "prefix": {}}
        self._untold: list[str] = []
        self._known_since: datetime | None = None
        #: all runs in the chart of crontabs that many entries share, with why there are more
        self._shared = Memory[Hashable, tuple[list[datetime], str]](MAX_SHARED)
        #: how many of these are in which columns, from one of them to another
        self._counted = Memory[Hashable, Counter[int]](50 * MAX_SHARED)

    def steps(self) -> Iterator[None]:
        """Count; yields after each entry, so that its caller can rest, or stop."""
        # an entry that is due later than the end has no run in the chart, unless that is in the past
        last_score = self.chart.end.timestamp() if self._since >= self._now else None
        for chunk in in_chunks(read_all(self._store, last_score), _CHUNK):
            entries = [
                entry_of(RedBeatSchedulerEntry, stored, self._app, now)
                for _, stored, now in chunk
                if self._match is None or fnmatchcase(self._store.keys.name(stored.key), self._match)
            ]
            load_calendars(self._store, [entry for entry in entries if not entry.problem], {})
            planned = []
            for entry in entries:
                planned.append(self._planned(entry))
                yield
            for entry, counts, happened in zip(
                entries, planned, self._happened(entries, planned), strict=True
            ):
                self._add(entry, counts, happened)
                yield
            for group, rows in self._rows.items():
                self._rows[group] = heapq.nsmallest(self._max_rows, rows, key=_ORDERS[group])
            self.looked_at += len(chunk)
            yield
        self.looked_at = self._entries = max(self._entries, self.looked_at)

    def found(self) -> Timeline:
        """Return what was counted so far."""
        rows = {**self._rows, **{group: [*sums.values()] for group, sums in self._sums.items()}}
        return Timeline(
            self.chart,
            self._now,
            self.looked_at,
            max(self._entries, self.looked_at),
            _copy(self._total),
            {
                group: [_copy(row) for row in heapq.nsmallest(self._max_rows, rows[group], key=order)]
                for group, order in _ORDERS.items()
            },
            {group: len(self._sums[group]) if group in self._sums else self._row_count for group in GROUPS},
            tuple(self._untold),
            self._known_since,
        )

    def _add(
        self, entry: RedBeatSchedulerEntry, planned: Counter[int], happened: Mapping[str, Counter[int]]
    ) -> None:
        """Add the runs of an entry."""
        if not planned or entry.policy.one_off or entry.policy.max_runs is not None:
            # its schedule doesn't say what it had: what happened is taken for planned
            planned = sum(happened.values(), planned)
        if not planned and not happened:
            return
        columns = range(self.chart.columns)
        lists = {word: [counts[column] for column in columns] for word, counts in happened.items()}
        score = (entry.stored and entry.stored.score) or 0.0
        row = Row(str(entry.name), [planned[column] for column in columns], lists, score)
        self._total.add(row)
        self._row_count += 1
        for rows in self._rows.values():
            rows.append(row)
        for group, sums in self._sums.items():
            name = shorten(GROUPS[group](entry), MAX_NAME)
            name = name if name in sums or len(sums) < MAX_GROUPS else OTHERS
            sums.setdefault(name, Row(name, [0] * self.chart.columns)).add(row)

    @contextmanager
    def _naming(self, entry: RedBeatSchedulerEntry) -> Iterator[None]:
        """Name an entry of which not all runs can be computed: its calendar is missing, say."""
        try:
            yield
        except (EntryError, ValueError, OverflowError) as exc:
            if len(self._untold) < MAX_UNTOLD:
                self._untold.append(reason_of(entry, exc))

    # -- planned

    def _planned(self, entry: RedBeatSchedulerEntry) -> Counter[int]:
        """Count the run that an entry has in Redis and those that its schedule has, by their columns."""
        counts, chart = Counter[int](), self.chart
        with self._naming(entry):
            due = entry.next_due_at
            if due is None or entry.stored is None or entry.stored.is_away:
                return counts
            at_once = max(due, self._now)  # an entry that is due already runs now
            if entry.policy.one_off or entry.policy.max_runs is not None:
                for run in takewhile(lambda run: run < chart.end, runs_from(entry, due)):
                    run = at_once if run == due else run
                    if chart.begin <= run < chart.end:
                        counts[chart.column_of(run)] += 1
                return counts
            if chart.begin <= at_once < chart.end:
                counts[chart.column_of(at_once)] += 1
            if self._since < self._now:
                self._count(counts, entry, self._since, due - _TICK, due)
            self._count(counts, entry, at_once + _TICK, chart.end, due)
        return counts

    def _count(
        self,
        counts: Counter[int],
        entry: RedBeatSchedulerEntry,
        first: datetime,
        last: datetime,
        due: datetime,
    ) -> None:
        """Count the runs that the schedule of an entry has from ``first`` to ``last``; ``due`` is a run.

        Raises:
            EntryError: they can't be computed, or take too long; some of them are counted.
        """
        chart, policy, rule = self.chart, entry.policy, entry.schedule
        first, last = max(first, chart.begin), min(last, chart.end - _TICK)
        key = crontab_key(rule, policy)
        if first > last:
            return
        if isinstance(rule, schedule) and not (
            is_own_kind(rule, schedule) or rule.relative or policy.exclude
        ):
            first, last = max(first, policy.start_time or first), min(last, policy.end_time or last)
            counts.update(_count_interval(chart, due, rule.run_every, first, last))
        elif key is None:
            for run in in_time(entry, entry.runs_between(first, last)):
                counts[chart.column_of(run)] += 1
        else:
            runs, problem = self._runs_of(key, entry)
            span = bisect_left(runs, first), bisect_right(runs, last)
            if (key, span) not in self._counted:
                self._counted[key, span] = Counter(map(chart.column_of, runs[slice(*span)]))
            counts.update(self._counted[key, span])
            if problem:
                raise EntryError(problem, entry.key)

    def _runs_of(self, key: Hashable, entry: RedBeatSchedulerEntry) -> tuple[list[datetime], str]:
        """Return all runs in the chart of a crontab that many entries share, and why there are more."""
        if key not in self._shared:
            runs, problem = list[datetime](), ""
            every = entry.runs_between(self.chart.begin, self.chart.end - _TICK)
            try:
                runs.extend(run.astimezone(timezone.utc) for run in in_time(entry, every))
            except EntryError as exc:
                problem = str(exc)
            self._shared[key] = runs, problem
        return self._shared[key]

    # -- happened

    def _happened(
        self, entries: Sequence[RedBeatSchedulerEntry], planned: Sequence[Counter[int]]
    ) -> Iterator[Mapping[str, Counter[int]]]:
        """Yield how the runs of each entry ended, by the words of ``HAPPENED``."""
        if not self._records:
            yield from ({} for _ in entries)
            return
        # runs in progress and attempts that failed have records, too
        limit = min(2 * max((counts.total() for counts in planned), default=0) + 20, self._records)
        records = read_newest(self._store, [entry.key for entry in entries], limit)
        for entry, texts in zip(entries, records, strict=True):
            runs = decode_history(texts, partial(id_of, entry.key))
            if len(texts) >= limit and runs:  # there may be older ones
                oldest = min(run.due for run in runs)
                if oldest > self.chart.begin:
                    self._known_since = max(oldest, self._known_since or oldest)
            yield self._ended(entry, runs)

    def _ended(self, entry: RedBeatSchedulerEntry, history: Iterable[PastRun]) -> Mapping[str, Counter[int]]:
        """Count how runs ended, each once, however many records it has, but none that users asked for."""
        found, seen = dict[str, Counter[int]](), set[datetime]()
        with self._naming(entry):
            for run in in_time(entry, history):
                if not run.is_manual and run.due not in seen:
                    seen.add(run.due)
                    counts = self._columns_of(entry, run)
                    if counts:
                        found.setdefault(_HAPPENED.get(run.outcome, "sent"), Counter()).update(counts)
        return found

    def _columns_of(self, entry: RedBeatSchedulerEntry, run: PastRun) -> Counter[int]:
        """Return the columns of the runs that a record is about."""
        counts, chart = Counter[int](), self.chart
        if run.last is not None and run.last > run.due and entry.schedule is not None:
            self._count(counts, entry, run.due, min(run.last, self._now), run.due)
            if counts or run.due < chart.begin:
                return counts
        if chart.begin <= run.due < chart.end:  # one run, or what the schedule of today knows nothing about
            counts[chart.column_of(run.due)] += run.count or 1
        return counts


def _busiest(row: Row) -> tuple[Any, ...]:
    return -row.runs, row.name


#: the order of the rows of each of ``GROUPS``: the busiest first, or those that run first
_ORDERS: dict[str, Callable[[Row], tuple[Any, ...]]] = {
    **dict.fromkeys(GROUPS, _busiest),
    "next": lambda row: (row.score, row.name),
}


def _copy(row: Row) -> Row:
    return replace(row, happened=dict(row.happened))


def _count_interval(
    chart: Chart, due: datetime, every: timedelta, first: datetime, last: datetime
) -> Counter[int]:
    """Count the runs of an interval by arithmetic, as there may be many thousands."""
    # in whole microseconds from the beginning of the first column, as timedeltas take ten times as long
    step, length = chart.step // _TICK, every // _TICK
    begin, end = (first - chart.begin) // _TICK, (last - chart.begin) // _TICK
    begin += ((due - first) // _TICK) % length
    if length >= step:
        return Counter(run // step for run in range(begin, end + 1, length))
    counts, before = Counter[int](), 0
    for column in range(begin // step, end // step + 1):
        upto = (min((column + 1) * step - 1, end) - begin) // length + 1  # runs by the end of the column
        counts[column], before = upto - before, upto
    return counts


# -- shades


def edges_of(peak: int, levels: int) -> list[int]:
    """Return the most runs of each of some levels: in equal ratios up to ``peak``."""
    edges: list[int] = []
    for level in range(1, levels + 1):
        edges.append(max(round(peak ** (level / levels)), edges[-1] + 1 if edges else 1))
    edges[-1] = max(edges[-1], peak)
    return edges


def level_of(runs: int, edges: Sequence[int]) -> int:
    """Return the level that ``runs`` is in, by ``edges_of``; 0 for none."""
    return bisect_left(edges, runs) + 1 if runs else 0


def legend_of(edges: Sequence[int], peak: int) -> list[str]:
    """Return the numbers of runs of each level up to that of ``peak`` in words, beginning with none."""
    words, least = ["none"], 1
    for most in edges[: level_of(peak, edges)]:
        most = min(most, peak)
        words.append(str(most) if least == most else f"{least} to {most}")
        least = most + 1
    return words
