"""How many runs of all entries fall into which stretch of time, planned and what became of them, however many
entries there are.

Invariant: what is kept grows with the rows that are shown and with MAX_GROUPS, not with the entries. Pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from redbeat.entries.documents import iso
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.past import HAPPENED, Past, add_happened
from redbeat.entries.timeline import GROUPS, Chart
from redbeat.entries.upcoming import reason_of
from redbeat.errors import EntryError
from redbeat.history import PastRun
from redbeat.log.text import shorten

#: how many tasks and prefixes have rows of their own; the others share one
MAX_GROUPS = 5_000
OTHERS = "(all others)"
#: how many characters of a task or a prefix count
MAX_NAME = 300
#: how many entries of which not all runs are known are named
MAX_UNTOLD = 20
#: how much processor time the runs of one entry may take, as others wait
ENTRY_SECONDS = 0.5


@dataclass(frozen=True)
class LoadRow:
    """A row of the chart.

    Attributes:
        name: of an entry, or of a task, or a pattern of names.
        counts: how many runs it has in each column.
        happened: what became of those in the past, by the words of ``HAPPENED``; in columns.
    """

    name: str
    counts: Sequence[int]
    happened: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs it has."""
        return sum(self.counts)


@dataclass(frozen=True)
class LoadChart:
    """The runs of the entries that were looked at.

    Attributes:
        begin, step, columns: as of a ``Chart``.
        now: when it was begun.
        looked_at: how many entries were looked at.
        entries: how many there are.
        total: the row of all of them.
        rows: the first rows by each of ``GROUPS``.
        row_counts: how many rows there are by each.
        untold: sentences about entries of which not all runs are known.
        known_since: before this not all histories say what became of runs; None: they all do.
    """

    begin: datetime
    step: timedelta
    columns: int
    now: datetime
    looked_at: int
    entries: int
    total: LoadRow
    rows: Mapping[str, Sequence[LoadRow]]
    row_counts: Mapping[str, int]
    untold: Sequence[str] = ()
    known_since: datetime | None = None

    @property
    def end(self) -> datetime:
        """Where the last column ends."""
        return self.begin + self.columns * self.step

    @property
    def has_past(self) -> bool:
        """Whether a whole column of it is in the past."""
        return self.begin + self.step <= self.now

    @property
    def is_whole(self) -> bool:
        """Whether all entries were looked at."""
        return self.looked_at >= self.entries

    def to_dict(self, group: str) -> dict[str, Any]:
        """Return it as plain JSON, with the rows of one group."""
        return {
            "begin": iso(self.begin),
            "end": iso(self.end),
            "column_seconds": self.step.total_seconds(),
            "now": iso(self.now),
            "looked_at": self.looked_at,
            "entries_in_all": self.entries,
            "total": list(self.total.counts),
            "happened": {word: list(counts) for word, counts in self.total.happened.items()},
            "known_since": iso(self.known_since),
            "rows": self.row_counts[group],
            "entries": [
                {
                    "name": row.name,
                    "runs": list(row.counts),
                    "happened": {word: list(counts) for word, counts in row.happened.items()},
                }
                for row in self.rows[group]
            ],
            "untold": list(self.untold),
        }


class Counted(NamedTuple):
    """The runs of one entry, and by what they are grouped and ordered."""

    name: str
    task: str
    score: float
    row: LoadRow


