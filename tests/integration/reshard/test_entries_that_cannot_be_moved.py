"""What can't be written to where it belongs stays whole where it is, and keeps nothing else from moving."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import redbeat
from redbeat.errors import ReshardRefused, StoreRefused
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.resharding import Resharding
from redbeat.store import mover
from redbeat.store.mover import Mover, Owned
from redbeat.store.scripts.moving import Kept, owned_request, receive_request
from redbeat.store.scripts.script import Request
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.reshard.test_resharding import Killed, reshard
from tests.support.resharded import fill, part_of, read_all
from tests.support.servers import Server

RIGHTS = (Path(redbeat.__file__).parents[1] / "docs" / "recipes" / "resharder.acl").read_text("utf-8").split()
#: what the moves themselves need, and not only the looks before
NEEDED = [
    *(
        "rename",
        "dump",
        "restore",
        "pttl",
        "unlink",
        "exists",
        "hget",
        "hmget",
        "hexists",
        "hkeys",
        "hlen",
        "hset",
    ),
    *("hsetnx", "hdel", "zadd", "zrem", "zscore", "zcard", "sadd", "srem", "scard", "sismember"),
]


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1, decode_responses=False) as client:
        yield client


def keys_with_values(raw: redis.Redis) -> dict[bytes, Any]:
    """Everything that stands in Redis, but what says how a reshard goes."""
    found = {key: raw.dump(key) for key in raw.scan_iter(count=1000)}
    apart = (b":layout", b":generation", b":mover", b":left", b":arrived")
    return {key: value for key, value in found.items() if not key.endswith(apart)}


def spoiling(monkeypatch: pytest.MonkeyPatch, is_spoilt: Callable[[bytes, int], bool]) -> pytest.MonkeyPatch:
    """Let some keys arrive as if their node didn't understand what one of a newer version has dumped.

    Arguments:
        is_spoilt: tells it of an item's name, and of the place of one of its keys.
    """

    def spoiled(part: Keys, token: str, move: str, items: Sequence[Kept]) -> Request:
        bad = []
        for one in items:
            values = list(one.values)
            for place in range(len(values) // 4):
                if is_spoilt(one.name, place):
                    values[4 * place + 3] = b"garbage"
            bad.append(one._replace(values=values))
        return receive_request(part, token, move, bad)

    monkeypatch.setattr(mover, "receive_request", spoiled)
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
@pytest.mark.parametrize("place", range(4))
def test_an_entry_of_which_one_key_cannot_be_written_stays_whole_where_it_is(
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
        report, _ = reshard(make_app, 4)
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
    report, _ = reshard(make_app, 4)
    assert report.unmoved == {}
    assert raw.get(f"{home}:failing:e") == (b"4" if is_there_already else b"3")
    assert raw.hget(f"{home}e", "definition") == (b"after" if is_there_already else b"d")
    assert read_all(raw)[1] == []


def test_what_cannot_be_written_is_named_and_moved_by_the_next_call(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, chance: random.Random
) -> None:
    names = fill(raw, chance, 60)
    before, _ = read_all(raw)
    bad = {name for name in chance.sample(names, 12) if raw.exists(b"redbeat:" + name)}
    with monkeypatch.context() as context:
        spoiling(context, lambda name, place: name in bad and not place)
        report, _ = reshard(make_app, 4)
    assert len(report.unmoved) == len(bad)
    left = raw.zcard("redbeat::schedule"), raw.zcard("redbeat::later"), raw.hlen("redbeat::downgraded")
    assert sum(left) == len(bad)
    report, _ = reshard(make_app, 4)
    assert report.unmoved == {}
    assert read_all(raw) == (before, [])


def test_what_could_not_be_written_when_the_mover_was_killed_is_moved_all_the_same(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its name has a NUL, and others' names are what stands before and after that."""
    names = [b"1", b"10\x0010", b"10", b"100"]
    for name in names:
        raw.hset(b"redbeat:" + name, "definition", name)
        raw.rpush(b"redbeat::history:" + name, b'{"at":9}')
        raw.zadd("redbeat::schedule", {b"redbeat:" + name: 9e9})
    before, _ = read_all(raw)

    def die(_: object, hidden: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        spoiling(context, lambda name, place: b"\0" in name)
        context.setattr(Mover, "_drop", die)  # its last step, which has no name outside
        with pytest.raises(Killed):
            Resharding(make_app(), 1).run()
    report, _ = reshard(make_app, 1)
    assert report.unmoved == {}
    assert read_all(raw) == (before, [])


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("command", NEEDED)
def test_who_lacks_a_right_moves_nothing_and_hides_nothing(
    server: Server, make_app: MakeApp, raw: redis.Redis, command: str
) -> None:
    for name in ("e", "f", "g"):
        write_whole(raw, name)
    home = part_of(b"e", 4).decode()
    raw.set(f"{home}:failing:e", 1)
    before, whole = read_all(raw)[0], keys_with_values(raw)
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "lacking", "reset", *RIGHTS[2:], f"-{command}")
        url = server.url(1).replace("redis://", "redis://lacking:secret@")
        try:
            with pytest.raises(StoreRefused):
                Resharding(make_app(redbeat_redis_url=url), 4).run()
        finally:
            admin.execute_command("ACL", "DELUSER", "lacking")
    assert raw.keys("*:moving*") == []
    left = {key: value for key, value in keys_with_values(raw).items() if b":arriving" not in key}
    assert left == whole
    reshard(make_app, 4)
    after = read_all(raw)[0]
    assert after.pop(b":failing:e") == b"4"
    before.pop(b":failing:e")
    assert after == before
    assert raw.keys("*:arriving*") == []


