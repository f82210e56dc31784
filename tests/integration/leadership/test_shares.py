"""Beats share a schedule: each leads its share, hands over what is another's, and takes what is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redbeat.errors import StoreCorrupt
from redbeat.leadership.rendezvous import find_leaders, max_parts
from redbeat.store.beats import Beats
from redbeat.store.lock_tokens import beat_of
from redbeat.store.nodes import call_on_nodes
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.sharing import SharingBeat, leaders, step

SHARDS = 16


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
        beat.shares.keep_alive()
        self.all.append(beat)
        return beat

    def settle(self) -> dict[str, SharingBeat]:
        """Step until each part is led by the one that is to lead it; return who that is."""

        def is_settled() -> bool:
            step(self.all)
            found = leaders(self.all)
            wanted = find_leaders(
                [one.keys.prefix for one in self.all[0].shares.leaderships],
                [beat.shares.beat for beat in self.all],
            )
            return {prefix: beat.shares.beat for prefix, beat in found.items()} == wanted

        eventually(is_settled)
        return leaders(self.all)


@pytest.fixture
def company(make_app: MakeApp) -> Iterator[Company]:
    made = Company(make_app)
    yield made
    for beat in made.all:
        beat.shares.resign()


def test_the_first_beat_leads_all_parts_after_one_look(company: Company) -> None:
    beat = company.join()
    beat.step()
    assert len(beat.led) == SHARDS
    assert set(leaders([beat])) == beat.led


def test_a_beat_that_comes_leads_its_share_after_two_looks_and_one_of_the_others(company: Company) -> None:
    first = company.join()
    first.step()
    for count in (2, 3):
        others = [*company.all]
        new = company.join()
        new.step()  # it says that it is there
        if count == 2:  # who leads all parts looks at no locks: its heartbeat is told
            # and goes on being told as long as that beat isn't stuck
            eventually(lambda: first.shares.note_progress() or new.shares.beat in first.shares.live)  # noqa: B023
        step(others)  # they hand over its share
        step([new])  # it takes that
        step(others)  # what they have handed over to each other
        assert len(leaders(company.all)) == SHARDS
        loads = [len(beat.led) for beat in company.all]
        assert sum(loads) == SHARDS
        assert max(loads) <= max_parts(SHARDS, count)
        assert min(loads) > 0


def test_the_parts_of_a_beat_that_crashes_are_led_by_the_others_after_the_takeover_time(
    company: Company,
) -> None:
    for _ in range(3):
        company.join()
    company.settle()
    [dead, *others] = company.all
    lost = dead.led
    dead.crash()
    company.all.remove(dead)
    died_at = time.monotonic()
    kept = leaders(others)

    def are_all_led() -> bool:
        step(others, at_once=False)
        return len(leaders(others)) == SHARDS

    eventually(are_all_led)
    assert lost
    print(f"{len(lost)} parts of a beat that was killed are led {time.monotonic() - died_at:.1f} s later")
    found = company.settle()
    moved = sum(found[prefix] is not beat for prefix, beat in kept.items())
    print(f"{moved} of the others' {len(kept)} have moved, too")


def test_a_beat_that_ends_hands_its_parts_to_the_others_with_their_next_look(company: Company) -> None:
    for _ in range(3):
        company.join()
    company.settle()
    ended = company.all.pop()
    ended.shares.resign()
    assert ended.shares.beat not in Beats(Store(ended.app)).read()
    step(company.all)
    step(company.all)
    assert len(leaders(company.all)) == SHARDS


def test_a_beat_that_ends_wakes_the_others_which_then_look_at_once(company: Company) -> None:
    for _ in range(3):
        company.join()
    company.settle()
    ended = company.all.pop()
    channels = [beat.store.wake_channel(beat.shares.wake_channels) for beat in company.all]
    for channel in channels:
        channel.wait(0.05)  # it subscribes
    ended.shares.resign()
    assert [channel.wait(5) for channel in channels] == [True, True]
    for beat in company.all:
        beat.shares.note_wake()
    eventually(lambda: step(company.all, at_once=False) or len(leaders(company.all)) == SHARDS)
    for channel in channels:
        channel.close()


def test_a_part_is_not_left_unled_by_a_beat_that_says_it_is_there_and_takes_nothing(
    company: Company,
) -> None:
    living, idle = company.join(), company.join()
    company.settle()
    lost = idle.led
    idle.crash()

    def are_all_led() -> bool:
        idle.store.client.zadd("redbeat::beats", {idle.shares.beat: time.time()})
        living.step(at_once=False)
        return len(living.led) == SHARDS

    assert lost
    eventually(are_all_led)
    for _ in range(5):
        living.step()
        assert len(living.led) == SHARDS, "they aren't handed over to it again"


def test_the_token_of_each_lock_says_which_beat_leads_the_part(company: Company) -> None:
    for _ in range(2):
        company.join()
    found = company.settle()
    known = Beats(Store(company.all[0].app)).read()
    assert known.keys() == {beat.shares.beat for beat in company.all}
    tokens = set()
    for prefix, beat in found.items():
        token = beat.store.client.get(f"{prefix}:lock")
        assert beat_of(token) == beat.shares.beat
        tokens.add(token)
    assert len(tokens) == SHARDS, "each acquisition has its own"


def test_a_lock_that_another_beat_has_costs_no_other_part(company: Company) -> None:
    beat = company.join()
    beat.step()
    taken = next(iter(beat.led))
    beat.store.client.set(f"{taken}:lock", "redbeat:3:elsewhere:1:2:3", px=60_000)
    eventually(lambda: beat.step() or len(beat.led) == SHARDS - 1)
    assert taken not in beat.led
    assert len(leaders([beat])) == SHARDS - 1


def test_a_lock_of_celery_redbeat_2_is_left_to_expire(company: Company) -> None:
    beat = company.join()
    prefix = beat.shares.leaderships[0].keys.prefix
    beat.store.client.set(f"{prefix}:lock", "0" * 32, px=60_000)
    began_at = time.monotonic()
    eventually(
        lambda: beat.step(at_once=False) or time.monotonic() > began_at + 3 * beat.shares.timing.lock_seconds
    )
    assert len(beat.led) == SHARDS - 1
    beat.store.client.delete(f"{prefix}:lock")
    beat.step()
    assert len(beat.led) == SHARDS


def test_a_scheduler_that_hangs_gives_up_all_parts_and_is_not_there_any_more(company: Company) -> None:
    living, stuck = company.join(), company.join()
    company.settle()
    assert stuck.led

    def are_all_led() -> bool:
        living.step(at_once=False)
        return len(leaders([living])) == SHARDS

    eventually(are_all_led)
    assert stuck.shares.beat not in Beats(living.store).read()


def test_without_shards_nothing_is_written_of_beats(make_app: MakeApp) -> None:
    first, second = SharingBeat(make_app()), SharingBeat(make_app())
    step([first, second])
    step([first, second])
    assert (first.led, second.led) == ({"redbeat:"}, set())
    assert sorted(first.store.client.keys()) == ["redbeat::lock", "redbeat::standbys", "redbeat::tick"]
    first.shares.resign()
    second.step()
    assert second.led == {"redbeat:"}
    second.shares.resign()


def test_without_locks_every_beat_leads_every_part(company: Company) -> None:
    beats = [company.join(redbeat_lock_key=None) for _ in range(2)]
    assert [len(beat.shares.look()) for beat in beats] == [SHARDS] * 2
    assert [beat.shares.look() for beat in beats] == [[], []]
    assert [len(beat.led) for beat in beats] == [SHARDS] * 2
    assert beats[0].store.client.keys() == []


def test_parts_that_stay_keep_their_locks_when_the_parts_change(company: Company) -> None:
    beat = company.join()
    beat.step()
    parts = beat.store.parts
    tokens = {one.keys.prefix: one.fence.token for one in beat.shares.leading}
    beat.set_parts(parts[:5])
    assert len(leaders([beat])) == 5
    assert not beat.store.client.exists(f"{parts[7].keys.prefix}:lock")
    beat.set_parts(parts)
    beat.step()
    assert len(beat.led) == SHARDS
    kept = [one.fence.token == tokens[one.keys.prefix] for one in beat.shares.leading]
    assert kept == [True] * 5 + [False] * 11


def test_a_beat_that_waits_listens_where_it_leads_or_is_to_lead(company: Company) -> None:
    first = company.join()
    first.step()
    assert len(first.shares.wake_channels) == SHARDS
    second = company.join()
    second.step()
    assert second.led == set()
    awaited = {channel.removesuffix(":wake") for channel in second.shares.wake_channels}
    channel = second.store.wake_channel(second.shares.wake_channels)
    assert not channel.wait(0.2)
    eventually(lambda: first.shares.note_progress() or second.shares.beat in first.shares.live)
    first.step()
    assert channel.wait(5), "it is woken by what is handed over"
    second.shares.note_wake()
    eventually(lambda: second.step(at_once=False) or second.led == awaited)
    channel.close()


def test_a_beat_that_leads_nothing_notices_another_layout_with_its_next_look(company: Company) -> None:
    first = company.join()
    first.step()
    idle = company.join()
    idle.step()
    assert not idle.led
    assert not idle.shares.has_new_layout
    generation = idle.store.config.layout.generation
    first.store.client.hset("redbeat::layout", mapping={"shards": 2 * SHARDS, "generation": generation + 1})
    idle.step()
    assert idle.store.config.layout.generation == generation + 1
    assert len(idle.store.config.layout.parts) == 2 * SHARDS


def test_a_user_without_a_right_to_the_beats_leads_and_stands_by(
    company: Company, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    patterns = ["~{redbeat:*", "~redbeat::[^b]*", "&*"]
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "beat", "reset", "on", ">pw", "+@all", *patterns)
    url = f"redis://beat:pw@{server.host}:{server.port}/1"
    first, second = (company.join(redbeat_redis_url=url) for _ in range(2))
    first.step()
    second.step()
    assert (len(first.led), len(second.led)) == (SHARDS, 0)
    warning = (
        "beat: Beats don't know of each other, and don't share the shards, as the user of Redis seems to lack"
    )
    assert caplog.text.count(warning) == 2, "once by each"
    first.shares.resign()
    second.step()
    assert len(second.led) == SHARDS


def test_where_no_lock_can_be_asked_for_that_is_an_error_and_else_the_others_are_led(
    company: Company, caplog: pytest.LogCaptureFixture
) -> None:
    beat = company.join()
    prefixes = [leadership.keys.prefix for leadership in beat.shares.leaderships]
    beat.store.client.sadd(f"{prefixes[0]}:lock", "spoilt")
    beat.step()
    assert beat.led == set(prefixes[1:])
    assert f"The lock {prefixes[0]}:lock can't be asked for, the rest goes on" in caplog.text
    other = company.join()
    other.set_parts(other.store.parts[:2])
    beat.shares.resign()
    beat.store.client.sadd(f"{prefixes[1]}:lock", "spoilt")
    with pytest.raises(StoreCorrupt, match="holds something that is no string"):
        other.step()


def test_a_beat_whose_time_has_not_come_yet_is_not_there(make_app: MakeApp, client: redis.Redis) -> None:
    """The server's clock was set back, and the beat that said so in the time before has ended since."""
    store = Store(make_app(redbeat_shards=4))
    beats = Beats(store)
    client.zadd("redbeat::beats", {"ended": time.time() + 3600, "late": time.time() + 5})
    [reply] = call_on_nodes(store.client, [beats.note_call("here", 10)])
    company = beats.noted(reply)
    assert company is not None
    assert company.ages.keys() == beats.read().keys() == {"here", "late"}
