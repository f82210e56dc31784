"""Real beats that share 16 shards: killed, paused past their locks, stopped and started at random instants.

Each that comes or goes makes shards move.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rounds import IS_LONG
from tests.faults.shards import LOCK_SECONDS, AmqpBroker, Broker, Crew, RedisBroker, Scene, Taker, starter
from tests.faults.summary import TALLY
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

SHARDS = 16
ENTRIES = 40
BEATS = 4
SECONDS = 240.0 if IS_LONG else 8.0


EXACTLY_ONCE = {"one db", "two dbs"}


@pytest.fixture(params=["one db", "two dbs", "two servers", "rabbitmq"])
def broker(request: pytest.FixtureRequest, valkey: Server) -> Iterator[Broker]:
    if request.param == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        yield AmqpBroker(rabbitmq.url())
        return
    server: Server = request.getfixturevalue("redis") if request.param == "two servers" else valkey
    db = 1 if request.param == "one db" else 0
    with server.client(db=db) as client:
        yield RedisBroker(server.url(db), client)


@pytest.mark.few_cases(2)
def test_beats_killed_paused_and_started_at_random_while_shards_move(
    valkey: Server,
    broker: Broker,
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
    print(f"{dict(crew.faults)}, {crew.count_acquired()} locks acquired; {verdict}")
    where = request.node.callspec.params["broker"]
    title = f"beats that share shards: {where}"
    record_property(TALLY, [title, verdict.counts(crew.faults.total())])
    verdict.check(is_exactly_once=where in EXACTLY_ONCE)
