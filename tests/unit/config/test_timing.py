"""What follows from how long a lock lives, for every lock that there may be; ``config.timing`` says why."""

from __future__ import annotations

import random

import pytest

from redbeat.config.timing import MIN_LOCK_SECONDS, MIN_TAKEOVER_SECONDS, Timing

SEED = random.randrange(10**9)


def timings() -> list[Timing]:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    locks = [MIN_LOCK_SECONDS, 1.5, 2, 2.9, 3, 5, 7.9, 8, 10, 60, 1500, 10**9]
    locks += [10 ** rng.uniform(0, 9) for _ in range(2_000)]
    takeovers = [None, MIN_TAKEOVER_SECONDS, 8, 10**9, MIN_TAKEOVER_SECONDS * 10 ** rng.uniform(0, 8)]
    return [Timing(lock, takeover) for lock in locks for takeover in takeovers]


def test_what_must_hold_between_these_lengths_holds_for_every_lock() -> None:
    for timing in timings():
        lock, renewal = timing.lock_seconds, timing.renewal_seconds
        may_be_replaced = timing.replaced_after_seconds
        assert 3 * renewal < lock, timing
        assert renewal < timing.fresh_seconds <= may_be_replaced / 2, timing
        assert timing.slack_seconds < renewal, timing
        assert renewal + timing.look_seconds + timing.slack_seconds < may_be_replaced, timing
        assert 2 * timing.look_seconds <= timing.look_gap_seconds <= may_be_replaced / 2, timing
        assert 3 * timing.look_seconds < timing.stuck_seconds, timing
        for wanted in (0.1, 10, 3600):
            assert timing.fresh_seconds + timing.publish_seconds(wanted) < lock, timing
            assert timing.connect_seconds(wanted) < timing.stuck_seconds, timing


@pytest.mark.parametrize("lock_seconds", [8, 25, 1500])
def test_a_lock_that_lives_long_enough_is_treated_as_ever(lock_seconds: float) -> None:
    timing = Timing(lock_seconds, takeover_seconds=8)
    found = (timing.renewal_seconds, timing.fresh_seconds, timing.look_seconds, timing.look_gap_seconds)
    assert (*found, timing.slack_seconds) == (2, 4, 1, 4, 0.5)
    assert timing.stuck_seconds == min(lock_seconds, 60) - 2


def test_with_the_shortest_lock_everything_shrinks_with_it() -> None:
    timing = Timing(1, takeover_seconds=8)
    found = (timing.renewal_seconds, timing.fresh_seconds, timing.look_seconds, timing.look_gap_seconds)
    assert found == (0.25, 0.5, 0.25, 0.5)
    assert timing.publish_seconds(10) == pytest.approx(1 / 3)
    assert timing.replaced_after_seconds == 1
