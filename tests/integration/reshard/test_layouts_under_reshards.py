"""The layout is lost, overwritten, or an earlier one again, at any moment of a change: no entry is lost."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import ReshardRefused, StoreCorrupt, StoreRefused
from redbeat.process.background import surviving
from redbeat.reshard.resharding import Resharding
from redbeat.reshard.sweeping import Sweeper
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.reshard.resharded import Killed, after, fill, is_amid, part_of, read_all, reshard
from tests.support.command_line import call

LAYOUT = "redbeat::layout"
WAYS = [(None, 4), (4, None), (4, 9), (9, 4)]
#: what may be left of parts that have ended: once all entries have arrived, only the layout tells which did
LEFT = re.compile("::(left|mover)'$")
Breaks = Callable[[redis.Redis], object]


def kill_amid(
    make_app: MakeApp, raw: redis.Redis, shards: int | None, phase: str, after_steps: int = 12
) -> dict[bytes, bytes]:
    """Reshard until some steps into this phase, and end as kill -9 does; return the layout then."""
    is_time, is_over = is_amid(raw, phase), after(after_steps)
    with pytest.raises(Killed):
        reshard(make_app, shards, lambda: is_time() and is_over())
    return raw.hgetall(LAYOUT)


def findings(app: Celery, *arguments: str) -> dict[str, Any]:
    return {
        one["kind"]: one for one in json.loads(call(app, "doctor", "--json", *arguments).output)["findings"]
    }


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("phase", ["moving", "arrived"])
@pytest.mark.parametrize(("former", "shards"), WAYS, ids=lambda one: f"{one or 'none'}")
def test_layout_lost_during_a_reshard_is_written_again_by_the_resumed_one(
    make_app: MakeApp,
    raw: redis.Redis,
    chance: random.Random,
    former: int | None,
    shards: int | None,
    phase: str,
) -> None:
    fill(raw, chance, 40)
    reshard(make_app, former)
    before, _ = read_all(raw)
    kill_amid(make_app, raw, shards, phase, chance.randrange(3, 20 if phase == "moving" else 4))
    raw.delete(LAYOUT)
    plan = Resharding(make_app(), shards).plan()
    assert (plan.is_done, raw.exists(LAYOUT)) == (False, 0)
    # as long as no part was told of the change, it has not begun
    is_begun = any(b" from " in (raw.get(key) or b"") for key in raw.scan_iter("*::generation"))
    if phase == "moving":
        assert (plan.is_resumed, plan.former) == (is_begun, former)
    if phase == "moving" and is_begun:
        with pytest.raises(ReshardRefused, match=f"reshard --to {shards or 'none'}"):
            Resharding(make_app(), 7).run()
    reshard(make_app, shards)
    found, wrong = read_all(raw)
    assert found == before
    assert [one for one in wrong if phase == "moving" or not LEFT.search(one)] == []


def test_process_that_knows_the_layout_goes_on_when_it_is_lost(
    make_app: MakeApp, raw: redis.Redis, chance: random.Random
) -> None:
    fill(raw, chance, 40)
    kill_amid(make_app, raw, 4, "moving")
    store = Store(make_app())
    assert look_up_layout(store).is_moving
    raw.delete(LAYOUT)
    assert look_up_layout(store).is_moving
    raw.set(LAYOUT, "nonsense")
    assert look_up_layout(store).is_moving


def save_some(make_app: MakeApp) -> None:
    app = make_app()
    Entry.save_many(Entry(f"entry-{number}", "echo", 3600, app=app) for number in range(30))


def entries_in(raw: redis.Redis) -> dict[bytes, Any]:
    """Return the data of all entries, and check that each is in its shard."""
    raw.delete("redbeat::audit")
    found, wrong = read_all(raw)
    assert [one for one in wrong if not LEFT.search(one)] == []
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
@pytest.mark.parametrize("phase", ["moving", "arrived", ""])
@pytest.mark.parametrize("how", SPOILT)
def test_lost_or_invalid_layout_is_found_by_doctor_and_written_again_by_reshard(
    make_app: MakeApp, raw: redis.Redis, how: str, phase: str
) -> None:
    save_some(make_app)
    reshard(make_app, 9)
    before = entries_in(raw)
    if phase:
        kill_amid(make_app, raw, 4, phase, 12 if phase == "moving" else 3)
    else:
        reshard(make_app, 4)
    SPOILT[how](raw)
    found = findings(make_app(redbeat_shards=4))
    assert found.keys() == {"layout"}
    assert (found["layout"]["about"], found["layout"]["fixable"]) == (LAYOUT, False)
    assert "reshard --to 4 writes it again" in found["layout"]["advice"]
    if "Delete it" in found["layout"]["advice"]:
        raw.delete(LAYOUT)
    reshard(make_app, 4)
    assert "layout" not in findings(make_app(redbeat_shards=4))
    Entry("late", "echo", 3600, app=make_app(redbeat_shards=4)).save()
    assert entries_in(raw) == before


def test_generation_changed_by_hand_is_named_and_written_again_when_it_is_deleted(
    make_app: MakeApp, raw: redis.Redis
) -> None:
    Entry("report", "echo", 3600, app=make_app(redbeat_shards=4)).save()
    home = part_of(b"report", 4).decode()
    raw.set(f"{home}:generation", "99 7")
    with pytest.raises(StoreRefused, match=r'holds "99 7".* reshard --to 7 writes it again.* delete that'):
        Entry("report", "echo", 60, app=make_app(redbeat_shards=4)).save()
    raw.delete(f"{home}:generation")
    Entry("report", "echo", 60, app=make_app(redbeat_shards=4)).save()
    assert raw.get(f"{home}:generation") == b"1 4"


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
    with surviving("A beat's look"):
        Sweeper(store).look()
    with pytest.raises(StoreCorrupt, match=LAYOUT):
        reshard(make_app, 4)


@pytest.mark.parametrize("text", ["{}", "\xff", '{"at":"1","id":"a","kept":[]}'])
def test_invalid_hidden_entry_stops_a_reshard_and_no_beat(
    make_app: MakeApp, raw: redis.Redis, text: str
) -> None:
    save_some(make_app)
    kill_amid(make_app, raw, 4, "moving")
    raw.hset("redbeat::moving", "odd", text)
    store = Store(make_app(redbeat_shards=4))
    look_up_layout(store)
    with surviving("A beat's look"):
        Sweeper(store).look()
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
    kill_amid(make_app, raw, 2, "moving", 1)
    keys = [f"{{redbeat:{shard}}}::{key}" for shard in range(4)]
    for one in keys:
        raw.rpush(one, "odd")
    with pytest.raises(StoreCorrupt, match=rf"redbeat:\d\}}::{key} holds something that is no"):
        reshard(make_app, 2)
    raw.delete(*keys)
    reshard(make_app, 2)
    assert len(entries_in(raw)) > 30
