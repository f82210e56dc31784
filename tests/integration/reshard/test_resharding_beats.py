"""Real beats go on while the schedule is divided anew: each run is sent once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat.reshard.resharding import Resharding
from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.resharded import part_of
from tests.support.servers import Server

#: how many entries run, and how often, seconds
ENTRIES, EVERY = 200, 2.0


def app_of(server: Server) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1))
    return app


def write_entries(client: redis.Redis, beginning: float) -> None:
    """Entries that run every two seconds, spread over them, and make up for all that they miss."""
    for number in range(ENTRIES):
        key, due = f"redbeat:entry-{number}", beginning + EVERY * number / ENTRIES + 0.000123
        at = datetime.utcfromtimestamp(due - EVERY)
        fields = ("year", "month", "day", "hour", "minute", "second", "microsecond")
        last = {"__type__": "datetime", **{name: getattr(at, name) for name in fields}, "timezone": "UTC"}
        schedule = {"__type__": "interval", "every": EVERY}
        definition = {"name": f"entry-{number}", "task": "echo", "schedule": schedule}
        client.hset(key, "definition", json.dumps(definition))
        client.hset(key, "meta", json.dumps({"last_run_at": last, "total_run_count": 0}))
        client.hset(key, "policy", json.dumps({"misfire": "all"}))
        client.zadd("redbeat::schedule", {key: f"{due:.6f}"})


def dues_of(broker: redis.Redis) -> dict[str, list[float]]:
    """When the runs were due that were sent of each entry."""
    dues: dict[str, list[float]] = {}
    for message in broker.lrange("celery", 0, -1):
        headers = json.loads(message)["headers"]
        due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
        dues.setdefault(headers["redbeat_entry"], []).append(due)
    return dues


@contextmanager
def beats(directory: Path, count: int) -> Iterator[list[Process]]:
    with ExitStack() as at_end:
        started = [celery_beat(directory, "module") for _ in range(count)]
        for beat in started:
            at_end.callback(beat.kill)
        yield started


@ONE_SERVER
@pytest.mark.parametrize("count", [1, 2])
def test_beats_send_each_run_once_while_the_shards_change(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    tmp_path: Path,
    chance: random.Random,
    count: int,
) -> None:
    write_entries(client, time.time() + 1)
    Resharding(app_of(server), 3).run()
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_shards=3)
    with beats(tmp_path, count) as running:
        eventually(lambda: len(dues_of(broker)) == ENTRIES, 60, message="they don't begin")
        for shards in chance.sample([2, 5, 8, 16], 2):
            report = Resharding(app_of(server), shards).run()
            print(report)
            assert report.unled == []
        sent = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > sent + 2 * ENTRIES, 60, message="they don't go on")
        for beat in running:
            assert beat.is_running
            assert not has_traceback(beat.output()), beat.output()
    for name, dues in dues_of(broker).items():
        assert max(Counter(dues).values()) == 1, name
        steps = {round((later - earlier) / EVERY, 4) for earlier, later in pairwise(sorted(dues))}
        assert steps == {1.0}, name


@ONE_SERVER
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
        eventually(lambda: len(dues_of(broker)) == len(former), 60, message=lambda: beat.output()[-3000:])
        for prefix in former:
            name = f"n{prefix[9]}"
            home = part_of(name.encode(), 3).decode()
            assert client.zscore(f"{home}:schedule", f"{home}{name}") is not None
        assert client.keys("{redbeat:[4-7]}:n*") == []
        assert not has_traceback(beat.output()), beat.output()
