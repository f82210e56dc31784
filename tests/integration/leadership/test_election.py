"""Beats share a schedule: each leads its share of the shards, hands over others, and takes what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.config.timing import Timing
from redbeat.errors import StoreCorrupt
from redbeat.leadership.assignment import find_leaders, max_shards
from redbeat.store.lock_tokens import beat_of, new_beat, new_token
from redbeat.store.notifier import WakeChannel
from tests.conftest import MakeApp
from tests.integration.leadership.sharing import SharingBeat, leaders, step
from tests.support.fidelity import noting_round_trips
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology

SHARDS = 16
BEATS = "redbeat::beats"
TOKEN_OF_2X = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind will do: the scripts are tested with both."""
    return valkey


class Company:
    """The beats of a test."""

    def __init__(self, make_app: MakeApp) -> None:
        self._make_app = make_app
        self.all: list[SharingBeat] = []

    def join(self, **settings: Any) -> SharingBeat:
        """Start one more."""
        beat = SharingBeat(self._make_app(**{"redbeat_shards": SHARDS, **settings}))
        beat.election.keep_alive()
        self.all.append(beat)
        return beat

    def settle(self) -> dict[str, SharingBeat]:
        """Step until each part is led by the one that is to lead it; return who that is."""

        def is_settled() -> bool:
            step(self.all)
            found = leaders(self.all)
            wanted = find_leaders(
                tuple(one.keys.prefix for one in self.all[0].election.leaderships),
                frozenset(beat.election.members.beat for beat in self.all),
            )
            return {prefix: beat.election.members.beat for prefix, beat in found.items()} == wanted

        eventually(is_settled)
        return leaders(self.all)


@pytest.fixture
def company(make_app: MakeApp) -> Iterator[Company]:
    made = Company(make_app)
    yield made
    for beat in made.all:
        beat.election.resign()


def test_new_beat_leads_its_share_after_two_looks(company: Company) -> None:
    first = company.join()
    first.step()
    for count in (2, 3):
        others = [*company.all]
        new = company.join()
        new.step()  # it says that it is there
        if count == 2:  # who leads all parts looks at no locks: its heartbeat is told
            # and goes on being told as long as that beat isn't stuck
            peers, beat_id = first.election.members, new.election.members.beat
            eventually(lambda: first.election.note_progress() or beat_id in peers.live)  # noqa: B023
        step(others)  # they hand over its share
        step([new])  # it takes that
        step(others)  # what they have handed over to each other
        assert len(leaders(company.all)) == SHARDS
        loads = [len(beat.led) for beat in company.all]
        assert sum(loads) == SHARDS
        assert max(loads) <= max_shards(SHARDS, count)
        assert min(loads) > 0


def test_shards_of_a_crashed_beat_are_taken_over(company: Company) -> None:
    for _ in range(3):
        company.join()
    company.settle()
    dead = company.all.pop(0)
    assert dead.led
    dead.crash()
    eventually(lambda: step(company.all, at_once=False) or len(leaders(company.all)) == SHARDS)
    company.settle()


def test_beat_that_ends_wakes_the_others(company: Company) -> None:
    for _ in range(3):
        company.join()
    company.settle()
    ended = company.all.pop()
    channels = [WakeChannel(beat.store.client, beat.election.wake_channels) for beat in company.all]
    for channel in channels:
        channel.wait(0.05)  # it subscribes
    ended.election.resign()
    assert [channel.wait(5) for channel in channels] == [True, True]
    for beat in company.all:
        beat.election.note_wake()
    eventually(lambda: step(company.all, at_once=False) or len(leaders(company.all)) == SHARDS)
    for channel in channels:
        channel.close()


def test_shard_of_an_idle_beat_is_taken_by_another(company: Company) -> None:
    living, idle = company.join(), company.join()
    company.settle()
    assert idle.led
    idle.crash()

    def are_all_led() -> bool:
        idle.store.client.zadd(BEATS, {new_token(idle.election.members.beat): time.time()})
        living.step(at_once=False)
        return len(living.led) == SHARDS

    eventually(are_all_led)
    for _ in range(5):
        living.step()
        assert len(living.led) == SHARDS, "they aren't handed over to it again"


def test_hanging_scheduler_loses_its_shards(company: Company) -> None:
    living, stuck = company.join(), company.join()
    company.settle()
    assert stuck.led
    eventually(lambda: living.step(at_once=False) or len(leaders([living])) == SHARDS)
    assert stuck.election.members.beat not in {
        beat_of(one) for one in living.store.client.zrange(BEATS, 0, -1)
    }


def test_shard_whose_lock_another_beat_has_is_not_led_any_more(company: Company) -> None:
    beat = company.join()
    beat.step()
    lost, *_ = beat.election.leaderships
    beat.store.client.set(lost.lock_key, new_token(new_beat()))
    eventually(lambda: beat.election.check() or not lost.is_leader)
    assert len(beat.led) == SHARDS - 1