class Load:
    """Counts the runs of entries, one after the other.

    Arguments:
        chart: an empty one.
        since: before now: with the runs that the schedules had from then on.
        now: the server's clock.
        entries: how many entries there are.
        max_rows: how many rows of each group are kept.
    """

    def __init__(self, chart: Chart, since: datetime, now: datetime, entries: int, max_rows: int) -> None:
        self.chart, self.since, self.now, self.entries = chart, since, now, entries
        chart.entry_seconds = ENTRY_SECONDS
        #: how many entries were looked at, or left out as they have no run in the chart
        self.looked_at = 0
        self._max_rows = max_rows
        self._total = LoadRow("", [0] * chart.columns)
        self._groups: dict[str, dict[str, LoadRow]] = {"task": {}, "prefix": {}}
        #: the rows of entries: the busiest, and those that run first, the least of each kind first
        self._busiest: list[tuple[int, _Reversed, LoadRow]] = []
        self._next: list[tuple[float, _Reversed, LoadRow]] = []
        self._running = 0
        self._untold: list[str] = []
        self._known_since: datetime | None = None

    def planned(self, entry: RedBeatSchedulerEntry) -> tuple[Mapping[int, int], bool]:
        """Return how many runs an entry has in which columns, and whether these are all."""
        counts, untold = self.chart.runs_of(entry, self.since, self.now)
        self._tell(untold)
        return counts, not untold

    def happened(
        self, entry: RedBeatSchedulerEntry, history: Iterable[PastRun], *, is_cut: bool
    ) -> Mapping[str, Counter[int]]:
        """Return what became of an entry's runs, by words of ``HAPPENED``.

        Arguments:
            history: its last runs, the newest first.
            is_cut: there may have been older ones.
        """
        past = Past()
        try:
            add_happened(past, entry, history, self.chart, self.now)
        except (EntryError, ValueError, OverflowError) as exc:
            self._tell(reason_of(entry, exc))
        if is_cut and past.known_since is not None and past.known_since > self.chart.begin:
            self._known_since = max(past.known_since, self._known_since or past.known_since)
        return {word: counts for word, counts in past.happened.items() if counts}

    def counted(
        self, entry: RedBeatSchedulerEntry, counts: Mapping[int, int], happened: Mapping[str, Counter[int]]
    ) -> Counted:
        """Return the runs of an entry as ``add`` takes them."""
        if not counts or entry.policy.one_off or entry.policy.max_runs is not None:
            # its schedule doesn't say what it had: what happened is taken for planned
            counts = sum(happened.values(), Counter(counts))
        columns = range(self.chart.columns)
        words = {word: [found.get(column, 0) for column in columns] for word, found in happened.items()}
        row = LoadRow(str(entry.name), [counts.get(column, 0) for column in columns], words)
        return Counted(row.name, str(entry.task), (entry.stored and entry.stored.score) or 0.0, row)

    def add(self, entries: Iterable[Counted]) -> None:
        """Add the runs of some entries, of which there are a few hundred."""
        added = [one for one in entries if one.row.happened or any(one.row.counts)]
        self._running += len(added)
        self._total = _sum_of("", [self._total, *(one.row for one in added)])
        for group, sums in self._groups.items():
            grouped: dict[str, list[LoadRow]] = {}
            for one in added:
                name = shorten(GROUPS[group](one), MAX_NAME)
                name = name if name in sums or len(sums) < MAX_GROUPS else OTHERS
                grouped.setdefault(name, []).append(one.row)
            for name, rows in grouped.items():
                sums[name] = _sum_of(name, [*([sums[name]] if name in sums else []), *rows])
        for one in added:
            self._keep(self._busiest, (one.row.runs, _Reversed(one.name), one.row))
            self._keep(self._next, (-one.score, _Reversed(one.name), one.row))

    def _tell(self, untold: str) -> None:
        if untold and len(self._untold) < MAX_UNTOLD:
            self._untold.append(untold)

    def _keep(self, rows: list[Any], row: tuple[Any, ...]) -> None:
        if len(rows) < self._max_rows:
            heapq.heappush(rows, row)
        elif row[:2] > rows[0][:2]:
            heapq.heapreplace(rows, row)

    def taken(self) -> LoadChart:
        """Return what was counted so far."""
        chart = self.chart
        rows = {
            "load": _in_order(self._busiest),
            "next": _in_order(self._next),
            **{
                group: heapq.nsmallest(self._max_rows, sums.values(), key=lambda row: (-row.runs, row.name))
                for group, sums in self._groups.items()
            },
        }
        counts = {group: len(sums) for group, sums in self._groups.items()}
        return LoadChart(
            chart.begin,
            chart.step,
            chart.columns,
            self.now,
            self.looked_at,
            max(self.entries, self.looked_at),
            self._total,
            rows,
            {"load": self._running, "next": self._running, **counts},
            tuple(self._untold),
            self._known_since,
        )


def _in_order(kept: list[Any]) -> list[LoadRow]:
    return [row for *_, row in sorted(kept, key=lambda one: one[:2], reverse=True)]


def _sum_of(name: str, rows: Sequence[LoadRow]) -> LoadRow:
    """Return rows as one."""
    if len(rows) == 1:
        return replace(rows[0], name=name)
    happened = {
        word: _summed([row.happened[word] for row in rows if word in row.happened])
        for word in HAPPENED
        if any(word in row.happened for row in rows)
    }
    return LoadRow(name, _summed([row.counts for row in rows]), happened)


def _summed(lists: Sequence[Sequence[int]]) -> list[int]:
    return [*map(sum, zip(*lists, strict=True))]


@dataclass(frozen=True)
class _Reversed:
    """A text that is less than those before it, so that of equal rows the first names are kept."""

    text: str

    def __lt__(self, other: _Reversed) -> bool:
        return self.text > other.text
