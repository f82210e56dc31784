"""Lengths of time in words: the same everywhere."""

from __future__ import annotations

import pytest

from redbeat.schedules.durations import lasting_in_words, length_in_words, read_seconds, seconds_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0004, "0 ms"), (0.4, "400 ms"), (89, "89 s"), (119, "2 min"), (7200, "2 h"),
        (86_400, "24 h"), (172_800, "2 d"), (800 * 86_400, "2 y"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.25, "0.25 s"), (59, "59 s"), (60, "1 min"), (90, "1 min 30 s"), (3600, "1 h"),
        (5400, "1 h 30 min"), (90_061.5, "1 d 1 h 1 min 1.5 s"), (800 * 86_400, "800 d"),
    ],
)  # fmt: skip
def test_a_length_that_was_set_is_told_without_rounding(seconds: float, words: str) -> None:
    assert length_in_words(seconds) == words
    assert read_seconds(words) == seconds


def test_what_took_less_than_is_recorded_did_not_take_no_time() -> None:
    assert [lasting_in_words(seconds) for seconds in (0, 0.0004, 0.001, 90)] == [
        "< 1 ms", "< 1 ms", "1 ms", "2 min",
    ]  # fmt: skip
