"""The beat inside of a worker, whose pool is itself (solo) or a process (prefork): beat never dies alone."""

from __future__ import annotations

import importlib.util
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from redbeat.store.lock_tokens import holder_of
from tests.faults.bursts import Burst, Layout, Tally
from tests.faults.conftest import Report
from tests.faults.rounds import ROUNDS
from tests.support.apps import (
    GREENLETS,
    STOP_SECONDS,
    celery_worker,
    patched_beat,
    runs,
    stop_worker,
    write_app,
)
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    counts_of,
    expected_id,
    messages,
    sent_names,
    server_now,
    write_burst,
)
from tests.support.servers import Server
from tests.support.spikes import LOOKAHEAD, seconds_after, write_prepared_spike

POOLS = [["-P", "solo"], ["-P", "prefork", "-c", "1"]]
BURST = 1_500
SPIKE = 1_000


def each_pool(*more: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pool", [*POOLS, *more], ids=lambda pool: pool[1])


@contextmanager
def worker_with_beat(server: Server, folder: Path, pool: list[str]) -> Iterator[Process]:
    often = {"often": {"task": "echo", "schedule": 0.5}}
    write_app(folder, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule=often)
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(folder / "none"), *pool]
    with celery_worker(folder, "module", *arguments) as worker:
        worker.wait_for("Sending due task")
        yield worker


@pytest.mark.slow
@pytest.mark.few_cases(1)
@each_pool()
def test_a_stopped_worker_leaves_no_lock_or_process(server: Server, tmp_path: Path, pool: list[str]) -> None:
    with worker_with_beat(server, tmp_path, pool) as worker, server.client(db=1) as client:
        family = worker.family()
        assert (len(family) > 1) == ("prefork" in pool), "the beat and a child of the pool"
        holder = holder_of(client.get(LOCK))
        assert holder is not None
        assert holder.pid in family, "it is the beat"

        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        ends = worker.ends_of(family, STOP_SECONDS)
        assert worker.wait(STOP_SECONDS) == 0, worker.output()
        took = time.monotonic() - began
        # Celery stops the pool and the beat one after the other, in an order left to chance. The pool's
        # child may take its time, see STOP_SECONDS; where its turn is first, beat is told only after that
        told_at = max([began, *(ended for ended in ends.values() if ended < ends[holder.pid])])
        beat_took = ends[holder.pid] - told_at
        print(f"{pool[1]}: beat ended in {beat_took:.2f} s, the worker {took:.2f} s after SIGTERM")
        assert client.get(LOCK) is None
        assert not has_traceback(worker.output())
        assert beat_took < patience(3)


SWALLOW = """
from celery.signals import before_task_publish

@before_task_publish.connect
def swallow(**kwargs):
    print("the handler begins")
    try:
        time.sleep(600)
    except BaseException:
        print("the handler has swallowed it")
"""


@pytest.mark.slow
@pytest.mark.few_cases(1)
@each_pool()
def test_a_worker_ends_though_the_exit_of_its_beat_is_swallowed(
    server: Server, tmp_path: Path, pool: list[str]
) -> None:
    """The worker tells it once, and waits. Python itself swallows it in a weak reference's callback."""
    often = {"often": {"task": "echo", "schedule": 0.5}}
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": often}
    write_app(tmp_path, "module", server.url(0), extra=SWALLOW, **settings)
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(tmp_path / "none"), *pool]
    with celery_worker(tmp_path, "module", *arguments) as worker, server.client(db=1) as client:
        worker.wait_for("the handler begins")
        stop(worker, client)
        assert worker.output().count("has swallowed it") == 1


@pytest.mark.slow
@pytest.mark.few_cases(1)
@each_pool()
def test_a_beat_that_has_lost_its_lock_stands_by_and_leads_again_later(
    server: Server, tmp_path: Path, pool: list[str]
) -> None:
    with (
        worker_with_beat(server, tmp_path, pool) as worker,
        server.client(db=1) as client,
        server.client() as noted,
    ):
        eventually(lambda: runs(noted))
        client.set(LOCK, "another")
        worker.wait_for("It stands by.")
        worker.wait_for("Standing by: a program other than RedBeat 3 holds the lock")
        sent = worker.output().count("Sending due task")
        assert client.get(LOCK) == "another"
        client.delete(LOCK)
        freed = time.monotonic()
        eventually(lambda: worker.output().count("Sending due task") > sent)
        print(f"{pool[1]}: sending again {time.monotonic() - freed:.2f} s after the lock was free")
        assert client.get(LOCK).startswith("redbeat:3:")
        done = len(runs(noted))
        eventually(lambda: len(runs(noted)) > done)
        assert len(re.findall("It stands by", worker.output())) == 1
        assert worker.stop(STOP_SECONDS) == 0
        assert client.get(LOCK) is None


