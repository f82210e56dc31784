"""One of several beats cut off from its server, or far away from it, while shards move to it and from it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from redbeat.layout import shard_of
from tests.faults.bursts import RedisQueue
from tests.faults.rounds import IS_LONG
from tests.faults.shards import LOCK_SECONDS, SILENT_SECONDS, Crew, Scene, Taker, starter
from tests.faults.slots import SlotMove, is_master, replica_of
from tests.support import topologies
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology

SHARDS = 16
ENTRIES = 40
#: the one that is far away leads what it leads as long as its requests come through, and sends it as slowly
#: as these do: one for each shard, of up to 0.4 seconds each way
FAR_SECONDS = SHARDS * 0.8
SECONDS = 240.0 if IS_LONG else 9.0


class Way:
    """The way from one beat to the server, and what befalls it: one thing at a time, for a while."""

    def __init__(self, proxy: Proxy, chance: random.Random) -> None:
        self._proxy, self._chance = proxy, chance
        self._until = 0.0
        self._loses = False
        self.faults: Counter[str] = Counter()

    def befall(self) -> None:
        if time.monotonic() < self._until:
            return
        self.heal()
        proxy, chance = self._proxy, self._chance
        faults: dict[str, list[Callable[[], object]]] = {
            # amid scripts: now the request is lost, and now the reply
            "cut": [
                lambda: proxy.cut_on(b"EVALSHA", chance.choice(["request", "reply"]), chance.randint(1, 20))
            ],
            "withhold": [proxy.freeze],
            "lose": [proxy.freeze],
            "refuse": [proxy.refuse, proxy.drop],
            "silence": [proxy.silence],
            "delay": [lambda: setattr(proxy, "delay_seconds", chance.uniform(0.02, 0.4))],
            "withhold replies": [proxy.withhold_answers],
            "none": [],
        }
        fault = chance.choice([*faults])
        self.faults[fault] += 1
        self._loses = fault == "lose"
        for step in faults[fault]:
            step()
        seconds = chance.choice([0.2, LOCK_SECONDS, 2 * LOCK_SECONDS])
        self._until = time.monotonic() + seconds * chance.uniform(0.5, 1.5)

    def heal(self) -> None:
        if self._loses:  # what was sent meanwhile
            self._proxy.drop()
        self._proxy.heal()


@pytest.mark.slow
def test_a_beat_that_is_cut_off_while_shards_move_loses_and_doubles_no_run(
    valkey: Server, chance: random.Random, tmp_path: Path, record_property: Any
) -> None:
    with valkey.client(db=1) as client, Proxy((valkey.host, valkey.port)) as proxy:
        broker = RedisQueue(valkey, 1)
        settings = {"redbeat_redis_url": valkey.url(1), "redbeat_lock_timeout": LOCK_SECONDS}
        scene = Scene(client, settings, broker, layouts=[SHARDS])
        scene.save(ENTRIES, redbeat_shards=SHARDS)
        far: dict[str, Any] = {name: proxy.url(valkey.url(1)) for name in ("broker_url", "redbeat_redis_url")}
        far["redbeat_redis_options"] = {"retry_period": -1}
        start = starter(tmp_path / "near", scene)
        start_far = starter(tmp_path / "far", scene, **far)
        way = Way(proxy, chance)
        with Taker(broker) as taker, Crew(chance, start_far, 1) as cut_off, Crew(chance, start, 2) as crew:
            cut_off.start()
            crew.start()
            cut_off.beats[0].wait_for("beat: Starting")
            crew.suffer(SECONDS, also=way.befall)
            way.heal()
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            crew.end()
            scene.await_runs_of(taker, time.time() + 1)  # the one that was cut off leads everything then
            cut_off.end()
        verdict = scene.judge(taker, crew)
    verdict.note("a beat that shares shards is cut off", record_property, way.faults, crew.faults)
    verdict.check(is_exactly_once=True, most_silent=SILENT_SECONDS + FAR_SECONDS)


FAULTY_SECONDS = 150.0 if IS_LONG else 6.0


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
        found = eventually(lambda: replica_of(self._cluster.servers), message="no replica is in step")
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


@pytest.mark.slow
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
    with replicated.client() as client:
        broker = RedisQueue(redis, 0)
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

            crew.suffer(FAULTY_SECONDS, also=befall_nodes)
            crew.recover()
            scene.await_runs_of(taker, time.time() + 1)
            crew.end()
        verdict = eventually(lambda: scene.judge(taker, crew), retry_on=(RedisError,))
    verdict.note("shards in a cluster whose nodes fail", record_property, faulty.faults, crew.faults)
    verdict.check(is_exactly_once=False)


FEW_ENTRIES = 24
HANG_LOCK_SECONDS = 8.0
#: longer than a lock lives that isn't renewed
HANG_SECONDS = 10.0
#: one request to a node waits longer than that, if it waits as the settings say
PAUSE_SECONDS = 8.0

Proxied = tuple[ClusterTopology, list[Proxy]]


@pytest.fixture(scope="module")
def nodes_session() -> Iterator[Proxied]:
    with topologies.cluster_behind_proxies() as found:
        yield found


@pytest.fixture
def nodes(nodes_session: Proxied) -> Proxied:
    cluster, proxies = nodes_session
    for proxy in proxies:
        proxy.heal()
    cluster.flush()
    return nodes_session


HANGS: dict[str, Callable[[Proxy], object]] = {
    "no reply": Proxy.freeze,
    "late replies": lambda proxy: setattr(proxy, "delay_seconds", 1.5),
    # what it is asked is done, but the replies don't arrive, and the connections end then
    "lost replies": Proxy.withhold_answers,
}


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("retry_period", [None, -1])
@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("beats", [1, 2])
def test_shards_on_other_nodes_keep_time_while_a_node_hangs(
    nodes: Proxied,
    redis: Server,
    chance: random.Random,
    tmp_path: Path,
    beats: int,
    hang: str,
    retry_period: int | None,
) -> None:
    cluster, proxies = nodes
    hanging = chance.choice(proxies)
    options: dict[str, Any] = {"startup_nodes": [{"host": one.host, "port": one.port} for one in proxies]}
    options |= {} if retry_period is None else {"retry_period": retry_period}
    settings = {
        "redbeat_redis_url": "redis-cluster://",
        "redbeat_redis_options": options,
        "redbeat_lock_timeout": HANG_LOCK_SECONDS,
    }
    with cluster.client() as client:
        broker = RedisQueue(redis, 0)
        scene = Scene(client, settings, broker, layouts=[SHARDS], prefix="{redbeat}:")
        scene.save(FEW_ENTRIES, redbeat_shards=SHARDS)
        others = [name for name in scene.names if port_of(client, name) != hanging.port]
        start = starter(tmp_path, scene, shards=SHARDS)
        with Taker(broker) as taker, Crew(chance, start, beats) as crew:
            crew.start(beats)
            scene.await_runs_of(taker, time.time())
            HANGS[hang](hanging)
            began_at = time.time()

            def have_run() -> bool:
                crew.check()
                newest = taker.newest()
                return all(newest[name] > began_at + HANG_SECONDS for name in others)

            eventually(have_run, 40, 0.1, "the others wait for it")
            held = {key for node in cluster.nodes for key in keys_on(node, "*::lock")}
            if hang == "lost replies":
                hanging.drop()
            hanging.heal()
            scene.await_runs_of(taker, time.time() + 1)
            sent_at = [one.at for one in taker.sent if one.entry in others and one.at > began_at]
            crew.end()
            took_over = [output for output in crew.outputs() if "beat: Took " in output]
            assert not took_over, "the locks of the others were renewed all the time"
        verdict = scene.judge(taker, crew)
    pause_seconds = max(later - earlier for earlier, later in pairwise([began_at, *sent_at]))
    print(f"a pause of {pause_seconds:.2f} s at most; {verdict}")
    led = {f"{{redbeat:{shard_of(name, SHARDS)}}}::lock" for name in others}
    assert led <= held, "each shard of another node was led"
    assert pause_seconds < PAUSE_SECONDS
    # those of that node are late
    assert [*verdict.lost, *verdict.strange, *verdict.disordered] == [], verdict


def port_of(client: RedisCluster, name: str) -> int:
    """Where clients find the shard of an entry."""
    return int(client.get_node_from_key(f"{{redbeat:{shard_of(name, SHARDS)}}}:").port)


def keys_on(node: Server, pattern: str) -> list[str]:
    """The keys of one node, read around its proxy."""
    with node.client() as direct:
        return [*direct.scan_iter(pattern)]
