"""Whether a policy excludes a time, and why; for beat's records and for people. Pure.

Invariant: a time that isn't excluded here isn't excluded by ``next_run`` either.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import zone_of


class Exclusion(NamedTuple):
    """Why a policy excludes a time.

    Attributes:
        field: the field of the policy that excludes it.
        value: the value of that field: a time in UTC, or the name of a calendar.
    """

    field: Literal["start_time", "end_time", "exclude"]
    value: Any

    @property
    def side(self) -> str:
        """'before' if the time is before ``start_time``, else 'after'."""
        return "before" if self.field == "start_time" else "after"

    @property
    def why(self) -> str:
        """Why a run at that time isn't sent, as a phrase for its record."""
        if self.field == "exclude":
            return f"excluded by its calendar {self.value}"
        return f"{self.side} its {self.field}, {self.value.isoformat()}"


def exclusion_of(schedule_: Any, policy: Policy, at: datetime) -> Exclusion | None:
    """Return why ``policy`` excludes a run of the schedule ``at`` this time; None: it doesn't.

    Raises:
        ValueError: its calendar can't be used.
    """
    if policy.end_time is not None and at > policy.end_time:
        return Exclusion("end_time", policy.end_time)
    if policy.start_time is not None and at < policy.start_time:
        return Exclusion("start_time", policy.start_time)
    calendar = policy.calendar
    if calendar is None or calendar.end_of_exclusion(at, zone_of(schedule_, policy)) is None:
        return None
    return Exclusion("exclude", policy.exclude)
