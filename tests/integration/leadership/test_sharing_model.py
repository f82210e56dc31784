"""Whatever happens to beats that share a schedule: soon all parts are led, and each beat has its share."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.conftest import SEED
from tests.faults.rounds import IS_LONG
from tests.integration.leadership.sharing_model import USUAL, modelled
from tests.support.clocks import ServerClock
from tests.support.servers import Server

#: after the last disturbance: the takeover time, a look that finds the silence, and one that was just over
LED_SECONDS = int(USUAL.takeover_seconds or 0) + 3
#: then those are forgotten who are no more, and what is another's is handed over, perhaps in turn
SETTLED_SECONDS = LED_SECONDS + 6

ROUNDS = 60 if IS_LONG else 6


@pytest.fixture
def server(clock: ServerClock) -> Iterator[Server]:
    with Server(clock=clock) as server:
        yield server


@pytest.mark.services  # a C compiler, for a server whose clock jumps
@pytest.mark.parametrize("shards", [4, 16])
def test_all_shards_are_led_soon_after_any_disturbance(
    server: Server, clock: ServerClock, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{SEED} sharing {shards}")
    print(f"REDBEAT_SEED={SEED}")
    led_after, settled_after, happened = [], [], set()
    with modelled(server, clock, shards, chance, monkeypatch) as model:
        model.arrive()
        for _ in range(ROUNDS):
            for _ in range(chance.randint(1, 4)):
                happened.add(model.disturb())
                for _ in range(chance.choice([0, 1, 3, 12])):
                    model.pass_second()
            while len(model.well) < len(model.beats) or not model.beats:
                if not model.beats:
                    model.arrive()
                model.pass_second()
            began_at = model.second
            while not model.are_all_led:
                assert model.second - began_at < LED_SECONDS, model.trace
                model.pass_second()
            led_after.append(model.second - began_at)
            while not model.is_settled:
                assert model.second - began_at < SETTLED_SECONDS, model.trace
                model.pass_second()
            settled_after.append(model.second - began_at)
            model.assert_shared()
            for _ in range(3):
                model.pass_second()
            assert model.is_settled, "and it stays so"
        print(
            f"{shards} parts, {model.second} s. At most so long after the last disturbance all were led, and"
        )
        print(f"each beat had its share: {max(led_after)} s, {max(settled_after)} s")
    assert {"arrives", "crashes"} <= happened or not IS_LONG
