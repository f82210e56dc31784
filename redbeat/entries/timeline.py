"""How many runs fall into which stretch of time: a chart with a row for each entry, and a total.

Invariant: the total counts all entries, shown or not. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any

from celery.schedules import crontab, schedule

from redbeat.entries.documents import iso
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.preview import runs_between
from redbeat.entries.upcoming import MOST_SECONDS, in_time, reason_of
from redbeat.errors import EntryError
from redbeat.process.memory import Memory
from redbeat.schedules.occurrences import is_own_kind

#: possible lengths of a column, minutes
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080)
_TICK = timedelta(microseconds=1)
_CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
#: how many crontabs are remembered while a chart is made, and how many parts of the runs of each
MAX_SHARED = 2000

#: the functions that name the row of an entry, by the value of --by
GROUPS: dict[str, Callable[[Any], str]] = {
    "load": lambda entry: str(entry.name),
    "task": lambda entry: str(entry.task),
    "prefix": lambda entry: _prefix_of(str(entry.name)),
    "next": lambda entry: str(entry.name),
}


def _prefix_of(name: str) -> str:
    """Return the pattern of ``name`` up to its first separator, as 'billing.*' of 'billing.send-invoices'."""
    found = re.match(r".+?[.:/_\-\s]+", name)
    return f"{found[0]}*" if found is not None else name


#: the name of a row, and its number of runs in each column
Row = tuple[str, Counter[int]]


@dataclass
class Chart:
    """How many runs there are in each column.

    Attributes:
        begin: where the first column begins.
        step: the length of a column.
        total: the runs of all entries.
        rows: how many runs which row has in which columns.
        entry_seconds: how much processor time the runs of one entry may take.
    """

    begin: datetime
    step: timedelta
    columns: int
    total: list[int] = field(default_factory=list)
    rows: dict[str, Counter[int]] = field(default_factory=dict)
    entry_seconds: float = MOST_SECONDS
    #: the runs of crontabs that many entries share
    _shared: Memory[Hashable, _SharedRuns] = field(default_factory=lambda: Memory(MAX_SHARED), repr=False)

    @property
    def end(self) -> datetime:
        return self.begin + self.columns * self.step

    def column_of(self, moment: datetime) -> int:
        """Return the number of the column that ``moment`` is in; one before the first is negative."""
        return (moment - self.begin) // self.step

    def count_between(
        self, counts: Counter[int], entry: RedBeatSchedulerEntry, first: datetime, last: datetime
    ) -> None:
        """Count the runs of ``entry`` from ``first`` to ``last``, by their columns.

        Raises:
            EntryError: they take too much processor time; some of them are counted.
        """
        first, key = max(first, self.begin), _key_of(entry)
        if key is None:
            for run in in_time(entry, runs_between(entry, first, last), self.entry_seconds):
                counts[self.column_of(run)] += 1
            return
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _SharedRuns.of(entry, self)
        counts.update(shared.between(first, last, self))
        if shared.problem:
            raise EntryError(shared.problem, entry.key)

    def add(self, row: str, counts: Mapping[int, int]) -> None:
        """Count the runs of an entry in its ``row``."""
        if counts:
            self.rows.setdefault(row, Counter()).update(counts)
            for column, runs in counts.items():
                self.total[column] += runs

    def add_entry(self, entry: RedBeatSchedulerEntry, group: str, since: datetime, now: datetime) -> str:
        """Count the runs of ``entry``, if it is going to run, in its row by ``GROUPS``.

        Arguments:
            since: before now: those that its schedule had until then are counted, too.

        Returns:
            Why not all of them are counted, with its name; '': they are.
        """
        counts, untold = self.runs_of(entry, since, now)
        self.add(GROUPS[group](entry), counts)
        return untold

    def runs_of(
        self, entry: RedBeatSchedulerEntry, since: datetime, now: datetime
    ) -> tuple[Counter[int], str]:
        """Return how many runs ``entry`` has in which columns, and why these aren't all; '': they are."""
        counts: Counter[int] = Counter()
        try:
            due = entry.next_due_at
            if due is not None and entry.stored is not None and not entry.stored.is_away:
                count_runs(counts, entry, due, since, now, self)
        except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
            return counts, reason_of(entry, exc)
        return counts, ""

    def rows_by(self, group: str) -> list[Row]:
        """Return all rows in the order of ``group``: as they were added (next), else the busiest first."""
        rows = list(self.rows.items())
        if group != "next":
            rows.sort(key=lambda row: (-sum(row[1].values()), row[0]))
        return rows

    def to_dict(self, shown: Iterable[Row]) -> dict[str, Any]:
        """Return it as plain JSON, with these rows."""
        return {
            "begin": iso(self.begin),
            "end": iso(self.end),
            "column_seconds": self.step.total_seconds(),
            "total": self.total,
            "entries": [
                {"name": name, "runs": [counts.get(column, 0) for column in range(self.columns)]}
                for name, counts in shown
            ],
        }


