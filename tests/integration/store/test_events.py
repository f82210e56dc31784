"""The stream of events: who may tell of them, and up to where it was told."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.store.events import CLAIM_MS, LIFE_MS, READ_EVENTS, Events
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.schedule import LOCK
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology

EVENTS, TOLD = "redbeat::events", "redbeat::events-read"
NO_LOCK = Fence()
NAMES = Keys()


@pytest.fixture
def events(app: Celery) -> Events:
    return Events(Store(app))


def names_of(
    events: Events, teller: str = "a", fence: Fence = NO_LOCK, names: Keys = NAMES
) -> list[str] | None:
    """The entries of which there is news; None: another one tells."""
    news = events.read({names: fence}, teller).get(names)
    return None if news is None else [event.fields["entry"] for event in news.events]


def quarantine(events: Events, *names: str) -> None:
    events.add_quarantined((name, "why") for name in names)


def tell_all(events: Events, teller: str = "a", fence: Fence = NO_LOCK, names: Keys = NAMES) -> bool:
    news = events.read({names: fence}, teller).get(names)
    assert news is not None
    return events.note_told(names, teller, news.told, news.events[-1].id, is_done=True)


def test_what_was_told_is_not_returned_again_and_the_rest_is(events: Events) -> None:
    assert names_of(events) == []
    quarantine(events, "one", "two")
    assert names_of(events) == ["one", "two"]
    assert names_of(events) == ["one", "two"], "it wasn't noted"
    news = events.read({NAMES: NO_LOCK}, "a").get(NAMES)
    assert news is not None
    assert events.note_told(NAMES, "a", news.told, news.events[0].id, is_done=False)
    assert names_of(events) == ["two"]
    assert tell_all(events)
    assert names_of(events) == []


def test_many_are_returned_in_portions(events: Events) -> None:
    names_of(events)
    names = [f"entry-{number}" for number in range(2 * READ_EVENTS + 1)]
    quarantine(events, *names)
    found: list[str] = []
    while more := names_of(events):
        found += more
        tell_all(events)
    assert found == names


def test_what_one_has_read_nobody_else_tells_of_until_its_time_is_over(
    events: Events, client: redis.Redis
) -> None:
    names_of(events)
    quarantine(events, "one", "two")
    assert names_of(events, "a") == ["one", "two"]
    assert names_of(events, "b") is None
    news = events.read({NAMES: NO_LOCK}, "a").get(NAMES)
    assert news is not None
    told, teller, until = str(client.get(TOLD)).split()
    assert (told, teller) == (news.told, "a")
    assert float(until) <= client.time()[0] + CLAIM_MS / 1000 + 1
    client.set(TOLD, f"{told} a 1.000")
    assert names_of(events, "b") == ["one", "two"]
    assert not events.note_told(NAMES, "a", news.told, news.events[0].id, is_done=False), "b tells by now"
    assert tell_all(events, "b")
    assert names_of(events, "a") == []


def test_with_a_lock_its_holder_tells_whoever_was_at_it_before(events: Events, client: redis.Redis) -> None:
    client.set(LOCK, "second")
    names_of(events, "a", Fence(LOCK, "second", 1000))
    quarantine(events, "one")
    assert names_of(events, "a", Fence(LOCK, "second", 1000)) == ["one"]
    assert names_of(events, "b", Fence(LOCK, "first", 1000)) is None
    assert names_of(events, "b", Fence(LOCK, "second", 1000)) == ["one"]
    assert client.pttl(LOCK) == -1, "reading renews no lock"


def test_a_place_that_can_not_be_read_begins_at_the_end(events: Events, client: redis.Redis) -> None:
    for value in ("nonsense", "", "5", "5-0 a b c"):
        quarantine(events, "before")
        client.set(TOLD, value)
        assert names_of(events) == []
        quarantine(events, "after")
        assert names_of(events) == ["after"]
        assert tell_all(events)


@pytest.mark.parametrize("place", ["99999999999999-1", "9" * 19 + "-0", "9" * 20 + "-0", "1-" + "9" * 20])
def test_a_place_that_no_event_comes_to_begins_at_the_end(
    events: Events, client: redis.Redis, place: str
) -> None:
    quarantine(events, "before")
    client.set(TOLD, place)
    assert names_of(events) == []
    quarantine(events, "after")
    assert names_of(events) == ["after"]


def test_the_place_of_a_stream_that_was_deleted_begins_with_the_next(
    events: Events, client: redis.Redis
) -> None:
    quarantine(events, "before")
    names_of(events)
    client.delete(EVENTS)
    client.set(TOLD, f"{client.time()[0] + 3600}000-0")  # the server's clock was set back since
    assert names_of(events) == []
    quarantine(events, "one", "two")
    assert names_of(events) == ["one", "two"]


def test_a_claim_for_longer_than_claims_are_keeps_nobody_from_telling(
    events: Events, client: redis.Redis
) -> None:
    names_of(events)
    quarantine(events, "one")
    client.set(TOLD, f"0-0 other {client.time()[0] + 10 * CLAIM_MS:.3f}")
    assert names_of(events) == ["one"]


def test_the_place_is_forgotten_only_if_nobody_asks_for_a_week(events: Events, client: redis.Redis) -> None:
    names_of(events)
    assert client.pttl(TOLD) > LIFE_MS - 60_000
    client.pexpire(TOLD, LIFE_MS // 2 - 1)
    names_of(events)
    assert client.pttl(TOLD) > LIFE_MS - 60_000


def test_the_stream_is_capped(events: Events, client: redis.Redis) -> None:
    quarantine(events, *(f"entry-{number}" for number in range(11_000)))
    assert 10_000 <= client.xlen(EVENTS) < 10_300


def test_a_key_of_another_type_is_named_and_keeps_nobody_from_pausing(
    events: Events, client: redis.Redis
) -> None:
    client.set(EVENTS, "no stream")
    quarantine(events, "one")
    client.set(TOLD, "0-0")
    with pytest.raises(StoreCorrupt, match="redbeat::events holds something that is no stream"):
        names_of(events)
    client.delete(EVENTS, TOLD)
    client.hset(TOLD, "no", "string")
    with pytest.raises(StoreCorrupt, match="redbeat::events-read holds something that is no string"):
        names_of(events)


def test_a_name_that_is_no_text_is_told_of_all_the_same(events: Events) -> None:
    names_of(events)
    quarantine(events, "caf\udce9", "tab\tü")
    events.add_paused([("sch\udcf6n", None)], None, None)


def test_in_a_cluster_it_is_the_same(cluster: ClusterTopology) -> None:
    options = {"cluster": True}
    store = Store(memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options=options))
    events, names = Events(store), store.keys
    assert names_of(events, names=names) == []
    quarantine(events, "one", "two")
    events.add_paused([("three", None)], "note", "ann")
    assert names_of(events, names=names) == ["one", "two", "three"]
    assert names_of(events, "b", names=names) is None
    assert tell_all(events, names=names)
    assert names_of(events, "b", names=names) == []
