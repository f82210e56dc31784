"""The stream of events: who may tell of them, and up to where it was told."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.store.events import (
    CLAIM_MS,
    READ_EVENTS,
    add_events,
    add_paused_events,
    note_told,
    read_events,
    read_last_ids,
)
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.schedule import LOCK
from tests.support.shards import EVERY_PLACE, app_in, at_most, names_in_every_shard, parts_of

EVENTS, TOLD = "redbeat::events", "redbeat::events-read"
NO_LOCK = Fence()
NAMES = Keys()


@pytest.fixture
def store(app: Celery) -> Store:
    return Store(app)


def entries_in(store: Store, teller: str = "a", fence: Fence = NO_LOCK) -> list[str] | None:
    """The entries of which there is news; None: another one tells."""
    news = read_events(store, {NAMES: fence}, teller).get(NAMES)
    return None if news is None else [event.fields["entry"] for event in news.events]


def quarantine(store: Store, *names: str) -> None:
    add_events(store, "entry_quarantined", ((name, {"reason": "why"}) for name in names))


def tell(store: Store, teller: str = "a", upto: int = -1) -> bool:
    """Note that events were told, all or up to one."""
    news = read_events(store, {NAMES: NO_LOCK}, teller)[NAMES]
    return note_told(store, NAMES, teller, news.told, news.events[upto].id)


def test_events_that_were_delivered_are_not_returned_again(store: Store) -> None:
    assert entries_in(store) == []
    quarantine(store, "one", "two")
    assert entries_in(store) == ["one", "two"]
    assert entries_in(store) == ["one", "two"], "it wasn't noted"
    assert tell(store, upto=0)
    assert entries_in(store) == ["two"]
    assert tell(store)
    assert entries_in(store) == []


def test_many_events_are_returned_in_portions(store: Store) -> None:
    entries_in(store)
    names = [f"entry-{number}" for number in range(2 * READ_EVENTS + 1)]
    quarantine(store, *names)
    found: list[str] = []
    while more := entries_in(store):
        found += more
        tell(store)
    assert found == names


def test_events_read_by_one_beat_are_left_to_it_until_its_claim_expires(
    store: Store, client: redis.Redis
) -> None:
    entries_in(store)
    quarantine(store, "one", "two")
    assert entries_in(store, "a") == ["one", "two"]
    assert entries_in(store, "b") is None
    news = read_events(store, {NAMES: NO_LOCK}, "a")[NAMES]
    told, teller, until = str(client.get(TOLD)).split()
    assert (told, teller) == (news.told, "a")
    assert float(until) <= client.time()[0] + CLAIM_MS / 1000 + 1
    client.set(TOLD, f"{told} a 1.000")
    assert entries_in(store, "b") == ["one", "two"]
    assert not note_told(store, NAMES, "a", news.told, news.events[0].id), "b tells by now"
    assert tell(store, "b")
    assert entries_in(store, "a") == []


def test_events_belong_to_the_holder_of_the_lock(store: Store, client: redis.Redis) -> None:
    client.set(LOCK, "second")
    entries_in(store, "a", Fence(LOCK, "second", 1000))
    quarantine(store, "one")
    assert entries_in(store, "a", Fence(LOCK, "second", 1000)) == ["one"]
    assert entries_in(store, "b", Fence(LOCK, "first", 1000)) is None
    assert entries_in(store, "b", Fence(LOCK, "second", 1000)) == ["one"]
    assert client.pttl(LOCK) == -1, "reading renews no lock"


@pytest.mark.parametrize("place", ["nonsense", "", "5", "5-0 a b c", "99999999999999-1", "1-" + "9" * 20])
def test_position_that_is_invalid_or_beyond_all_events_starts_at_the_end(
    store: Store, client: redis.Redis, place: str
) -> None:
    quarantine(store, "before")
    client.set(TOLD, place)
    assert entries_in(store) == []
    quarantine(store, "after")
    assert entries_in(store) == ["after"]


def test_events_key_of_the_wrong_type_is_named(store: Store, client: redis.Redis) -> None:
    client.set(EVENTS, "no stream")
    quarantine(store, "one")
    client.set(TOLD, "0-0")
    with pytest.raises(StoreCorrupt, match="redbeat::events holds something that is no stream"):
        entries_in(store)
    client.delete(EVENTS, TOLD)
    client.hset(TOLD, "no", "string")
    with pytest.raises(StoreCorrupt, match="redbeat::events-read holds something that is no string"):
        entries_in(store)


def test_event_about_a_name_that_is_not_utf8_is_added(store: Store) -> None:
    entries_in(store)
    quarantine(store, "caf\udce9", "tab\tü")
    add_paused_events(store, [("sch\udcf6n", None)], None, None)


@EVERY_PLACE
def test_events_of_all_shards_are_read_in_one_call(
    request: pytest.FixtureRequest, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_in(place, request)
    store, names = Store(app), names_in_every_shard(app, 2)
    fences = dict.fromkeys(parts_of(app), Fence())
    assert all(not news.events for news in read_events(store, fences, "a").values())
    with at_most(1, place, monkeypatch):
        add_events(store, "entry_quarantined", ((name, {"reason": "why"}) for name in names))
    with at_most(1, place, monkeypatch):
        found = read_events(store, fences, "a")
    assert [event.fields["entry"] for news in found.values() for event in news.events] == names
    assert read_events(store, fences, "b") == {}, "another beat tells"
    for keys, news in found.items():
        assert note_told(store, keys, "a", news.told, news.events[-1].id)
    assert all(not news.events for news in read_events(store, fences, "b").values())
    assert len(read_last_ids(store)) == len(fences)
