"""Real beats, ended by SIGKILL at random instants amid a burst and started again, until all runs are out."""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from functools import partial
from pathlib import Path

import pytest

from tests.faults.bursts import Burst
from tests.faults.conftest import LAYOUTS, Report
from tests.faults.layouts import Layout
from tests.faults.rounds import ROUNDS, await_some_messages, play_round
from tests.faults.stored import AnyBurst, StoredBurst
from tests.support.apps import celery_beat
from tests.support.logs import has_traceback
from tests.support.processes import Process

#: how many of the kills hit a beat that is just starting
STARTING = 0.2


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
@pytest.mark.parametrize("round_number", ROUNDS)
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_beats_killed_at_random(
    layout: Layout,
    round_number: int,
    burst_class: type[AnyBurst],
    chance: random.Random,
    tmp_path: Path,
    report: Report,
) -> None:
    kill = partial(kill_beats_until_out, layout, chance, tmp_path)
    report(play_round(layout, chance, tmp_path, kill, burst_class))


def kill_beats_until_out(layout: Layout, chance: random.Random, directory: Path, burst: AnyBurst) -> int:
    """Kill about KILLS beats, the oldest first, each after some messages; return how many it were."""
    beats: deque[Process] = deque()
    kills = 0
    try:
        while not burst.is_out():
            while len(beats) < layout.beats:
                beats.append(celery_beat(directory, "module"))
            if chance.random() < STARTING:
                time.sleep(chance.uniform(0, 0.2))  # the instant of the fault, not a wait for something
            else:
                await_some_messages(burst, chance)
                if burst.is_out():
                    break
                time.sleep(chance.uniform(0, 0.02))
            beat = beats.popleft()
            assert beat.kill() == -signal.SIGKILL, beat.output()
            assert not has_traceback(beat.output()), beat.output()
            kills += 1
            layout.drop_lock()
        for beat in beats:
            assert beat.is_running, beat.output()
            assert not has_traceback(beat.output()), beat.output()
    finally:
        for beat in beats:
            beat.kill()
    return kills
