"""Lengths of time in words: the same everywhere."""

from __future__ import annotations

import pytest

from redbeat.schedules.durations import seconds_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.0004, "0 ms"), (0.4, "400 ms"), (89, "89 s"), (119, "2 min"), (7200, "2 h"),
        (86_400, "24 h"), (172_800, "2 d"), (800 * 86_400, "2 y"),
    ],
)  # fmt: skip
def test_an_age_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words
