"""A node of a cluster that is there and doesn't answer: beats go on with the shards of the others, in time.

The broker is another server, so a run may leave twice, with the same task id; none may be lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import RedisCluster

from redbeat.layout import shard_of
from tests.faults.shards import Crew, RedisBroker, Scene, Taker, starter
from tests.support import topologies
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology

SHARDS = 16
ENTRIES = 24
LOCK_SECONDS = 8.0
#: longer than a lock lives that isn't renewed
HANG_SECONDS = 10.0
#: one request to a node waits longer than that, if it waits as the settings say
PAUSE_SECONDS = 8.0

Nodes = tuple[ClusterTopology, list[Proxy]]


@pytest.fixture(scope="module")
def nodes_session() -> Iterator[Nodes]:
    with topologies.cluster_behind_proxies() as found:
        yield found


@pytest.fixture
def nodes(nodes_session: Nodes) -> Nodes:
    cluster, proxies = nodes_session
    for proxy in proxies:
        proxy.heal()
    cluster.flush()
    return nodes_session


@contextmanager
def answering_nothing(proxy: Proxy) -> Iterator[None]:
    proxy.freeze()
    yield
    proxy.thaw()


@contextmanager
def answering_slowly(proxy: Proxy) -> Iterator[None]:
    proxy.delay_seconds = 1.5
    yield
    proxy.heal()


@contextmanager
def breaking_off(proxy: Proxy) -> Iterator[None]:
    """What it is asked is done, but the answers don't arrive, and the connections end then."""
    proxy.withhold_answers()
    yield
    proxy.drop()
    proxy.thaw()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("retry_period", [None, -1])
@pytest.mark.parametrize("hang", [answering_nothing, answering_slowly, breaking_off])
@pytest.mark.parametrize("beats", [1, 2])
def test_shards_on_other_nodes_keep_time_while_a_node_hangs(
    nodes: Nodes,
    redis: Server,
    chance: random.Random,
    tmp_path: Path,
    beats: int,
    hang: Callable[[Proxy], Any],
    retry_period: int | None,
) -> None:
    cluster, proxies = nodes
    hanging = chance.choice(proxies)
    options: dict[str, Any] = {"startup_nodes": [{"host": one.host, "port": one.port} for one in proxies]}
    options |= {} if retry_period is None else {"retry_period": retry_period}
    settings = {
        "redbeat_redis_url": "redis-cluster://",
        "redbeat_redis_options": options,
        "redbeat_lock_timeout": LOCK_SECONDS,
    }
    with redis.client() as queue, cluster.client() as client:
        broker = RedisBroker(redis.url(0), queue)
        scene = Scene(client, settings, broker, layouts=[SHARDS], prefix="{redbeat}:")
        scene.save(ENTRIES, redbeat_shards=SHARDS)
        others = [name for name in scene.names if port_of(client, name) != hanging.port]
        start = starter(tmp_path, scene, shards=SHARDS)
        with Taker(broker) as taker, Crew(chance, start, beats) as crew:
            crew.start(beats)
            scene.await_runs_of(taker, time.time())
            with hang(hanging):
                began_at = time.time()

                def have_run() -> bool:
                    crew.check()
                    newest = taker.newest()
                    return all(newest[name] > began_at + HANG_SECONDS for name in others)

                eventually(have_run, 40, 0.1, "the others wait for it")
                locks = [f"{{redbeat:{shard_of(name, SHARDS)}}}::lock" for name in others]
                holders: dict[str, Any] = {key: on_its_node(cluster, client, key) for key in locks}
            scene.await_runs_of(taker, time.time() + 1)
            sent_at = [one.at for one in taker.sent if one.entry in others and one.at > began_at]
            crew.end()
            assert not crew.count("beat: Took "), "the locks of the others were renewed all the time"
        verdict = scene.judge(taker, crew)
    pause_seconds = max(later - earlier for earlier, later in pairwise([began_at, *sent_at]))
    print(f"a pause of {pause_seconds:.2f} s at most; {verdict}")
    assert all(holders.values()), "each shard of another node was led"
    assert pause_seconds < PAUSE_SECONDS
    verdict.check(is_exactly_once=False)


def port_of(client: RedisCluster, name: str) -> int:
    """Where clients find the shard of an entry."""
    return int(client.get_node_from_key(f"{{redbeat:{shard_of(name, SHARDS)}}}:").port)


def on_its_node(cluster: ClusterTopology, client: RedisCluster, key: str) -> Any:
    """The value of a key, read around the proxies."""
    slot = client.keyslot(key)
    for node in cluster.nodes:
        with node.client() as direct:
            slots: Any = direct.execute_command("CLUSTER SLOTS")
            own: Any = direct.execute_command("CLUSTER MYID")
            if any(first <= slot <= last and address[2] == own for first, last, address in slots):
                return direct.get(key)
    raise AssertionError(key)
