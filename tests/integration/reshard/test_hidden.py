"""What a mover that was killed has left hidden comes back by itself; a mover that works is left alone."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.errors import ReshardRefused
from redbeat.keys import Keys
from redbeat.reshard import hidden
from redbeat.reshard.hidden import HiddenWatch
from redbeat.reshard.resharding import Resharding
from redbeat.reshard.sweeping import Sweeper
from redbeat.store.generations import Generations, LayoutRecord
from redbeat.store.layouts import Layouts
from redbeat.store.mover import Mover
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.reshard.test_resharding import Killed, Mortal, reshard
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.resharded import fill, part_of, read_all
from tests.support.servers import Server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1, decode_responses=False) as client:
        yield client


def hidden_keys(raw: redis.Redis) -> list[bytes]:
    return sorted(raw.scan_iter("*:moving*", count=1000))


def kill_with_hidden(make_app: MakeApp, raw: redis.Redis, shards: int | None, state: bytes) -> None:
    """Reshard until something is hidden in this state, and end as kill -9 does."""

    class Dying(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            if hidden_keys(raw) and raw.hget("redbeat::layout", "state") == state:
                raise Killed

    store = Dying(make_app())
    with pytest.raises(Killed):
        Resharding(store.config.app, shards, store).run()
    assert hidden_keys(raw)


def record_of(store: Store) -> LayoutRecord:
    return Generations(store).read()


@pytest.mark.parametrize("state", [b"moving", b"settling"])
def test_beats_move_on_what_a_killed_mover_has_left_hidden(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, monkeypatch: pytest.MonkeyPatch, state: bytes
) -> None:
    """While it settles that is what is kept for no entry, in a part that ends."""
    fill(raw, chance, 60)
    reshard(make_app, 4)
    before, _ = read_all(raw)
    raw.hset("{redbeat:3}::totals", "a:sent", 7)
    kill_with_hidden(make_app, raw, 2, state)
    store = Store(make_app())
    Layouts(store).look()
    sweeper = Sweeper(store)
    sweeper.look()
    assert hidden_keys(raw), "its mover may be about to go on"
    monkeypatch.setattr(hidden, "HIDDEN_SECONDS", 0)
    Sweeper(store).look()
    assert hidden_keys(raw) == []
    reshard(make_app, 2)
    total = raw.hget("{redbeat:1}::totals", "a:sent")
    raw.delete("{redbeat:1}::totals")
    assert (read_all(raw), total) == ((before, []), b"7")


def test_a_beat_that_runs_frees_within_seconds_what_was_hidden_when_a_reshard_was_killed(
    make_app: MakeApp, raw: redis.Redis, server: Server, tmp_path: Path
) -> None:
    """Also an entry that somebody has written to a part that ends, which is moved while it settles."""
    name = next(name for name in map(b"payroll-%d".__mod__, range(99)) if part_of(name, 4) > part_of(name, 2))
    reshard(make_app, 4)

    class Written(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            state = raw.hget("redbeat::layout", "state")
            if state == b"settling" and not raw.hget(place + b":moving", name) and not written:
                raw.hset(place + name, "definition", DEFINITION)
                raw.zadd(place + b":schedule", {place + name: time.time() + 2})
                written.append(True)
            if raw.hget(place + b":moving", name):
                raise Killed

    written: list[bool] = []
    place = part_of(name, 4)
    store = Written(make_app())
    with pytest.raises(Killed):
        Resharding(store.config.app, 2, store).run()
    assert raw.hget("redbeat::layout", "state") == b"settling"
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_shards=2)
    with celery_beat(tmp_path, "module") as beat, server.client(db=0) as broker:
        eventually(lambda: broker.llen("celery") > 1, 20, message=beat.output())
        beat.signal(signal.SIGTERM)
        beat.wait()
    assert hidden_keys(raw) == []


DEFINITION = '{"name": "payroll", "task": "echo", "schedule": {"__type__": "interval", "every": 1}}'


def test_a_mover_that_has_just_begun_after_another_was_killed_is_left_alone(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, chance, 60)
    kill_with_hidden(make_app, raw, 4, b"moving")
    store = Store(make_app())
    record, watch, second = record_of(store), HiddenWatch(store), Mover(store)
    parts = record.layout(store).parts
    watch.look(record)
    monkeypatch.setattr(hidden, "HIDDEN_SECONDS", 0.0001)
    second.open(parts)
    assert watch.look(record) == 0
    assert {raw.get(part.mover) for part in parts} == {second.token.encode()}
    second.finish_hidden(parts)
    assert hidden_keys(raw) == []


def test_a_mover_that_begins_at_the_moment_when_another_s_parts_are_taken_is_left_alone(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, chance, 60)
    kill_with_hidden(make_app, raw, 4, b"moving")
    store = Store(make_app())
    record, second = record_of(store), Mover(store)
    borrow: Callable[..., Any] = Mover.borrow

    def borrow_later(mover: Mover, parts: Sequence[Keys], *args: Any) -> list[Keys]:
        second.open(record.layout(store).parts)
        taken: list[Keys] = borrow(mover, parts, *args)
        return taken

    monkeypatch.setattr(hidden, "HIDDEN_SECONDS", 0)
    monkeypatch.setattr(Mover, "borrow", borrow_later)
    assert HiddenWatch(store).look(record) == 0
    assert {raw.get(part.mover) for part in record.layout(store).parts} == {second.token.encode()}
    second.finish_hidden(record.layout(store).parts)
    assert hidden_keys(raw) == []


def test_a_mover_that_was_paused_while_its_entries_were_hidden_is_refused_when_it_goes_on(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, chance, 60)
    before, _ = read_all(raw)
    monkeypatch.setattr(hidden, "HIDDEN_SECONDS", 0)
    freed: list[int] = []

    class Paused(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            if hidden_keys(raw) and not freed:
                other = Store(make_app())
                freed.append(HiddenWatch(other).look(record_of(other)))

    store = Paused(make_app())
    with pytest.raises(ReshardRefused):
        Resharding(store.config.app, 4, store).run()
    assert freed[0] > 0
    assert hidden_keys(raw) == []
    reshard(make_app, 4)
    assert read_all(raw) == (before, [])


def test_another_change_begins_only_when_nothing_is_hidden_in_the_places_that_there_were(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that was killed as it moved a foreign entry home, and nobody has looked for ten minutes."""
    fill(raw, chance, 30)
    reshard(make_app, 4)
    reshard(make_app, 2)
    before, _ = read_all(raw)
    raw.hset("{redbeat:3}:late", "definition", "{}")
    raw.zadd("{redbeat:3}::schedule", {"{redbeat:3}:late": 4e9})

    class Dying(Mortal):
        def on_round_trip(self) -> None:  # type: ignore[override]
            if hidden_keys(raw):
                raise Killed

    store = Dying(make_app())
    Layouts(store).look()
    with suppress(Killed):
        Sweeper(store).look()
    assert hidden_keys(raw)
    raw.hdel("redbeat::layout", "swept_until")
    monkeypatch.setattr(hidden, "HIDDEN_SECONDS", 0.1)
    reshard(make_app, None)
    after, wrong = read_all(raw)
    assert wrong == []
    assert after.keys() - before.keys() == {b"late", b":schedule late"}
    assert hidden_keys(raw) == []
