"""Real beats, ended by SIGKILL at random instants amid a burst and started again, until all runs are out."""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from pathlib import Path

import pytest

from tests.faults.bursts import Burst, Tally
from tests.faults.conftest import IS_LONG, LAYOUTS, Report
from tests.faults.layouts import Layout
from tests.support.apps import celery_beat
from tests.support.processes import Process

ROUNDS = range(12 if IS_LONG else 1)
RUNS = 1500 if IS_LONG else 600
KILLS = 10 if IS_LONG else 4

#: how many of the kills hit a beat that is just starting
STARTING = 0.2


@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
@pytest.mark.parametrize("round_number", ROUNDS)
def test_beats_killed_at_random(
    layout: Layout, round_number: int, chance: random.Random, tmp_path: Path, report: Report
) -> None:
    layout.write_app(tmp_path, redbeat_batch_size=chance.randint(20, 50))
    total = Tally()
    while total.kills < KILLS:
        burst = Burst(layout, RUNS)
        burst.write()
        total += burst.tally(kill_until_out(layout, burst, chance, tmp_path))
    report(total)


def kill_until_out(layout: Layout, burst: Burst, chance: random.Random, directory: Path) -> int:
    """Kill about KILLS beats, the oldest first, each after some messages; return how many it were."""
    beats: deque[Process] = deque()
    kills = 0
    try:
        while not burst.is_out():
            while len(beats) < layout.beats:
                beats.append(celery_beat(directory, "module"))
            if chance.random() < STARTING:
                time.sleep(chance.uniform(0, 1))  # the instant of the fault, not a wait for something
            else:
                burst.await_messages(chance.randint(RUNS // KILLS // 2, RUNS // KILLS * 3 // 2))
                if burst.is_out():
                    break
                time.sleep(chance.uniform(0, 0.02))
            beat = beats.popleft()
            assert beat.kill() == -signal.SIGKILL, beat.output()
            assert "Traceback" not in beat.output(), beat.output()
            kills += 1
            layout.drop_lock()
        for beat in beats:
            assert beat.is_running, beat.output()
            assert "Traceback" not in beat.output(), beat.output()
    finally:
        for beat in beats:
            beat.kill()
    return kills
