"""Calling a script for several parts of a schedule at once: one round trip for each node that has some.

A cluster's client sends no scripts in its pipelines, so each node is asked by the client that the cluster's
client has for it. Invariant: what a node refuses, as the slot has moved say, is asked again in the ordinary
way, which finds the right node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, RedisError, TimeoutError  # noqa: A004

from redbeat.connection.retry import RequestBroken, without_retry
from redbeat.store.scripts.script import Request, Script


def call_on_nodes(client: Any, calls: Sequence[tuple[Script, Request]]) -> list[Any]:
    """Return what each script returns, or the error that it ends with, in their order.

    Arguments:
        calls: each is about keys of one slot.
    """
    replies: list[Any] = [None] * len(calls)
    for node, places in _by_node(client, calls):
        left = places
        if node is not None and len(places) > 1:
            left = _call_on(node, calls, places, replies)
            if len(left) > 1 and all(isinstance(replies[place], NoScriptError) for place in left):
                _call(client, calls, left[:1], replies)  # from now on the node knows it
                left = _call_on(node, calls, left[1:], replies)
            if node is client:  # it has tried often enough to reach the server
                left = [place for place in left if not _is_away(replies[place])]
        _call(client, calls, left, replies)
    return replies


def _call_on(
    node: Any, calls: Sequence[tuple[Script, Request]], places: Sequence[int], replies: list[Any]
) -> list[int]:
    """Put a node's replies in their places, errors among them; return the places of these."""
    with node.pipeline(transaction=False) as pipeline:
        for place in places:
            script, request = calls[place]
            pipeline.execute_command(*script.command(request))
        try:
            found = list(pipeline.execute(raise_on_error=False))
        except RedisError as exc:
            found = [exc] * len(places)
    for place, reply in zip(places, found, strict=True):
        replies[place] = reply
    return [place for place in places if isinstance(replies[place], Exception)]


def _call(
    client: Any, calls: Sequence[tuple[Script, Request]], places: Iterable[int], replies: list[Any]
) -> None:
    """Ask for some in the ordinary way, one after the other; if their server is away, it is for all."""
    away: RedisError | None = None
    for place in places:
        script, request = calls[place]
        try:
            replies[place] = away or script(client, *request)
        except RedisError as exc:
            replies[place] = exc
            away = exc if _is_away(exc) else None


def _is_away(reply: Any) -> bool:
    return isinstance(reply, (ConnectionError, TimeoutError)) and not isinstance(reply, RequestBroken)


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
