"""What was planned in a span of the past and what happened: by an entry's schedule, beside its history.

Invariant: a run that was due in the span counts once among what happened, however many records it has; runs
that people asked for don't count, as no schedule had them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.runs import MOST_KEPT, id_of
from redbeat.entries.timeline import Chart, count_past
from redbeat.entries.upcoming import in_time, reason_of
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.store.histories import Histories
from redbeat.store.parts import in_chunks
from redbeat.store.store import Store

#: what has become of a run in few words; "sent": nobody knows more; "lost": its worker was, or none has begun
#: it; "other": it ended otherwise, or waits
HAPPENED = ("succeeded", "sent", "failed", "lost", "skipped", "other")
_WORDS = {
    **{outcome: outcome for outcome in ("succeeded", "sent", "failed", "lost", "skipped")},
    "never_started": "lost",
    "merged": "skipped",
}


@dataclass
class Past:
    """What was planned and what happened of one entry, by the columns of a chart.

    Attributes:
        planned: the runs that its schedule has, as it is now, whatever it was then.
        happened: each of ``HAPPENED``, to how many runs have ended so.
        known_since: when the oldest run was due that its history has; what happened before isn't known. None:
            its history has none.
        untold: why not all runs are counted, with the entry's name; '': they are.
    """

    planned: Counter[int] = field(default_factory=Counter)
    happened: Mapping[str, Counter[int]] = field(
        default_factory=lambda: {word: Counter() for word in HAPPENED}
    )
    known_since: datetime | None = None
    untold: str = ""

    def to_dict(self, columns: int) -> dict[str, Any]:
        """Return it as plain JSON, with a number for each column."""
        counts = {"planned": self.planned, **self.happened}
        return {
            **{word: [count.get(column, 0) for column in range(columns)] for word, count in counts.items()},
            "known_since": self.known_since and self.known_since.isoformat(),
            "untold": self.untold or None,
        }


def read_pasts(
    app: Any,
    entries: Iterable[RedBeatSchedulerEntry],
    chart: Chart,
    now: datetime,
    *,
    limit: int = MOST_KEPT,
) -> Iterator[tuple[RedBeatSchedulerEntry, Past]]:
    """Yield each entry with what was planned and what happened from the beginning of ``chart`` until ``now``.

    Arguments:
        limit: how many records of each entry are read at most.
    """
    histories = Histories(Store(app))
    for chunk in in_chunks(entries):
        keys = [entry.key for entry in chunk]
        # None: this user may not read them
        records = histories.newest_allowed(keys, limit) or [[]] * len(keys)
        for entry, texts in zip(chunk, records, strict=True):
            yield entry, past_of(entry, decode_history(texts, partial(id_of, entry.key)), chart, now)


def past_of(entry: RedBeatSchedulerEntry, history: Iterable[PastRun], chart: Chart, now: datetime) -> Past:
    """Return what was planned and what happened of ``entry`` until ``now``.

    Of an entry that runs a number of times only what happened is taken for planned, as its schedule alone
    doesn't say when it had them.

    Arguments:
        history: its last runs, the newest first.
    """
    found = Past()
    try:
        add_happened(found, entry, history, chart, now)
        is_limited = entry.policy.one_off or entry.policy.max_runs is not None
        if is_limited:
            found.planned = sum(found.happened.values(), Counter())
        elif entry.schedule is not None and chart.begin <= now:
            count_past(found.planned, entry, chart.begin, now, chart)
    except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, say
        found.untold = reason_of(entry, exc)
    if entry.schedule is None:
        found.untold = reason_of(entry, ValueError(entry.error or "its schedule can't be read"))
    return found


def add_happened(
    found: Past, entry: RedBeatSchedulerEntry, history: Iterable[PastRun], chart: Chart, now: datetime
) -> None:
    """Add what happened of ``entry`` until ``now``.

    Raises:
        EntryError, ValueError, OverflowError: not all of it can be computed.
    """
    seen = set[datetime]()
    for run in in_time(entry, history, chart.entry_seconds):
        found.known_since = run.due if found.known_since is None else min(found.known_since, run.due)
        if not run.is_manual and run.due not in seen:
            seen.add(run.due)
            found.happened[_WORDS.get(run.outcome, "other")].update(_columns_of(entry, run, chart, now))


def _columns_of(entry: RedBeatSchedulerEntry, run: PastRun, chart: Chart, now: datetime) -> Counter[int]:
    """Return the columns of the runs that a record is about, as far as they are in the chart."""
    counts: Counter[int] = Counter()
    begin, last = max(run.due, chart.begin), min(run.last or run.due, now)
    if run.last is not None and run.last > run.due and entry.schedule is not None:
        if begin <= last:
            count_past(counts, entry, begin, last, chart)
        if counts or run.due < chart.begin:
            return counts
    if chart.begin <= run.due < chart.end:  # one run, or what the schedule of today knows nothing about
        counts[(run.due - chart.begin) // chart.step] += run.count or 1
    return counts
