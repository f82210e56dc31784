"""The runs of all entries together: the first ones to come, and how many fall into which stretch of time.

Invariant: what a timeline keeps grows with the rows that are shown and with MAX_GROUPS, not with the entries.
"""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, takewhile
from operator import add
from typing import Any, NamedTuple

from redbeat.config.config import ensure_conf
from redbeat.entries.calendar_loading import load_calendars
from redbeat.entries.documents import iso
from redbeat.entries.dropped import crontab_key, is_even
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entry_of, read_all
from redbeat.entries.runs import id_of
from redbeat.entries.upcoming import in_time, reason_of, runs_from
from redbeat.entries.wording import local_time
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.log.text import shorten
from redbeat.process.memory import Memory
from redbeat.store.histories import read_newest
from redbeat.store.members import total_of
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
    "task": lambda entry: shorten(str(entry.task), MAX_NAME),
    "prefix": lambda entry: shorten(_prefix_of(str(entry.name)), MAX_NAME),
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


@dataclass(frozen=True)
class Row:
    """The runs of an entry, of a task, of the names with a prefix, or of all entries.

    Attributes:
        counts: how many are planned in each column.
        happened: how many have ended in the past, by words of ``HAPPENED`` and columns.
        score: of an entry.
    """

    name: str
    counts: Sequence[int]
    happened: Counter[tuple[str, int]] = field(default_factory=Counter)
    score: float = 0.0

    @property
    def runs(self) -> int:
        """How many are planned."""
        return sum(self.counts)

    def __add__(self, other: Row) -> Row:
        counts = [*map(add, self.counts, other.counts)]
        return replace(self, counts=counts, happened=self.happened + other.happened)


@dataclass
class Timeline:
    """The runs of the entries that were looked at.

    Attributes:
        now: when it was begun, by the server's clock.
        entries: how many there are.
        total: the row of all of them.
        looked_at: how many entries were looked at.
        rows: the first rows.
        row_count: how many rows there are.
        untold: sentences about entries of which not all runs are known.
        known_since: before this not all histories say how runs ended; None: they all do.
    """

    chart: Chart
    now: datetime
    entries: int
    total: Row
    looked_at: int = 0
    rows: Sequence[Row] = ()
    row_count: int = 0
    untold: list[str] = field(default_factory=list)
    known_since: datetime | None = None

    @property
    def has_past(self) -> bool:
        """Whether a whole column of it is in the past."""
        return self.chart.begin + self.chart.step <= self.now

    @property
    def is_whole(self) -> bool:
        """Whether all entries were looked at."""
        return self.looked_at >= self.entries

    def to_dict(self) -> dict[str, Any]:
        """Return what is planned as plain JSON."""
        return {
            "begin": iso(self.chart.begin),
            "end": iso(self.chart.end),
            "column_seconds": self.chart.step.total_seconds(),
            "total": self.total.counts,
            "entries": [{"name": row.name, "runs": row.counts} for row in self.rows],
        }


