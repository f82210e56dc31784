"""What is planned of a batch, in which order, and how much is claimed: on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from redbeat.beat import pace
from redbeat.beat.pace import BATCH_SECONDS, ENLARGED, LARGE_BYTES, SLOW_SECONDS, Pace
from redbeat.store.records import Claimed

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
    left = {claimed.key for claimed in [*one.take_left(), *one.take_held()]}
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


def test_the_oldest_that_waits_is_planned_with_each_batch_however_many_others_there_are(clock: Clock) -> None:
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


def test_what_its_task_is_given_does_not_make_a_schedule_a_quick_one(clock: Clock) -> None:
    one, quick = Pace(), rows("quick", 2, QUICK)
    plan(one, clock, rows("slow", 1, OTHER), {"slow": SLOW})
    for definition in (
        '{"kwargs": {"__type__": "interval"}, "schedule": {"__type__": "rrule"}}',
        '{"schedule": {"__type__": "rrule"}, "kwargs": {"schedule": {"__type__": "interval"}}}',
        '{"schedule": {"__type__": "rrule", "x": {"__type__": "interval"}}}',
        '{"schedule": {"__type__": "interval"}, "schedule": {"__type__": "rrule"}}',
        '{"schedule": "interval"}',
        "[" * 10_000,
    ):
        batch = [*rows("false", 1, definition), *quick, *rows("slow", 1, OTHER)]
        planned = plan(one, clock, batch, {"false": 0, "quick": 0, "slow": SLOW})
        assert planned[:2] == ["quick-0000", "quick-0001"], definition
    spaced = rows("spaced", 1, '{ "schedule" : {\n"every": 1, "__type__" : "crontab"}}')
    batch = [*rows("other", 1, OTHER), *spaced, *rows("slow", 1, OTHER)]
    assert plan(one, clock, batch, {"other": 0, "spaced": 0, "slow": SLOW})[0] == "spaced-0000"


def send(one: Pace, clock: Clock, batch: list[Claimed], seconds: Mapping[str, float]) -> list[str]:
    """Plan a batch in no time and send it, each message taking as long as is said; return the keys."""
    keys = plan(one, clock, batch, dict.fromkeys(seconds, 0.0))
    for key in keys:
        one.note_sending()
        clock.seconds += seconds[key.partition("-")[0]]
        one.note_sent(key)
    one.end_batch()
    return keys


def test_others_are_recorded_before_large_ones_have_their_turn_by_themselves(clock: Clock) -> None:
    one = Pace()
    assert one.begin_batch().to_bytes == LARGE_BYTES
    one.note_held()
    assert not one.seconds_to_costly()
    sizes = one.begin_costly_batch()
    assert (sizes.from_bytes, sizes.to_bytes) == (LARGE_BYTES + 1, 0)
    large = rows("large", 3, f'{{"args": "{"x" * 8_000_000}"}}')
    assert send(one, clock, large, {"large": 0.6}) == ["large-0000"]
    assert one.begin_batch().to_bytes == LARGE_BYTES, "after one costly batch the others have their turn"


def test_costly_batches_have_half_of_the_time_at_the_most(clock: Clock) -> None:
    one, large = Pace(), rows("large", 1, f'{{"args": "{"x" * 8_000_000}"}}')
    costly_seconds, began = 0.0, clock.seconds
    for _ in range(1000):
        clock.seconds += 0.01
        one.begin_batch()
        one.note_held()
        send(one, clock, [], {})
        if not one.seconds_to_costly():
            one.begin_costly_batch()
            before = clock.seconds
            send(one, clock, large, {"large": 0.6})
            costly_seconds += clock.seconds - before
    assert 0.4 < costly_seconds / (clock.seconds - began) < 0.55


def test_however_many_others_are_due_costly_ones_get_their_turn(clock: Clock) -> None:
    one, turns = Pace(), []
    for _ in range(20):
        turns.append(one.begin_batch().to_bytes == 0)
        if not turns[-1]:
            one.note_held()
        clock.seconds += 0.1
        one.end_batch()
    assert 3 < sum(turns) < 10


def test_a_small_one_that_is_costly_to_send_waits_for_the_others_from_then_on(clock: Clock) -> None:
    one, others = Pace(), rows("quick", 3, QUICK)
    costly = rows("costly", 1, QUICK)
    for _ in range(2):  # once is a slow moment
        one.begin_batch()
        assert len(send(one, clock, [*costly, *others], {"costly": 0.5, "quick": 0.001})) == 4
    one.begin_batch()
    assert send(one, clock, [*costly, *others], {"quick": 0.001}) == [row.key for row in others]
    assert one.has_costly
    assert one.begin_costly_batch().from_bytes == 0, "what is costly needn't be large"
    for claimed in one.until_spent([*costly, *others]):
        one.note_planned(claimed.key, 0)
        one.note_sending()
        assert not one.note_sent(claimed.key), "it isn't any more"
        assert claimed == costly[0]
    assert one.take_left() == others
    one.end_batch()
    one.begin_batch()
    assert len(send(one, clock, [*costly, *others], {"costly": 0.0, "quick": 0.001})) == 4
