"""Entries keep all that they have, wherever a reshard moves them, and however often it is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import ReshardRefused, StoreRefused
from redbeat.keys import Keys
from redbeat.reshard import resharding
from redbeat.reshard.resharding import Resharding
from redbeat.reshard.sweeping import Sweeper, free_hidden
from redbeat.store import mover
from redbeat.store.layouts import look_up_layout, read_layout
from redbeat.store.mover import Move, Mover, receive_call
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.rounds import IS_LONG
from tests.integration.reshard.resharded import (
    Killed,
    after,
    beginning_of,
    end_leases,
    fill,
    fill_own,
    has_hidden,
    hidden_keys,
    is_amid,
    mortal,
    part_of,
    read_all,
    read_own,
    reshard,
    sweep,
)
from tests.support.command_line import call
from tests.support.fidelity import counting_round_trips
from tests.support.topologies import ClusterTopology
from tests.unit.store.test_layout import OF_ENTRIES


def test_reshards_in_any_order_and_killed_at_random_keep_all_entries(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 150 if IS_LONG else 80)
    fill_own(raw, chance)
    found = {Keys().kind_of(key.decode("utf-8", "surrogateescape"))[0] for key in raw.scan_iter()}
    assert set(Keys().kinds) <= found, "a kind of key that isn't tried"
    assert all(raw.exists(getattr(Keys(), name)) for name in OF_ENTRIES), "another one"
    before, own = read_all(raw), read_own(raw)
    assert before[1] == []
    for _ in range(5 if IS_LONG else 2):
        shards = chance.choice([None, *range(1, 21)])
        kills = [*(chance.choice([1, 5, 20, 60]) + chance.randrange(20) for _ in range(20)), 10**9]
        print(shards, kills)
        report = None
        while report is None:
            with suppress(Killed):
                report = reshard(make_app, shards, after(kills.pop(0)))
        assert read_all(raw) == before
        assert read_own(raw) == own
        assert report.unmerged == report.unknown == []


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(
    ("former", "shards"), [(None, 3), (3, None), (2, 5), (5, 2), (4, 3)], ids=lambda one: f"{one or 'none'}"
)
def test_reshard_killed_after_any_round_trip_is_resumed(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, former: int | None, shards: int | None
) -> None:
    fill(raw, chance, 60 if IS_LONG else 30)
    for one in (former, shards, former):  # so that each time as much is left of the change before
        reshard(make_app, one)
    before, _ = read_all(raw)
    steps: list[None] = []
    reshard(make_app, shards, lambda: bool(steps.append(None)))  # type: ignore[func-returns-value]
    for place in sorted(chance.sample(range(len(steps)), 100 if IS_LONG else 3)):
        reshard(make_app, former)
        assert read_all(raw) == (before, [])
        with pytest.raises(Killed):
            reshard(make_app, shards, after(place))
        reshard(make_app, shards)
        assert read_all(raw) == (before, []), f"killed after {place} steps"


def test_another_reshard_is_refused_until_a_killed_one_is_resumed(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 30)
    with pytest.raises(Killed):
        reshard(make_app, 4, is_amid(raw, "moving"))
    with pytest.raises(ReshardRefused, match="reshard --to 4"):
        reshard(make_app, 5)
    with pytest.raises(ReshardRefused, match="reshard --to 4"):
        Resharding(make_app(), 5).plan()
    assert Resharding(make_app(), 4).plan().is_resumed
    reshard(make_app, 4)
    assert not Resharding(make_app(), 5).plan().is_resumed
    reshard(make_app, 5)
    assert read_all(raw)[1] == []


def test_data_without_an_entry_is_merged_into_a_remaining_shard(make_app: MakeApp, raw: redis.Redis) -> None:
    """Counts are added up, failures keep their times, and unread events stay unread."""
    reshard(make_app, 3)
    for shard in range(3):
        prefix = f"{{redbeat:{shard}}}:"
        raw.hset(f"{prefix}:totals", mapping={"leader": "x", "a:sent": 10**shard, ":late/3": 5})
        raw.hset(f"{prefix}:figures", mapping={"a:sent": 2, "- a long field": ""})
        raw.hset(f"{prefix}:labels", "a", '["task","queue","entry",false]')
        raw.hset(f"{prefix}:minutes", "7", json.dumps({"minute": 100 + (shard > 1), "counted": {"sent": 1}}))
        raw.hset(f"{prefix}:workers", f"celery@{shard}", "{}")
        raw.xadd(f"{prefix}:failures", {"entry": f"e{shard}"}, id=f"{1000 - shard}-1")
        raw.xadd(f"{prefix}:events", {"event": "told", "entry": f"e{shard}"}, id=f"{1000 - shard}-1")
        raw.xadd(f"{prefix}:events", {"event": "untold", "entry": f"e{shard}"}, id=f"{2000 - shard}-1")
        raw.set(f"{prefix}:events-read", f"{1000 - shard}-1 beat 12.5", px=10**7)
        raw.set(f"{prefix}:lock", "token")
        raw.set(f"{prefix}:tick", "x")
    raw.set("{redbeat:2}::something", "of the user's")
    report = reshard(make_app, 1)
    assert report.unknown == ["{redbeat:2}::something"]
    home = "{redbeat:0}:"
    assert raw.hgetall(f"{home}:totals") == {b"leader": b"x", b"a:sent": b"111", b":late/3": b"15"}
    assert raw.hget(f"{home}:figures", "a:sent") == b"6"
    assert raw.hgetall(f"{home}:labels") == {b"a": b'["task","queue","entry",false]'}
    assert json.loads(raw.hget(f"{home}:minutes", "7") or "") == {"minute": 101, "counted": {"sent": 1}}
    assert raw.hlen(f"{home}:workers") == 3
    assert [row for row, _ in raw.xrange(f"{home}:failures")] == [b"998-1", b"999-1", b"1000-1"]
    told = (raw.get(f"{home}:events-read") or b"").split()[0]
    untold = [values for _, values in raw.xrange(f"{home}:events", f"({told.decode()}")]
    assert sorted(values[b"entry"] for values in untold) == [b"e0", b"e1", b"e2"]
    assert {values[b"event"] for values in untold} == {b"untold"}
    gone = sorted(key for shard in (1, 2) for key in raw.keys(f"{{redbeat:{shard}}}:*"))
    ends = [b"{redbeat:1}::generation", b"{redbeat:2}::generation", b"{redbeat:2}::something"]
    assert gone == ends
    assert raw.mget(ends[:2]) == [b"4 closed", b"4 closed"]


def test_entry_written_to_a_former_shard_is_moved_home_as_the_newer(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    reshard(make_app, 4)
    meta = '{"last_run_at": null, "total_run_count": 7}'
    for name in ("changed", "asked", "same"):
        prefix = part_of(name.encode(), 4).decode()
        raw.hset(
            f"{prefix}{name}",
            mapping={"definition": "before", "policy": "p", "meta": meta, "meta_crc32": "s"},
        )
        raw.rpush(f"{prefix}:history:{name}", '{"at":9,"due":9}')
        raw.zadd(f"{prefix}:schedule", {f"{prefix}{name}": 9e9})
    raw.hset("redbeat:changed", mapping={"definition": "after", "meta": "{}"})
    raw.zadd("redbeat::schedule", {"redbeat:changed": 8e9})
    raw.zadd("redbeat::schedule", {"redbeat:asked": 0})
    raw.hset("redbeat:new", "definition", "new")
    raw.zadd("redbeat::schedule", {"new": 5})
    assert sorted(sweep(make_app())) == ["asked", "changed", "new"]

    def read(name: str) -> tuple[dict[bytes, bytes], float | None, list[bytes]]:
        prefix = part_of(name.encode(), 4).decode()
        score = raw.zscore(f"{prefix}:schedule", f"{prefix}{name}")
        return raw.hgetall(f"{prefix}{name}"), score, raw.lrange(f"{prefix}:history:{name}", 0, -1)

    kept = {b"definition": b"before", b"policy": b"p", b"meta": meta.encode(), b"meta_crc32": b"s"}
    assert read("same") == (kept, 9e9, [b'{"at":9,"due":9}'])
    assert read("changed") == ({**kept, b"definition": b"after"}, 8e9, [b'{"at":9,"due":9}'])
    assert read("asked") == (kept, 0, [b'{"at":9,"due":9}'])
    assert read("new")[0] == {b"definition": b"new"}
    assert raw.zscore(f"{part_of(b'new', 4).decode()}:schedule", "new") == 5
    assert raw.keys("redbeat:[a-z]*") == []
    assert sweep(make_app()) == []


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("round_trips", range(10, 18))
def test_entry_hidden_by_a_killed_sweeper_is_moved_on(
    make_app: MakeApp, raw: redis.Redis, round_trips: int
) -> None:
    fill(raw, random.Random(1), 3)
    reshard(make_app, 4)
    place = part_of(b"late", 4) + b"late"
    raw.hset("redbeat:late", "definition", "{}")
    raw.zadd("redbeat::schedule", {"redbeat:late": 4e9})
    store = mortal(make_app(), after(round_trips))
    with suppress(Killed):
        look_up_layout(store)
        Sweeper(store).look()
    end_leases(make_app())
    sweep(make_app())
    assert raw.exists(place)
    assert raw.zscore(part_of(b"late", 4) + b":schedule", place) == 4e9
    assert raw.keys("*:moving*") == []


def test_entry_written_where_another_arrives_is_merged_as_the_newer(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    meta = '{"last_run_at": null, "total_run_count": 7}'
    raw.hset("redbeat:e", mapping={"definition": "before", "meta": meta, "meta_crc32": "s", "own": "1"})
    raw.rpush("redbeat::history:e", '{"at":9}', '{"at":7}')
    raw.hset("redbeat::running:e", mapping={"a": "sent", "b": "sent"})
    raw.zadd("redbeat::deadlines", {"a\0redbeat::running:e": 9e9})
    raw.set("redbeat::failing:e", 3)
    raw.zadd("redbeat::schedule", {"redbeat:e": 9e9})
    prefix = part_of(b"e", 4).decode()
    raw.hset(f"{prefix}e", mapping={"definition": "after", "meta": "{}"})
    raw.rpush(f"{prefix}:history:e", '{"at":8}')
    raw.hset(f"{prefix}:running:e", "a", "started")
    raw.set(f"{prefix}:failing:e", 1)
    raw.zadd(f"{prefix}:schedule", {f"{prefix}e": 8e9})
    reshard(make_app, 4)
    kept = {b"definition": b"after", b"meta": meta.encode(), b"meta_crc32": b"s", b"own": b"1"}
    assert raw.hgetall(f"{prefix}e") == kept
    assert raw.zrange(f"{prefix}:schedule", 0, -1, withscores=True) == [(f"{prefix}e".encode(), 8e9)]
    assert raw.lrange(f"{prefix}:history:e", 0, -1) == [b'{"at":9}', b'{"at":8}', b'{"at":7}']
    assert raw.hgetall(f"{prefix}:running:e") == {b"a": b"started", b"b": b"sent"}
    assert raw.get(f"{prefix}:failing:e") == b"4"
    assert raw.zscore(f"{prefix}:deadlines", f"a\0{prefix}:running:e") == 9e9


@pytest.mark.parametrize(("score", "lease"), [(5, ""), (8e9, "8000000000 5")], ids=["due", "claimed"])
def test_entry_that_is_due_or_claimed_is_left_to_its_leader(
    make_app: MakeApp, raw: redis.Redis, score: float, lease: str
) -> None:
    """Without a leader it is moved at once, and due where it belongs."""
    raw.hset("redbeat:e", mapping={"definition": "d", "lease": lease})
    raw.zadd("redbeat::schedule", {"redbeat:e": score})
    prefix = part_of(b"e", 4).decode()
    looked: list[float | None] = []

    def look() -> bool:
        looked.append(raw.zscore("redbeat::schedule", "redbeat:e"))
        if len(looked) == 150:
            raw.zadd("redbeat::schedule", {"redbeat:e": 9e9})  # as its run was sent
        return False

    locks = ["redbeat::lock", *(f"{{redbeat:{shard}}}::lock" for shard in range(4))]
    raw.mset(dict.fromkeys(locks, "somebody"))
    reshard(make_app, 4, look)
    assert looked[:150] == [score] * 150
    assert raw.zscore(f"{prefix}:schedule", f"{prefix}e") == 9e9
    raw.delete(*locks)
    raw.zadd(f"{prefix}:schedule", {f"{prefix}e": 5})
    report = reshard(make_app, None)
    assert report.seconds < 5
    assert raw.zscore("redbeat::schedule", "redbeat:e") == 5


def test_key_that_cannot_be_merged_is_kept_and_named(make_app: MakeApp, raw: redis.Redis) -> None:
    home = part_of(b"e", 4).decode()
    raw.hset("redbeat:e", "definition", "d")
    raw.zadd("redbeat::schedule", {"redbeat:e": 9e9})
    raw.set(f"{home}e", "something else")
    report = reshard(make_app, 4)
    assert report.unmerged == [f"{home}:unmoved:e"]
    assert raw.hgetall(report.unmerged[0]) == {b"definition": b"d"}
    assert raw.get(f"{home}e") == b"something else"


def test_sweeper_asks_nothing_as_long_as_the_layout_was_never_changed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(make_app(redbeat_shards=4))
    look_up_layout(store, is_beat=True)
    with counting_round_trips(monkeypatch) as trips:
        assert Sweeper(store).look() == []
        assert trips() == 0


def look_as_a_beat(app: Celery, raw: redis.Redis) -> None:
    store = Store(app)
    look_up_layout(store)
    Sweeper(store).look()
    assert hidden_keys(raw), "its mover may be about to go on"
    end_leases(app)
    Sweeper(store).look()


def call_doctor(app: Celery, raw: redis.Redis) -> None:
    end_leases(app)
    found = json.loads(call(app, "doctor", "--json").output)["findings"]
    assert {(one["severity"], one["fixable"]) for one in found if one["kind"] == "hidden"} == {
        ("error", True)
    }
    call(app, "doctor", "--fix")


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("phase", ["moving", "arrived"])
@pytest.mark.parametrize("repair", [look_as_a_beat, call_doctor])
def test_entries_hidden_by_a_killed_mover_are_moved_on_by_beats_and_doctor(
    make_app: MakeApp,
    raw: redis.Redis,
    phase: str,
    repair: Callable[[Celery, redis.Redis], None],
) -> None:
    """Once all have arrived that is what is kept for no entry, in a part that ends."""
    app = make_app()
    Entry.save_many(Entry(f"entry-{number}", "echo", 3600, app=app) for number in range(40))
    reshard(make_app, 4)
    before, _ = read_all(raw)
    raw.hset("{redbeat:3}::totals", "a:sent", 7)
    with pytest.raises(Killed):
        reshard(make_app, 2, has_hidden(raw, phase))
    repair(make_app(), raw)
    assert hidden_keys(raw) == []
    reshard(make_app, 2)
    total = raw.hget("{redbeat:1}::totals", "a:sent")
    raw.delete("{redbeat:1}::totals", "redbeat::audit")
    assert (read_all(raw), total) == ((before, []), b"7")


def test_reshard_finds_the_leaders_of_shards_by_a_lock_key_of_its_own(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resharding, "LEAD_SECONDS", 0)
    for prefix in "redbeat:", "{redbeat:0}:":
        raw.set(f"{prefix}own-lock", "token")
    report = reshard(partial(make_app, redbeat_lock_key="redbeat:own-lock"), 2)
    assert report.unled == [1]


def test_entry_that_has_run_where_it_arrived_is_not_written_there_again(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    Entry("e", "echo", 3600, app=make_app()).save()
    with pytest.raises(Killed):
        reshard(make_app, 4, lambda: bool(hidden_keys(raw) and raw.keys("*:arrived")))
    part = part_of(b"e", 4)
    raw.zadd(part + b":schedule", {part + b"e": 5e9})
    raw.hset(part + b"e", "meta", '{"total_run_count": 1}')
    keys = look_up_layout(Store(make_app())).keys.home("e")
    [move], token = raw.hkeys(keys.arrived), raw.get(keys.mover)
    hidden = Move(move.decode(), keys, keys, [[b"e"]])
    assert receive_call(token.decode(), hidden, is_cancelled=True).run(raw) == [[0], []], (
        "else it would be in both parts"
    )
    reshard(make_app, 4)
    assert raw.zscore(part + b":schedule", part + b"e") == 5e9
    assert raw.hget(part + b"e", "meta") == b'{"total_run_count": 1}'


def test_mover_that_has_resumed_after_a_kill_is_left_alone(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 60)
    with pytest.raises(Killed):
        reshard(make_app, 4, has_hidden(raw, "moving"))
    store = Store(make_app())
    parts, second = read_layout(store).parts, Mover(store)
    end_leases(make_app())
    assert second.take(parts)
    assert free_hidden(store, parts) != []
    assert {raw.get(part.mover) for part in parts} == {second.token.encode()}
    second.finish_hidden(parts)
    assert hidden_keys(raw) == []


def test_mover_renews_its_leases_and_is_refused_when_another_has_one(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RENEW_SECONDS", 0)
    store = Store(make_app(redbeat_shards=4))
    working, parts = Mover(store), store.parts
    assert working.take(parts)
    for part in parts:
        raw.pexpire(part.mover, 500)
    working.renew()
    assert all(raw.pttl(part.mover) > 500 for part in parts)
    raw.set(parts[3].mover, "another's")
    with pytest.raises(ReshardRefused, match="Another process moves these entries"):
        working.renew()


def test_mover_paused_while_its_entries_were_hidden_is_refused(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 60)
    before, _ = read_all(raw)
    freed: list[int] = []

    def pause() -> bool:
        if (hidden := hidden_keys(raw)) and not freed:
            end_leases(make_app())
            other = Store(make_app())
            assert free_hidden(other, read_layout(other).parts) == []
            freed.append(len(hidden))
        return False

    with pytest.raises(ReshardRefused):
        reshard(make_app, 4, pause)
    assert freed[0] > 0
    assert hidden_keys(raw) == []
    reshard(make_app, 4)
    assert read_all(raw) == (before, [])


#: with hash tags, of no name, with what SCAN takes for a pattern, and a part of another's
PREFIXES = [
    *("a:{b}:c:", "{x}y:", ":", "}{", "{", "a", "a b\t:", "t\u00e4g\u2603:", "p" * 2048 + ":"),
    *("a*:", "**:", "[ab]:", "x?", "^\\:", "\\", "redbeat:3:", "{redbeat:3}:"),
]
OTHERS = [b"ab:", b"b:", b"xy", b"redbeat2:", b"{other:4}:", b"zz:", b"redbeat:"]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_reshard_with_any_prefix_moves_its_own_keys_only(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, prefix: str
) -> None:
    base = prefix.encode()
    mine = base, beginning_of(base)
    for other in OTHERS:
        if not other.startswith(mine):
            fill(raw, chance, 6, other)
    theirs = {key: raw.dump(key) for key in raw.scan_iter() if not key.startswith(mine)}
    fill(raw, chance, 40, base)
    before = read_all(raw, base)
    assert before[1] == []
    for shards in (3, 5, None):
        report = Resharding(make_app(redbeat_key_prefix=prefix), shards).run()
        assert read_all(raw, base) == before
        assert report.unmerged == report.unknown == []
        assert {key: raw.dump(key) for key in raw.scan_iter() if not key.startswith(mine)} == theirs


BASE = b"{redbeat}:"


def test_reshard_in_a_cluster_keeps_all_entries_and_resumes_when_a_full_node_has_memory(
    cluster: ClusterTopology, chance: random.Random
) -> None:
    raw_cluster = cluster.client(decode_responses=False)
    app = Celery("test", set_as_current=False)
    app.conf.update(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    fill(raw_cluster, chance, 60, BASE)
    before = read_all(raw_cluster, BASE)
    full = cluster.owner("{redbeat:0}:")
    assert full is not cluster.owner("{redbeat}:"), "the layout can be written"
    with full.client() as client:
        used: Any = client.info("memory")
        client.config_set("maxmemory", used["used_memory"] - 1)
        try:
            for _ in range(2):  # the second call resumes, and gets no further
                with pytest.raises(StoreRefused, match=rf"maxmemory|{full.host}:{full.port}"):
                    Resharding(app, 7).run()
        finally:
            client.config_set("maxmemory", 0)
    for shards in (7, 3, None):
        report = Resharding(app, shards).run()
        assert report.unmerged == report.unknown == []
        assert read_all(raw_cluster, BASE) == before
    raw_cluster.close()
    app.close()