@dataclass
class _SharedRuns:
    """All runs that a crontab has within a chart, and how many they are from one of them to another.

    ``problem``: why there are more of them; '': these are all.
    """

    runs: list[datetime]
    problem: str = ""
    counted: dict[tuple[int, int], Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: RedBeatSchedulerEntry, chart: Chart) -> _SharedRuns:
        found = cls([])
        try:
            every = runs_between(entry, chart.begin, chart.end - _TICK)
            found.runs.extend(
                run.astimezone(timezone.utc) for run in in_time(entry, every, chart.entry_seconds)
            )
        except EntryError as exc:
            found.problem = str(exc)
        return found

    def between(self, first: datetime, last: datetime, chart: Chart) -> Mapping[int, int]:
        begin, end = bisect_left(self.runs, first), bisect_right(self.runs, last)
        counts = self.counted.get((begin, end))
        if counts is None:
            counts = Counter(map(chart.column_of, self.runs[begin:end]))
            if len(self.counted) < MAX_SHARED:
                self.counted[begin, end] = counts
        return counts


def _key_of(entry: RedBeatSchedulerEntry) -> Hashable | None:
    """Return what the runs of ``entry`` depend on, a crontab and its bounds; None: on more than that."""
    schedule_, policy = entry.schedule, entry.policy
    is_crontab = isinstance(schedule_, crontab) and not is_own_kind(schedule_, crontab)
    if not is_crontab or policy.exclude is not None or policy.one_off or policy.max_runs is not None:
        return None
    fields = (getattr(schedule_, f"_orig_{name}") for name in _CRONTAB_FIELDS)
    return (*map(str, fields), policy.timezone, policy.start_time, policy.end_time)


def edges_of(peak: int, levels: int) -> list[int]:
    """Return the most runs of each of some levels: in equal ratios up to ``peak``."""
    edges: list[int] = []
    for level in range(1, levels + 1):
        edges.append(max(round(peak ** (level / levels)), edges[-1] + 1 if edges else 1))
    edges[-1] = max(edges[-1], peak)
    return edges


def level_of(runs: int, edges: Sequence[int]) -> int:
    """Return the level that ``runs`` is in, by ``edges_of``; 0 for none."""
    return 0 if not runs else next(level for level, most in enumerate(edges, start=1) if runs <= most)


