"""An entry that cannot be written to its new shard stays whole in the old one, and the others move."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat
from redbeat.errors import StoreRefused
from redbeat.reshard.resharding import Resharding
from redbeat.store import mover
from redbeat.store.mover import Move, receive_call
from redbeat.store.scripts.script import Call
from tests.conftest import MakeApp
from tests.integration.reshard.resharded import fill, fill_own, part_of, read_all, read_own, reshard
from tests.support.servers import Server

RIGHTS = (Path(redbeat.__file__).parents[1] / "docs" / "recipes" / "resharder.acl").read_text("utf-8").split()
#: what the moves themselves need, and not only the looks before
NEEDED = (
    *("rename", "dump", "restore", "pttl", "unlink", "exists", "hget", "hmget", "hexists", "hkeys", "hlen"),
    *("hset", "hsetnx", "hdel", "zadd", "zrem", "zscore", "zcard", "sadd", "srem", "scard", "sismember"),
)


def keys_with_values(raw: redis.Redis) -> dict[bytes, Any]:
    """Everything that stands in Redis, but what says how a reshard goes; a set has no order."""

    def value_of(key: bytes) -> Any:
        return raw.smembers(key) if raw.type(key) == b"set" else raw.dump(key)

    found = {key: value_of(key) for key in raw.scan_iter(count=1000)}
    apart = (b":layout", b":generation", b":mover", b":left", b":arrived")
    return {key: value for key, value in found.items() if not key.endswith(apart)}


def spoiling(monkeypatch: pytest.MonkeyPatch, is_spoilt: Callable[[bytes, int], bool]) -> pytest.MonkeyPatch:
    """Let some keys arrive as if their node didn't understand what one of a newer version has dumped.

    Arguments:
        is_spoilt: tells it of an item's name, and of the place of one of its keys.
    """

    def spoiled(token: str, move: Move, **options: bool) -> Call[Any]:
        rows = [
            [
                name,
                record,
                *(b"garbage" if is_spoilt(name, place) else one for place, one in enumerate(dumps)),
            ]
            for name, record, *dumps in move.rows
        ]
        return receive_call(token, move._replace(rows=rows), **options)

    monkeypatch.setattr(mover, "receive_call", spoiled)
    return monkeypatch


def write_whole(raw: redis.Redis, name: str = "e") -> None:
    """An entry with several keys."""
    raw.hset(f"redbeat:{name}", mapping={"definition": "d", "meta": "{}", "owner": "team"})
    raw.rpush(f"redbeat::history:{name}", '{"at":9}')
    raw.set(f"redbeat::failing:{name}", 3)
    raw.hset(f"redbeat::running:{name}", "a", "{}")
    raw.zadd("redbeat::deadlines", {f"a\0redbeat::running:{name}": 9e9})
    raw.zadd("redbeat::expected", {f"redbeat::running:{name}": 9e9})
    raw.sadd("redbeat::owner:team", name)
    raw.sadd("redbeat::statics", name)
    raw.sadd("redbeat::static-owners", f"app\t{name}")
    raw.zadd("redbeat::schedule", {f"redbeat:{name}": 9e9})


@pytest.mark.parametrize("is_there_already", [False, True], ids=["new", "merged"])
@pytest.mark.parametrize("place", [0, 3])
def test_entry_with_a_key_that_cannot_be_written_stays_whole_and_in_place(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, place: int, is_there_already: bool
) -> None:
    write_whole(raw)
    raw.hset("redbeat:other", "definition", "d")
    raw.zadd("redbeat::schedule", {"redbeat:other": 9e9})
    home = part_of(b"e", 4).decode()
    if is_there_already:
        raw.hset(f"{home}e", "definition", "after")
        raw.set(f"{home}:failing:e", 1)
    before = keys_with_values(raw)
    with monkeypatch.context() as context:
        spoiling(context, lambda name, number: name == b"e" and number == place)
        report = reshard(make_app, 4)
    [(name, why)] = report.unmoved.items()
    assert name == "e"
    assert "DUMP" in why or "Bad data" in why
    after = keys_with_values(raw)
    for key in {*before, *after}:
        if key.endswith(b"e") and not key.endswith(b"schedule"):
            assert after.get(key) == before.get(key), key
    assert raw.zrange("redbeat::schedule", 0, -1) == [b"redbeat:e"], "the other one has moved"
    assert raw.keys("*:moving*") + raw.keys("*:arriving*") == []
    assert raw.hget("redbeat::layout", "state") == b"moving", "so that it runs where it is"
    report = reshard(make_app, 4)
    assert report.unmoved == {}
    assert raw.get(f"{home}:failing:e") == (b"4" if is_there_already else b"3")
    assert raw.hget(f"{home}e", "definition") == (b"after" if is_there_already else b"d")
    assert read_all(raw)[1] == []


#: an app of a user with the documented rights, except some
MakeUser = Callable[..., Celery]


@pytest.fixture
def user(server: Server, make_app: MakeApp) -> Iterator[MakeUser]:
    with server.client() as admin:

        def make(*less: str) -> Celery:
            admin.execute_command("ACL", "SETUSER", "resharder", "reset", *RIGHTS[2:], *less)
            return make_app(redbeat_redis_url=server.url(1).replace("redis://", "redis://resharder:secret@"))

        yield make
        admin.execute_command("ACL", "DELUSER", "resharder")


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("command", NEEDED)
def test_mover_without_a_right_moves_and_hides_nothing(
    user: MakeUser, make_app: MakeApp, raw: redis.Redis, command: str
) -> None:
    for name in ("e", "f", "g"):
        write_whole(raw, name)
    home = part_of(b"e", 4).decode()
    raw.set(f"{home}:failing:e", 1)
    before, whole = read_all(raw)[0], keys_with_values(raw)
    with pytest.raises(StoreRefused):
        Resharding(user(f"-{command}"), 4).run()
    assert raw.keys("*:moving*") == []
    left = {key: value for key, value in keys_with_values(raw).items() if b":arriving" not in key}
    assert left == whole
    reshard(make_app, 4)
    after = read_all(raw)[0]
    assert after.pop(b":failing:e") == b"4"
    before.pop(b":failing:e")
    assert after == before
    assert raw.keys("*:arriving*") == []


def test_entry_larger_than_the_server_takes_stays_and_the_others_move(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    for name in ("e", "f", "g", "h"):
        write_whole(raw, name)
    chance = random.Random(1)
    raw.rpush("redbeat::history:e", *(chance.randbytes(500_000) for _ in range(5)))
    whole = read_all(raw)[0]
    [limit] = raw.config_get("proto-max-bulk-len").values()
    raw.config_set("proto-max-bulk-len", 1024 * 1024)
    try:
        report = reshard(make_app, 4)
    finally:
        raw.config_set("proto-max-bulk-len", limit)
    assert [*report.unmoved] == ["e"]
    assert raw.zrange("redbeat::schedule", 0, -1) == [b"redbeat:e"]
    assert raw.llen("redbeat::history:e") == 6
    assert raw.keys("*:moving*") + raw.keys("*:arriving*") == []
    reshard(make_app, 4)
    assert read_all(raw) == (whole, [])


def test_user_with_the_documented_rights_may_reshard(
    user: MakeUser, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 25)
    fill_own(raw, chance)
    before, own = read_all(raw), read_own(raw)
    for shards in (3, 1):  # several parts end, and theirs are added to those of others
        report = Resharding(user(), shards).run()
        assert report.unmerged == report.unknown == []
        assert (read_all(raw), read_own(raw)) == (before, own)
