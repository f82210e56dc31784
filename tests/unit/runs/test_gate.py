"""What a worker says when Redis doesn't answer its gates."""

from __future__ import annotations

import pytest

from redbeat.runs.gate import SAY_AGAIN_SECONDS, SILENT_SECONDS, SILENT_TIMES, Silence


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def said(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("Runs are begun without asking")


def test_many_gates_without_an_answer_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    silence = Silence(Clock())
    for _ in range(SILENT_TIMES - 1):
        silence.note_silence()
    assert said(caplog) == 0
    for _ in range(10 * SILENT_TIMES):
        silence.note_silence()
    assert said(caplog) == 1
    assert f"{SILENT_TIMES} gates in a row had no answer within" in caplog.text


def test_that_redis_refuses_to_answer_is_told_of_as_that(caplog: pytest.LogCaptureFixture) -> None:
    silence = Silence(Clock())
    for _ in range(SILENT_TIMES):
        silence.note_silence("no permissions to run the 'hget' command")
    assert said(caplog) == 1
    assert "without asking: no permissions to run the 'hget' command. " in caplog.text
    assert "too slowly" not in caplog.text


def test_so_is_a_long_time_without_an_answer_and_again_an_hour_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    silence = Silence(clock)
    for _ in range(3):
        silence.note_silence()
    clock.now += SILENT_SECONDS
    silence.note_silence()
    silence.note_silence()
    assert said(caplog) == 1
    clock.now += SAY_AGAIN_SECONDS
    silence.note_silence()
    assert said(caplog) == 2


def test_an_answer_now_and_then_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    silence = Silence(clock)
    for _ in range(10):
        for _ in range(SILENT_TIMES - 1):
            silence.note_silence()
        silence.note_answer()
        clock.now += SILENT_SECONDS
    assert said(caplog) == 0
