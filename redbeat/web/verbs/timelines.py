"""``timeline``: which runs all entries have in a span of time, counted in the background.

Invariant: counting leaves the processor to others after every slice, and ends when its budget is used up;
what it has found by then says how many entries it covers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from redbeat.access import Right
from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.entries.calendar_loading import give_calendars, read_calendars
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.load import Counted, Load, LoadChart
from redbeat.entries.query import entry_of, scan_stored
from redbeat.entries.runs import id_of
from redbeat.entries.timeline import Chart, empty_chart
from redbeat.history import decode_history
from redbeat.operations.actor import Actor
from redbeat.store.histories import read_newest
from redbeat.store.members import count_members
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.web.background import WAIT_SECONDS, Background, Result, Tell
from redbeat.web.pace import Pace

#: how many columns and rows a chart has at most
MAX_COLUMNS, MAX_ROWS = 96, 60
#: how much processor time one chart may take; each time that somebody asks for more it is doubled
BUDGET_SECONDS, MAX_DOUBLINGS = 15.0, 5
#: how often it tells what it has found so far
TELL_SECONDS = 0.7
#: what is younger isn't made anew, seconds
FRESH_SECONDS = 10.0
#: of how many spans the runs of entries are known, and of how many entries of each
MAX_SPANS, MAX_KNOWN = 2, 200_000
#: how many records of histories are read at a time, and of one entry at most
RECORDS, MAX_RECORDS = 4000, 500


@dataclass(frozen=True)
class Wanted:
    """Which chart somebody wants.

    Attributes:
        hours: how long it is.
        start: when it begins; None: now.
        zone: columns begin at its full hours.
        match: a pattern of names; None: all entries.
        more: how often the budget is doubled.
    """

    hours: float
    start: datetime | None
    zone: tzinfo
    match: str | None = None
    more: int = 0


def timeline(
    actor: Actor, background: Background, wanted: Wanted, *, wait_seconds: float = WAIT_SECONDS
) -> Result[LoadChart]:
    """Return the chart that was made last, and have another one made if it is old."""
    actor.require(Right.READ)
    wanted = replace(wanted, zone=_phase_of(wanted))
    work = partial(_count, actor.app, wanted)
    return background.result_of(
        "timeline", wanted, work, fresh_seconds=FRESH_SECONDS, wait_seconds=wait_seconds
    )


def _phase_of(wanted: Wanted) -> tzinfo:
    """Return a zone whose full hours are at the same time: many viewers have the same columns."""
    moment = wanted.start or datetime.now(timezone.utc)
    step = empty_chart(moment, wanted.zone, wanted.hours, MAX_COLUMNS).step
    offset = moment.astimezone(wanted.zone).utcoffset() or timedelta(0)
    return timezone(offset % min(step, timedelta(days=1)))


def _count(app: Any, wanted: Wanted, tell: Tell[LoadChart]) -> LoadChart:
    store, pace = Store(app), Pace(BUDGET_SECONDS * 2 ** min(max(wanted.more, 0), MAX_DOUBLINGS))
    now = Server(store).now()
    since = now if wanted.start is None else wanted.start
    chart = empty_chart(since, wanted.zone, wanted.hours, MAX_COLUMNS)
    load = Load(chart, since, now, count_members(store), MAX_ROWS)
    # an entry that is due later than the end has no run in the chart, unless that is in the past
    last_score = chart.end.timestamp() if since >= now else None

    def progress(looked_at: int) -> None:
        load.looked_at = looked_at

    known = _known_of(app, chart) if not chart.begin + chart.step <= now else None
    told_at = 0.0
    for chunk in in_chunks(scan_stored(app, wanted.match, last_score, progress)):
        found = [None if known is None else known.get(stored, now) for stored, _ in chunk]
        load.add(one for one in found if one is not None)
        new = [
            entry_of(RedBeatSchedulerEntry, stored, app, at)
            for (stored, at), one in zip(chunk, found, strict=True)
            if one is None
        ]
        load.add(_counted(store, load, new, known, pace))
        pace.rest()
        if pace.is_over:
            return load.taken()
        if time.monotonic() > told_at + TELL_SECONDS:
            tell(load.taken())
            told_at = time.monotonic()
    load.entries = load.looked_at
    return load.taken()


def _counted(
    store: Store, load: Load, entries: Sequence[RedBeatSchedulerEntry], known: _Known | None, pace: Pace
) -> Iterator[Counted]:
    _give_calendars(store, entries)
    planned = []
    for number, entry in enumerate(entries):
        planned.append(load.planned(entry))
        if number % 8 == 0:
            pace.rest()
    happened = _happened(store, load, entries, planned, pace)
    for entry, (counts, is_whole), became in zip(entries, planned, happened, strict=True):
        counted = load.counted(entry, counts, became)
        if known is not None and is_whole and not entry.problem and entry.policy.exclude is None:
            known.keep(entry, counted, load.now)
        yield counted


class _Known:
    """The runs of entries in one span, so that the next look at it needn't compute them.

    Invariant: they are those of the entry as it is stored now. Those of one that is due, or has a calendar,
    are computed each time.
    """

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, Counted]] = {}
        #: many entries have the same counts
        self._counts: dict[tuple[int, ...], Sequence[int]] = {}

    def get(self, stored: Stored, now: datetime) -> Counted | None:
        """Return the runs of an entry; None: they must be computed."""
        mark, counted = self._counted.get(stored.key, (0, None))
        is_same = counted is not None and mark == _mark_of(stored) and (stored.score or 0) > now.timestamp()
        return counted if is_same else None

    def keep(self, entry: RedBeatSchedulerEntry, counted: Counted, now: datetime) -> None:
        """Remember the runs of an entry, unless it is due: then they depend on the clock."""
        stored = entry.stored
        if stored is None or (stored.score or 0) <= now.timestamp() or len(self._counted) >= MAX_KNOWN:
            return
        counts = self._counts.setdefault(tuple(counted.row.counts), counted.row.counts)
        shared = counted._replace(row=replace(counted.row, counts=counts))
        self._counted[stored.key] = _mark_of(stored), shared


def _mark_of(stored: Stored) -> int:
    return hash((stored.definition, stored.policy, stored.meta, stored.error, stored.score, stored.is_away))


#: of each app, the last spans and what is known of them
_KNOWN: WeakKeyDictionary[RedBeatConfig, dict[object, _Known]] = WeakKeyDictionary()


def _known_of(app: Any, chart: Chart) -> _Known:
    spans = _KNOWN.setdefault(ensure_conf(app), {})
    span = chart.begin, chart.step, chart.columns
    known = spans.pop(span, None) or _Known()
    while len(spans) >= MAX_SPANS:
        del spans[next(iter(spans))]
    spans[span] = known
    return known


def _give_calendars(store: Store, chunk: Sequence[RedBeatSchedulerEntry]) -> None:
    """Read the calendars of entries together, as each would read its own."""
    named = [entry for entry in chunk if not entry.problem and entry.policy.exclude is not None]
    give_calendars(named, read_calendars(store, {str(entry.policy.exclude) for entry in named}))


def _happened(
    store: Store,
    load: Load,
    chunk: Sequence[RedBeatSchedulerEntry],
    planned: Sequence[tuple[Mapping[int, int], bool]],
    pace: Pace,
) -> Iterator[Mapping[str, Counter[int]]]:
    """Yield what became of the runs of each entry."""
    kept = min(ensure_conf(store.config.app).history, MAX_RECORDS)
    if load.chart.begin + load.chart.step > load.now or not kept:
        yield from ({} for _ in chunk)
        return
    # runs in progress and attempts that failed have records, too
    limits = [min(2 * sum(counts.values()) + 20, kept) for counts, _ in planned]
    begin = 0
    while begin < len(chunk):
        end, most = begin, 0
        while end < len(chunk) and (end == begin or max(most, limits[end]) * (end - begin + 1) <= RECORDS):
            most = max(most, limits[end])
            end += 1
        keys = [entry.key for entry in chunk[begin:end]]
        texts = read_newest(store, keys, most)
        for place, key in enumerate(keys):
            history = decode_history(texts[place], partial(id_of, key))
            yield load.happened(chunk[begin + place], history, is_cut=len(texts[place]) >= most)
            pace.rest()
        begin = end
