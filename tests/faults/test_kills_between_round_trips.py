"""Schedulers ended by SIGKILL at their first step, at their second, and so on until one survives a burst.

Each time another scheduler finishes what is left. The short form tries all round trips; of other steps it
leaves some out, other ones each time.
"""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from redbeat import schedulers
from tests.faults.bursts import Burst, Layout, StoredBurst, Tally
from tests.faults.children import (
    Fuse,
    between_confirms,
    between_messages,
    between_round_trips,
    on_the_wire,
    run_child,
    run_scheduler,
)
from tests.faults.conftest import LAYOUTS, Report
from tests.faults.rounds import IS_LONG

BATCH = 5
#: the short form has no batch between the first and the last
BATCHES = 3 if IS_LONG else 2

#: short enough to wait for; it needn't be longer than a pause, as one scheduler works at a time
LEASE_SECONDS = 0.1

#: the layouts whose code differs: one step, leases instead of a lock, and a broker on another server
SHORT = ["one db", "no lock", "two servers"]
SLOW_TWO_SERVERS = pytest.param("two servers", marks=pytest.mark.slow)

Wiring = Callable[[Fuse, pytest.MonkeyPatch], None]


def steps_of(chance: random.Random, stride: int) -> itertools.count[int]:
    """Every step, in the long form; else every so many, from a random one on."""
    stride = 1 if IS_LONG else stride
    return itertools.count(chance.randint(1, stride), stride)


@pytest.mark.parametrize("layout", SHORT if not IS_LONG else LAYOUTS, indirect=True)
def test_a_scheduler_killed_at_every_round_trip(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    report(kill_at_every_step(layout, between_round_trips, itertools.count(1), monkeypatch))


#: in "two dbs" one step decides and sends, the other layouts reserve a run before they send it
@pytest.mark.parametrize("layout", LAYOUTS if IS_LONG else ["two dbs", SLOW_TWO_SERVERS], indirect=True)
def test_a_scheduler_of_runs_that_must_not_overlap_killed_at_every_round_trip(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    report(kill_at_every_step(layout, between_round_trips, steps_of(chance, 3), monkeypatch, overlap="skip"))


@pytest.mark.parametrize("layout", ["rabbitmq"], indirect=True)
def test_a_scheduler_killed_at_every_message(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    report(kill_at_every_step(layout, between_messages, steps_of(chance, 9), monkeypatch))


@pytest.mark.parametrize("layout", ["rabbitmq"], indirect=True)
def test_a_scheduler_killed_with_confirms_in_flight(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    report(kill_at_every_step(layout, between_confirms, steps_of(chance, 9), monkeypatch))


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
def test_a_scheduler_killed_on_the_wire(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    report(kill_at_every_step(layout, on_the_wire, steps_of(chance, 17), monkeypatch))


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
def test_a_scheduler_of_stored_messages_killed_at_every_round_trip(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    burst = StoredBurst(layout, BATCH * BATCHES)
    report(kill_burst_at_every_step(layout, burst, between_round_trips, steps_of(chance, 2), monkeypatch))


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
def test_a_scheduler_of_stored_messages_killed_on_the_wire(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    burst = StoredBurst(layout, BATCH * BATCHES)
    report(kill_burst_at_every_step(layout, burst, on_the_wire, steps_of(chance, 17), monkeypatch))


@pytest.mark.parametrize("layout", ["rabbitmq"], indirect=True)
def test_a_scheduler_of_stored_messages_killed_with_confirms_in_flight(
    layout: Layout, chance: random.Random, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    burst = StoredBurst(layout, BATCH * BATCHES)
    report(kill_burst_at_every_step(layout, burst, between_confirms, steps_of(chance, 9), monkeypatch))


def kill_at_every_step(
    layout: Layout, wire: Wiring, steps: itertools.count[int], patch: pytest.MonkeyPatch, **policy: Any
) -> Tally:
    """Kill a scheduler at each of the steps, until one has fewer; return what became of the bursts.

    Their entries have `policy`.
    """
    burst = Burst(layout, BATCH * BATCHES, **policy)

    def check() -> None:
        assert not policy or burst.untracked() == []

    return kill_burst_at_every_step(layout, burst, wire, steps, patch, check)


def kill_burst_at_every_step(
    layout: Layout,
    burst: Burst,
    wire: Wiring,
    steps: itertools.count[int],
    patch: pytest.MonkeyPatch,
    check: Callable[[], None] = lambda: None,
) -> Tally:
    """The same of any burst; `check` is called after each."""
    settings = {"redbeat_batch_size": BATCH}
    patch.setattr(schedulers, "LEASE_SECONDS", LEASE_SECONDS)
    burst.write()
    run_scheduler(layout, burst, Fuse(0), **settings)  # what it imports the children need not
    total = Tally()
    for step in steps:
        burst.write()
        with patch.context() as patched:
            fuse = Fuse(step)
            wire(fuse, patched)
            code = run_child(partial(run_scheduler, layout, burst, fuse, **settings))
        is_killed = code == -signal.SIGKILL
        assert is_killed or code == 0, f"its end at step {step} was {code}"
        if is_killed:
            layout.drop_lock()
            assert run_child(partial(run_scheduler, layout, burst, Fuse(0), **settings)) == 0
        tally = burst.tally(kills=int(is_killed))
        total += tally
        check()
        if not tally.is_good(layout):
            print(f"what was promised was broken by a kill at step {step}")
            return total
        if not is_killed:
            break
    assert total.kills > BATCHES, "the fuse isn't touched"
    return total
