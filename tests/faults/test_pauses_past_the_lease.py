"""Beats that share the work, one of them paused for longer than its claims are hidden from the others.

They send what it has claimed; when it goes on, amid its batch, it must find that out.
"""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from redbeat import schedulers
from tests.faults.bursts import Burst, Layout, StoredBurst, Tally
from tests.faults.children import Fuse, between_round_trips, on_the_wire, run_child, run_scheduler
from tests.faults.conftest import Report
from tests.faults.rounds import IS_LONG

pytestmark = pytest.mark.parametrize("layout", ["no lock"], indirect=True)


SHORT_LEASE_SECONDS = 0.1


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("wire", [between_round_trips, on_the_wire])
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_scheduler_paused_at_every_step_while_another_sends_what_it_claimed(
    layout: Layout,
    wire: object,
    burst_class: type[Burst],
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
