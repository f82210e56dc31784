"""Beats that share the work, one of them paused for longer than its claims are hidden from the others.

They send what it has claimed; when it goes on, amid its batch, it must find that out.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from redbeat import schedulers
from tests.faults.bursts import LEASE_SECONDS, AnyBurst, Burst, Layout, StoredBurst, Tally
from tests.faults.children import Fuse, between_round_trips, on_the_wire, run_child, run_scheduler
from tests.faults.conftest import Report
from tests.faults.rounds import IS_LONG, RUNS
from tests.support.apps import celery_beat
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import STATICS, server_now

pytestmark = pytest.mark.parametrize("layout", ["no lock"], indirect=True)

BEATS = 3
#: so many pauses must have hit a beat that had claimed something,
PAUSES = 40
#: and a burst has so many faults
FAULTS = 2

SHORT_LEASE_SECONDS = 0.1

#: appended to the app: a file of each beat's own grows by a byte when a batch begins, and when it ends
NOTE_BATCHES = """
import os
from redbeat.beat.dispatcher import Dispatcher

def note():
    with open(f"batches-{os.getpid()}", "a") as file:
        file.write(".")

def dispatch(*arguments, original=Dispatcher.dispatch):
    note()
    try:
        original(*arguments)
    finally:
        note()

Dispatcher.dispatch = dispatch
"""


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("wire", [between_round_trips, on_the_wire])
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_scheduler_paused_at_every_step_while_another_sends_what_it_claimed(
    layout: Layout,
    wire: object,
    burst_class: type[AnyBurst],
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    report: Report,
) -> None:
    monkeypatch.setattr(schedulers, "LEASE_SECONDS", SHORT_LEASE_SECONDS)
    burst = burst_class(layout, 15)
    burst.write()
    send = partial(run_scheduler, layout, burst, redbeat_batch_size=5)
    send(Fuse(0))  # what it imports the children need not
    stride = 1 if IS_LONG else 2 if wire is between_round_trips else 9
    total = Tally()
    for step in itertools.count(chance.randint(1, stride), stride):
        burst.write()
        is_paused = pause_once(send, wire, step, monkeypatch)
        tally = burst.tally(kills=int(is_paused))
        total += tally
        if not is_paused or not tally.is_good(layout):
            print(f"the last step was {step}")
            break
    assert total.kills > 5, "the fuse isn't touched"
    report(total)


def pause_once(send: partial[None], wire: object, step: int, patch: pytest.MonkeyPatch) -> bool:
    """Let a scheduler send the burst, and another one all that is left amid that step; return if it was."""
    blown = 3

    def let_another_send() -> None:
        assert run_child(lambda: send(Fuse(0))) == 0

    fuse = Fuse(step, let_another_send)

    def work() -> int:
        send(fuse)
        return blown if fuse.is_blown else 0

    with patch.context() as patched:
        assert callable(wire)
        wire(fuse, patched)
        code = run_child(work)
    assert code in (0, blown), f"its end at step {step} was {code}"
    return code == blown


@pytest.mark.long_form
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_beats_paused_past_the_lease_killed_and_restarted_lose_and_double_no_run(
    layout: Layout, burst_class: type[AnyBurst], chance: random.Random, tmp_path: Path, report: Report
) -> None:
    layout.write_app(tmp_path, extra=NOTE_BATCHES, redbeat_batch_size=chance.randint(20, 50))
    layout.clear()
    total, pauses = Tally(), 0
    with Crew(layout, tmp_path, chance) as crew:
        for _ in range(4 * PAUSES):
            crew.complete()
            burst = burst_class(layout, RUNS)
            burst.write_anew()
            crew.suffer(burst)
            total += burst.tally(crew.faults)
            pauses, crew.faults = pauses + crew.take_pauses(), 0
            if pauses >= PAUSES:
                break
    print(f"{pauses} pauses hit beats that had claimed something")
    assert pauses >= PAUSES
    report(total)


class Crew:
    """Beats that share one schedule, and what befalls them.

    Attributes:
        faults: how many so far.
    """

    def __init__(self, layout: Layout, directory: Path, chance: random.Random) -> None:
        self._layout, self._directory, self._chance = layout, directory, chance
        self._beats: list[Process] = []
        self._pauses = 0
        self.faults = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for beat in self._beats:
            beat.kill()

    def complete(self) -> None:
        """Start as many as are missing, and let them begin to tick."""
        new = [celery_beat(self._directory, "module") for _ in range(BEATS - len(self._beats))]
        self._beats += new
        for beat in new:
            eventually(partial(self._has_more_notes, beat, 1))
        eventually(lambda: self._layout.client.exists(STATICS))

    def suffer(self, burst: AnyBurst) -> None:
        """Amid the burst pause one beat, and then end another or pause it, too; the third does the work."""
        paused, other = self._chance.sample(self._beats, 2)
        self._await_instant(burst)
        pauses = [self._pause(paused)]
        fault = self._chance.choice(["kill", "restart", "pause"])
        self._await_instant(burst)
        if fault == "pause":
            pauses.append(self._pause(other))
        elif fault == "kill":
            assert other.kill() == -signal.SIGKILL, other.output()
        else:
            other.signal(signal.SIGTERM)
            assert other.wait() == 0, other.output()
        if fault != "pause":
            self._beats.remove(other)
        self.faults += FAULTS
        self._resume(pauses, burst)
        eventually(burst.is_out)
        for beat in (paused, other):
            assert beat in self._beats or not beat.is_running
            assert not has_traceback(beat.output()), beat.output()
        for beat in self._beats:
            assert beat.is_running, beat.output()

    def take_pauses(self) -> int:
        """Return how many pauses hit a beat with claims of its own since the last call."""
        pauses, self._pauses = self._pauses, 0
        return pauses

    def _await_instant(self, burst: AnyBurst) -> None:
        burst.await_messages(self._chance.randint(1, RUNS // 3))
        time.sleep(self._chance.uniform(0, 0.02))  # the instant of the fault, not a wait for something

    def _pause(self, beat: Process) -> tuple[Process, float, int]:
        """Stop it; return it, the server's time, and how many batches it had begun and ended."""
        beat.signal(signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{beat.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        return beat, server_now(self._layout.client), self._count_notes(beat)

    def _resume(self, pauses: list[tuple[Process, float, int]], burst: AnyBurst) -> None:
        """Let them go on after their leases: at once then, or when the others have sent everything."""
        client = self._layout.client
        _, since, _ = pauses[0]
        eventually(lambda: server_now(client) > since + LEASE_SECONDS * 3 / 4, interval=0.001)
        # by now the others have recorded what they had claimed
        is_something_hidden = burst.has_hidden(since)
        self._chance.shuffle(pauses)
        for beat, since, notes in pauses:
            if self._chance.random() < 0.5:
                eventually(burst.is_out)
            else:
                eventually(partial(self._is_past, since + LEASE_SECONDS), interval=0.001)
                time.sleep(self._chance.uniform(0, 0.02))  # the instant, again
            beat.signal(signal.SIGCONT)
            if notes % 2:  # it was amid a batch
                eventually(partial(self._has_more_notes, beat, notes))
                self._pauses += is_something_hidden

    def _is_past(self, at: float) -> bool:
        return server_now(self._layout.client) > at

    def _has_more_notes(self, beat: Process, notes: int) -> bool:
        return self._count_notes(beat) > notes

    def _count_notes(self, beat: Process) -> int:
        path = self._directory / f"batches-{beat.pid}"
        return path.stat().st_size if path.exists() else 0
