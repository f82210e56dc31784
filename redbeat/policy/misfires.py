"""Which run of an entry is sent: the one that is due now, or missed ones; and which times a policy excludes.

Pure.

A run is missed if it wasn't sent at its time, as no beat led or the broker was away. Those of a pause are
dropped before, or left to be made up for here, by ``scheduler/planner.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from redbeat.config.settings import MISFIRE_LIMIT
from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import counts_from_last_run, last_runs, next_run, zone_of

#: the default of ``misfire_grace_time`` with misfire 'skip': long enough for a failover
SKIP_SECONDS = 60.0

_INSTANT = timedelta(microseconds=1)


@dataclass(slots=True)  # not frozen, as making one would take five times as long
class Choice:
    """What to do about an entry that is due.

    Attributes:
        due: the due time of the run to send; None: none is sent.
        first: the due time of the first run that it stands for and that isn't too late.
        ran_at: what to record as last_run_at.
        following: the next due time after it; None: never. One that isn't later than now is another missed
            run.
        is_skipped: a missed run isn't made up for.
        in_time: the due time of the first run that isn't too late; None: all of them are.
        why_late: why the runs before ``in_time`` aren't sent.
        why_left_out: why the runs from ``in_time`` to ``due`` aren't sent; '': the run to send stands for
            them.
        stands_until: the last run after ``due`` that the run to send stands for; None: there is none.
    """

    due: datetime | None
    ran_at: datetime
    following: datetime | None
    is_skipped: bool
    first: datetime | None = field(default=None, compare=False)
    in_time: datetime | None = field(default=None, compare=False)
    why_late: str = field(default="", compare=False)
    why_left_out: str = field(default="", compare=False)
    stands_until: datetime | None = field(default=None, compare=False)


class MisfireRules(NamedTuple):
    """How missed runs of an entry are handled.

    Attributes:
        way: the value of ``misfire``: latest, earliest, all or skip.
        limit: how many missed runs are sent one after the other.
        patience_seconds: how late a run may be; None: no limit.
        why_late: why a later one is not sent.
        counts_from_last_run: the next run depends on the last one, as that of an interval does.
        records_due: last_run_at becomes the due time of a run that stands alone, not when it is sent.
    """

    way: str
    limit: int
    patience_seconds: float | None
    why_late: str
    counts_from_last_run: bool
    records_due: bool

    def is_late(self, nominal: datetime, now: datetime) -> bool:
        """Return True if it is too late for the run due at ``nominal``."""
        patience = self.patience_seconds
        return patience is not None and nominal < now - timedelta(seconds=patience)

    def stands_alone(self, nominal: datetime, following: datetime | None, now: datetime) -> bool:
        """Return True if the run due at ``nominal`` is not too late, and no later one is due, as usual."""
        return (following is None or following > now) and not self.is_late(nominal, now)


def rules_of(schedule_: Any, policy: Policy, defaults: Policy) -> MisfireRules:
    """Return how missed runs are handled.

    Arguments:
        defaults: the app's settings for those fields that ``policy`` leaves open.
    """
    way = policy.misfire or defaults.misfire or "latest"
    limit = (policy.misfire_limit or defaults.misfire_limit or MISFIRE_LIMIT) if way == "all" else 1
    counts = counts_from_last_run(schedule_)
    return MisfireRules(way, limit, *patience_of(policy, defaults, way), counts, way == "all" or counts)


def choose_run(
    schedule_: Any, policy: Policy, nominal: datetime, now: datetime, rules: MisfireRules
) -> Choice:
    """Return which run to send: of the one that was due at ``nominal``, and those after it until ``now``."""
    way, limit, patience, why_late, _, _ = rules
    following = next_run(schedule_, policy, nominal, nominal)
    if rules.stands_alone(nominal, following, now):
        ran_at = nominal if rules.records_due else now
        return Choice(nominal, ran_at, following, is_skipped=False, first=nominal, in_time=nominal)
    first = nominal
    if patience is not None and rules.is_late(nominal, now):
        kept = next_run(schedule_, policy, now - timedelta(seconds=patience) - _INSTANT, nominal)
        if kept is None or kept > now:
            return Choice(None, now, kept, is_skipped=True, why_late=why_late)
        first = kept
    missed, following = last_runs(schedule_, policy, first, now, limit)
    if way == "all":
        is_last = len(missed) == 1
        upcoming = following if is_last else missed[1]
        return Choice(
            missed[0],
            missed[0],
            upcoming,
            is_skipped=missed[0] != nominal,
            first=missed[0],
            in_time=first,
            why_late=why_late,
            why_left_out=f"older than the limit of {limit} (misfire_limit)",
        )
    ran_at = missed[-1] if rules.counts_from_last_run else now
    due = first if way == "earliest" else missed[-1]
    return Choice(
        due,
        ran_at,
        following,
        is_skipped=way == "skip" and due != nominal,
        first=first,
        in_time=first,
        why_late=why_late,
        why_left_out="only the latest run is sent (misfire: skip)" if way == "skip" else "",
        stands_until=missed[-1],
    )


def ran_from(schedule_: Any, policy: Policy, nominal: datetime, now: datetime) -> datetime:
    """Return what to record as last_run_at for a run due at ``nominal`` and sent at ``now``."""
    missed, _ = last_runs(schedule_, policy, nominal, now, 1)
    return recorded(schedule_, missed[-1], now)


def recorded(schedule_: Any, latest: datetime, now: datetime) -> datetime:
    """Return what to record as last_run_at: the latest due time if the next run counts from it, else now.

    So the score that is written now is the time that the schedule names after last_run_at, also in 2.x.
    """
    return latest if counts_from_last_run(schedule_) else now


def patience_of(policy: Policy, defaults: Policy, way: str) -> tuple[float | None, str]:
    """Return how many seconds late a run may be (None: no limit), and why a later one isn't sent."""
    given = []
    grace_seconds = policy.misfire_grace_time
    if grace_seconds is None:
        grace_seconds = defaults.misfire_grace_time
    if grace_seconds is not None:
        given.append((grace_seconds, f"older than misfire_grace_time of {grace_seconds:g} s"))
    elif way == "skip":
        given.append((SKIP_SECONDS, f"more than {SKIP_SECONDS:g} s late (misfire: skip)"))
    if policy.expires_after is not None:  # a worker would drop the message
        why = f"its message would have expired (expires_after: {policy.expires_after:g} s)"
        given.append((policy.expires_after, why))
    if not given:
        return None, ""
    seconds, why_late = min(given)
    return seconds + policy.jitter, why_late


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

    Such a time isn't one of ``next_run`` either.

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