LONG = Timing(60.0, 8.0)


PassSeconds = Callable[[SharingBeat, int], int]


@pytest.fixture
def pass_seconds(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> PassSeconds:
    """Let the locks of others age, while a beat looks at them each second; return how many it leads then."""
    now = 0.0
    for module in ("lock", "election"):
        clock = SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr(f"redbeat.leadership.{module}.time", clock)

    def pass_them(beat: SharingBeat, count: int) -> int:
        nonlocal now
        for _ in range(count):
            now += 1
            for one in beat.election.leaderships:
                if not one.is_leader:
                    client.pexpire(one.lock_key, int((LONG.lock_seconds - now) * 1000))
            beat.step()
        return len(beat.led)

    return pass_them


def test_silent_shards_are_taken_over_long_before_their_locks_expire(
    make_app: MakeApp, client: redis.Redis, pass_seconds: PassSeconds
) -> None:
    gone, living = (SharingBeat(make_app(redbeat_shards=SHARDS), LONG) for _ in range(2))
    gone.step()
    client.set(f"{gone.store.parts[0].prefix}:lock", TOKEN_OF_2X)
    assert pass_seconds(living, int(LONG.takeover_seconds or 0)) == 0
    assert pass_seconds(living, 6) == SHARDS - 1, "the lock of 2.x is left to expire"
    living.election.resign()


def test_silent_shards_are_left_while_the_server_takes_no_writes(
    make_app: MakeApp, client: redis.Redis, pass_seconds: PassSeconds
) -> None:
    holding, waiting = (SharingBeat(make_app(redbeat_shards=SHARDS), LONG) for _ in range(2))
    holding.step()
    client.config_set("maxmemory", 1)
    try:
        assert pass_seconds(waiting, 20) == 0
    finally:
        client.config_set("maxmemory", 0)
    assert pass_seconds(waiting, 2 * int(LONG.takeover_seconds or 0)) == SHARDS
    waiting.election.resign()


def test_shards_that_stay_keep_their_locks_in_a_new_layout(company: Company) -> None:
    beat = company.join()
    beat.step()
    parts = beat.store.parts
    tokens = {one.keys.prefix: one.fence.token for one in beat.election.leading}
    beat.set_parts(parts[:5])
    assert len(leaders([beat])) == 5
    assert not beat.store.client.exists(f"{parts[7].prefix}:lock")
    beat.set_parts(parts)
    beat.step()
    assert len(beat.led) == SHARDS
    kept = [one.fence.token == tokens[one.keys.prefix] for one in beat.election.leading]
    assert kept == [True] * 5 + [False] * 11


def test_beat_without_shards_notices_a_new_layout(company: Company) -> None:
    first = company.join()
    first.step()
    idle = company.join()
    idle.step()
    assert not idle.led
    assert not idle.election.has_new_layout
    generation = idle.store.config.layout.generation
    first.store.client.hset("redbeat::layout", mapping={"shards": 2 * SHARDS, "generation": generation + 1})
    idle.step()
    assert idle.store.config.layout.generation == generation + 1
    assert len(idle.store.config.layout.parts) == 2 * SHARDS


def test_lock_of_wrong_type_costs_its_own_shard(company: Company) -> None:
    beat = company.join()
    first, *others = [leadership.keys.prefix for leadership in beat.election.leaderships]
    beat.store.client.sadd(f"{first}:lock", "spoilt")
    beat.step()
    assert beat.led == set(others)
    beat.election.resign()
    beat.store.client.sadd(f"{others[0]}:lock", "spoilt")
    only_spoilt = company.join()
    only_spoilt.set_parts(only_spoilt.store.parts[:2])
    with pytest.raises(StoreCorrupt, match="holds something that is no string"):
        only_spoilt.step()


# -- on several nodes


CLUSTER_SHARDS = 48


@pytest.fixture
def beats(cluster: ClusterTopology) -> Iterator[list[SharingBeat]]:
    """Two beats, neither of which has a heartbeat of its own."""
    made = [SharingBeat(app_of(cluster)) for _ in range(2)]
    yield made
    for beat in made:
        beat.election.resign()


def app_of(cluster: ClusterTopology) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(
        redbeat_redis_url=cluster.url(),
        redbeat_redis_options={"cluster": True, "password": cluster.nodes[0].password},
        redbeat_shards=CLUSTER_SHARDS,
    )
    return app


def test_look_takes_one_round_trip_a_node(
    cluster: ClusterTopology, beats: list[SharingBeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = beats
    for _ in range(4):
        step([first, second])
    assert len(first.led) + len(second.led) == CLUSTER_SHARDS
    with noting_round_trips(monkeypatch) as sent:
        first.step()
    assert len(sent) == len(cluster.nodes), sent
