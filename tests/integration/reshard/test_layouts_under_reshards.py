"""The layout is lost, overwritten, or an earlier one again, at any moment of a change: no entry is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import ReshardRefused, StoreCorrupt, StoreRefused
from redbeat.reshard.resharding import Resharding
from redbeat.reshard.sweeping import Sweeper
from redbeat.scheduler.quarantine import sweep
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.reshard.resharded import Killed, after, fill, part_of, read_all, reshard
from tests.support.command_line import call

LAYOUT = "redbeat::layout"
WAYS = [(None, 4), (4, None), (4, 9), (9, 4)]
Breaks = Callable[[redis.Redis], object]


def kill_amid(
    make_app: MakeApp, raw: redis.Redis, shards: int | None, state: bytes, after_steps: int = 12
) -> dict[bytes, bytes]:
    """Reshard until some steps into this state, and end as kill -9 does; return the layout then."""
    is_over = after(after_steps)
    with pytest.raises(Killed):
        reshard(make_app, shards, lambda: raw.hget(LAYOUT, "state") == state and is_over())
    return raw.hgetall(LAYOUT)


def findings(app: Celery, *arguments: str) -> dict[str, Any]:
    return {
        one["kind"]: one for one in json.loads(call(app, "doctor", "--json", *arguments).output)["findings"]
    }


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("state", [b"moving", b"settling"])
@pytest.mark.parametrize(("former", "shards"), WAYS, ids=lambda one: f"{one or 'none'}")
def test_layout_lost_during_a_reshard_is_written_again_by_the_resumed_one(
    make_app: MakeApp,
    raw: redis.Redis,
    chance: random.Random,
    former: int | None,
    shards: int | None,
    state: bytes,
) -> None:
    fill(raw, chance, 40)
    reshard(make_app, former)
    before, _ = read_all(raw)
    layout = kill_amid(make_app, raw, shards, state, chance.randrange(3, 20 if state == b"moving" else 4))
    raw.delete(LAYOUT)
    plan = Resharding(make_app(), shards).plan()
    assert (plan.is_resumed, raw.exists(LAYOUT)) == (True, 0), layout
    is_told = state == b"moving" or former is None or (former or 0) > (shards or 0)
    assert plan.former == former if is_told else plan.former in (former, shards)  # nothing ends
    with pytest.raises(ReshardRefused, match=f"reshard --to {shards or 'none'}"):
        Resharding(make_app(), 7).run()
    reshard(make_app, shards)
    assert read_all(raw) == (before, [])


def test_lost_layout_is_written_again_by_a_leader(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 40)
    layout = kill_amid(make_app, raw, 4, b"moving")
    store = Store(make_app())
    assert look_up_layout(store).is_moving
    raw.delete(LAYOUT)
    assert look_up_layout(store).is_moving
    Sweeper(store).look()
    assert raw.hgetall(LAYOUT) == layout
    raw.delete(LAYOUT)
    raw.set(LAYOUT, "nonsense")
    assert look_up_layout(store).is_moving


def save_some(make_app: MakeApp) -> None:
    app = make_app()
    Entry.save_many(Entry(f"entry-{number}", "echo", 3600, app=app) for number in range(30))


def entries_in(raw: redis.Redis) -> dict[bytes, Any]:
    """Return the data of all entries, and check that each is in its shard."""
    raw.delete("redbeat::audit", "redbeat::unmoved:layout")  # what stood there instead is kept
    found, wrong = read_all(raw)
    assert wrong == []
    return {place: value for place, value in found.items() if b"late" not in place}


SPOILT: dict[str, Breaks] = {
    "missing": lambda raw: raw.delete(LAYOUT),
    "a string": lambda raw: (raw.delete(LAYOUT), raw.set(LAYOUT, "x")),
    "generation is a word": lambda raw: raw.hset(LAYOUT, "generation", "first"),
    "shards are too many": lambda raw: raw.hset(LAYOUT, "shards", "99999999"),
    "state is unknown": lambda raw: raw.hset(LAYOUT, "state", "dancing"),
    "earlier": lambda raw: raw.hset(LAYOUT, "generation", "1"),
}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("state", [b"moving", b"settling", b""])
@pytest.mark.parametrize("how", SPOILT)
def test_lost_or_invalid_layout_is_repaired_by_doctor(
    make_app: MakeApp, raw: redis.Redis, how: str, state: bytes
) -> None:
    save_some(make_app)
    reshard(make_app, 9)
    before = entries_in(raw)
    if state:
        kill_amid(make_app, raw, 4, state, 12 if state == b"moving" else 3)
    else:
        reshard(make_app, 4)
    SPOILT[how](raw)
    app = make_app(redbeat_shards=4)
    found = findings(app)
    assert found.keys() == {"layout"}
    assert (found["layout"]["about"], found["layout"]["fixable"]) == (LAYOUT, True)
    assert "4 shards" in found["layout"]["advice"]
    call(app, "doctor", "--fix", "--dry-run")
    assert findings(app).keys() == {"layout"}
    done = call(app, "doctor", "--fix")
    assert "layout" not in findings(make_app(redbeat_shards=4)), done.output
    Entry("late", "echo", 3600, app=make_app(redbeat_shards=4)).save()
    reshard(make_app, 4)
    assert entries_in(raw) == before


def test_generation_of_one_shard_changed_by_hand_is_outvoted(make_app: MakeApp, raw: redis.Redis) -> None:
    app = make_app(redbeat_shards=4)
    Entry("report", "echo", 3600, app=app).save()
    home = part_of(b"report", 4).decode()
    raw.set(f"{home}:generation", "99 7")
    with pytest.raises(StoreRefused, match="celery redbeat doctor says which, and with --fix puts it right"):
        Entry("report", "echo", 60, app=make_app(redbeat_shards=4)).save()
    other = next(f"{{redbeat:{shard}}}:" for shard in range(4) if f"{{redbeat:{shard}}}:" != home)
    raw.set(f"{other}:generation", "1 4")
    call(app, "doctor", "--fix")
    assert raw.hmget(LAYOUT, "shards", "generation") == [b"4", b"100"]
    Entry("report", "echo", 60, app=make_app(redbeat_shards=4)).save()
    assert ensure_conf(app).layout.shards == 4
    known = {"persistence", "eviction", "no-leader", "retry-period"}
    assert findings(make_app(redbeat_shards=4)).keys() <= known


@pytest.mark.parametrize(
    ("field", "text"),
    [("generation", "soon"), ("shards", "99999999"), ("state", "odd")],
)
def test_invalid_layout_stops_a_reshard_and_no_beat(
    make_app: MakeApp, raw: redis.Redis, field: str, text: str
) -> None:
    save_some(make_app)
    reshard(make_app, 4)
    store = Store(make_app(redbeat_shards=4))
    look_up_layout(store)
    raw.hset(LAYOUT, field, text)
    sweep(Sweeper(store))
    with pytest.raises(StoreCorrupt, match=LAYOUT):
        reshard(make_app, 4)


@pytest.mark.parametrize("text", ["{}", "\xff", '{"at":"1","id":"a","kept":[]}'])
def test_invalid_hidden_entry_stops_a_reshard_and_no_beat(
    make_app: MakeApp, raw: redis.Redis, text: str
) -> None:
    save_some(make_app)
    kill_amid(make_app, raw, 4, b"moving")
    raw.hset("redbeat::moving", "odd", text)
    store = Store(make_app(redbeat_shards=4))
    look_up_layout(store)
    sweep(Sweeper(store))
    with pytest.raises(StoreCorrupt, match="redbeat::moving: odd stands there"):
        reshard(make_app, 4)
    raw.hdel("redbeat::moving", "odd")
    reshard(make_app, 4)
    assert len(entries_in(raw)) > 30


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("key", ["moving", "left", "arrived"])
def test_key_of_a_reshard_with_the_wrong_type_is_named(make_app: MakeApp, raw: redis.Redis, key: str) -> None:
    save_some(make_app)
    reshard(make_app, 4)
    keys = [f"{{redbeat:{shard}}}::{key}" for shard in range(4)]
    for one in keys:
        raw.rpush(one, "odd")
    with pytest.raises(StoreCorrupt, match=rf"redbeat:\d\}}::{key} holds something that is no"):
        reshard(make_app, 2)
    raw.delete(*keys)
    reshard(make_app, 2)
    assert len(entries_in(raw)) > 30
