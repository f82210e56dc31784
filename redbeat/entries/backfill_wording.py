"""What there is to say of runs that a backfill would send: some were due before their entries were there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.wording import when_in
from redbeat.log.text import counted
from redbeat.schedules.timezones import in_utc


@dataclass
class Span:
    """Missed runs of an entry, as far as they are known, and the span of time in which they are."""

    entry: RedBeatSchedulerEntry
    first: datetime
    last: datetime
    dues: Sequence[datetime] = ()

    @property
    def start_time(self) -> datetime | None:
        """The entry's start_time, if it is in the span, as there are no runs before it."""
        start: datetime | None = self.entry.policy.start_time
        return start if start is not None and start > self.first else None

    @property
    def begun_at(self) -> datetime | None:
        """When the entry was stored, if known: before its first run that is its last_run_at."""
        began: datetime | None = None if self.entry.total_run_count else self.entry.last_run_at
        return None if began is None else in_utc(began)

    @property
    def early(self) -> int:
        """How many of the runs were due before the entry was stored."""
        begun_at = self.begun_at
        return 0 if begun_at is None else sum(due < begun_at for due in self.dues)


def told_of_beginnings(spans: Sequence[Span], zone: tzinfo) -> str:
    """Return the sentence about runs before the entries were stored; '': there are none."""
    words = ""
    started = [span.start_time for span in spans if span.start_time is not None]
    if started and len(spans) == 1:
        words += f" There are none before {when_in(started[0], zone)}, its start_time."
    elif started:
        words += f" There are none before their start_time: {counted(len(started), 'entry', 'entries')}."
    early = sum(span.early for span in spans)
    if not early:
        return words
    is_all = early == sum(len(span.dues) for span in spans)
    are = "All of them are" if is_all else counted(early, "of them is", "of them are")
    begun_at = spans[0].begun_at
    if len(spans) > 1 or begun_at is None:
        return f"{words} {are} from before their entries were stored."
    return f"{words} {are} from before {when_in(begun_at, zone)}, when it was stored."
