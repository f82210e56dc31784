"""A schedule in a cluster whose slot moves, and whose node dies, while a real beat sends a burst.

The broker is another server, so a run may leave twice, with the same task id; none may be lost, and no entry.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.store.replicas import Replicas
from tests.faults.rounds import IS_LONG
from tests.faults.shards import id_of
from tests.faults.slots import SlotMove, is_master, replica_of
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import errors_in, has_traceback, warnings_in
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import messages
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app, take_messages
from tests.support.topologies import ClusterTopology

SCHEDULE, LOCK, TICK = "{redbeat}::schedule", "{redbeat}::lock", "{redbeat}::tick"
#: the earliest: then the due times of the messages tell since when nothing was sent
EVERY_SECOND = {"every-second": {"task": "echo", "schedule": 1.0, "misfire": "earliest"}}
ROUNDS = 6 if IS_LONG else 2
NAMES = [f"entry-{number}" for number in range(4000 if IS_LONG else 600)]
_AWAY = (RedisError, AssertionError)
#: what a scheduler that doesn't try again says of a slot on the move
_HALF_MOVED = (StoreUnavailable, StoreRefused)


IDS = {id_of(f"{{redbeat}}:{name}", 1 + number) for number, name in enumerate(NAMES)}


def settings_of(cluster: ClusterTopology, **options: Any) -> dict[str, Any]:
    nodes = [{"host": host, "port": port} for host, port in cluster.startup_nodes]
    options |= {"startup_nodes": nodes}
    return {"redbeat_redis_url": "redis-cluster://", "redbeat_redis_options": options}


@contextmanager
def beat(cluster: ClusterTopology, broker: Server, folder: Path, **settings: Any) -> Iterator[Process]:
    """A beat that has sent."""
    own = settings_of(cluster, retry_period=-1)
    defaults = {"redbeat_batch_size": 10, "beat_schedule": EVERY_SECOND}
    folder.mkdir(exist_ok=True)
    write_app(folder, "module", broker.url(0), **{**own, **defaults, **settings})
    with celery_beat(folder, "module") as process:
        process.wait_for("Sending due task")
        yield process
        assert process.returncode in (None, 0), process.output()
        assert not has_traceback(process.output()), process.output()
        assert "removing" not in process.output(), process.output()


def save(cluster: ClusterTopology, names: list[str]) -> None:
    """Entries that are not due."""
    app = memory_app(**settings_of(cluster))
    RedBeatSchedulerEntry.save_many([RedBeatSchedulerEntry(name, "echo", 10**10, app=app) for name in names])


def make_due(client: RedisCluster, names: list[str]) -> None:
    """A second after the epoch, two seconds, ..."""
    client.zadd(SCHEDULE, {f"{{redbeat}}:{name}": 1 + number for number, name in enumerate(names)})


def await_all_sent(client: RedisCluster) -> None:
    eventually(lambda: client.zcount(SCHEDULE, 0, 10**6) == 0, retry_on=_AWAY)


def check(broker: redis.Redis, client: RedisCluster) -> tuple[int, int]:
    """How many of the burst's runs were lost and doubled; each has its own id, and each entry is there."""
    headers = [message["headers"] for message in messages(broker)]
    ids = Counter(one["id"] for one in headers if one["redbeat_entry"] in set(NAMES))
    assert ids.keys() <= IDS, "another task id"
    assert client.zcard(SCHEDULE) == len(NAMES) + 1
    return len(IDS - ids.keys()), sum(ids.values()) - len(ids)


def next_message(broker: redis.Redis) -> float:
    """How long until there is another one."""
    began, before = time.monotonic(), broker.llen("celery")
    eventually(lambda: broker.llen("celery") > before, interval=0.005)
    return time.monotonic() - began


def other_master(cluster: ClusterTopology) -> Server:
    owner = cluster.owner(SCHEDULE)
    return next(node for node in cluster.nodes if node not in (owner, cluster.replica) and is_master(node))


def moving(cluster: ClusterTopology) -> SlotMove:
    """The schedule's slot on its way to another node."""
    return SlotMove(cluster.servers, SCHEDULE, cluster.owner(SCHEDULE), other_master(cluster))


