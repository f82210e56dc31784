"""The master killed under load, its replica promoted by Sentinel: a real beat, schedule and broker behind it.

Every entry of a burst has one run, so each must be on the new master's queue, or have been read from the
old one's, once. Replication is asynchronous: what the replica hadn't got is sent again, with the same task
id, and a reader who had it from the old master has it twice. That is counted, and printed.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.rounds import EVERY_SECOND, IS_LONG
from tests.faults.slots import is_master
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    counts_of,
    expected_id,
    messages,
    write_burst,
)
from tests.support.servers import Server
from tests.support.topologies import SentinelTopology

ROUNDS = range(6 if IS_LONG else 1)
NAMES = [f"entry-{number}" for number in range(4000 if IS_LONG else 1000)]
IDS = {expected_id(name, 1 + number) for number, name in enumerate(NAMES)}
BATCH_SIZE = 10


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


def fail_over(topology: SentinelTopology) -> tuple[Server, float]:
    """Kill the master; return the promoted one, and after how many seconds it got its first message."""
    old = topology.master()
    [replica] = [server for server in topology.data if server is not old]
    old.kill()
    with replica.client(db=1) as schedule:

        def written() -> object:
            """What is another after each run of any entry."""
            return schedule.zrange("redbeat::schedule", 0, -1, withscores=True)

        # a promoted replica closes its connections
        eventually(lambda: is_master(replica), interval=0.005, retry_on=(redis.ConnectionError,))
        promoted_at, before = time.monotonic(), written()
        eventually(lambda: written() != before, interval=0.005)
        return replica, time.monotonic() - promoted_at


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
            master, seconds = fail_over(sentinel)
            longest = max(longest, seconds)
            await_all_sent(master)
            with master.client() as client:
                ids = ids_of(messages(client))
            sent = re.findall(r"Sending due task (entry-\S+)", process.output())
        again = len(sent) - len(set(sent))
        print(f"promotion to the next message: {seconds:.2f} s; built a second time: {again}")
        assert doubled(ids) == 0
        assert not IDS - ids.keys()
        assert not wait_replicas or again <= BATCH_SIZE, "the batch that was on its way, and no other"
    assert longest <= patience(5)


@contextmanager
def replica_cut_off(topology: SentinelTopology) -> Iterator[None]:
    """The replica gets nothing from its master: it gives a password, and the master knows of none."""
    [replica] = [server for server in topology.data if server is not topology.master()]
    with replica.client() as client:
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
            master, seconds = fail_over(sentinel)
        due = {expected_id(name, 1 + number) for part in (early, late) for number, name in enumerate(part)}
        with master.client() as client:

            def sent_again() -> Counter[str] | None:
                ids = ids_of(messages(client))
                return None if (due | seen.keys()) - ids.keys() else ids

            ids = eventually(sent_again, message="a run whose message wasn't replicated is not sent again")
    assert ids is not None
    print(f"{seen.total() - at_cut} messages weren't replicated; doubled: {doubled(ids)}")
    assert doubled(ids) == 0
    assert seconds <= patience(5)
