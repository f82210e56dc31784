"""Sharing parts that are on several nodes: a look is one round trip a node, however many parts there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from redis.connection import AbstractConnection

from redbeat.store.locks import Held, Locks
from tests.support.polling import eventually
from tests.support.sharing import SharingBeat, leaders, step
from tests.support.topologies import ClusterTopology

SHARDS = 48


@pytest.fixture
def beats(cluster: ClusterTopology) -> Iterator[list[SharingBeat]]:
    """Two beats, neither of which has a heartbeat of its own."""
    made = [SharingBeat(app_of(cluster)) for _ in range(2)]
    yield made
    for beat in made:
        beat.shares.resign()


def app_of(cluster: ClusterTopology) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(
        redbeat_redis_url=cluster.url(),
        redbeat_redis_options={"cluster": True, "password": cluster.nodes[0].password},
        redbeat_shards=SHARDS,
    )
    return app


class RoundTrips:
    """Counts what is sent, by the ports of the nodes: a pipeline is sent at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ports: list[int] = []
        send = AbstractConnection.send_packed_command

        def counting(connection: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            self.ports.append(connection.port)
            return send(connection, command, *args, **kwargs)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", counting)


def test_a_look_is_one_round_trip_a_node(
    cluster: ClusterTopology, beats: list[SharingBeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = beats
    for _ in range(4):
        step([first, second])
    assert len(first.led) + len(second.led) == SHARDS
    trips = RoundTrips(monkeypatch)
    first.step()
    print(f"a look at {SHARDS - len(first.led)} locks of others: {len(trips.ports)} round trips")
    assert sorted(trips.ports) == sorted(node.port for node in cluster.nodes)


def test_taking_all_parts_and_renewing_them_are_a_few_round_trips_a_node(
    cluster: ClusterTopology, beats: list[SharingBeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = beats
    first.step()  # it writes the layout
    first.shares.resign()
    keys = [str(leadership.lock_key) for leadership in first.shares.leaderships]
    for key in keys:
        first.store.client.set(key, "somebody", px=60_000)
    first.step()  # it connects
    for key in keys:
        first.store.client.delete(key)
    trips = RoundTrips(monkeypatch)
    first.step()
    assert len(first.led) == SHARDS
    print(f"taking {SHARDS} locks: {len(trips.ports)} round trips")
    assert len(trips.ports) == 4 * len(cluster.nodes), (
        "to look, to see if the data is there, to take, and to renew"
    )
    trips.ports.clear()
    Locks(first.store).renew([Held(one.store, one.fence) for one in first.shares.leading])
    assert sorted(trips.ports) == sorted(node.port for node in cluster.nodes)
    trips.ports.clear()
    first.shares.resign()
    assert len(trips.ports) <= len(cluster.nodes) + 1, "and that it isn't there any more"


def test_a_beat_that_leads_elsewhere_goes_on_if_all_locks_of_others_are_on_a_node_that_is_away(
    cluster: ClusterTopology, beats: list[SharingBeat]
) -> None:
    first, _ = beats
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    [*_, gone] = cluster.nodes
    first.step()  # it writes the layout
    first.shares.resign()
    parts = {one.keys.prefix: str(one.lock_key) for one in first.shares.leaderships}
    theirs = {prefix for prefix, key in parts.items() if cluster.owner(key) is gone}
    for prefix in theirs:
        first.store.client.set(parts[prefix], "somebody", px=60_000)
    eventually(lambda: first.step() or first.led == parts.keys() - theirs)
    gone.kill()
    try:
        for _ in range(3):
            first.step()
        assert first.led == parts.keys() - theirs
    finally:
        cluster.heal()


def test_parts_on_other_nodes_go_on_while_a_node_is_away(
    cluster: ClusterTopology, beats: list[SharingBeat]
) -> None:
    first, _ = beats
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    first.shares.keep_alive()
    first.step()
    assert len(first.led) == SHARDS
    [gone, *_] = cluster.nodes
    there = {prefix for prefix in first.led if cluster.owner(f"{prefix}:lock") is not gone}
    first.shares.resign()
    gone.kill()
    try:
        eventually(lambda: first.step() or first.led == there)
    finally:
        cluster.heal()
    eventually(lambda: first.step() or len(leaders([first])) == SHARDS)
