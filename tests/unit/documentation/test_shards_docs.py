"""The figures that writers in other languages compare theirs with, and how shards are spread over nodes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from redbeat.keys import shard_prefix
from redbeat.layout import shard_of

DOCS = Path(__file__).parents[3] / "docs"
_NODES = 3


def node_of(shard: int) -> int:
    """The number of a shard's node, from 1, where three share the slots evenly."""
    return key_slot(shard_prefix("redbeat:", shard).encode()) * _NODES // SLOTS + 1


def test_the_check_values_are_those_of_the_program() -> None:
    text = (DOCS / "data-model.rst").read_text("utf-8")
    rows = re.findall(r"^``(\S+)`` +(0x[0-9A-F]{4}) +(\d+) +(\d+) +(\d+)$", text, re.MULTILINE)
    assert len(rows) == 5
    for name, checksum, *shards in rows:
        assert shard_of(name, 0x10000) == int(checksum, 16), name
        assert [shard_of(name, count) for count in (7, 16, 48)] == [int(shard) for shard in shards], name


@pytest.mark.parametrize(
    ("shards", "words"), [(16, "7, 4 and 5"), (48, "16, 13 and 19"), (256, "89, 79 and 88")]
)
def test_the_spread_over_three_nodes_is_as_described(shards: int, words: str) -> None:
    found = Counter(map(node_of, range(shards)))
    assert [found[node] for node in (1, 2, 3)] == [int(word) for word in re.findall(r"\d+", words)]
    assert words in (DOCS / "shards.rst").read_text("utf-8")
    assert {node_of(shard) for shard in range(3)} == {1, 2}, "three shards leave the third node empty"
