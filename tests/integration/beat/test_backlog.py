"""Many runs due at once, and large ones: they drain in order, by a beat that keeps its lock and stays small.

REDBEAT_FAULTS=long makes it 100,000 of them.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, run_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, SELDOM, sent_names, write_burst, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app, names_of, take_messages

IS_LONG = os.environ.get("REDBEAT_FAULTS") == "long"
RUNS = 100_000 if IS_LONG else 20_000
#: what two beats, stopped at once, don't get through
STOPPED_RUNS = RUNS if IS_LONG else 10_000
FEW_RUNS = 2_000
LOCK_SECONDS = 5
PATIENCE_SECONDS = 20 + RUNS / 500


def names_of_entries(runs: int) -> list[str]:
    return [f"entry-{number}" for number in range(runs)]


def backlog_count(client: redis.Redis) -> int:
    """How many of the runs due since long ago are left, whatever else has become due."""
    return int(client.zcount(SCHEDULE, 0, 1e9))


def peak_mb(beat: Process) -> float:
    """The most memory that the process has had so far."""
    status = Path(f"/proc/{beat.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def test_a_backlog_drains_in_order_within_bounded_memory_and_under_one_lock(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_lock_timeout": LOCK_SECONDS, "redbeat_message_cache_bytes": 1_000_000}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    often = [f"often-{number}" for number in range(20)]
    peaks: dict[int, float] = {}
    for runs in (FEW_RUNS, RUNS):
        server.flush()
        names = names_of_entries(runs)
        write_burst(client, names)
        for name in often:  # due again all the time
            write_raw(client, name, score=0.5, schedule={"__type__": "interval", "every": 0.2})
        holders: set[str] = set()
        shortest_ms = LOCK_SECONDS * 1000
        with celery_beat(tmp_path, "module") as beat:
            eventually(lambda: broker.llen("celery"))
            began = time.monotonic()
            while backlog_count(client):
                holders.add(client.get(LOCK))
                shortest_ms = min(shortest_ms, client.pttl(LOCK))
                assert time.monotonic() - began < PATIENCE_SECONDS, beat.output()[-2000:]
            took = time.monotonic() - began
            peaks[runs] = peak_mb(beat)
            assert beat.stop() == 0
        print(
            f"{runs} due runs in {took:.1f} s, {runs / took:.0f} a second; at the most {peaks[runs]:.1f} MB; "
            f"of the lock's {LOCK_SECONDS} s {shortest_ms} ms were left"
        )
        assert len(holders) == 1
        assert shortest_ms > 500
        sent = sent_names(broker)
        assert [name for name in sent if name not in often] == names
        assert set(often) <= set(sent[: len(often)])
    assert peaks[RUNS] - peaks[FEW_RUNS] < 8


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("broker_is", ["server", "second", "rabbitmq"] if IS_LONG else ["server", "rabbitmq"])
def test_a_beat_that_is_stopped_amid_a_backlog_leaves_the_rest_to_the_next(
    request: pytest.FixtureRequest,
    server: Server,
    client: redis.Redis,
    chance: random.Random,
    tmp_path: Path,
    broker_is: str,
) -> None:
    url = request.getfixturevalue(broker_is).url()
    runs = STOPPED_RUNS // (4 if broker_is == "rabbitmq" else 1)
    names = names_of_entries(runs)
    write_burst(client, names)
    write_app(tmp_path, "module", url, redbeat_redis_url=server.url(1), redbeat_lock_timeout=3)
    left = runs
    for _ in range(2):
        with celery_beat(tmp_path, "module") as beat:
            wanted = left - 100
            eventually(lambda wanted=wanted: backlog_count(client) <= wanted, PATIENCE_SECONDS, 0.005)
            time.sleep(chance.uniform(0, 0.1))  # the moment of the stop, not a wait for something
            took = beat.seconds_to_end()
            assert beat.returncode == 0, beat.output()
        left = backlog_count(client)
        print(f"{broker_is}: it ended in {took:.2f} s, {left} of {runs} runs were left")
        assert took < patience(3)
        assert client.get(LOCK) is None
    assert 0 < left < runs
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: not backlog_count(client), PATIENCE_SECONDS)
        assert beat.stop() == 0
    taken = names_of(take_messages(memory_app(broker_url=url, task_default_queue="celery")))
    doubled = [name for name, times in Counter(taken).items() if times > 1]
    assert doubled == []
    assert taken == names


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("broker_is", ["same", "second"])
def test_arguments_of_a_megabyte_arrive_whole(
    server: Server, second: Server, client: redis.Redis, tmp_path: Path, broker_is: str
) -> None:
    chosen = {"same": server, "second": second}[broker_is]
    for number in range(30):
        arguments = [f"{number:07}" * 140_000]
        write_raw(client, f"large-{number}", score=1 + number, schedule=SELDOM, args=arguments)
        for letter in "ab":
            write_raw(client, f"small-{number}-{letter}", score=1.5 + number, schedule=SELDOM)
    with run_beat(tmp_path, chosen.url(0), redbeat_redis_url=server.url(1), redbeat_lock_timeout=3) as beat:
        eventually(lambda: not backlog_count(client))
        print(f"{broker_is}: 30 times 1 MB, at the most {peak_mb(beat):.0f} MB")
        assert beat.stop() == 0
    taken = take_messages(memory_app(broker_url=chosen.url(0), task_default_queue="celery"))
    # small ones don't wait for large ones
    large, small = ([one for one in taken if one.entry.startswith(size)] for size in ("large", "small"))
    assert names_of(large) == [f"large-{number}" for number in range(30)]
    assert names_of(small) == [f"small-{number}-{letter}" for number in range(30) for letter in "ab"]
    assert all(message.args == [f"{number:07}" * 140_000] for number, message in enumerate(large))
