"""Calling scripts and commands for several parts of a schedule at once: one round trip for each node.

A cluster's client sends no scripts in its pipelines, so each node is asked by the client that the cluster's
client has for it. Invariant: what a node can't answer, as the slot has moved say, is asked again in the
ordinary way, which finds the right node. A node that can't be reached is waited for once, however many parts
it has, and after the others have answered. A client that gives up soon asks
again only if it has been silent before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - the client's own
)

from redbeat.connection.client import is_hasty
from redbeat.connection.retry import RequestBroken, is_transient, without_retry
from redbeat.store.scripts.script import Call

#: what the redis client is told with a command whose reply isn't to be decoded, whatever its settings are
AS_BYTES: Mapping[str, Any] = {"NEVER_DECODE": []}


@dataclass(frozen=True)
class Command:
    """A command whose keys come first, such as GET.

    Attributes:
        options: what the redis client is told with it.
    """

    name: str
    keys: Sequence[Any]
    args: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def send(self, client: Any) -> Any:
        """Send it by ``client``, and return the reply."""
        return client.execute_command(*self.words(), **self.options)

    def read(self, reply: Any) -> Any:
        """Return what the reply means: itself."""
        return reply

    def words(self) -> list[Any]:
        """Return the words that are sent."""
        return [self.name, *self.keys, *self.args]


#: what may be called on nodes; its keys are of one slot
Sendable = Call[Any] | Command

#: client of a cluster to its nodes' clients that couldn't reach them the last time
_SILENT: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


def call_on_nodes(client: Any, calls: Sequence[Sendable]) -> list[Any]:
    """Return what each call returns, or the error that it ends with, in their order.

    Arguments:
        calls: each is about keys of one slot.
    """
    replies: list[Any] = [None] * len(calls)
    left: Sequence[int] = range(len(calls))
    while left:
        unanswered = _ask_nodes(client, calls, left, replies)
        # what brings one through mostly does so for all: the script is known by then, or the slot's new node
        left = [place for places in unanswered for place in _ask_first(client, calls, places, replies)]
    return replies


def node_of(client: Any, key: str) -> Any:
    """Return which node has ``key``, as far as a cluster's client knows; None: none does, or it isn't such a
    client.
    """
    try:
        return without_retry(client).get_node_from_key(key)
    except (AttributeError, RedisError):  # no node has this slot now, which is the matter of its keys alone
        return None


def is_timeout(exc: Any) -> bool:
    """Return True if ``exc`` means that a node hasn't answered in time."""
    return isinstance(exc, TimeoutError)


def is_away(exc: Exception) -> bool:
    """Return True if ``exc`` means that a node couldn't be reached; else it has answered so."""
    return is_transient(exc) and not isinstance(exc, ResponseError)


def _ask_nodes(
    client: Any, calls: Sequence[Sendable], places: Sequence[int], replies: list[Any]
) -> list[list[int]]:
    """Ask each node once; return the places of what is to be asked in the ordinary way, by the nodes."""
    unanswered: list[list[int]] = []
    for node, those in _by_node(client, calls, places):
        if len(those) == 1 or node is None:
            unanswered.append(those)
            continue
        found = _call_on(node, [calls[place] for place in those])
        for place, reply in zip(those, found, strict=True):
            replies[place] = reply
        if node is client or not _is_first_silence(client, node, found[0]):
            unanswered.append([place for place in those if _is_worth_asking_again(replies[place])])
    return [those for those in unanswered if those]


def _is_first_silence(client: Any, node: Any, reply: Any) -> bool:
    """Return True if a client that gives up soon has waited in vain for a node that has answered before.

    Asking again, which finds the slots' new node, would take as long once more.
    """
    silent = _SILENT.setdefault(without_retry(client), WeakSet())
    was_silent = node in silent
    if isinstance(reply, Exception) and is_away(reply):
        silent.add(node)
    else:
        silent.discard(node)
    return is_hasty(client) and is_timeout(reply) and not was_silent


def _ask_first(
    client: Any, calls: Sequence[Sendable], places: Sequence[int], replies: list[Any]
) -> Sequence[int]:
    """Ask for the first of one node's calls in the ordinary way; return the places of the others.

    If the node can't be reached, that is the answer to all of them.
    """
    first, *others = places
    try:
        replies[first] = calls[first].send(client)
    except RedisError as exc:
        replies[first] = exc
        if not is_away(exc):
            return others
        for place in others:
            replies[place] = exc
        return ()
    return others


def _is_worth_asking_again(reply: Any) -> bool:
    """Return True if the ordinary way could find another node, or send the script, or a smaller request."""
    if not isinstance(reply, Exception) or isinstance(reply, AuthenticationError):
        return False
    return is_transient(reply) or isinstance(reply, (NoScriptError, RequestBroken))


def _call_on(node: Any, calls: Sequence[Sendable]) -> list[Any]:
    """Return the replies of one node; errors stand in their places."""
    with node.pipeline(transaction=False) as pipeline:
        for call in calls:
            pipeline.execute_command(*call.words(), **call.options)
        try:
            return list(pipeline.execute(raise_on_error=False))
        except RedisError as exc:
            return [exc] * len(calls)


def _by_node(client: Any, calls: Sequence[Sendable], places: Sequence[int]) -> list[tuple[Any, list[int]]]:
    """Return the client of each node, and the places of the calls that it is asked; None: the usual one."""
    cluster = without_retry(client)
    if not hasattr(cluster, "get_node_from_key"):
        return [(client, [*places])] if places else []
    found: dict[Any, list[int]] = {}
    for place in places:
        node = node_of(cluster, calls[place].keys[0])
        found.setdefault(node and cluster.get_redis_connection(node), []).append(place)
    return [*found.items()]
