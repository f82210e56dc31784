"""Since when beat has seen Redis answer."""

from __future__ import annotations

from redbeat.beat.supervision import Watch


def watched(*answers: float, jumps: tuple[float, ...] = ()) -> float:
    """For how long, if Redis has answered at these times, and its clock has jumped before each by so much."""
    times, ahead = iter(answers), 1.5e9
    watch = Watch(3.0, lambda: next(times))
    for place, answered_at in enumerate(answers):
        ahead += jumps[place] if jumps else 0
        watch.note_answer(answered_at + ahead)
    return watch.seconds


def test_it_counts_from_the_first_answer_to_the_last() -> None:
    assert watched(100.0) == 0
    assert watched(100.0, 101.0, 104.0) == 4


def test_a_long_silence_lets_it_count_anew() -> None:
    assert watched(100.0, 110.0, 110.5, 112.0) == 2


def test_a_clock_that_jumps_forward_lets_it_count_anew() -> None:
    """As then all leases end at once, and workers must have had the time to renew them."""
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0, 60, 0)) == 1
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0, -60, 0)) == 5
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0.2, 0.2, -0.4)) == 5


def test_before_any_answer_it_has_seen_nothing() -> None:
    assert watched() == 0
