"""Whatever the prefix is, a reshard moves its own entries, and touches nothing of another schedule's."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import redis

from redbeat.reshard.resharding import Resharding
from tests.conftest import MakeApp
from tests.support.resharded import beginning_of, fill, read_all
from tests.support.servers import Server

#: with hash tags, of no name, with what SCAN takes for a pattern, and a part of another's
PREFIXES = [
    *("a:{b}:c:", "{x}y:", ":", "}{", "{", "a", "a b\t:", "t\u00e4g\u2603:", "p" * 2048 + ":"),
    *("a*:", "**:", "[ab]:", "x?", "^\\:", "\\", "redbeat:3:", "{redbeat:3}:"),
]
OTHERS = [b"ab:", b"b:", b"xy", b"redbeat2:", b"{other:4}:", b"zz:", b"redbeat:"]


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1, decode_responses=False) as client:
        yield client


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_reshard_moves_what_has_its_prefix_and_nothing_else(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, prefix: str
) -> None:
    base = prefix.encode()
    mine = base, beginning_of(base)
    for other in OTHERS:
        if not other.startswith(mine):
            fill(raw, chance, 6, other)
    theirs = {key: raw.dump(key) for key in raw.scan_iter() if not key.startswith(mine)}
    fill(raw, chance, 40, base)
    before, wrong = read_all(raw, base)
    assert wrong == []
    for shards in (3, 5, None):
        report = Resharding(make_app(redbeat_key_prefix=prefix), shards).run()
        assert read_all(raw, base) == (before, [])
        assert report.unmerged == report.unknown == report.swept == []
        assert {key: raw.dump(key) for key in raw.scan_iter() if not key.startswith(mine)} == theirs
