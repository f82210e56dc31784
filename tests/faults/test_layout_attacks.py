"""Reshards in random sequences, each killed at random instants, also while it settles, under real beats."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.rounds import IS_LONG
from tests.faults.shards import LOCK_SECONDS, Crew, RedisBroker, Scene, Taker, starter
from tests.faults.summary import TALLY
from tests.support.apps import celery_command
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

SEQUENCES = int(os.environ.get("SEQUENCES", "30" if IS_LONG else "1"))
LAYOUT = "redbeat::layout"
MOVING = ["redbeat::moving", *(f"{{redbeat:{shard}}}::moving" for shard in range(64))]


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    with valkey.client(db=1) as connected:
        yield connected


@pytest.mark.parametrize("number", range(SEQUENCES))
def test_nothing_is_hidden_lost_or_doubled_however_often_reshards_are_killed(
    valkey: Server,
    client: redis.Redis,
    chance: random.Random,
    tmp_path: Path,
    number: int,
    record_property: Any,
) -> None:
    """Some changes find the layout lost, too; what a killed one has hidden comes back without another."""
    settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
    scene = Scene(client, settings, RedisBroker(valkey.url(0), valkey.client(db=0)), layouts=[None])
    scene.save(40)
    start, kills, restored, caught, longest_hidden = starter(tmp_path, scene), 0, 0, 0, 0.0
    with Taker(scene.broker) as taker, Crew(chance, start, 3) as crew:
        crew.start(2)
        scene.await_runs_of(taker, time.time())
        for shards in chance.sample([None, 1, 3, 4, 16, 64], 3):
            scene.layouts.append(shards)
            for _ in range(chance.randrange(1, 3)):
                mover = celery_command(tmp_path, "module", *command_to(shards), env=env_of(scene))
                state = chance.choice(["moving", "settling"])
                before = client.hget(LAYOUT, "generation")
                eventually(lambda: _has_come(client, state, before) or not mover.is_running, 60, 0.002)  # noqa: B023
                if chance.random() < 0.7:
                    eventually(lambda: client.exists(*MOVING) or not mover.is_running, 30, 0.0005)  # noqa: B023
                else:
                    time.sleep(chance.uniform(0, 0.3))  # the instant of the fault, not a wait for something
                kills += mover.kill() == -signal.SIGKILL
                caught += bool(client.exists(*MOVING))
                killed_at = time.monotonic()
                eventually(lambda: not hidden_in(client), 30, 0.1, "it stays hidden")
                longest_hidden = max(longest_hidden, time.monotonic() - killed_at)
                if chance.random() < 0.3 and client.hexists(LAYOUT, "state"):
                    client.delete(LAYOUT)
                    restored += 1
                crew.check()
            with celery_command(tmp_path, "module", *command_to(shards), env=env_of(scene)) as mover:
                mover.wait()
                assert mover.returncode == 0, mover.output()
            assert not has_traceback(mover.output()), mover.output()
        scene.await_runs_of(taker, time.time() + 1)
        crew.end()
    verdict = scene.judge(taker, crew)
    what = f"{kills} kills, {restored} layouts lost, {caught} times hidden, for {longest_hidden:.1f} s"
    print(f"{number}: {scene.layouts}, {what}; {verdict}")
    assert hidden_in(client) == []
    assert [*client.scan_iter("*:mover", count=10_000)] == []
    record_property(TALLY, ["reshards that are killed", verdict.counts(kills + restored)])
    verdict.check(is_exactly_once=False)
    assert verdict.doubled == []


def hidden_in(client: redis.Redis) -> list[str]:
    return [*client.scan_iter("*:moving*", count=10_000)]


def command_to(shards: int | None) -> tuple[str, ...]:
    return "redbeat", "reshard", "--to", str(shards or "none"), "--yes"


def env_of(scene: Scene) -> dict[str, str]:
    return {"SHARDS": str(scene.shards or 0)}


def _has_come(client: redis.Redis, state: str, before: str | None) -> bool:
    found = client.hmget(LAYOUT, "state", "generation")
    return found[0] == state and found[1] != before
