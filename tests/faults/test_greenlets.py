"""Beats whose threads are gevent's or eventlet's, ended at random moments of bursts and of prepared spikes.

By SIGTERM and by SIGKILL in turn, and started again, until all runs are out.
"""

from __future__ import annotations

import importlib.util
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.bursts import Burst, Tally
from tests.faults.conftest import Report
from tests.faults.layouts import Layout
from tests.faults.rounds import ROUNDS
from tests.support.apps import GREENLETS, patched_beat
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.processes import Process
from tests.support.schedule import LOCK, server_now
from tests.support.spikes import LOOKAHEAD

BURST = 5_000
SPIKE = 1_500
#: how many beats end amid a burst
ENDS = 4


@pytest.mark.long_form
@pytest.mark.parametrize("library", GREENLETS)
@pytest.mark.parametrize("layout", ["one db"], indirect=True)
@pytest.mark.parametrize("round_number", ROUNDS)
def test_patched_beats_ended_at_random(
    layout: Layout, round_number: int, library: str, chance: random.Random, tmp_path: Path, report: Report
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    layout.write_app(tmp_path, redbeat_lookahead=LOOKAHEAD)
    burst = Burst(layout, BURST)
    burst.write()
    total = end_beats_until_out(layout, burst, ENDS, library, chance, tmp_path)
    with patched_beat(tmp_path, "module", library) as beat:
        beat.wait_for("beat: Acquired lock")
        spike = Burst(layout, SPIKE, due=round(server_now(layout.client) + patience(4), 6))
        spike.write_anew()
        # at any moment of the seconds before, or amid it
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, patience(4)))  # the instant of the fault, not a wait for something
        else:
            spike.await_messages(chance.randint(1, SPIKE))
        end(beat, layout, is_killed=chance.random() < 0.5)
    total += end_beats_until_out(layout, spike, ENDS - 1, library, chance, tmp_path)
    report(total)


def end_beats_until_out(
    layout: Layout, burst: Burst, count: int, library: str, chance: random.Random, directory: Path
) -> Tally:
    is_killed, ends = chance.random() < 0.5, 0
    while True:
        with patched_beat(directory, "module", library) as beat:
            beat.wait_for("beat: Acquired lock")  # by then it handles signals
            if ends >= count:
                burst.await_messages(BURST)  # until it is out
            else:
                burst.await_messages(chance.randint(1, BURST // count // 2))
            is_out = burst.is_out()
            if not is_out:
                time.sleep(chance.uniform(0, 0.02))  # the instant of the fault
            end(beat, layout, is_killed=is_killed and not is_out)
        if is_out:
            return burst.tally(kills=ends)
        ends, is_killed = ends + 1, not is_killed


def end(beat: Process, layout: Layout, *, is_killed: bool) -> None:
    """End it; after SIGTERM nothing is left behind."""
    assert beat.is_running, beat.output()
    if is_killed:
        assert beat.kill() == -signal.SIGKILL
        layout.drop_lock()
    else:
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert not layout.client.exists(LOCK)
    assert "Messages: one by one" not in beat.output(), beat.output()
    # Python goes on after a SystemExit in a weak reference's callback, and shows where that was
    ignored = beat.output().count("Exception ignored in")
    assert ignored or not has_traceback(beat.output()), beat.output()
    assert beat.output().count("Traceback") == ignored, beat.output()
