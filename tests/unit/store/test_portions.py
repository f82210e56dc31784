"""Reading in portions: what is too much for one answer is halved, and grows again."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from redbeat.connection.retry import RequestBroken
from redbeat.errors import StoreRefused
from redbeat.store.portions import MAX_ENTRIES, Portions
from redbeat.store.records import Claimed, KeyType, Stored


class Server:
    """Answers at most `limit` bytes."""

    def __init__(self, sizes: dict[str, int], limit: int) -> None:
        self.sizes, self.limit = sizes, limit
        self.answers: list[list[str]] = []
        self.breaks = 0

    def read(self, keys: list[str], is_blamed: bool) -> list[Stored]:
        assert is_blamed == (len(keys) == 1)
        if sum(self.sizes[key] for key in keys) > self.limit:
            self.breaks += 1
            raise StoreRefused("no") from RequestBroken(ConnectionError("reset"))
        self.answers.append(keys)
        return [Stored(key, f"the definition of {key}", type=KeyType.HASH) for key in keys]


def rows_of(sizes: dict[str, int]) -> list[Claimed]:
    return [Claimed(key, "1", unread_bytes=size) for key, size in sizes.items()]


def test_each_entry_is_read_but_those_that_are_too_much_by_themselves() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(50):
        sizes = {f"k{number}": int(10 ** chosen.uniform(0, 6)) for number in range(chosen.randrange(1, 300))}
        limit = int(10 ** chosen.uniform(1, 6))
        server, rows = Server(sizes, limit), rows_of(sizes)
        Portions().fill(rows, server.read)
        for row in rows:
            is_read = sizes[row.key] <= limit
            assert row.definition == (f"the definition of {row.key}" if is_read else None)
            assert row.unread_bytes == (0 if is_read else sizes[row.key])
        assert [key for answer in server.answers for key in answer] == [
            row.key for row in rows if sizes[row.key] <= limit
        ]


def test_what_is_read_so_is_all_that_a_claim_tells() -> None:
    found = Stored("k", "d", "m", 2.5, "p", "e", KeyType.HASH, is_meta_foreign=True, revision="r")
    [row] = rows = rows_of({"k": 5})
    Portions().fill(rows, lambda *_: [found])
    names = [field.name for field in fields(Claimed) if hasattr(found, field.name) and field.name != "score"]
    assert {name: getattr(row, name) for name in names} == {name: getattr(found, name) for name in names}


def test_what_is_known_to_fit_is_not_tried_larger_at_each_batch() -> None:
    sizes = {f"k{number}": 1_000 for number in range(2_000)}
    server, portions = Server(sizes, limit=100_000), Portions()
    portions.fill(rows_of(sizes), server.read)
    at_first = server.breaks
    portions.fill(rows_of(sizes), server.read)
    assert at_first < 15
    assert server.breaks - at_first < 15
    assert len(server.answers) < 100


def test_when_more_fits_again_more_is_read_at_once() -> None:
    sizes = {f"k{number}": 1_000 for number in range(2_000)}
    server, portions = Server(sizes, limit=10_000), Portions()
    portions.fill(rows_of(sizes), server.read)
    server.limit = 10**9
    for _ in range(5):
        server.answers.clear()
        portions.fill(rows_of(sizes), server.read)
    assert len(server.answers) == len(sizes) / MAX_ENTRIES


def test_a_server_that_refuses_for_another_reason_is_no_reason_to_read_less() -> None:
    def refuse(keys: list[str], is_blamed: bool) -> list[Stored]:
        raise StoreRefused("NOPERM")

    with pytest.raises(StoreRefused, match="NOPERM"):
        Portions().fill(rows_of({"k": 1}), refuse)
