"""One run of a simulation, as the user of it sees it."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple

from redbeat.schedules.occurrences import zone_of
from redbeat.task_ids import task_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry


class SimulatedRun(NamedTuple):
    """What becomes of one run.

    Attributes:
        name: the entry's name.
        due: its nominal time, UTC.
        outcome: 'sent'; where its duration is given, 'succeeded', 'revoked' or 'never_started' instead; else
            'skipped' or 'merged', as in an entry's history (another run is sent that stands for it).
        sent_at: when beat sends it, UTC; None: it doesn't.
        why: why it isn't sent, or is sent later than usual, or ends before its time; '': there is no reason.
        ends_at: when it ends, UTC; None: it isn't sent, or its duration isn't given.
        entry: the entry itself, as it was given.
    """

    name: str
    due: datetime
    outcome: str
    sent_at: datetime | None
    why: str
    ends_at: datetime | None
    entry: RedBeatSchedulerEntry

    @property
    def is_sent(self) -> bool:
        """Whether it is sent, whatever becomes of it then."""
        return self.sent_at is not None

    @property
    def zone(self) -> tzinfo:
        """The time zone that the entry's schedule goes by."""
        return zone_of(self.entry.schedule, self.entry.policy)

    @property
    def local(self) -> datetime:
        """Its nominal time in the entry's time zone."""
        return self.due.astimezone(self.zone)

    @property
    def task_id(self) -> str | None:
        """The task id of its message, None where it isn't sent."""
        if self.sent_at is None:
            return None
        own = self.entry.options.get("task_id")
        return str(own or task_id_of(self.entry.key, self.due.isoformat(timespec="microseconds")))

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.local:%a %Y-%m-%d %H:%M:%S %z} {self.name} {self.outcome}{why}"

    def __repr__(self) -> str:
        return f"<{self}>"


def left_out(entry: RedBeatSchedulerEntry, due: datetime, why: str, outcome: str = "skipped") -> SimulatedRun:
    """Return the run of ``entry`` that was due at ``due`` and isn't sent."""
    return SimulatedRun(entry.name, due, outcome, None, why, None, entry)
