"""What is planned of a batch, in which order, and how much is claimed: on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from redbeat import pace
from redbeat.lua import Claimed
from redbeat.pace import BATCH_SECONDS, ENLARGED, SLOW_SECONDS, Pace

QUICK = '{"schedule": {"__type__": "interval", "every": 1}}'
OTHER = '{"schedule": {"__type__": "rrule"}}'
SLOW = 2 * SLOW_SECONDS
#: less than makes an entry a slow one, and still too much for a batch of 100
MIDDLING = SLOW_SECONDS * 0.8


class Clock:
    """Processor time and the time on the wall, which pass as the plans of a test have it."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=made.now, thread_time=made.now))
    return made


def rows(prefix: str, count: int, definition: str) -> list[Claimed]:
    return [Claimed(f"{prefix}-{number:04}", str(number), definition) for number in range(count)]


def plan(one: Pace, clock: Clock, batch: list[Claimed], seconds: Mapping[str, float]) -> list[str]:
    """Plan a batch, each entry taking as long as is said of its prefix; return the keys, in their order."""
    planned = []
    for claimed in one.until_spent(batch):
        clock.seconds += seconds[claimed.key.partition("-")[0]]
        one.note_planned(claimed.key, 0)
        planned.append(claimed.key)
    left = {claimed.key for claimed in one.take_left()}
    assert left == {claimed.key for claimed in batch} - set(planned)
    assert not one.take_left(), "nothing is held on to"
    return planned


def test_quick_kinds_that_are_left_over_for_lack_of_time_keep_the_usual_batch(clock: Clock) -> None:
    one, batch = Pace(), rows("quick", 200, QUICK)
    planned = plan(one, clock, batch, {"quick": MIDDLING})
    assert len(planned) < len(batch)
    assert one.enlarge(10) == 10
    plan(one, clock, [*rows("slow", 1, OTHER)], {"slow": SLOW})
    assert one.enlarge(10) == 10 * ENLARGED
    assert one.enlarge(5000) == 5000, "memory is bounded by the batch"
    plan(one, clock, batch, {"quick": MIDDLING})
    assert one.enlarge(10) == 10, "one slow entry doesn't enlarge all batches of a backlog"


def test_the_oldest_that_waits_is_planned_with_each_batch_however_much_there_is_of_others(
    clock: Clock,
) -> None:
    one, slow = Pace(), rows("slow", 3, OTHER)
    plan(one, clock, slow, {"slow": SLOW})
    for _ in range(5):
        planned = plan(one, clock, [*slow, *rows("quick", 200, QUICK)], {"quick": MIDDLING, "slow": SLOW})
        assert planned[-1] == slow[0].key
        assert planned[0] == "quick-0000"
        assert planned.count(slow[0].key) == 1
        assert BATCH_SECONDS / MIDDLING - 1 < len(planned) < BATCH_SECONDS / MIDDLING + 3


def test_what_is_new_does_not_starve_what_was_left_over(clock: Clock) -> None:
    one, batch = Pace(), rows("first", 100, OTHER)
    taken = plan(one, clock, batch, {"first": MIDDLING})
    left = [claimed for claimed in batch if claimed.key not in taken]
    for number in range(5):
        new = rows(f"new{number}", 100, OTHER)
        planned = plan(one, clock, [*left, *new], {"first": MIDDLING, f"new{number}": MIDDLING})
        assert left[0].key in planned
        left = [claimed for claimed in left if claimed.key not in planned]


def test_one_slow_moment_does_not_let_a_quick_kind_wait_and_two_do(clock: Clock) -> None:
    one, batch = Pace(), rows("quick", 2, QUICK)
    trouble = Claimed("trouble-0000", "-1", QUICK)
    quick = {"quick": 0.0}
    plan(one, clock, [trouble, *batch], {**quick, "trouble": SLOW})
    assert plan(one, clock, [trouble, *batch], {**quick, "trouble": SLOW})[0] == trouble.key
    assert plan(one, clock, [trouble, *batch], {**quick, "trouble": SLOW})[-1] == trouble.key
    plan(one, clock, [trouble, *batch], {**quick, "trouble": 0.0})
    assert plan(one, clock, [trouble, *batch], {**quick, "trouble": 0.0})[0] == trouble.key
