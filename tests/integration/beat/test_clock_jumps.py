"""The server's own clock jumps: at a failover to a node that is ahead, or on a machine that was suspended."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, run_beat
from tests.support.clocks import ServerClock
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    LOCK,
    SELDOM,
    counts_of,
    expected_id,
    messages,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import KIND, Server
from tests.support.spikes import LOOKAHEAD, Spike, seconds_after, write_prepared_spike

JUMP_SECONDS = 600
#: much less than the entries here are due in, and much more than a busy machine needs for a look a second
SOON_SECONDS = 15

pytestmark = pytest.mark.services  # a C compiler, for the clock


@pytest.fixture
def clock() -> Iterator[ServerClock]:
    clock = ServerClock()
    yield clock
    clock.close()


@pytest.fixture
def server(clock: ServerClock) -> Iterator[Server]:
    with Server(KIND, clock=clock) as server:
        yield server


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=0) as connected:
        yield connected


def start_beat(directory: Path, server: Server, **settings: object) -> Process:
    return run_beat(directory, server.url(0), redbeat_redis_url=server.url(1), **settings)


def wait_until_it_waits(client: redis.Redis, broker: redis.Redis) -> None:
    """Until beat has sent an entry that is written now, and looks at the schedule again after it."""
    write_raw(client, "first", score=1, schedule=SELDOM)
    eventually(lambda: "first" in sent_names(broker), 30)
    looks = looks_at(client)
    eventually(lambda: looks_at(client) > looks, 30)


def looks_at(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})["calls"])


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}, {"redbeat_lock_timeout": 60}], ids=str)
def test_an_entry_leaves_as_soon_as_the_clock_has_jumped_past_its_time(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    clock: ServerClock,
    tmp_path: Path,
    settings: dict[str, object],
) -> None:
    """Also where the lock ends by the jump: it is taken back."""
    with start_beat(tmp_path, server, **settings) as beat:
        due = server_now(client) + 300
        write_raw(client, "later", score=due, schedule=SELDOM)
        wait_until_it_waits(client, broker)
        token = client.get(LOCK)
        clock.jump(JUMP_SECONDS)
        eventually(lambda: server_now(client) > due + 200)  # Valkey looks at it once a millisecond
        jumped_at = server_now(client)
        eventually(lambda: "later" in sent_names(broker), SOON_SECONDS, message="it waits by its own clock")
        print(f"left {server_now(client) - jumped_at:.2f} s after the jump")
        if "redbeat_lock_key" not in settings:
            assert client.get(LOCK) == token
        write_raw(client, "after", score=1, schedule=SELDOM)
        eventually(lambda: "after" in sent_names(broker), SOON_SECONDS)
        assert beat.is_running
    assert sent_names(broker).count("later") == 1


def test_of_two_beats_one_goes_on_when_the_lock_has_ended_by_the_jump(
    server: Server, client: redis.Redis, broker: redis.Redis, clock: ServerClock, tmp_path: Path
) -> None:
    settings = {"redbeat_lock_timeout": 60, "redbeat_lock_lost": "standby"}
    with start_beat(tmp_path, server, **settings) as one, celery_beat(tmp_path, "module") as other:
        other.wait_for("beat: Acquiring lock...")
        one.wait_for("beat: Acquiring lock...")
        names = [f"entry-{number}" for number in range(200)]
        due = server_now(client) + 300
        for number, name in enumerate(names):
            write_raw(client, name, score=due + number, schedule=SELDOM)
        wait_until_it_waits(client, broker)
        clock.jump(JUMP_SECONDS)
        eventually(lambda: len(sent_names(broker)) >= 1 + len(names), SOON_SECONDS)
        write_raw(client, "after", score=1, schedule=SELDOM)
        eventually(lambda: "after" in sent_names(broker), SOON_SECONDS)
        assert one.is_running
        assert other.is_running
    assert sent_names(broker) == ["first", *names, "after"]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_a_clock_that_jumps_back_sends_nothing_twice_and_new_entries_at_once(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    clock: ServerClock,
    tmp_path: Path,
    settings: dict[str, object],
) -> None:
    with start_beat(tmp_path, server, **settings) as beat:
        start = server_now(client) - 1.5
        write_raw(client, "steady", schedule={"__type__": "interval", "every": 0.5}, score=start)
        client.hset("redbeat:steady", "policy", '{"misfire": "all"}')
        eventually(lambda: sent_names(broker).count("steady") > 6, 30)
        clock.jump(-JUMP_SECONDS)
        eventually(lambda: server_now(client) < start - 500)
        behind = server_now(client)
        eventually(lambda: (score_of(client, "steady") or 0) > behind + 500)
        reached = len(messages(broker))
        write_raw(client, "new", schedule=SELDOM, score=behind)
        eventually(lambda: "new" in sent_names(broker), SOON_SECONDS)
        eventually(lambda: server_now(client) > behind + 3)
        assert len(messages(broker)) <= reached + 2, "what was committed as the clock jumped, and the new one"
        clock.jump(JUMP_SECONDS)
        eventually(lambda: sent_names(broker).count("steady") > reached + 6, SOON_SECONDS)
        assert beat.is_running
    sent = [
        message["headers"] for message in messages(broker) if message["headers"]["redbeat_entry"] == "steady"
    ]
    dues = [one["redbeat_due"] for one in sent]
    assert dues == sorted(set(dues)), "each run once, in order"
    assert len({one["id"] for one in sent}) == len(sent)


# -- while runs are prepared for an instant that is still to come

COUNT = 1_500


def assert_each_left_once_in_its_time(client: redis.Redis, broker: redis.Redis, spike: Spike) -> None:
    ids = Counter(message["headers"]["id"] for message in messages(broker))
    assert ids == dict.fromkeys((expected_id(name, spike.due) for name in spike.names), 1)
    assert counts_of(client, spike.names) == {1: len(spike.names)}
    after = seconds_after(client, spike.names, spike.due)
    assert len(after) == len(spike.names)
    assert min(after) >= 0


@contextmanager
def spike_at_work(
    server: Server, client: redis.Redis, broker: redis.Redis, folder: Path, seconds: float
) -> Iterator[Spike]:
    """A beat has prepared a spike that is due in so many seconds; in the end each run has left once."""
    with start_beat(folder, server, redbeat_lookahead=LOOKAHEAD) as beat:
        beat.wait_for("beat: Acquired lock")
        spike = write_prepared_spike(client, seconds, COUNT, schedule=SELDOM)
        yield spike
        eventually(lambda: broker.llen("celery") >= COUNT, SOON_SECONDS)
        assert beat.is_running
    assert_each_left_once_in_its_time(client, broker, spike)


def test_prepared_runs_leave_once_the_clock_has_jumped_past_their_time(
    server: Server, client: redis.Redis, broker: redis.Redis, clock: ServerClock, tmp_path: Path
) -> None:
    with spike_at_work(server, client, broker, tmp_path, 10):
        clock.jump(JUMP_SECONDS)


def test_prepared_runs_wait_for_a_clock_that_has_jumped_back(
    server: Server, client: redis.Redis, broker: redis.Redis, clock: ServerClock, tmp_path: Path
) -> None:
    with spike_at_work(server, client, broker, tmp_path, 4) as spike:
        clock.jump(-JUMP_SECONDS)
        eventually(lambda: server_now(client) < spike.due - 500)
        eventually(lambda: server_now(client) > spike.due - JUMP_SECONDS + 2)
        assert broker.llen("celery") == 0
        write_raw(client, "new", schedule=SELDOM, score=server_now(client))
        eventually(lambda: sent_names(broker) == ["new"], SOON_SECONDS)
        broker.delete("celery")
        assert score_of(client, spike.names[0]) == spike.due
        clock.jump(JUMP_SECONDS)


@pytest.mark.long_form
@pytest.mark.parametrize("seconds", [JUMP_SECONDS, -JUMP_SECONDS], ids=["forward", "back"])
def test_of_a_spike_amid_which_the_clock_jumps_each_run_leaves_once(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    clock: ServerClock,
    tmp_path: Path,
    chance: random.Random,
    seconds: int,
) -> None:
    with spike_at_work(server, client, broker, tmp_path, 4) as spike:
        wanted = chance.randint(1, COUNT - 1)
        eventually(lambda: broker.llen("celery") >= wanted, interval=0.0002)
        clock.jump(seconds)
        if seconds < 0:
            eventually(lambda: server_now(client) < spike.due - 500)
            left = broker.llen("celery")
            eventually(lambda: server_now(client) > spike.due - JUMP_SECONDS + 2)
            print(f"{left} of {COUNT} had left when the clock was back")
            assert broker.llen("celery") == left
            clock.jump(-seconds)