def test_when_a_node_has_no_memory_left_entries_stay_where_they_are(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, chance: random.Random
) -> None:
    fill(raw, chance, 60)
    before = keys_with_values(raw)

    def fill_up(*args: Any) -> Request:
        raw.config_set("maxmemory", 1)
        return receive_request(*args)

    try:
        with monkeypatch.context() as context:
            context.setattr(mover, "receive_request", fill_up)
            with pytest.raises(StoreRefused, match="memory"):
                Resharding(make_app(), 4).run()
    finally:
        raw.config_set("maxmemory", 0)
    after = keys_with_values(raw)
    assert {key for key in after if key not in before} == set()
    assert after.keys() == before.keys()
    whole = read_all(raw)[0]
    reshard(make_app, 4)
    assert read_all(raw) == (whole, [])


def test_an_entry_that_is_larger_than_a_server_takes_stays_and_the_others_move(
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
        report, _ = reshard(make_app, 4)
    finally:
        raw.config_set("proto-max-bulk-len", limit)
    assert [*report.unmoved] == ["e"]
    assert raw.zrange("redbeat::schedule", 0, -1) == [b"redbeat:e"]
    assert raw.llen("redbeat::history:e") == 6
    assert raw.keys("*:moving*") + raw.keys("*:arriving*") == []
    reshard(make_app, 4)
    assert read_all(raw) == (whole, [])


def test_an_entry_with_thousands_of_keys_and_tens_of_megabytes_is_moved(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    write_whole(raw)
    raw.hset("redbeat:e", "definition", random.Random(1).randbytes(30_000_000))
    with raw.pipeline(transaction=False) as pipeline:
        for number in range(9000):
            pipeline.set(b"redbeat::backfilling:e:%064x" % number, "2", px=900_000)
        pipeline.rpush("redbeat::history:e", *(b'{"at":%d}' % at for at in range(30_000, 0, -1)))
        home = part_of(b"e", 4)
        pipeline.rpush(home + b":history:e", *(b'{"at":%d.5}' % at for at in range(20_000, 0, -1)))
        pipeline.hset(home + b":running:e", mapping={f"{number}": "{}" for number in range(9000)})
        pipeline.execute()
    report, _ = reshard(make_app, 4)
    assert report.unmoved == {}
    assert report.unmerged == []
    assert raw.llen(home + b":history:e") == 50_001
    assert raw.hlen(home + b":running:e") == 9001
    assert len(raw.keys(home + b":backfilling:e:*")) == 9000
    assert raw.hstrlen(home.decode() + "e", "definition") == 30_000_000
    assert read_all(raw)[1] == []


def test_a_name_that_an_owner_gets_while_its_part_ends_is_not_lost(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.sadd("redbeat::owner:team", *(f"name-{number}" for number in range(50)))

    def add_meanwhile(part: Keys, token: str, change: str, owner: str, names: Sequence[str]) -> Request:
        if change == "remove":
            raw.sadd("redbeat::owner:team", "late")
            monkeypatch.setattr(mover, "owned_request", owned_request)
        return owned_request(part, token, change, owner, names)

    monkeypatch.setattr(mover, "owned_request", add_meanwhile)
    reshard(make_app, 4)
    found, wrong = read_all(raw)
    assert wrong == []
    assert len(found) == 51
    assert b":owner:team late" in found


def test_a_mover_that_another_has_followed_changes_no_names_of_owners(app: Celery, raw: redis.Redis) -> None:
    layout = Layout(Keys(), 2, 1)
    source, target = layout.parts
    raw.sadd(source.owner("team"), "a")
    late, next_one = Mover(Store(app)), Mover(Store(app))
    late.open(layout.parts)
    next_one.open(layout.parts)
    owned = [Owned(source, target, "team", ["a"])]
    with pytest.raises(ReshardRefused, match="Another process"):
        late.move_owned(owned)
    assert raw.keys("*:owner:*") == [source.owner("team").encode()]
    next_one.move_owned(owned)
    assert raw.keys("*:owner:*") == [target.owner("team").encode()]