@pytest.mark.slow
def test_slots_moved_amid_a_burst_cost_no_run(
    replicated: ClusterTopology, valkey: Server, tmp_path: Path
) -> None:
    with (
        replicated.client() as client,
        valkey.client() as broker,
        beat(replicated, valkey, tmp_path / "app") as process,
    ):
        save(replicated, NAMES)
        for _ in range(ROUNDS):
            broker.delete("celery")
            client.zremrangebyscore(SCHEDULE, 0, 0)
            make_due(client, NAMES)
            eventually(lambda: broker.llen("celery") >= len(NAMES) // 6, interval=0.001)
            source, target = replicated.owner(SCHEDULE), other_master(replicated)
            began = time.monotonic()
            with SlotMove(replicated.servers, SCHEDULE, source, target) as move:
                move.move_all(after_each=lambda: time.sleep(0.01))  # slowly, as a network is
            took = time.monotonic() - began
            seconds = next_message(broker)
            await_all_sent(client)
            lost, doubled = check(broker, client)
            print(f"moved in {took:.2f} s, a message {seconds:.2f} s later; {lost} lost, {doubled} doubled")
            assert lost == 0
            assert seconds <= patience(5), process.output()
            assert replicated.owner(SCHEDULE) is target
        [token] = {client.get(LOCK)}
        assert f":{process.pid}:" in token
        eventually(
            lambda: client.pttl(LOCK) > 1_495_000, 10, message="the heartbeat renews it at its new node"
        )
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert not client.exists(LOCK)


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("is_killed", [False, True], ids=["CLUSTER FAILOVER", "master killed"])
def test_a_replica_promoted_amid_a_burst_costs_no_run(
    replicated: ClusterTopology, valkey: Server, tmp_path: Path, is_killed: bool
) -> None:
    with replicated.client() as client, valkey.client() as broker, beat(replicated, valkey, tmp_path / "app"):
        save(replicated, NAMES)
        make_due(client, NAMES)
        old = replicated.owner(SCHEDULE)
        pair = eventually(lambda: replica_of(replicated.servers, old), message="its replica is not in step")
        assert pair is not None
        new = pair[1]
        with old.client() as of_old:
            of_old.set("{redbeat}last", 1)  # a connection waits for its own writes, and for all before them
            assert of_old.wait(1, 5000) == 1
        eventually(lambda: broker.llen("celery") >= len(NAMES) // 6, interval=0.001)
        if is_killed:
            old.kill()
        else:
            with new.client() as of_new:
                of_new.execute_command("CLUSTER FAILOVER")
        eventually(lambda: is_master(new), interval=0.005)
        seconds = next_message(broker)
        eventually(lambda: replicated.owner(SCHEDULE) is new, retry_on=_AWAY)
        await_all_sent(client)
        lost, doubled = check(broker, client)
        print(f"promotion to the next message: {seconds:.2f} s; lost: {lost}, doubled: {doubled}")
        assert lost == 0
        assert seconds <= 5


FIRST = {
    "the schedule": [SCHEDULE, LOCK, TICK],
    "the lock": [LOCK],
    "the schedule alone": [SCHEDULE],
    "the entry": ["{redbeat}:one"],
    "all but the entry": [SCHEDULE, LOCK, TICK, "{redbeat}:other", "{redbeat}::statics"],
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_a_schedule_that_is_half_moved_loses_no_entry_and_calls_none_missing(
    replicated: ClusterTopology, first: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app: Celery = memory_app(**settings_of(replicated))
    save(replicated, ["one", "other"])
    with replicated.client() as client, leader(app) as scheduler:
        make_due(client, ["one"])
        with moving(replicated) as move:
            move.move(*first)
            for _ in range(3):
                with suppress(*_HALF_MOVED):
                    scheduler.tick()
        assert errors_in(caplog) == []
        assert client.zcard(SCHEDULE) == 2
        eventually(lambda: scheduler.tick() > 0, retry_on=_HALF_MOVED)
        assert {message.id for message in take_messages(app)} == {id_of("{redbeat}:one", 1)}
        assert client.zscore(SCHEDULE, "{redbeat}:one") > 10**6


def test_without_the_lock_key_nothing_is_lost_amid_a_move(replicated: ClusterTopology) -> None:
    app = memory_app(**settings_of(replicated), redbeat_lock_key=None)
    save(replicated, ["one"])
    with replicated.client() as client, leader(app) as scheduler:
        make_due(client, ["one"])
        with moving(replicated) as move:
            move.move(SCHEDULE)
            with suppress(*_HALF_MOVED):
                scheduler.tick()
        assert client.zcard(SCHEDULE) == 1
        assert client.exists("{redbeat}:one")


def test_replicas_are_awaited_at_the_schedules_node(
    replicated: ClusterTopology, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory_app(**settings_of(replicated), redbeat_wait_replicas=1, redbeat_batch_size=1)
    save(replicated, ["one", "other"])
    with (
        replicated.client() as client,
        leader(app) as scheduler,
        caplog.at_level(logging.INFO, "celery.beat"),
    ):
        make_due(client, ["one", "other"])
        has_replica = [
            replica_of(replicated.servers, server) is not None
            for server in (replicated.owner(SCHEDULE), other_master(replicated))
        ]
        assert not all(has_replica)
        scheduler.tick()
        assert len(warnings_in(caplog)) == int(not has_replica[0])
        with moving(replicated):
            pass
        scheduler._shards.first.store.replicas = Replicas(app.redbeat_conf)  # noqa: SLF001
        caplog.clear()
        scheduler.tick()
        assert len(warnings_in(caplog)) == int(not has_replica[1])
        assert client.zcount(SCHEDULE, 0, 10**6) == 0
