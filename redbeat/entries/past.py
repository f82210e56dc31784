"""What happened in a span of the past, by an entry's history.

Invariant: a run that was due in the span counts once among what happened, however many records it has; runs
that people asked for don't count, as no schedule had them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.timeline import Chart, count_past
from redbeat.entries.upcoming import in_time
from redbeat.history import PastRun

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
    """What happened of one entry, by the columns of a chart.

    Attributes:
        happened: each of ``HAPPENED``, to how many runs have ended so.
        known_since: when the oldest run was due that its history has; what happened before isn't known. None:
            its history has none.
    """

    happened: Mapping[str, Counter[int]] = field(
        default_factory=lambda: {word: Counter() for word in HAPPENED}
    )
    known_since: datetime | None = None


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
