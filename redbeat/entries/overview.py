"""All that is known of one entry: its fields, its next runs, those in progress, the last ones, and figures.

Invariant: what can't be read or computed is missing with a reason, and the rest is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from functools import cached_property
from typing import Any

from redbeat.entries.documents import document_of, iso, outcome_of
from redbeat.entries.due import is_pause_over
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.fields import without_secrets
from redbeat.entries.runs import Last, read_last, read_running
from redbeat.entries.upcoming import next_runs as runs_of
from redbeat.entries.wording import one_line, when_in
from redbeat.errors import EntryError, StoreCorrupt
from redbeat.history import PastRun
from redbeat.policy.policy import LENGTHS, PAUSE_FIELDS, given_of
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedules.durations import length_in_words

NEXT_RUNS, LAST_RUNS = 5, 10


@dataclass
class Overview:
    """What is known of an entry.

    Attributes:
        entry: as it is listed; it may be one that can't be used.
        next_runs: those that its schedule has, in the zone that was asked for.
        problem: why they can't be computed; '': they can.
        running: its runs in progress.
        history: its last runs, the newest first.
        figures: of its past runs.
        spoilt: why history and figures can't be read; '': they can.
    """

    entry: RedBeatSchedulerEntry
    next_runs: Sequence[datetime]
    problem: str
    running: Sequence[Run]
    history: Sequence[PastRun]
    figures: Figures
    spoilt: str

    @cached_property
    def last(self) -> Last:
        """What became of its last run, read when it is first asked for."""
        [last] = read_last(self.entry.app, [self.entry.key])
        return last

    @property
    def past(self) -> list[PastRun]:
        """Its last runs without those in progress."""
        in_progress = {run.task_id for run in self.running}
        return [run for run in self.history if run.task_id is None or run.task_id not in in_progress]

    @property
    def next_look(self) -> datetime | None:
        """When beat looks at a quarantined entry again; None for all others."""
        stored = self.entry.stored
        is_quarantined = self.entry.state == "quarantined"
        if not is_quarantined or stored is None or stored.score is None or stored.score < 0:
            return None
        try:
            return datetime.fromtimestamp(stored.score, timezone.utc)
        except (ValueError, OverflowError, OSError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            **document_of(self.entry),
            "next_runs": [iso(due) for due in self.next_runs],
            **outcome_of(self.last),
            "running": [run.to_dict() for run in self.running],
            "figures": self.figures.to_dict(),
            "history": [run.to_dict() for run in self.history],
        }


def overview_of(
    entry: RedBeatSchedulerEntry,
    zone: tzinfo,
    *,
    next_runs: int = NEXT_RUNS,
    last_runs: int = LAST_RUNS,
    after: datetime | None = None,
) -> Overview:
    """Return what is known of ``entry``, which was listed; its next runs are those later than ``after``."""
    try:
        history, figures, spoilt = entry.history(last_runs), entry.figures(), ""
    except StoreCorrupt as exc:
        history, figures, spoilt = [], Figures(), one_line(exc)
    running = read_running(entry)
    upcoming, problem = _next_runs(entry, next_runs, zone, after)
    return Overview(entry, upcoming, problem, running, history, figures, spoilt)


def _next_runs(
    entry: RedBeatSchedulerEntry, count: int, zone: tzinfo, after: datetime | None
) -> tuple[list[datetime], str]:
    """Return the next runs of ``entry``, and why they can't be computed."""
    if entry.schedule is None:
        return [], ""
    try:
        return runs_of(entry, count, after, zone, entry.seen_at), ""
    except (EntryError, ValueError, OverflowError) as exc:
        return [], str(exc)


def policy_rows(entry: RedBeatSchedulerEntry, zone: tzinfo) -> list[tuple[str, str]]:
    """Return the fields of the policy that aren't defaults."""
    rows = []
    left_out = PAUSE_FIELDS if is_pause_over(entry, entry.seen_at) else ()
    for field, value in without_secrets(given_of(entry.policy)).items():
        if field in left_out:
            continue
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif field in LENGTHS:
            text = length_in_words(value)
        else:
            text = when_in(value, zone) if isinstance(value, datetime) else one_line(value)
        rows.append((field, text))
    return rows
