"""Real beats, ended by SIGKILL at random instants amid a burst and started again, until all runs are out."""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bursts import AmqpQueue, Burst, Layout, Queue, RedisQueue, StoredBurst
from tests.faults.conftest import LAYOUTS, Report
from tests.faults.rounds import IS_LONG, ROUNDS, await_some_messages, play_round
from tests.faults.shards import LOCK_SECONDS, Crew, Scene, Taker, starter
from tests.support.apps import celery_beat
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

#: how many of the kills hit a beat that is just starting
STARTING = 0.2


@pytest.mark.slow
@pytest.mark.few_cases(2)
@pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
@pytest.mark.parametrize("round_number", ROUNDS)
@pytest.mark.parametrize("burst_class", [Burst, StoredBurst])
def test_beats_killed_at_random(
    layout: Layout,
    round_number: int,
    burst_class: type[Burst],
    chance: random.Random,
    tmp_path: Path,
    report: Report,
) -> None:
    kill = partial(kill_beats_until_out, layout, chance, tmp_path)
    report(play_round(layout, chance, tmp_path, kill, burst_class))


def kill_beats_until_out(layout: Layout, chance: random.Random, directory: Path, burst: Burst) -> int:
    """Kill about KILLS beats, the oldest first, each after some messages; return how many it were."""
    beats: deque[Process] = deque()
    kills = 0
    try:
        while not burst.is_out():
            while len(beats) < layout.beats:
                beats.append(celery_beat(directory, "module"))
            if chance.random() < STARTING:
                time.sleep(chance.uniform(0, 0.2))  # the instant of the fault, not a wait for something
            else:
                await_some_messages(burst, chance)
                if burst.is_out():
                    break
                time.sleep(chance.uniform(0, 0.02))
            beat = beats.popleft()
            assert beat.kill() == -signal.SIGKILL, beat.output()
            assert not has_traceback(beat.output()), beat.output()
            kills += 1
            layout.drop_lock()
        for beat in beats:
            assert beat.is_running, beat.output()
            assert not has_traceback(beat.output()), beat.output()
    finally:
        for beat in beats:
            beat.kill()
    return kills


SHARDS = 16
ENTRIES = 40
BEATS = 4
SECONDS = 240.0 if IS_LONG else 8.0


EXACTLY_ONCE = {"one db", "two dbs"}


@pytest.fixture(params=["one db", "two dbs", "two servers", "rabbitmq"])
def broker(request: pytest.FixtureRequest, valkey: Server) -> Queue:
    if request.param == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        return AmqpQueue(rabbitmq.url())
    server: Server = request.getfixturevalue("redis") if request.param == "two servers" else valkey
    return RedisQueue(server, 1 if request.param == "one db" else 0)


@pytest.mark.slow
@pytest.mark.few_cases(2)
def test_beats_killed_paused_and_started_at_random_while_shards_move(
    valkey: Server,
    broker: Queue,
    chance: random.Random,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Any,
) -> None:
    settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
    with valkey.client(db=1) as client:
        scene = Scene(client, settings, broker, layouts=[SHARDS])
        scene.save(ENTRIES, redbeat_shards=SHARDS)
        start = starter(tmp_path, scene, redbeat_batch_size=chance.choice([3, 100]))
        with Taker(broker) as taker, Crew(chance, start, BEATS) as crew:
            crew.start(2)
            eventually(lambda: crew.count_acquired() >= SHARDS)
            # from then on each that is acquired has been another beat's before: all of them, on average
            at_first = crew.count_acquired()
            crew.suffer(SECONDS, until=lambda: crew.count_acquired() >= at_first + SHARDS)
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            crew.end()
        verdict = scene.judge(taker, crew)
    where = request.node.callspec.params["broker"]
    verdict.note(f"beats that share shards: {where}", record_property, crew.faults)
    verdict.check(is_exactly_once=where in EXACTLY_ONCE)