def empty_chart(since: datetime, zone: tzinfo, hours: float, room: int) -> Chart:
    """Return a chart whose columns begin at full hours, or at parts of them, in ``zone``."""
    minutes = next((step for step in _STEPS if hours * 60 / step <= room), _STEPS[-1])
    step = timedelta(minutes=minutes)
    local = since.astimezone(zone)
    into = timedelta(hours=local.hour, minutes=local.minute, seconds=local.second)
    # in UTC: the distance of two times of one zone is counted by the clock on the wall
    begin = since.replace(microsecond=0).astimezone(timezone.utc) - into % step
    columns = max(min(int(-(-hours * 60 // minutes)), room), 1)
    return Chart(begin, step, columns, total=[0] * columns)


def count_runs(
    counts: Counter[int],
    entry: RedBeatSchedulerEntry,
    due: datetime,
    since: datetime,
    now: datetime,
    chart: Chart,
) -> None:
    """Count the runs of ``entry`` by their columns: the one in Redis, at ``due``, and those after it.

    Arguments:
        since: before now: those that its schedule had until then are counted, too.
    """
    policy = entry.policy
    most = 1 if policy.one_off else policy.max_runs
    left = None if most is None else most - entry.total_run_count
    last = chart.end - _TICK if policy.end_time is None else min(chart.end - _TICK, policy.end_time)
    at_once = max(due, now)  # an entry that is due already runs now
    if since < now and left is None:
        count_past(counts, entry, since, due - _TICK, chart, due)
    if at_once >= chart.end or (left is not None and left <= 0):
        return
    if at_once >= chart.begin:
        counts[(at_once - chart.begin) // chart.step] += 1
    every = _interval_of(entry) if left is None else None
    if every is not None:
        _count_interval(counts, due, max(now, chart.begin - _TICK), every, last, chart)
        return
    if left is None:
        chart.count_between(counts, entry, max(due, now) + _TICK, last)
        return
    later = in_time(entry, runs_between(entry, due + _TICK, last), chart.entry_seconds)
    for run in islice(later, left - 1):
        if run >= chart.begin:
            counts[chart.column_of(run)] += 1


def _interval_of(entry: RedBeatSchedulerEntry) -> timedelta | None:
    """Return the interval of ``entry``, if its schedule is only an interval."""
    schedule_ = entry.schedule
    is_interval = isinstance(schedule_, schedule) and not is_own_kind(schedule_, schedule)
    is_plain = is_interval and not schedule_.relative and not entry.policy.exclude
    return schedule_.run_every if is_plain else None


def count_past(
    counts: Counter[int],
    entry: RedBeatSchedulerEntry,
    since: datetime,
    until: datetime,
    chart: Chart,
    due: datetime | None = None,
) -> None:
    """Count the runs that the schedule of ``entry`` has from ``since``, in the chart, to ``until``.

    Arguments:
        due: when it is due next, if that is known already.
    """
    until, every = min(until, chart.end - _TICK), _interval_of(entry)
    due = entry.next_due_at if due is None and every is not None else due
    if every is None or due is None:
        chart.count_between(counts, entry, since, until)
        return
    if entry.policy.start_time is not None:
        since = max(since, entry.policy.start_time)
    first = due - ((due - since) // every) * every
    if first <= until:
        counts[(first - chart.begin) // chart.step] += 1
        _count_interval(counts, first, first, every, until, chart)


def _count_interval(
    counts: Counter[int], due: datetime, now: datetime, every: timedelta, end: datetime, chart: Chart
) -> None:
    """Count the runs after ``due`` by arithmetic, as there may be many thousands."""
    # in whole microseconds from the beginning of the first column, as timedeltas take ten times as long
    step, length = chart.step // _TICK, every // _TICK
    start, stop = (due - chart.begin) // _TICK, (end - chart.begin) // _TICK
    # runs that were missed before now aren't counted one by one
    before, last = max(((now - chart.begin) // _TICK - start) // length, 0), (stop - start) // length
    if last <= before:
        return
    if length >= step:
        for run in range(start + (before + 1) * length, start + last * length + 1, length):
            counts[run // step] += 1
        return
    # how many runs there are by the end of each column
    first = (start + (before + 1) * length) // step
    ends = range((first + 1) * step - 1 - start, stop - start, step)
    for column, upto in enumerate([*(at // length for at in ends), last], start=first):
        counts[column] += upto - before
        before = upto
