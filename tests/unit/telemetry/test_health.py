"""Whether a beat is alive, and ready: the verdicts, and what counts as a pause."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.config.timing import Timing
from redbeat.leadership.pulse import Pulse, Role
from redbeat.telemetry.endpoint.condition import PAUSE_SECONDS, Condition
from redbeat.telemetry.endpoint.health import Signs, find_hang, find_obstacle

WELL = Signs(
    role=Role.LEADER,
    idle_seconds=1.0,
    stuck_after_seconds=58.0,
    unanswered_seconds=2.0,
    unready_after_seconds=8.0,
    occupation="a publish or a signal handler",
    is_broker_away=False,
    trouble="",
)


@pytest.mark.parametrize("role", Role)
def test_a_beat_that_works_is_alive_and_ready(role: Role) -> None:
    signs = replace(WELL, role=role)
    assert (find_hang(signs), find_obstacle(signs)) == ("", "")


@pytest.mark.parametrize("role", Role)
def test_a_beat_that_hangs_is_neither(role: Role) -> None:
    signs = replace(WELL, role=role, idle_seconds=58.0)
    sentence = "Beat has done nothing for 58 s: a publish or a signal handler hangs."
    assert (find_hang(signs), find_obstacle(signs)) == (sentence, sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"unanswered_seconds": 9.0},
            "The lock hasn't been confirmed for 9 s: Redis can't be reached, or refuses.",
        ),
        (
            {"role": Role.STANDBY, "unanswered_seconds": 9.0},
            "The lock couldn't be looked at for 9 s: Redis can't be reached, or refuses.",
        ),
        (
            {"role": Role.SHARING, "unanswered_seconds": 8.0},
            "Nothing could be read or written for 8 s: Redis can't be reached, or refuses.",
        ),
        (
            {"role": Role.STANDBY, "unanswered_seconds": None},
            "Beat has only just begun, and hasn't looked at the lock yet.",
        ),
        ({"is_broker_away": True}, "The broker is unreachable; due runs wait for it."),
        ({"role": Role.STANDBY, "is_broker_away": True}, ""),
        ({"trouble": "Redis is full."}, "Nothing can be sent: Redis is full."),
        (
            {"trouble": "Redis is full.", "troubled": "shards 3, 5 of 16"},
            "Nothing of shards 3, 5 of 16 can be sent, the rest goes on: Redis is full.",
        ),
        ({"is_stopping": True, "role": Role.STANDBY, "unanswered_seconds": None}, "Beat is stopping."),
    ],
)
def test_what_a_restart_would_not_help_makes_it_unready_only(changes: dict[str, Any], sentence: str) -> None:
    signs = replace(WELL, **changes)
    assert find_hang(signs) == ""
    assert find_obstacle(signs) == sentence


class Beat:
    """A beat's condition, and the clock that it goes by."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pulse = Pulse(Role.LEADER, progressed_at=1000.0, answered_at=1000.0)
        leadership: Any = SimpleNamespace(timing=Timing(60), pulse=lambda: self.pulse)
        broker: Any = SimpleNamespace(is_away=False)
        self.condition = Condition(leadership, broker, lambda: 58.0, clock=lambda: self.now)

    def pass_seconds(self, seconds: float, *, is_paused: bool = False) -> None:
        """Let time go by, with or without the looks of the thread that listens."""
        end = self.now + seconds
        while not is_paused and self.now < end - 1:
            self.now += 1
            self.condition.look()
        self.now = end


def test_a_beat_that_does_nothing_hangs_only_when_the_time_for_it_is_over() -> None:
    beat = Beat()
    beat.pass_seconds(57)
    assert find_hang(beat.condition.read()) == ""
    beat.pass_seconds(1)
    assert find_hang(beat.condition.read())
    beat.pulse = replace(beat.pulse, progressed_at=beat.now)
    assert find_hang(beat.condition.read()) == ""


def test_a_pause_of_the_process_is_no_hang_whoever_goes_on_first() -> None:
    beat = Beat()
    beat.pass_seconds(50)
    beat.pass_seconds(1000, is_paused=True)
    assert beat.condition.read().idle_seconds == 0
    beat.pass_seconds(57)
    assert find_hang(beat.condition.read()) == ""
    beat.pass_seconds(1)
    assert find_hang(beat.condition.read())


def test_a_look_that_is_a_little_late_is_no_pause() -> None:
    beat = Beat()
    for _ in range(60):
        beat.pass_seconds(PAUSE_SECONDS, is_paused=True)
        beat.condition.look()
    assert find_hang(beat.condition.read())


def test_a_beat_that_has_just_been_made_does_not_hang_though_its_leadership_is_old() -> None:
    beat = Beat()
    beat.pulse = replace(beat.pulse, progressed_at=0.0)
    assert find_hang(beat.condition.read()) == ""


def test_trouble_is_forgotten_when_no_tick_tells_of_it_again() -> None:
    beat = Beat()
    beat.condition.note_trouble("Redis is full.")
    beat.pass_seconds(2)
    assert beat.condition.read().trouble == "Redis is full."
    beat.pass_seconds(1)
    assert beat.condition.read().trouble == ""
