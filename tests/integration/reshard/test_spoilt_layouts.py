"""What stands in the keys of a reshard by mistake: beats go on, and who reshards is told what it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.misplaced import sweep
from redbeat.errors import StoreCorrupt
from redbeat.reshard.resharding import Resharding
from redbeat.reshard.sweeping import Sweeper
from redbeat.store.layouts import Layouts
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.reshard.test_resharding import Killed, Mortal
from tests.support.servers import Server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1, decode_responses=False) as client:
        yield client


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("generation", "soon"),
        ("shards", "99999999"),
        ("shards", "many"),
        ("former", "99999999"),
        ("state", "odd"),
    ],
)
def test_a_beat_goes_on_when_the_layout_was_spoilt_and_a_reshard_says_so(
    make_app: MakeApp, raw: redis.Redis, field: str, text: str
) -> None:
    Entry("report", "echo", timedelta(hours=1), app=make_app()).save()
    Resharding(make_app(), 4).run()
    store = Store(make_app(redbeat_shards=4))
    Layouts(store).look()
    raw.hset("redbeat::layout", field, text)
    sweep(Sweeper(store))
    with pytest.raises(StoreCorrupt, match="redbeat::layout"):
        Resharding(make_app(), 4).run()


@pytest.mark.parametrize("text", ["soon", "nan", "inf", ""])
def test_nothing_is_swept_until_a_time_that_is_none(make_app: MakeApp, raw: redis.Redis, text: str) -> None:
    Entry("report", "echo", timedelta(hours=1), app=make_app()).save()
    Resharding(make_app(), 4).run()
    raw.hset("redbeat::layout", "swept_until", text)
    store = Store(make_app(redbeat_shards=4))
    Layouts(store).look()
    assert Sweeper(store).look() == []


@pytest.mark.parametrize(
    "text", ["odd", "{}", "[]", '{"at": "soon"}', "\xff", '{"at":"1","id":"a","kept":[]}']
)
def test_a_beat_goes_on_when_something_stands_where_entries_are_hidden_and_a_reshard_says_so(
    make_app: MakeApp, raw: redis.Redis, text: str
) -> None:
    Entry("report", "echo", timedelta(hours=1), app=make_app()).save()
    dying = Mortal(make_app())
    dying.left = 22
    with pytest.raises(Killed):
        Resharding(dying.config.app, 4, dying).run()
    assert raw.hget("redbeat::layout", "state") == b"moving"
    raw.hset("redbeat::moving", "odd", text)
    store = Store(make_app(redbeat_shards=4))
    Layouts(store).look()
    sweep(Sweeper(store))
    with pytest.raises(StoreCorrupt, match="redbeat::moving: odd stands there"):
        Resharding(make_app(), 4).run()
    raw.hdel("redbeat::moving", "odd")
    Resharding(make_app(), 4).run()
    assert len([*raw.scan_iter("{redbeat:?}:report")]) == 1


@pytest.mark.parametrize("key", ["moving", "left", "arrived", "mover"])
def test_a_reshard_names_the_key_of_its_own_that_holds_something_else(
    make_app: MakeApp, raw: redis.Redis, key: str
) -> None:
    Entry("x", "echo", timedelta(hours=1), app=make_app()).save()
    Resharding(make_app(), 4).run()
    for shard in range(4):
        raw.rpush(f"{{redbeat:{shard}}}::{key}", "odd")
    if key == "mover":  # it is written before it is read
        Resharding(make_app(), 2).run()
        return
    with pytest.raises(StoreCorrupt, match=rf"redbeat:\d\}}::{key} holds something that is no"):
        Resharding(make_app(), 2).run()
    raw.delete(*(f"{{redbeat:{shard}}}::{key}" for shard in range(4)))
    Resharding(make_app(), 2).run()
    assert len([*raw.scan_iter("{redbeat:?}:x")]) == 1
