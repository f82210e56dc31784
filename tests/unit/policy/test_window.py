"""One reason why a policy excludes a time, as a value."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

import pytest
from celery.schedules import schedule

from redbeat.policy.policy import Policy
from redbeat.policy.window import exclusion_of

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)


class Noon:
    """A calendar that excludes noon."""

    def end_of_exclusion(self, instant: datetime, tz: tzinfo) -> datetime | None:
        return NOON + SECOND if instant == NOON else None


@pytest.mark.parametrize(
    ("policy", "field", "why"),
    [
        (Policy(start_time=NOON + SECOND), "start_time", "before its start_time, 2026-06-01T12:00:01+00:00"),
        (Policy(end_time=NOON - SECOND), "end_time", "after its end_time, 2026-06-01T11:59:59+00:00"),
        (Policy(exclude="noons", calendar=Noon()), "exclude", "excluded by its calendar noons"),
    ],
)
def test_a_time_is_excluded_for_one_reason_naming_the_field(policy: Policy, field: str, why: str) -> None:
    found = exclusion_of(schedule(60), policy, NOON)
    assert found is not None
    assert (found.field, found.why) == (field, why)
    assert exclusion_of(schedule(60), policy.unbounded(), NOON) is None


def test_both_ends_of_the_window_belong_to_it() -> None:
    policy = Policy(start_time=NOON, end_time=NOON, exclude="noons")
    assert exclusion_of(schedule(60), policy, NOON) is None
