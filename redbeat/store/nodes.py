"""Sending scripts and commands about several parts of a schedule at once: one round trip for each node.

A cluster's client sends no scripts in its pipelines, so each node is asked by the client that the cluster's
client has for it. Invariant: what has no answer then, as the slot has moved or the node is away, is sent
alone by the client itself, which finds the right node. It waits for Redis, as the settings say, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError

from redbeat.connection.retry import is_transient, without_retry

Answer_co = TypeVar("Answer_co", covariant=True)


class Command:
    """A command that no script is needed for.

    Arguments:
        method: of the redis client, such as 'zscore'.
        args: its arguments; the first is the key, if it has one.
        options: its other arguments.
    """

    def __init__(self, method: str, *args: Any, **options: Any) -> None:
        self.method, self.args, self.options = method, args, options

    @property
    def keys(self) -> Sequence[Any]:
        """The key, if it has one."""
        return self.args[:1]

    @property
    def strings(self) -> Sequence[Any]:
        """Those keys that must hold strings, whatever their names are."""
        return self.keys if self.method == "get" else ()

    def send(self, client: Any) -> Any:
        """Send it by ``client``, or add it to a pipeline; return the reply."""
        return getattr(client, self.method)(*self.args, **self.options)

    def read(self, reply: Any) -> Any:
        """Return what the reply means: itself."""
        return reply


class RawCommand(Command):
    """A command whose reply is not decoded, whatever the client's settings are: its words, the key second."""

    def __init__(self, *words: Any) -> None:
        super().__init__("execute_command", *words, NEVER_DECODE=[])

    @property
    def keys(self) -> Sequence[Any]:
        """The key."""
        return self.args[1:2]


class Sendable(Protocol[Answer_co]):
    """What may be sent: a ``Call`` of a script, or a ``Command``. Its keys are in one slot."""

    @property
    def keys(self) -> Sequence[Any]:
        """The keys that it uses."""

    @property
    def strings(self) -> Sequence[Any]:
        """Those keys that must hold strings, whatever their names are."""

    def send(self, client: Any) -> Any:
        """Send it by ``client``, or add it to a pipeline; return the reply."""

    @property
    def read(self) -> Callable[[Any], Answer_co]:
        """Return what a reply means."""


def send_all(client: Any, calls: Sequence[Sendable[Any]]) -> list[Any]:
    """Return the reply to each call, or the error that it ends with, in their order."""
    replies: list[Any] = [None] * len(calls)
    left: Sequence[int] = range(len(calls))
    while left:
        unanswered = []
        for node, places in _by_node(client, calls, left):
            if len(left) > 1 and node is not None:
                for place, reply in _send_together(node, calls, places):
                    replies[place] = reply
                places = [place for place in places if _is_worth_sending_again(replies[place])]
            unanswered += [places] if places else []
        left = []
        for first, *others in unanswered:
            replies[first] = reply = _send_alone(client, calls[first])
            if not is_away(reply):  # what brings one through mostly does so for all: the script is known, say
                left += others
                continue
            client = without_retry(client)
            for place in others:
                replies[place] = reply
    return replies


def node_of(client: Any, key: str) -> Any:
    """Return which node has ``key``, as far as a cluster's client knows; None: none does, or it isn't such a
    client.
    """
    try:
        return without_retry(client).get_node_from_key(key)
    except (AttributeError, RedisError):  # no node has this slot now, which is the matter of its keys alone
        return None


def is_away(reply: Any) -> bool:
    """Return True if a reply is an error that means that a node couldn't be reached."""
    return isinstance(reply, Exception) and is_transient(reply) and not isinstance(reply, ResponseError)


def _is_worth_sending_again(reply: Any) -> bool:
    """Return True if the client could find another node, wait for it, or send the script, or less at once."""
    return isinstance(reply, Exception) and (is_transient(reply) or isinstance(reply, NoScriptError))


def _send_alone(client: Any, call: Sendable[Any]) -> Any:
    try:
        return call.send(client)
    except RedisError as exc:
        return exc


def _send_together(
    node: Any, calls: Sequence[Sendable[Any]], places: Sequence[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the place of each call and the reply of one node, or an error."""
    with node.pipeline(transaction=False) as pipeline:
        for place in places:
            calls[place].send(pipeline)
        try:
            replies = pipeline.execute(raise_on_error=False)
        except RedisError as exc:
            replies = [exc] * len(places)
    yield from zip(places, replies, strict=True)


def _by_node(
    client: Any, calls: Sequence[Sendable[Any]], places: Sequence[int]
) -> list[tuple[Any, list[int]]]:
    """Return the client of each node, and the places of the calls that it is asked; None: the usual one."""
    client = without_retry(client)
    if not hasattr(client, "get_node_from_key"):
        return [(client, [*places])]
    found: dict[Any, list[int]] = {}
    for place in places:
        node = node_of(client, calls[place].keys[0]) if len(calls) > 1 else None
        found.setdefault(node and client.get_redis_connection(node), []).append(place)
    return [*found.items()]
