"""The Redis server ended by SIGKILL amid a burst, and started again on what it had written to its disk.

Beat lives through it, or is killed at the same time.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.bursts import Burst
from tests.faults.conftest import IS_LONG, Report
from tests.faults.layouts import Layout, RedisQueue
from tests.support.apps import celery_beat
from tests.support.servers import Server

ROUNDS = range(12 if IS_LONG else 1)
RUNS = 1500
KILLS = 10 if IS_LONG else 5

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


@pytest.mark.parametrize("round_number", ROUNDS)
def test_a_server_killed_at_random(
    layout: Layout, round_number: int, chance: random.Random, tmp_path: Path, report: Report
) -> None:
    layout.write_app(tmp_path, redbeat_batch_size=chance.randint(20, 50))
    burst = Burst(layout, RUNS)
    burst.write()
    kills = 0
    with ExitStack() as stack:
        beat = stack.enter_context(celery_beat(tmp_path, "module"))
        while True:
            burst.await_messages(chance.randint(1, 2 * RUNS // KILLS))
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
                beat = stack.enter_context(celery_beat(tmp_path, "module"))
        assert beat.is_running, beat.output()
        assert "Traceback" not in beat.output(), beat.output()
    assert kills >= KILLS // 4, "too few kills to tell anything"
    report(burst.tally(kills))
