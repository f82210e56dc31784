"""The times that a schedule names, with those that the policy excludes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain, pairwise
from typing import Any

from redbeat.policy.misfires import exclusion_of
from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import phase_before, runs_after

#: a time that a schedule names; why the policy excludes it ('': it doesn't); the next one that isn't excluded
Nominal = tuple[datetime, str, datetime | None]


def nominals(
    schedule_: Any, bounds: Policy, after: datetime, first: datetime | None, anchor: datetime | None
) -> Iterator[Nominal]:
    """Yield the times later than ``after`` that a schedule names.

    Arguments:
        bounds: the entry's policy, with its calendar.
        first: the first of them that the policy allows; None: it allows none.
        anchor: from when an interval counts where the policy allows none.
    """
    later = () if first is None else runs_after(schedule_, bounds, first, first)
    allowed = iter(()) if first is None else chain([first], later)
    if (bounds.start_time, bounds.end_time, bounds.calendar) == (None, None, None):
        yield from ((due, "", following) for due, following in pairwise(chain(allowed, [None])) if due)
        return
    unbounded, expected = bounds.unbounded(), next(allowed, None)
    anchor = anchor if expected is None else phase_before(schedule_, bounds, expected, after)
    every = runs_after(schedule_, unbounded, after, anchor)
    while True:
        found = next(every, None)
        if found is not None and (expected is None or found < expected):
            excluded = exclusion_of(schedule_, bounds, found)
            if excluded is None and expected is None:
                return
            if excluded is not None:
                yield found, excluded.why, expected
        elif expected is None:
            return
        else:
            due, expected = expected, next(allowed, None)
            yield due, "", expected
            if found != due:  # what it names depends on when it ran last
                every = runs_after(schedule_, unbounded, due, due)
