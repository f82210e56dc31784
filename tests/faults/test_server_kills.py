"""The Redis server ended by SIGKILL amid a burst, and started again on what it had written to its disk.

At random instants, where beat lives through it or is killed at the same time; and right before each reply,
which to beat looks as if its command had never arrived. With REDBEAT_FAULTS=long before each command, too.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.faults.bursts import Burst, Layout, RedisQueue, StoredBurst
from tests.faults.children import Fuse, at_replies, hit_every_step, is_hit, on_the_wire
from tests.faults.conftest import Report
from tests.faults.rounds import IS_LONG, ROUNDS, await_some_messages, play_round
from tests.support.apps import celery_beat
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

#: how many of the kills end beat, too
WITH_BEAT = 0.3


@pytest.fixture(scope="module")
def durable_server() -> Iterator[Server]:
    """A server that answers only when what it has done is on its disk."""
    with Server(appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture
def layout(durable_server: Server) -> Layout:
    settings = {"redbeat_redis_options": {"retry_period": -1}}
    queue = RedisQueue(durable_server, 0)
    return Layout("two dbs on disk", durable_server, 1, queue, is_exactly_once=True, settings=settings)


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("round_number", ROUNDS)
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_server_killed_at_random(
    layout: Layout,
    round_number: int,
    burst_class: type[Burst],
    chance: random.Random,
    tmp_path: Path,
    report: Report,
) -> None:
    kill = partial(kill_it_until_out, layout, chance, tmp_path)
    report(play_round(layout, chance, tmp_path, kill, burst_class))


def kill_it_until_out(layout: Layout, chance: random.Random, directory: Path, burst: Burst) -> int:
    """Kill the server, and now and then beat, about KILLS times; return how often."""
    kills = 0
    with ExitStack() as stack:
        beat = stack.enter_context(celery_beat(directory, "module"))
        while True:
            await_some_messages(burst, chance)
            if burst.is_out():
                break
            time.sleep(chance.uniform(0, 0.02))  # the instant of the fault, not a wait for something
            layout.server.kill()
            kills += 1
            is_with_beat = chance.random() < WITH_BEAT
            if is_with_beat:
                assert beat.kill() == -signal.SIGKILL, beat.output()
                kills += 1
            layout.server.restart()
            if is_with_beat:
                layout.drop_lock()
                beat = stack.enter_context(celery_beat(directory, "module"))
        assert beat.is_running, beat.output()
        assert not has_traceback(beat.output()), beat.output()
    return kills


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("is_killed", [True, False], ids=["server killed", "only the connection"])
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_a_server_killed_before_its_replies(
    layout: Layout,
    is_killed: bool,
    burst_class: type[Burst],
    chance: random.Random,
    report: Report,
) -> None:
    burst, server = burst_class(layout, 15), layout.server

    def break_off() -> None:
        if is_killed:
            os.kill(server.process.pid, signal.SIGKILL)
        raise redis.ConnectionError("broken off by the test")

    def bring_back() -> None:
        if not server.is_running:
            server.restart()

    def is_back() -> bool:
        bring_back()  # the server may have been killed a moment ago
        return bool(layout.client.ping())

    def is_broken_off(step: int) -> bool:
        wire = on_the_wire if IS_LONG else at_replies
        was_hit = is_hit(layout, burst, Fuse(step, break_off), wire, bring_back, redbeat_batch_size=5)
        eventually(is_back, retry_on=(redis.ConnectionError,))
        layout.drop_lock()
        return was_hit

    stride = 1 if IS_LONG else 9 if is_killed else 4
    steps = itertools.count(chance.randint(1, stride), stride)
    report(hit_every_step(layout, burst, steps, is_broken_off))
