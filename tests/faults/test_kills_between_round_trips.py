"""Schedulers killed or paused at their first step, at their second, and so on until one survives a burst.

Each time another scheduler sends what is left. The short form tries all round trips; of other steps it
leaves some out, other ones each time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from redbeat.scheduler.shard import Shard
from tests.faults.bursts import Burst, Layout, StoredBurst
from tests.faults.children import (
    Fuse,
    Wiring,
    between_confirms,
    between_messages,
    between_round_trips,
    hit_every_step,
    is_hit,
    on_the_wire,
    run_child,
    run_scheduler,
)
from tests.faults.conftest import LAYOUTS, Report
from tests.faults.rounds import IS_LONG

BATCH = 5
#: the short form has no batch between the first and the last
BATCHES = 3 if IS_LONG else 2

#: the layouts whose code differs: one step, leases instead of a lock, and a broker on another server
SHORT = ["one db", "no lock", "two servers"]
SLOW_TWO_SERVERS = pytest.param("two servers", marks=pytest.mark.slow)

#: adds a tally of bursts whose scheduler was killed at each of some steps
Kill = Callable[..., None]


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "LEASE_MS", 100)  # no longer than a pause takes


def steps_of(chance: random.Random, stride: int) -> itertools.count[int]:
    """Every step, in the long form; else every so many, from a random one on."""
    stride = 1 if IS_LONG else stride
    return itertools.count(chance.randint(1, stride), stride)


@pytest.fixture
def kill(layout: Layout, chance: random.Random, report: Report) -> Kill:
    """Kill a scheduler at every `stride`-th step, until one has fewer; report what became of the bursts."""

    def kill_at_steps(wire: Wiring, stride: int = 1, burst_class: type[Burst] = Burst, **policy: Any) -> None:
        burst = burst_class(layout, BATCH * BATCHES, **policy)
        settings = {"redbeat_batch_size": BATCH}

        def is_killed(step: int) -> bool:
            if not is_hit(layout, burst, Fuse(step), wire, **settings):
                return False
            layout.drop_lock()
            assert run_child(partial(run_scheduler, layout, burst, Fuse(0), **settings)) == 0
            return True

        def check() -> None:
            assert not policy or burst.untracked() == []

        total = hit_every_step(layout, burst, steps_of(chance, stride), is_killed, check, **settings)
        report(total)
        assert total.kills > BATCHES, "the fuse isn't touched"

    return kill_at_steps


@pytest.mark.parametrize("layout", SHORT if not IS_LONG else LAYOUTS, indirect=True)
def test_a_scheduler_killed_at_every_round_trip(kill: Kill) -> None:
    kill(between_round_trips)


#: in "two dbs" one step decides and sends, the other layouts reserve a run before they send it
@pytest.mark.parametrize("layout", LAYOUTS if IS_LONG else ["two dbs", SLOW_TWO_SERVERS], indirect=True)
def test_a_scheduler_of_runs_that_must_not_overlap_killed_at_every_round_trip(kill: Kill) -> None:
    kill(between_round_trips, 3, overlap="skip")


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
def test_a_scheduler_of_stored_messages_killed_at_every_round_trip(kill: Kill) -> None:
    kill(between_round_trips, 2, StoredBurst)


@pytest.mark.slow
@pytest.mark.few_cases(2)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_scheduler_killed_on_the_wire(kill: Kill, burst_class: type[Burst]) -> None:
    kill(on_the_wire, 17, burst_class)


@pytest.mark.parametrize("layout", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize(
    ("wire", "burst_class"),
    [(between_messages, Burst), (between_confirms, Burst), (between_confirms, StoredBurst)],
)
def test_a_scheduler_killed_at_every_message_and_with_confirms_in_flight(
    kill: Kill, wire: Wiring, burst_class: type[Burst]
) -> None:
    kill(wire, 9, burst_class)


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("layout", ["no lock"], indirect=True)
@pytest.mark.parametrize(("wire", "stride"), [(between_round_trips, 2), (on_the_wire, 9)])
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_scheduler_paused_past_its_lease_at_every_step_while_another_sends_what_it_fetched(
    layout: Layout,
    wire: Wiring,
    stride: int,
    burst_class: type[Burst],
    chance: random.Random,
    report: Report,
) -> None:
    burst = burst_class(layout, 15)

    def let_another_send() -> None:
        assert run_child(partial(run_scheduler, layout, burst, Fuse(0), redbeat_batch_size=5)) == 0

    def is_paused(step: int) -> bool:
        return is_hit(layout, burst, Fuse(step, let_another_send), wire, redbeat_batch_size=5)

    total = hit_every_step(layout, burst, steps_of(chance, stride), is_paused)
    assert total.kills > 5, "the fuse isn't touched"
    report(total)
