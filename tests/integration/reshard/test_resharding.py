"""Entries keep all that they have, wherever a reshard moves them, and however often it is killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.reshard import resharding
from redbeat.reshard.resharding import Report, Resharding
from redbeat.reshard.sweeping import sweep
from redbeat.store import mover
from redbeat.store.generations import Generations, LayoutRecord
from redbeat.store.mover import MARGIN_SECONDS, Stray, receive_request
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.resharded import fill, fill_own, part_of, read_all, read_own
from tests.support.servers import Server
from tests.unit.store.test_keys import OF_ENTRIES


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
    fill(raw, chance, 150)
    fill_own(raw, chance)
    found = {Keys().kind_of(key.decode("utf-8", "surrogateescape"))[0] for key in raw.scan_iter()}
    assert set(Keys().kinds) <= found, "a kind of key that isn't tried"
    assert all(raw.exists(getattr(Keys(), name)) for name in OF_ENTRIES), "another one"
    before, wrong = read_all(raw)
    own = read_own(raw)
    assert wrong == []
    for _ in range(5):
        shards = chance.choice([None, *range(1, 21)])
        report, killed = reshard(make_app, shards, chance)
        print(f"{shards}: killed {killed} times; {report}")
        after, wrong = read_all(raw)
        assert wrong == []
        assert after == before
        assert read_own(raw) == own
        assert report.unmerged == report.unknown == report.swept == []


@pytest.mark.few_cases(2)
@pytest.mark.parametrize(
    ("former", "shards"), [(None, 3), (3, None), (2, 5), (5, 2), (4, 3)], ids=lambda one: f"{one or 'none'}"
)
def test_it_may_be_killed_after_any_round_trip(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, former: int | None, shards: int | None
) -> None:
    fill(raw, chance, 60)
    for one in (former, shards, former):  # so that each time as much is left of the change before
        reshard(make_app, one)
    before, _ = read_all(raw)
    store = Mortal(make_app())
    store.left = whole = 10_000
    Resharding(store.config.app, shards, store).run()
    for place in sorted(chance.sample(range(whole - store.left), 6 if not IS_LONG else 100)):
        reshard(make_app, former)
        assert read_all(raw) == (before, [])
        store = Mortal(make_app())
        store.left = place
        with pytest.raises(Killed):
            Resharding(store.config.app, shards, store).run()
        reshard(make_app, shards)
        assert read_all(raw) == (before, []), f"killed after {place} steps"


def test_another_change_has_to_wait_until_one_that_was_killed_is_finished(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 30)
    store = Mortal(make_app())
    store.left = 30
    with pytest.raises(Killed):
        Resharding(store.config.app, 4, store).run()
    with pytest.raises(ReshardRefused, match="reshard --to 4"):
        Resharding(make_app(), 5).run()
    with pytest.raises(ReshardRefused, match="reshard --to 4"):
        Resharding(make_app(), 5).plan()
    assert Resharding(make_app(), 4).plan().is_resumed
    reshard(make_app, 4)
    assert not Resharding(make_app(), 5).plan().is_resumed
    reshard(make_app, 5)
    assert read_all(raw)[1] == []


def test_a_mover_that_was_paused_moves_nothing_when_another_has_gone_on(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 60)
    before, _ = read_all(raw)
    taken_over: list[Report] = []

    class Paused(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            self.left -= 1
            if self.left == 0:
                taken_over.append(reshard(make_app, 4)[0])

    refused = 0
    for place in range(8, 60, 2):
        store = Paused(make_app())
        store.left = place
        try:
            Resharding(store.config.app, 4, store).run()
        except ReshardRefused:
            refused += 1
        assert read_all(raw) == (before, [])
        reshard(make_app, None)
    assert taken_over
    assert refused > 10


def test_wherever_it_is_killed_no_part_has_a_mover_when_it_has_ended(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    fill(raw, random.Random(1), 3)
    store = Mortal(make_app())
    store.left = whole = 10_000
    Resharding(store.config.app, 2, store).run()
    taken, ended = whole - store.left, 0
    for place in range(taken - 30, taken):
        raw.flushdb()
        fill(raw, random.Random(1), 3)
        store = Mortal(make_app())
        store.left = place
        with pytest.raises(Killed):
            Resharding(store.config.app, 2, store).run()
        if not raw.hexists("redbeat::layout", "state"):
            ended += 1
            assert raw.keys("*:mover") == [], f"killed after {place} steps"
    assert ended


def test_one_that_was_paused_at_its_end_removes_nothing_of_a_later_layout(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reshard(make_app, 8)
    close = Resharding._close  # noqa: SLF001 - its last step
    lock, noted = b"{redbeat:5}::lock", b"{redbeat:1}::arrived"

    def close_later(resharding: Resharding, *args: Any) -> None:
        monkeypatch.undo()
        reshard(make_app, 4)
        reshard(make_app, 8)
        raw.set(lock, "a beat's")
        raw.hset(noted, "a move", "")
        close(resharding, *args)

    monkeypatch.setattr(Resharding, "_close", close_later)  # as if it was paused before it
    with pytest.raises(ReshardRefused):
        reshard(make_app, 4)
    assert raw.exists(lock, noted) == 2


def test_what_is_kept_for_no_entry_goes_to_a_part_that_stays(make_app: MakeApp, raw: redis.Redis) -> None:
    """What was counted stays counted, failures keep their times, and what wasn't told of yet will be."""
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
        raw.set(f"{prefix}:standbys", "x")
    raw.set("{redbeat:2}::something", "of the user's")
    report, _ = reshard(make_app, 1)
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


