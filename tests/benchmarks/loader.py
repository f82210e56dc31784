"""Entries by the million, written as `save_many` writes them, but without making each: copies of a saved one.

Invariant: what is written differs from the sample in its name, in its first argument, which is the number in
that name, and in its score. All names are equally long, so of a command only digits differ.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from redbeat.layout import Layout, shard_of

DIGITS = 9
#: what is sent at once to a node
_LOT_BYTES = 1 << 20
_MEMBERS = 500


def name_of(number: int) -> str:
    return f"customer-{number:0{DIGITS}}"


class Sample(NamedTuple):
    """A saved entry: the number of its name, and all fields of its hash."""

    number: int
    fields: Mapping[bytes, bytes]

    @property
    def pieces(self) -> list[bytes]:
        """The fields and values of a HSET, cut where the number stands."""
        words = [word for pair in self.fields.items() for word in pair]
        return packed(*words)[1].split(self._digits)

    @property
    def definition(self) -> list[bytes]:
        """The definition, cut likewise."""
        return self.fields[b"definition"].split(self._digits)

    @property
    def _digits(self) -> bytes:
        return b"%0*d" % (DIGITS, self.number)


def packed(*words: bytes) -> tuple[int, bytes]:
    """How many words there are, and what they are on the wire."""
    return len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Node:
    """The connection to one node, which answers nothing until the end."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._lot = bytearray(b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n")

    def send(self, command: bytes) -> None:
        self._lot += command
        if len(self._lot) >= _LOT_BYTES:
            self.flush()

    def flush(self) -> None:
        self._socket.sendall(self._lot)
        self._lot.clear()

    def finish(self) -> None:
        """Wait until everything is done."""
        self.send(b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n")
        self.flush()
        answer = self._socket.recv(100)
        assert answer.startswith(b"+OK"), answer
        self._socket.close()


def load(
    client: redis.RedisCluster, layout: Layout, sample: Sample, numbers: range, scores: Sequence[float]
) -> Iterator[int]:
    """Write the entries with these numbers, with scores evenly between two; yield how many there are."""
    first, last = scores
    step = (last - first) / max(len(numbers), 1)
    shards = layout.shards or 1
    pieces = sample.pieces
    words = 2 + 2 * len(sample.fields)
    nodes: dict[int, Node] = {}
    heads, targets, members = [], [], []
    for keys in layout.parts:
        found: Any = client.get_node_from_key(keys.schedule)
        targets.append(nodes.setdefault(found.port, Node(found.host, found.port)))
        length = len(keys.entry(name_of(0)))
        heads.append(b"*%d\r\n$4\r\nHSET\r\n$%d\r\n%b" % (words, length, keys.prefix.encode()))
        members.append(list[bytes]())
    for count, number in enumerate(numbers, 1):
        name = name_of(number)
        shard = shard_of(name, shards)
        digits, target = name[-DIGITS:].encode(), targets[shard]
        target.send(b"%b%b\r\n%b" % (heads[shard], name.encode(), digits.join(pieces)))
        waiting = members[shard]
        waiting += (b"%.6f" % (first + count * step), layout.parts[shard].entry(name).encode())
        if len(waiting) >= 2 * _MEMBERS:
            target.send(zadd(layout.parts[shard].schedule, waiting))
            waiting.clear()
        if count % 100_000 == 0:
            yield count
    for keys, target, waiting in zip(layout.parts, targets, members, strict=True):
        if waiting:
            target.send(zadd(keys.schedule, waiting))
    for node in nodes.values():
        node.finish()
    yield len(numbers)


def zadd(key: str, scored: Sequence[bytes]) -> bytes:
    count, words = packed(b"ZADD", key.encode(), *scored)
    return b"*%d\r\n%b" % (count, words)
