"""The master killed under load, its replica promoted by Sentinel: a real beat, schedule and broker behind it.

Every entry of a burst has one run, so each must be on the new master's queue, or have been read from the
old one's, once. Replication is asynchronous: what the replica hadn't got is sent again, with the same task
id, and a reader who had it from the old master has it twice. That is counted, and printed.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import RedisError

from redbeat.later import batch, install
from tests.faults.bursts import LATER
from tests.faults.rounds import IS_LONG
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    SELDOM,
    counts_of,
    expected_id,
    messages,
    server_now,
    write_burst,
)
from tests.support.servers import Server
from tests.support.spikes import LOOKAHEAD, Spike, seconds_after, write_prepared_spike
from tests.support.topologies import SentinelTopology

#: all: each of its runs is sent, so that one that was lost with the old master is sent again by its own id
EVERY_SECOND = {"every-second": {"task": "echo", "schedule": 1.0, "misfire": "all"}}
ROUNDS = range(6 if IS_LONG else 1)
NAMES = [f"entry-{number}" for number in range(4000 if IS_LONG else 1000)]
IDS = {expected_id(name, 1 + number): name for number, name in enumerate(NAMES)}
BATCH_SIZE = 10
SPIKE = 2_000


@dataclass(frozen=True)
class Failover:
    """One failover: the new master, and how long after its promotion it got its next message, seconds."""

    master: Server
    seconds: float


class Reader:
    """Takes messages off the queue as a worker does, and keeps a copy: read first, removed after that."""

    def __init__(self, topology: SentinelTopology) -> None:
        self._client = topology.client(socket_timeout=2)
        self.read: list[dict[str, Any]] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_stopped.wait(0.001):
            with suppress(RedisError):
                waiting: Any = self._client.lrange("celery", -100, -1)
                if waiting:
                    self.read += [json.loads(message) for message in reversed(waiting)]
                    self._client.ltrim("celery", 0, -1 - len(waiting))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_stopped.set()
        self._thread.join()


@contextmanager
def beat(topology: SentinelTopology, folder: Path, **settings: Any) -> Iterator[Process]:
    """A beat that has sent; schedule and broker are two databases behind Sentinel."""
    settings |= {"redbeat_redis_options": {"service_name": topology.service_name, "retry_period": -1}}
    settings |= {"broker_transport_options": {"master_name": topology.service_name}}
    settings |= {"redbeat_redis_url": topology.url(1), "redbeat_batch_size": BATCH_SIZE}
    write_app(folder, "module", topology.url(0), beat_schedule=EVERY_SECOND, **settings)
    with celery_beat(folder, "module") as process:
        process.wait_for("Sending due task")
        yield process
        assert process.is_running, process.output()
        assert not has_traceback(process.output()), process.output()
        assert "at least once" not in process.output(), "not even while the broker is looked for"


def start_burst(topology: SentinelTopology, names: list[str] = NAMES) -> None:
    """Make all of them due at once; the replica has them."""
    with topology.client(db=1) as client:
        write_burst(client, names)
        assert client.wait(1, 5000) == 1


def fail_over(topology: SentinelTopology) -> Failover:
    """Kill the master; wait for the promotion and for the first message after it."""
    old = topology.master()
    [replica] = [server for server in topology.data if server is not old]
    old.kill()
    with replica.client() as client, replica.client(db=1) as schedule:

        def is_master() -> bool:
            try:
                replication: Any = client.info("replication")
            except redis.ConnectionError:  # a promoted replica closes its connections
                return False
            return bool(replication["role"] == "master")

        eventually(is_master, interval=0.005)
        promoted_at, before = time.monotonic(), _written(schedule)
        eventually(lambda: _written(schedule) != before, interval=0.005)
        return Failover(replica, time.monotonic() - promoted_at)


def _written(schedule: redis.Redis) -> object:
    """What is another after each run of any entry."""
    return schedule.zrange("redbeat::schedule", 0, -1, withscores=True)


def await_messages(server: Server, count: int) -> None:
    with server.client() as client:
        eventually(lambda: client.llen("celery") >= count, interval=0.001)


def await_all_sent(server: Server, names: list[str] = NAMES) -> None:
    """Wait until the run of each of a burst's entries is recorded as sent."""
    with server.client(db=1) as client:
        eventually(lambda: counts_of(client, names) == {1: len(names)})


def ids_of(sent: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["headers"]["id"] for message in sent)