class Counting:
    """Counts the runs of all entries.

    Arguments:
        since: when it begins; before now: with the runs that the schedules had from then on. None: now.
        by: what a row stands for, one of ``GROUPS``.
        match: a pattern of names; None: all entries.
        max_rows: how many rows are kept.
        with_outcomes: for the past also how runs ended.

    Attributes:
        found: what was counted so far.
    """

    def __init__(
        self,
        app: Any,
        chart: Chart,
        since: datetime | None,
        *,
        by: str = "load",
        match: str | None = None,
        max_rows: int,
        with_outcomes: bool = False,
    ) -> None:
        self._store = Store(app)
        self._app, self._by, self._match, self._max_rows = app, by, match, max_rows
        total = Row("", [0] * chart.columns)
        self.found = Timeline(chart, Server(self._store).now(), total_of(self._store), total)
        self._since = since or self.found.now
        has_outcomes = with_outcomes and self.found.has_past
        self._records = min(ensure_conf(app).history, _MAX_RECORDS) if has_outcomes else 0
        self._rows: dict[str, Row] = {}
        #: all runs in the chart of crontabs that many entries share, their columns, and why there are more
        self._shared = Memory[Hashable, tuple[list[datetime], list[int], str]](MAX_SHARED)

    def steps(self) -> Iterator[None]:
        """Count; yields after each entry, so that its caller can rest, or stop."""
        found = self.found
        # an entry that is due later than the end has no run in the chart, unless that is in the past
        last_score = found.chart.end.timestamp() if self._since >= found.now else None
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
            for entry, counts, history in zip(
                entries, planned, self._histories(entries, planned), strict=True
            ):
                self._add(entry, counts, self._happened(history))
                yield
            found.looked_at += len(chunk)
            found.rows = heapq.nsmallest(self._max_rows, self._rows.values(), key=self._place_of)
            if self._by in ("load", "next"):  # nothing is added to the rows of these entries
                self._rows = {row.name: row for row in found.rows}
            yield
        found.looked_at = found.entries = max(found.entries, found.looked_at)

    def _place_of(self, row: Row) -> tuple[float, str]:
        """Order rows: the busiest first, or the next ones to run first."""
        return row.score if self._by == "next" else -row.runs, row.name

    def _add(
        self, entry: RedBeatSchedulerEntry, planned: Counter[int], happened: Counter[tuple[str, int]]
    ) -> None:
        """Add the runs of an entry."""
        if not planned or entry.policy.one_off or entry.policy.max_runs is not None:
            # its schedule doesn't say what it had: what happened is taken for planned
            for (_, column), runs in happened.items():
                planned[column] += runs
        if not planned:
            return
        name = GROUPS[self._by](entry)
        name = name if name in self._rows or len(self._rows) < MAX_GROUPS else OTHERS
        self.found.row_count += name not in self._rows
        counts = [planned[column] for column in range(self.found.chart.columns)]
        row = Row(name, counts, happened, (entry.stored and entry.stored.score) or 0.0)
        self._rows[name] = self._rows[name] + row if name in self._rows else row
        self.found.total += row

    # -- planned

    def _planned(self, entry: RedBeatSchedulerEntry) -> Counter[int]:
        """Count the run that an entry has in Redis and those that its schedule has, by their columns."""
        counts, due = Counter[int](), entry.next_due_at
        if due is None or entry.stored is None or entry.stored.is_away:
            return counts
        try:
            self._plan(counts, entry, due)
        except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
            if len(self.found.untold) < MAX_UNTOLD:
                self.found.untold.append(reason_of(entry, exc))
        return counts

    def _plan(self, counts: Counter[int], entry: RedBeatSchedulerEntry, due: datetime) -> None:
        chart, now = self.found.chart, self.found.now
        at_once = max(due, now)  # an entry that is due already runs now
        if entry.policy.one_off or entry.policy.max_runs is not None:
            for run in takewhile(lambda run: run < chart.end, runs_from(entry, due)):
                run = at_once if run == due else run
                if chart.begin <= run < chart.end:
                    counts[chart.column_of(run)] += 1
            return
        if chart.begin <= at_once < chart.end:
            counts[chart.column_of(at_once)] += 1
        if self._since < now:
            self._count(counts, entry, self._since, due - _TICK, due)
        self._count(counts, entry, at_once + _TICK, chart.end, due)

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
        chart, policy, rule = self.found.chart, entry.policy, entry.schedule
        first, last = max(first, chart.begin), min(last, chart.end - _TICK)
        if first > last:
            return
        if is_even(rule, policy):
            first, last = max(first, policy.start_time or first), min(last, policy.end_time or last)
            counts.update(_count_interval(chart, due, rule.run_every, first, last))
        elif (key := crontab_key(rule, policy)) is None:
            for run in in_time(entry, entry.runs_between(first, last)):
                counts[chart.column_of(run)] += 1
        else:
            runs, columns, problem = self._runs_of(key, entry)
            counts.update(columns[bisect_left(runs, first) : bisect_right(runs, last)])
            if problem:
                raise EntryError(problem, entry.key)

    def _runs_of(self, key: Hashable, entry: RedBeatSchedulerEntry) -> tuple[list[datetime], list[int], str]:
        """Return all runs in the chart of a crontab that many entries share, and why there are more."""
        if key not in self._shared:
            chart, runs, problem = self.found.chart, list[datetime](), ""
            try:
                for run in in_time(entry, entry.runs_between(chart.begin, chart.end - _TICK)):
                    runs.append(run.astimezone(timezone.utc))
            except EntryError as exc:
                problem = str(exc)
            self._shared[key] = runs, [*map(chart.column_of, runs)], problem
        return self._shared[key]

    # -- happened

    def _histories(
        self, entries: Sequence[RedBeatSchedulerEntry], planned: Sequence[Counter[int]]
    ) -> Iterator[Sequence[PastRun]]:
        """Yield the past runs of each entry, the newest first."""
        # runs in progress and attempts that failed have records, too
        limit = min(2 * max((counts.total() for counts in planned), default=0) + 20, self._records)
        if not limit:
            yield from ((),) * len(entries)
            return
        records = read_newest(self._store, [entry.key for entry in entries], limit)
        for entry, texts in zip(entries, records, strict=True):
            runs = decode_history(texts, partial(id_of, entry.key))
            oldest = min((run.due for run in runs), default=self._since)
            if len(texts) >= limit and oldest > self.found.chart.begin:  # there may be older ones
                self.found.known_since = max(oldest, self.found.known_since or oldest)
            yield runs

    def _happened(self, history: Iterable[PastRun]) -> Counter[tuple[str, int]]:
        """Count how runs ended, each once, however many records it has, but none that users asked for."""
        chart, found, seen = self.found.chart, Counter[tuple[str, int]](), set[datetime]()
        for run in history:
            if not run.is_manual and run.due not in seen and chart.begin <= run.due < chart.end:
                seen.add(run.due)
                found[_HAPPENED.get(run.outcome, "sent"), chart.column_of(run.due)] += run.count or 1
        return found


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
