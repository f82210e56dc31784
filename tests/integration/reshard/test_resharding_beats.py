"""Real beats go on while the schedule is divided anew: each run is sent once."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat.reshard.resharding import Resharding
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.resharded import part_of
from tests.support.servers import Server
from tests.support.steady import Steady

STEADY = Steady(200, 2.0)


def app_of(server: Server) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1))
    return app


@contextmanager
def beats(directory: Path, count: int) -> Iterator[list[Process]]:
    with ExitStack() as at_end:
        started = [celery_beat(directory, "module") for _ in range(count)]
        for beat in started:
            at_end.callback(beat.kill)
        yield started


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("count", [1, 2])
def test_beats_send_each_run_once_while_the_shards_change(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    tmp_path: Path,
    chance: random.Random,
    count: int,
) -> None:
    STEADY.write(client, time.time() + 1)
    Resharding(app_of(server), 3).run()
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_shards=3)
    with beats(tmp_path, count) as running:
        eventually(lambda: len(STEADY.dues(broker)) == STEADY.entries, 60, message="they don't begin")
        for shards in chance.sample([2, 5, 8, 16], 2):
            report = Resharding(app_of(server), shards).run()
            print(report)
            assert report.unled == []
        sent = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > sent + 2 * STEADY.entries, 60, message="they don't go on")
        for beat in running:
            assert beat.is_running
            assert not has_traceback(beat.output()), beat.output()
    assert STEADY.faults(STEADY.dues(broker)) == []


def test_beats_move_home_what_is_written_to_former_places(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    Resharding(app_of(server), 8).run()
    Resharding(app_of(server), 3).run()
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_shards=3)
    definition = {"task": "echo", "schedule": {"__type__": "interval", "every": 3600}}
    with beats(tmp_path, 1) as [beat]:
        former = [f"{{redbeat:{shard}}}:" for shard in range(8)]
        for prefix in former:  # in three of these it is where other numbers of shards would put it
            client.hset(f"{prefix}n{prefix[9]}", "definition", json.dumps(definition))
            client.zadd(f"{prefix}:schedule", {f"{prefix}n{prefix[9]}": 0})
        eventually(lambda: len(STEADY.dues(broker)) == len(former), 60, message="they aren't moved")
        for prefix in former:
            name = f"n{prefix[9]}"
            home = part_of(name.encode(), 3).decode()
            assert client.zscore(f"{home}:schedule", f"{home}{name}") is not None
        assert client.keys("{redbeat:[4-7]}:n*") == []
        assert not has_traceback(beat.output()), beat.output()
