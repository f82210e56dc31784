"""Calls to several shards: one round trip per node, and one more try for a node that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import exceptions

from redbeat.store.nodes import Command, send_all


class Node:
    """A node of a cluster, by its own client."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.redis_connection = self
        self.answers: Callable[[Sequence[str]], list[Any]] = lambda keys: [f"{name} {key}" for key in keys]
        self._log = log

    def pipeline(self, transaction: bool) -> Pipeline:
        assert not transaction
        return Pipeline(self, self._log)


class Pipeline:
    def __init__(self, node: Node, log: list[str]) -> None:
        self._node, self._log, self._keys = node, log, list[str]()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> None:
        self._keys.append(key)

    def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        self._log.append(f"{self._node.name}: {' '.join(self._keys)}")
        return self._node.answers(self._keys)


class Cluster:
    """Three nodes; the first letter of a key says on which it is."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.nodes = {name: Node(name, self.log) for name in "abc"}
        self.alone: Callable[[str], Any] = lambda key: f"alone {key}"

    def get_node_from_key(self, key: str) -> Node | None:
        return self.nodes.get(key[0])

    def get_redis_connection(self, node: Node) -> Node:
        return node

    def get(self, key: str) -> Any:
        self.log.append(key)
        return self.alone(key)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def ask(cluster: Cluster, keys: str) -> list[Any]:
    calls = [Command("get", key) for key in keys.split()]
    return send_all(cluster, calls)


def fail_once(error: Exception) -> Callable[[Sequence[str]], list[Any]]:
    errors = [error]

    def answers(keys: Sequence[str]) -> list[Any]:
        if errors:
            raise errors.pop()
        return [f"again {key}" for key in keys]

    return answers


def test_calls_to_several_nodes_take_one_round_trip_each_and_keep_their_order(cluster: Cluster) -> None:
    assert ask(cluster, "b1 a1 b2 a2") == ["b b1", "a a1", "b b2", "a a2"]
    assert cluster.log == ["b: b1 b2", "a: a1 a2"]


def test_refused_call_leaves_the_other_calls_alone(cluster: Cluster) -> None:
    refusal = exceptions.ResponseError("WRONGTYPE Operation against a key")
    cluster.nodes["a"].answers = lambda keys: [refusal, *keys[1:]]
    assert ask(cluster, "a1 a2") == [refusal, "a2"]
    assert cluster.log == ["a: a1 a2"]


def test_restarted_node_gets_one_call_alone_and_then_the_rest_together(cluster: Cluster) -> None:
    cluster.nodes["a"].answers = fail_once(exceptions.ConnectionError("it was restarted"))
    assert ask(cluster, "a1 a2 a3 b1 b2") == ["alone a1", "again a2", "again a3", "b b1", "b b2"]
    assert cluster.log == ["a: a1 a2 a3", "b: b1 b2", "a1", "a: a2 a3"]


def test_moved_slots_are_called_one_by_one(cluster: Cluster) -> None:
    cluster.nodes["a"].answers = lambda keys: [exceptions.MovedError("1 host:1") for _ in keys]
    assert ask(cluster, "a1 a2 a3") == ["alone a1", "alone a2", "alone a3"]
    assert cluster.log == ["a: a1 a2 a3", "a1", "a: a2 a3", "a2", "a3"]


def test_unreachable_node_is_tried_again_once_and_after_the_others(cluster: Cluster) -> None:
    away = exceptions.ConnectionError("away")

    def raise_away(_: object) -> Any:
        raise away

    cluster.nodes["a"].answers = cluster.alone = raise_away
    assert ask(cluster, "a1 a2 a3 b1 b2") == [away, away, away, "b b1", "b b2"]
    assert cluster.log == ["a: a1 a2 a3", "b: b1 b2", "a1"]


@pytest.mark.parametrize("others", ["", " b1", " c1"], ids=["alone", "other node answers", "all away"])
def test_redis_is_waited_for_once_also_if_other_nodes_have_answered(cluster: Cluster, others: str) -> None:
    away = exceptions.ConnectionError("away")

    def raise_away(_: object) -> Any:
        raise away

    class Waiting:
        wrapped_connection = cluster

        def get(self, key: str) -> Any:
            cluster.log.append(f"waits for {key}")
            raise away

    for name in "ac":
        cluster.nodes[name].answers = raise_away
    cluster.alone = raise_away
    calls = [Command("get", key) for key in f"a1 a2{others}".split()]
    assert send_all(Waiting(), calls)[:2] == [away, away]
    assert [line for line in cluster.log if line.startswith("waits")] == ["waits for a1"]


def test_uncovered_slot_fails_its_own_calls_alone(cluster: Cluster) -> None:
    find, error = cluster.get_node_from_key, exceptions.ClusterDownError("not covered")

    def find_or_raise(key: str) -> Node | None:
        if key.startswith("c"):
            raise error
        return find(key)

    def raise_error(_: str) -> Any:
        raise error

    cluster.get_node_from_key = find_or_raise  # type: ignore[method-assign]
    cluster.alone = raise_error
    assert ask(cluster, "a1 a2 c1 c2 b1 b2") == ["a a1", "a a2", error, error, "b b1", "b b2"]


def test_calls_to_one_server_take_one_round_trip() -> None:
    log: list[str] = []
    server = Node("server", log)
    calls = [Command("get", key) for key in ("k1", "k2")]
    assert send_all(server, calls) == ["server k1", "server k2"]
    assert log == ["server: k1 k2"]