@pytest.mark.long_form
@each_pool(["-P", "threads", "-c", "2"])
def test_of_a_burst_and_a_spike_each_run_leaves_once_though_the_worker_is_stopped_amid_them(
    server: Server, tmp_path: Path, pool: list[str], chance: random.Random
) -> None:
    """The messages stay on a queue of their own, but for some that this worker itself is to run."""
    kept = {"options": {"queue": "kept"}}
    with server.client(db=1) as client, server.client() as broker:
        names = write_burst(client, BURST, **kept)
        own = write_burst(client, [f"own-{number}" for number in range(50)])
        with quick_worker(server, tmp_path, pool) as worker:
            wanted = chance.randint(1, BURST)
            eventually(lambda: broker.llen("kept") >= wanted, interval=0.0005)
            stop(worker, client)
        stopped_at = [broker.llen("kept")]
        with quick_worker(server, tmp_path, pool) as worker:
            eventually(lambda: broker.llen("kept") >= BURST)
            eventually(lambda: counts_of(client, [*names, *own]) == {1: BURST + len(own)})
            eventually(lambda: len(runs(broker)) >= len(own))
            assert sorted(sent_names(broker, "kept")) == sorted(names)
            broker.delete("kept")
            client.zrem(SCHEDULE, *(f"redbeat:{name}" for name in names))
            spike = write_prepared_spike(client, 2, SPIKE, schedule=SELDOM, **kept)
            wanted = chance.randint(1, SPIKE)
            eventually(lambda: broker.llen("kept") >= wanted, interval=0.0005)
            stop(worker, client)
        stopped_at.append(broker.llen("kept"))
        with quick_worker(server, tmp_path, pool) as worker:
            eventually(lambda: counts_of(client, spike.names) == {1: SPIKE})
            stop(worker, client)
        print(f"{pool[1]}: stopped when {stopped_at} of {[BURST, SPIKE]} had left")
        ids = Counter(message["headers"]["id"] for message in messages(broker, "kept"))
        assert ids == dict.fromkeys((expected_id(name, spike.due) for name in spike.names), 1)
        assert min(seconds_after(client, spike.names, spike.due)) >= 0
        # a worker may put a message back that its only child has just begun when it is stopped
        sent = [run.headers["redbeat_entry"] for run in runs(broker) if not run.is_redelivered]
        assert sorted(sent) == sorted(set(sent))
        assert {run.headers["redbeat_entry"] for run in runs(broker)} == set(own)


@contextmanager
def quick_worker(server: Server, folder: Path, pool: list[str]) -> Iterator[Process]:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_lookahead": LOOKAHEAD}
    write_app(folder, "module", server.url(0), **settings)
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(folder / "none"), *pool]
    with celery_worker(folder, "module", *arguments) as worker:
        worker.wait_for("beat: Acquired lock")
        yield worker
        assert "Messages: one by one" not in worker.output()


def stop(worker: Process, client: redis.Redis) -> None:
    stop_worker(worker)
    assert client.get(LOCK) is None


PATCHED_BURST = 5_000
PATCHED_SPIKE = 1_500
#: how many beats end amid a burst
ENDS = 4


@pytest.mark.long_form
@pytest.mark.parametrize("library", GREENLETS)
@pytest.mark.parametrize("layout", ["one db"], indirect=True)
@pytest.mark.parametrize("round_number", ROUNDS)
def test_patched_beats_ended_at_random(
    layout: Layout, round_number: int, library: str, chance: random.Random, tmp_path: Path, report: Report
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    layout.write_app(tmp_path, redbeat_lookahead=LOOKAHEAD)
    burst = Burst(layout, PATCHED_BURST)
    burst.write()
    total = end_beats_until_out(layout, burst, ENDS, library, chance, tmp_path)
    with patched_beat(tmp_path, "module", library) as beat:
        beat.wait_for("beat: Acquired lock")
        spike = Burst(layout, PATCHED_SPIKE, due=round(server_now(layout.client) + patience(4), 6))
        spike.write_anew()
        # at any moment of the seconds before, or amid it
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, patience(4)))  # the instant of the fault, not a wait for something
        else:
            spike.await_messages(chance.randint(1, PATCHED_SPIKE))
        end(beat, layout, is_killed=chance.random() < 0.5)
    total += end_beats_until_out(layout, spike, ENDS - 1, library, chance, tmp_path)
    report(total)


def end_beats_until_out(
    layout: Layout, burst: Burst, count: int, library: str, chance: random.Random, directory: Path
) -> Tally:
    is_killed, ends = chance.random() < 0.5, 0
    while True:
        with patched_beat(directory, "module", library) as beat:
            beat.wait_for("beat: Acquired lock")  # by then it handles signals
            if ends >= count:
                burst.await_messages(PATCHED_BURST)  # until it is out
            else:
                burst.await_messages(chance.randint(1, PATCHED_BURST // count // 2))
            is_out = burst.is_out()
            if not is_out:
                time.sleep(chance.uniform(0, 0.02))  # the instant of the fault
            end(beat, layout, is_killed=is_killed and not is_out)
        if is_out:
            return burst.tally(kills=ends)
        ends, is_killed = ends + 1, not is_killed


def end(beat: Process, layout: Layout, *, is_killed: bool) -> None:
    """End it; after SIGTERM nothing is left behind."""
    assert beat.is_running, beat.output()
    if is_killed:
        assert beat.kill() == -signal.SIGKILL
        layout.drop_lock()
    else:
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert not layout.client.exists(LOCK)
    assert "Messages: one by one" not in beat.output(), beat.output()
    # Python goes on after a SystemExit in a weak reference's callback, and shows where that was
    ignored = beat.output().count("Exception ignored in")
    assert ignored or not has_traceback(beat.output()), beat.output()
    assert beat.output().count("Traceback") == ignored, beat.output()
