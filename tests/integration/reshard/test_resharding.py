"""Entries keep all that they have, wherever a reshard moves them, and however often it is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import redis

from redbeat.reshard.resharding import Report, Resharding
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.resharded import fill, read_all
from tests.support.servers import Server


class Killed(BaseException):
    """What ends a mover between two round trips, as kill -9 would."""


class Mortal(Store):
    """A store that dies after some round trips."""

    left = 10**9

    def on_round_trip(self) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1, decode_responses=False) as client:
        yield client


def reshard(make_app: MakeApp, shards: int | None, chance: random.Random | None = None) -> tuple[Report, int]:
    """Do it, killed now and then; return the report, and how often it was killed."""
    killed = 0
    while True:
        store = Mortal(make_app())
        store.left = chance.choice([1, 5, 20, 60]) + chance.randrange(20) if chance else 10**9
        try:
            return Resharding(store.config.app, shards, store).run(), killed
        except Killed:
            killed += 1
            if killed > 500:
                raise AssertionError("it gets nowhere") from None
            if killed > 20:
                chance = None


def test_any_sequence_of_reshards_leaves_the_same_entries(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    names = fill(raw, chance, 150)
    before, wrong = read_all(raw)
    assert wrong == []
    for _ in range(5):
        shards = chance.choice([None, *range(1, 21)])
        report, killed = reshard(make_app, shards, chance)
        print(f"{shards}: killed {killed} times; {report}")
        after, wrong = read_all(raw)
        assert wrong == []
        assert after == before
        assert report.unmerged == report.unknown == report.swept == []
    assert names
