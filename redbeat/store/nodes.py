"""Calling a script for several parts of a schedule at once: one round trip for each node that has some.

A cluster's client sends no scripts in its pipelines, so each node is asked by the client that the cluster's
client has for it. Invariant: what a node refuses, as the slot has moved say, is asked again in the ordinary
way, which finds the right node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis.exceptions import RedisError

from redbeat.connection.retry import without_retry
from redbeat.store.scripts.script import Request, Script

#: an option of the redis client: the reply stays bytes, whatever its settings are
_AS_BYTES: dict[str, Any] = {"NEVER_DECODE": []}


def call_on_nodes(client: Any, calls: Sequence[tuple[Script, Request]], *, is_raw: bool = False) -> list[Any]:
    """Return what each script returns, or the error that it ends with, in their order.

    Arguments:
        calls: each is about keys of one slot.
        is_raw: replies aren't decoded.
    """
    options = _AS_BYTES if is_raw else {}
    replies: list[Any] = [None] * len(calls)
    for node, places in _by_node(client, [request.keys[0] for _, request in calls]):
        if node is None or (len(places) == 1 and not is_raw):
            failed = places
        else:
            commands = [calls[place][0].command(calls[place][1]) for place in places]
            for place, reply in zip(places, _ask(node, commands, options), strict=True):
                replies[place] = reply
            failed = [place for place in places if isinstance(replies[place], Exception)]
        for place in failed:
            script, request = calls[place]
            try:
                replies[place] = script.call_raw(client, request) if is_raw else script(client, *request)
            except RedisError as exc:
                replies[place] = exc
    return replies


def ask_on_nodes(client: Any, commands: Sequence[Sequence[Any]], *, is_raw: bool = False) -> list[Any]:
    """Return the reply to each command, whose second word is its key, or the error, in their order."""
    options = _AS_BYTES if is_raw else {}
    replies: list[Any] = [None] * len(commands)
    for node, places in _by_node(client, [words[1] for words in commands]):
        found = _ask(node or client, [commands[place] for place in places], options)
        for place, reply in zip(places, found, strict=True):
            replies[place] = reply
    for place, reply in enumerate(replies):
        if isinstance(reply, Exception):
            try:
                replies[place] = client.execute_command(*commands[place], **options)
            except RedisError as exc:
                replies[place] = exc
    return replies


def scan_nodes(client: Any, pattern: bytes, count: int) -> Iterator[list[bytes]]:
    """Yield all keys that match, page by page, of each node in turn; a key may come twice."""
    cluster = without_retry(client)
    nodes: list[Any] = [client]
    if hasattr(cluster, "get_primaries"):
        nodes = [cluster.get_redis_connection(node) for node in cluster.get_primaries()]
    for node in nodes:
        cursor = 0
        while True:
            words = ["SCAN", cursor, "MATCH", pattern, "COUNT", count]
            cursor, page = node.execute_command(*words, **_AS_BYTES)
            yield list(page)
            if not int(cursor):
                break


def _ask(node: Any, commands: Iterable[Sequence[Any]], options: dict[str, Any]) -> list[Any]:
    """Return the replies of one node; errors stand in their places."""
    with node.pipeline(transaction=False) as pipeline:
        asked = 0
        for words in commands:
            pipeline.execute_command(*words, **options)
            asked += 1
        try:
            return list(pipeline.execute(raise_on_error=False))
        except RedisError as exc:
            return [exc] * asked


def _by_node(client: Any, keys: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Return the client of each node, and the places of the keys that are its; None: the usual one."""
    cluster = without_retry(client)
    if not hasattr(cluster, "get_node_from_key"):
        return [(client, list(range(len(keys))))]
    places: dict[Any, list[int]] = {}
    clients: dict[Any, Any] = {}
    for place, key in enumerate(keys):
        node = cluster.get_node_from_key(key)
        name = None if node is None else node.name
        places.setdefault(name, []).append(place)
        if node is not None and name not in clients:
            clients[name] = cluster.get_redis_connection(node)
    return [(clients.get(name), found) for name, found in places.items()]
