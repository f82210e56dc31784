"""A schedule in shards over the nodes of a cluster: slots move, and a node dies and its replica is promoted.

Beats are killed, paused and started meanwhile. The broker is another server, so a run may leave twice, with
the same task id; none may be lost.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from tests.faults.rounds import IS_LONG
from tests.faults.shards import LOCK_SECONDS, Crew, RedisBroker, Scene, Taker, starter
from tests.faults.summary import TALLY
from tests.support import topologies
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.slots import SlotMove
from tests.support.topologies import ClusterTopology

SHARDS = 16
ENTRIES = 40
SECONDS = 150.0 if IS_LONG else 6.0


@pytest.fixture(scope="module")
def replicated_session() -> Iterator[ClusterTopology]:
    with topologies.cluster(has_replica=True) as topology:
        yield topology


@pytest.fixture
def replicated(replicated_session: ClusterTopology) -> ClusterTopology:
    replicated_session.heal()
    for server in replicated_session.servers:
        if is_master(server):
            server.flush()
    return replicated_session


def is_master(server: Server) -> bool:
    with server.client() as client:
        replication: Any = client.info("replication")
    return bool(replication["role"] == "master")


class Nodes:
    """The nodes of a cluster, and what befalls them."""

    def __init__(self, cluster: ClusterTopology, chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance
        self.faults: Counter[str] = Counter()

    def befall(self) -> None:
        fault = self._chance.choice([self._move_slots, self._move_slots, self._promote, self._kill])
        self.faults[fault.__name__.strip("_")] += 1
        fault()

    def _move_slots(self) -> None:
        """Those of some shards go to another node, slowly."""
        for shard in self._chance.sample(range(SHARDS), 2):
            key = f"{{redbeat:{shard}}}::schedule"
            source = self._cluster.owner(key)
            targets = [one for one in self._cluster.servers if one is not source and is_master(one)]
            with SlotMove(self._cluster.servers, key, source, self._chance.choice(targets)) as move:
                move.move_all(after_each=lambda: time.sleep(self._chance.uniform(0, 0.01)))

    def _pair(self) -> tuple[Server, Server]:
        """A master and its replica, which is in step."""

        def find() -> tuple[Server, Server] | None:
            for server in self._cluster.servers:
                with server.client() as client:
                    replication: Any = client.info("replication")
                if replication["role"] == "slave" and replication["master_link_status"] == "up":
                    port = replication["master_port"]
                    return next(one for one in self._cluster.servers if one.port == port), server
            return None

        found = eventually(find, message="no replica is in step")
        assert found is not None
        return found

    def _promote(self) -> None:
        _, replica = self._pair()
        with replica.client() as client:
            client.execute_command("CLUSTER FAILOVER")
        eventually(lambda: is_master(replica))

    def _kill(self) -> None:
        """A master dies; what it hasn't told its replica is lost with it."""
        master, replica = self._pair()
        master.kill()
        eventually(lambda: is_master(replica))
        time.sleep(self._chance.uniform(0, 1))
        self._cluster.heal()


def test_nodes_that_fail_and_slots_that_move_under_shards_lose_no_run(
    replicated: ClusterTopology,
    redis: Server,
    chance: random.Random,
    tmp_path: Path,
    record_property: Any,
) -> None:
    nodes = [{"host": host, "port": port} for host, port in replicated.startup_nodes]
    settings: dict[str, Any] = {"redbeat_redis_url": "redis-cluster://", "redbeat_lock_timeout": LOCK_SECONDS}
    settings["redbeat_redis_options"] = {"startup_nodes": nodes, "retry_period": -1}
    with redis.client() as queue, replicated.client() as client:
        broker = RedisBroker(redis.url(0), queue)
        scene = Scene(client, settings, broker, layouts=[SHARDS], prefix="{redbeat}:")
        scene.save(ENTRIES, redbeat_shards=SHARDS)
        start = starter(tmp_path, scene, shards=SHARDS)
        faulty = Nodes(replicated, chance)
        with Taker(broker) as taker, Crew(chance, start, 3) as crew:
            crew.start(2)
            scene.await_runs_of(taker, time.time())

            def befall_nodes() -> None:
                with crew.excused():
                    faulty.befall()

            crew.suffer(SECONDS, also=befall_nodes)
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            crew.end()
        verdict = eventually(lambda: scene.judge(taker, crew), retry_on=(RedisError,))
    print(f"{dict(faulty.faults)}, {dict(crew.faults)}; {verdict}")
    faults = faulty.faults.total() + crew.faults.total()
    record_property(TALLY, ["shards in a cluster whose nodes fail", verdict.counts(faults)])
    verdict.check(is_exactly_once=False)
