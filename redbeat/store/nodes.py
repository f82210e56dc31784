"""Calling a script for several parts of a schedule at once: one round trip for each node that has some.

A cluster's client sends no scripts in its pipelines, so each node is asked by the client that the cluster's
client has for it. Invariant: what a node refuses, as the slot has moved say, is asked again in the ordinary way,
which finds the right node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError

from redbeat.connection.retry import without_retry
from redbeat.store.scripts.script import Request, Script


def call_on_nodes(client: Any, calls: Sequence[tuple[Script, Request]]) -> list[Any]:
    """Return what each script returns, or the error that it ends with, in their order.

    Arguments:
        calls: each is about keys of one slot.
    """
    replies: list[Any] = [None] * len(calls)
    for node, places in _by_node(client, calls):
        if len(places) == 1 or node is None:
            failed = places
        else:
            found = _call_on(node, [calls[place] for place in places])
            for place, reply in zip(places, found, strict=True):
                replies[place] = reply
            failed = [place for place in places if isinstance(replies[place], Exception)]
        for place in failed:
            script, request = calls[place]
            try:
                replies[place] = script(client, *request)
            except RedisError as exc:
                replies[place] = exc
    return replies


def _call_on(node: Any, calls: Iterable[tuple[Script, Request]]) -> list[Any]:
    """Return the replies of one node; errors stand in their places."""
    with node.pipeline(transaction=False) as pipeline:
        asked = 0
        for script, request in calls:
            pipeline.execute_command(*script.command(request))
            asked += 1
        try:
            return list(pipeline.execute(raise_on_error=False))
        except RedisError as exc:
            return [exc] * asked


def _by_node(client: Any, calls: Sequence[tuple[Script, Request]]) -> list[tuple[Any, list[int]]]:
    """Return the client of each node, and the places of the calls that it is asked; None: the usual one."""
    cluster = without_retry(client)
    if not hasattr(cluster, "get_node_from_key"):
        return [(client, list(range(len(calls))))]
    places: dict[Any, list[int]] = {}
    clients: dict[Any, Any] = {}
    for place, (_, request) in enumerate(calls):
        node = cluster.get_node_from_key(request.keys[0])
        name = None if node is None else node.name
        places.setdefault(name, []).append(place)
        if node is not None and name not in clients:
            clients[name] = cluster.get_redis_connection(node)
    return [(clients.get(name), found) for name, found in places.items()]