def test_what_somebody_writes_to_a_former_place_is_moved_home_as_the_newer(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    reshard(make_app, 4)
    meta = '{"last_run_at": null, "total_run_count": 7}'
    for name in ("changed", "asked", "same"):
        prefix = part_of(name.encode(), 4).decode()
        raw.hset(
            f"{prefix}{name}", mapping={"definition": "before", "policy": "p", "meta": meta, "meta_sha1": "s"}
        )
        raw.rpush(f"{prefix}:history:{name}", '{"at":9,"due":9}')
        raw.zadd(f"{prefix}:schedule", {f"{prefix}{name}": 9e9})
    raw.hset("redbeat:changed", mapping={"definition": "after", "meta": "{}"})
    raw.zadd("redbeat::schedule", {"redbeat:changed": 8e9})
    raw.zadd("redbeat::schedule", {"redbeat:asked": 0})
    raw.hset("redbeat:new", "definition", "new")
    raw.zadd("redbeat::schedule", {"new": 5})
    assert sorted(sweep(Store(make_app()))) == ["asked", "changed", "new"]

    def read(name: str) -> tuple[dict[bytes, bytes], float | None, list[bytes]]:
        prefix = part_of(name.encode(), 4).decode()
        score = raw.zscore(f"{prefix}:schedule", f"{prefix}{name}")
        return raw.hgetall(f"{prefix}{name}"), score, raw.lrange(f"{prefix}:history:{name}", 0, -1)

    kept = {b"definition": b"before", b"policy": b"p", b"meta": meta.encode(), b"meta_sha1": b"s"}
    assert read("same") == (kept, 9e9, [b'{"at":9,"due":9}'])
    assert read("changed") == ({**kept, b"definition": b"after"}, 8e9, [b'{"at":9,"due":9}'])
    assert read("asked") == (kept, 0, [b'{"at":9,"due":9}'])
    assert read("new")[0] == {b"definition": b"new"}
    assert raw.zscore(f"{part_of(b'new', 4).decode()}:schedule", "new") == 5
    assert raw.keys("redbeat:[a-z]*") == []
    assert sweep(Store(make_app())) == []


def test_what_is_written_to_a_part_that_stays_when_all_seems_to_be_moved_comes_home(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat may have run it there by then, so it isn't due again for long, and nobody would notice it."""
    reshard(make_app, 7)
    name = next(b"late-%d" % number for number in range(99) if _is_moved_between_shards_that_stay(number))
    former = part_of(name, 7)
    settle = Generations.settle

    def write_and_settle(generations: Generations, read: LayoutRecord) -> LayoutRecord | None:
        raw.hset(former + name, "definition", "{}")
        raw.zadd(former + b":schedule", {former + name: 4e9})
        raw.rpush(former + b":history:" + name, "{}")
        return settle(generations, read)

    monkeypatch.setattr(Generations, "settle", write_and_settle)
    reshard(make_app, 4)
    found, wrong = read_all(raw)
    assert wrong == []
    assert found[b":schedule " + name] == 4e9
    assert found[b":history:" + name] == [b"{}"]


def _is_moved_between_shards_that_stay(number: int) -> bool:
    former, now = (part_of(b"late-%d" % number, shards) for shards in (7, 4))
    return former != now and former in {b"{redbeat:%d}:" % shard for shard in range(4)}


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("round_trips", range(10, 18))
def test_what_a_killed_sweeper_has_hidden_is_moved_on(
    make_app: MakeApp, raw: redis.Redis, round_trips: int
) -> None:
    fill(raw, random.Random(1), 3)
    reshard(make_app, 4)
    place = part_of(b"late", 4) + b"late"
    raw.hset("redbeat:late", "definition", "{}")
    raw.zadd("redbeat::schedule", {"redbeat:late": 4e9})
    store = Mortal(make_app())
    store.left = round_trips
    with suppress(Killed):
        sweep(store)
    for key in raw.scan_iter("*:mover"):  # its lease is over
        raw.delete(key)
    sweep(Store(make_app()))
    assert raw.exists(place)
    assert raw.zscore(part_of(b"late", 4) + b":schedule", place) == 4e9
    assert raw.keys("*:moving*") == []


def test_what_was_written_where_an_entry_arrives_is_the_newer(make_app: MakeApp, raw: redis.Redis) -> None:
    meta = '{"last_run_at": null, "total_run_count": 7}'
    raw.hset("redbeat:e", mapping={"definition": "before", "meta": meta, "meta_sha1": "s", "own": "1"})
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
    kept = {b"definition": b"after", b"meta": meta.encode(), b"meta_sha1": b"s", b"own": b"1"}
    assert raw.hgetall(f"{prefix}e") == kept
    assert raw.zrange(f"{prefix}:schedule", 0, -1, withscores=True) == [(f"{prefix}e".encode(), 8e9)]
    assert raw.lrange(f"{prefix}:history:e", 0, -1) == [b'{"at":9}', b'{"at":8}', b'{"at":7}']
    assert raw.hgetall(f"{prefix}:running:e") == {b"a": b"started", b"b": b"sent"}
    assert raw.get(f"{prefix}:failing:e") == b"4"
    assert raw.zscore(f"{prefix}:deadlines", f"a\0{prefix}:running:e") == 9e9


def test_what_is_about_to_be_due_is_left_to_its_leader(make_app: MakeApp, raw: redis.Redis) -> None:
    """Without a leader it is moved at once, and due where it belongs."""
    raw.hset("redbeat:e", "definition", "d")
    raw.zadd("redbeat::schedule", {"redbeat:e": 5})
    prefix = part_of(b"e", 4).decode()
    looked: list[float | None] = []

    class Watched(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            looked.append(raw.zscore("redbeat::schedule", "redbeat:e"))
            if len(looked) == 60:
                raw.zadd("redbeat::schedule", {"redbeat:e": 9e9})  # as its run was sent

    raw.set("redbeat::lock", "somebody")
    for shard in range(4):
        raw.set(f"{{redbeat:{shard}}}::lock", "somebody")
    store = Watched(make_app())
    Resharding(store.config.app, 4, store).run()
    assert looked[:60] == [5] * 60
    assert raw.zscore(f"{prefix}:schedule", f"{prefix}e") == 9e9
    raw.delete(*(f"{{redbeat:{shard}}}::lock" for shard in range(4)), "redbeat::lock")
    raw.zadd(f"{prefix}:schedule", {f"{prefix}e": 5})
    report, _ = reshard(make_app, None)
    assert report.seconds < 5
    assert raw.zscore("redbeat::schedule", "redbeat:e") == 5


def test_what_runs_often_moves_soon_although_a_round_was_held_up(
    make_app: MakeApp, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a failover: what is due within three times as long stays only for some rounds."""
    held_up_seconds: list[float] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + sum(held_up_seconds)

    def receive(*args: Any) -> Any:
        if not held_up_seconds:
            held_up_seconds.append(2.0)
        return receive_request(*args)

    class Moving(mover.Mover):
        def move_all(
            self, strays: Iterable[Stray], margin_seconds: float | None, *, is_foreign: bool = False
        ) -> list[Stray]:
            some = [*strays]
            margins.update([margin_seconds] if some else [])
            return super().move_all(some, margin_seconds, is_foreign=is_foreign)

    margins: set[float | None] = set()
    monkeypatch.setattr(resharding, "Mover", Moving)
    monkeypatch.setattr(mover, "time", Clock)
    monkeypatch.setattr(mover, "receive_request", receive)
    often = [f"often-{number}" for number in range(20)]
    seldom = [f"seldom-{number}" for number in range(300)]

    class Running(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            # each has run just now, and does so every second or two
            ran = {f"redbeat:{name}": raw.time()[0] + 2 for name in often}
            raw.zadd("redbeat::schedule", ran, xx=True)

    for name in [*seldom, *often]:
        raw.hset(f"redbeat:{name}", "definition", "d")
        raw.zadd("redbeat::schedule", {f"redbeat:{name}": 9e9})
    raw.set("redbeat::lock", "somebody")
    for shard in range(4):
        raw.set(f"{{redbeat:{shard}}}::lock", "somebody")
    store = Running(make_app())
    report = Resharding(store.config.app, 4, store).run()
    assert report.longest_hidden_seconds > 2.0
    for name in often:
        prefix = part_of(name.encode(), 4).decode()
        assert raw.zscore(f"{prefix}:schedule", f"{prefix}{name}") is not None
    assert margins == {MARGIN_SECONDS}, "they weren't moved as what nobody runs"


def test_what_cannot_be_merged_is_kept_and_named(make_app: MakeApp, raw: redis.Redis) -> None:
    home = part_of(b"e", 4).decode()
    raw.hset("redbeat:e", "definition", "d")
    raw.zadd("redbeat::schedule", {"redbeat:e": 9e9})
    raw.set(f"{home}e", "something else")
    report, _ = reshard(make_app, 4)
    assert report.unmerged == [f"{home}:unmoved:entry:e"]
    assert raw.hgetall(report.unmerged[0]) == {b"definition": b"d"}
    assert raw.get(f"{home}e") == b"something else"