def doubled(ids: Counter[str]) -> int:
    return sum(count - 1 for count in ids.values())


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("wait_replicas", [0, 1])
def test_beat_sends_again_within_five_seconds_and_loses_and_doubles_nothing(
    sentinel: SentinelTopology, tmp_path: Path, wait_replicas: int
) -> None:
    longest = 0.0
    for number in ROUNDS:
        sentinel.make_ready()
        folder = tmp_path / str(number)
        folder.mkdir()
        with beat(sentinel, folder, redbeat_wait_replicas=wait_replicas) as process:
            start_burst(sentinel)
            await_messages(sentinel.master(), len(NAMES) // 4)
            failover = fail_over(sentinel)
            longest = max(longest, failover.seconds)
            await_all_sent(failover.master)
            with failover.master.client() as client:
                ids = ids_of(messages(client))
            again = sum(count - 1 for count in _log_counts(process).values())
        print(
            f"promotion to the next message: {failover.seconds:.2f} s; of {len(NAMES)} runs lost: "
            f"{len(IDS.keys() - ids.keys())}, doubled: {doubled(ids)}, built a second time: {again}"
        )
        assert doubled(ids) == 0
        assert not IDS.keys() - ids.keys()
        assert not wait_replicas or again <= BATCH_SIZE, "the batch that was on its way, and no other"
    print(f"the longest of {len(ROUNDS)}: {longest:.2f} s")
    assert longest <= patience(5)


def _log_counts(process: Process) -> Counter[str]:
    sent = [line.partition("Sending due task ")[2] for line in process.output().splitlines()]
    return Counter(line.split()[0] for line in sent if line.startswith("entry-"))


@pytest.mark.slow
def test_who_reads_meanwhile_gets_a_run_twice_by_one_id(sentinel: SentinelTopology, tmp_path: Path) -> None:
    with beat(sentinel, tmp_path), Reader(sentinel) as reader:
        start_burst(sentinel)
        eventually(lambda: len(reader.read) >= len(NAMES) // 4, interval=0.001)
        failover = fail_over(sentinel)
        await_all_sent(failover.master)
        eventually(partial(_is_empty, failover.master))
    ids = ids_of([one for one in reader.read if one["headers"]["redbeat_entry"] in set(NAMES)])
    print(f"of {len(NAMES)} runs lost: {len(IDS.keys() - ids.keys())}, read twice: {doubled(ids)}")
    assert ids.keys() == IDS.keys()
    assert failover.seconds <= patience(5)


def _is_empty(server: Server) -> bool:
    with server.client() as client:
        return client.llen("celery") == 0


@contextmanager
def replica_cut_off(topology: SentinelTopology) -> Iterator[None]:
    """The replica gets nothing from its master: it gives a password, and the master knows of none."""
    with replica_of(topology).client() as client:
        # no replica is taken that was cut off for ten times as long, which a busy machine soon has
        topology.hold_down_after(milliseconds=3000)
        client.config_set("masterauth", "wrong")
        client.execute_command("CLIENT KILL TYPE master")
        try:
            yield
        finally:
            topology.hold_down_after()
            client.config_set("masterauth", "")
            client.config_rewrite()  # when it is promoted, a sentinel lets it write the password to its file


def replica_of(topology: SentinelTopology) -> Server:
    [replica] = [server for server in topology.data if server is not topology.master()]
    return replica


@pytest.mark.slow
def test_what_a_replica_had_not_got_is_sent_with_the_same_ids(
    sentinel: SentinelTopology, tmp_path: Path
) -> None:
    early, late = NAMES[:100], NAMES[100:]
    with beat(sentinel, tmp_path) as process:
        start_burst(sentinel, early)
        old = sentinel.master()
        await_messages(old, len(early))
        process.signal(signal.SIGSTOP)  # or all might be sent before the cut
        start_burst(sentinel, late)
        with old.client() as client, replica_cut_off(sentinel):
            at_cut = client.llen("celery")
            process.signal(signal.SIGCONT)
            await_messages(old, at_cut + 200)
            seen = ids_of(messages(client))
            failover = fail_over(sentinel)
        due = {expected_id(name, 1 + number) for part in (early, late) for number, name in enumerate(part)}
        with failover.master.client() as client:

            def sent_again() -> Counter[str] | None:
                ids = ids_of(messages(client))
                return None if (due | seen.keys()) - ids.keys() else ids

            ids = eventually(sent_again, message="a run whose message wasn't replicated is not sent again")
    assert ids is not None
    print(f"{seen.total() - at_cut} messages weren't replicated; doubled: {doubled(ids)}")
    assert doubled(ids) == 0
    assert failover.seconds <= patience(5)


@contextmanager
def waiting_beats(topology: SentinelTopology, folder: Path) -> Iterator[list[Process]]:
    """A leader and a standby, with nothing to send."""
    options = {"service_name": topology.service_name, "retry_period": -1}
    write_app(
        folder,
        "module",
        topology.url(0),
        redbeat_redis_url=topology.url(1),
        redbeat_redis_options=options,
        redbeat_lookahead=LOOKAHEAD,
        redbeat_lock_lost="standby",
        broker_transport_options={"master_name": topology.service_name},
    )
    with celery_beat(folder, "module") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(folder, "module") as standby:
            standby.wait_for("Standing by")
            yield [leader, standby]


@contextmanager
def spike_behind(topology: SentinelTopology) -> Iterator[tuple[Spike, redis.Redis]]:
    """A spike that is prepared, and that the replica has; and a client of the master's queue."""
    master = topology.master()
    with master.client(db=1) as schedule, master.client() as queue:
        spike = write_prepared_spike(schedule, 4, SPIKE, schedule=SELDOM)
        assert schedule.wait(1, 2000) == 1
        yield spike, queue


def assert_each_left_once(master: Server, spike: Spike) -> None:
    """By what the new master knows: each run is on its queue, with its own id, and recorded once."""
    ids = [expected_id(name, spike.due) for name in spike.names]
    with master.client() as queue, master.client(db=1) as schedule:
        eventually(lambda: queue.llen("celery") >= SPIKE)
        eventually(lambda: counts_of(schedule, spike.names) == {1: SPIKE})
        assert ids_of(messages(queue)) == dict.fromkeys(ids, 1)
        after = seconds_after(schedule, spike.names, spike.due)
    print(f"{SPIKE} runs left {min(after):.3f} to {max(after):.3f} s after their time")
    assert len(after) == SPIKE
    assert min(after) >= 0


@pytest.mark.long_form
@pytest.mark.parametrize("moment", ["before", "amid"])
@pytest.mark.parametrize("_round", ROUNDS)
def test_of_a_prepared_spike_each_run_is_on_the_new_master_once(
    sentinel: SentinelTopology, tmp_path: Path, chance: random.Random, moment: str, _round: int
) -> None:
    """Killed at any moment of the seconds before the instant, or when some of the messages have left."""
    with waiting_beats(sentinel, tmp_path) as (leader, standby):
        with spike_behind(sentinel) as (spike, queue), sentinel.master().client() as clock:
            wanted = chance.randint(1, SPIKE - 1) if moment == "amid" else 0
            at = spike.due - (chance.uniform(0, 1.5) if moment == "before" else 0)
            eventually(lambda: server_now(clock) >= at and queue.llen("celery") >= wanted, interval=0.0002)
            had = queue.llen("celery")
            new = sentinel.fail_over()
        print(f"the master had {had} messages when it was killed")
        assert_each_left_once(new, spike)
        with new.client(db=1) as schedule:
            write_burst(schedule, ["after"])
            with new.client() as queue:
                eventually(lambda: "after" in {one["headers"]["redbeat_entry"] for one in messages(queue)})
        for beat in (leader, standby):
            assert beat.is_running, beat.output()
            assert not has_traceback(beat.output()), beat.output()
    logs = [leader.output(), standby.output()]
    assert any("beat: Messages: compiled." in log for log in logs)
    # perhaps twice, if the first try found the master gone
    assert sum("Sending due task after" in log for log in logs) == 1, "one of them leads"


@pytest.mark.long_form
@pytest.mark.parametrize("_round", ROUNDS)
def test_stored_messages_are_on_the_new_master_once_each(
    sentinel: SentinelTopology, chance: random.Random, _round: int, tmp_path: Path
) -> None:
    app = Celery("writer", broker=sentinel.url(0), set_as_current=False)
    app.conf.broker_transport_options = {"master_name": sentinel.service_name}
    app.conf.redbeat_redis_url = sentinel.url(1)
    app.conf.redbeat_redis_options = {"service_name": sentinel.service_name}
    install(app)
    with beat(sentinel, tmp_path), sentinel.client(db=1) as client:
        with batch():
            for name in NAMES:
                app.send_task("echo", [name], task_id=name, countdown=3600)
        client.zadd(LATER, {f"redbeat::later:{name}": 1 + number for number, name in enumerate(NAMES)})
        left = chance.randint(len(NAMES) // 4, len(NAMES) * 3 // 4)
        eventually(lambda: client.zcard(LATER) <= left, interval=0.001)
        failover = fail_over(sentinel)
        with failover.master.client(db=1) as schedule, failover.master.client(db=0) as queue:
            eventually(lambda: schedule.zcard(LATER) == 0)
            sent = Counter(message["headers"]["id"] for message in messages(queue))
    stored = {name: sent[name] for name in NAMES}
    print(f"{len(NAMES)} stored messages, a failover when {left} were left: {Counter(stored.values())} times")
    assert set(stored.values()) == {1}
