"""Since when beat has seen Redis answer."""

from __future__ import annotations

from redbeat.beat.supervision import Watch


def watched(*answers: float) -> float:
    """For how long, if Redis has answered at these times."""
    times = iter(answers)
    watch = Watch(3.0, lambda: next(times))
    for _ in answers:
        watch.note_answer()
    return watch.seconds


def test_it_counts_from_the_first_answer_to_the_last() -> None:
    assert watched(100.0) == 0
    assert watched(100.0, 101.0, 104.0) == 4


def test_a_long_silence_lets_it_count_anew() -> None:
    assert watched(100.0, 110.0, 110.5, 112.0) == 2


def test_before_any_answer_it_has_seen_nothing() -> None:
    assert watched() == 0
