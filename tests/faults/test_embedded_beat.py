"""The beat inside of a worker, whose pool is itself (solo) or a process (prefork): beat never dies alone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redbeat.leadership.lock import holder_of
from tests.support.apps import STOP_SECONDS, celery_worker, runs, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process, is_alive
from tests.support.schedule import LOCK
from tests.support.servers import Server

pytestmark = [
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
    pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "1"]], ids=lambda pool: pool[1]),
]


@contextmanager
def worker_with_beat(server: Server, folder: Path, pool: list[str]) -> Iterator[Process]:
    often = {"often": {"task": "echo", "schedule": 0.5}}
    write_app(folder, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule=often)
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(folder / "none"), *pool]
    with celery_worker(folder, "module", *arguments) as worker:
        worker.wait_for("Sending due task")
        yield worker


def family_of(pid: int) -> list[int]:
    """The process's children and theirs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children] + [one for child in children for one in family_of(int(child))]


def ends_of(family: list[int]) -> dict[int, float]:
    """When each of the processes has ended, monotonic; AssertionError when one stays."""
    ends: dict[int, float] = {}

    def have_ended() -> bool:
        ended = [pid for pid in family if pid not in ends and not is_alive(pid)]
        ends.update(dict.fromkeys(ended, time.monotonic()))
        return len(ends) == len(family)

    eventually(have_ended, timeout=STOP_SECONDS, interval=0.005)
    return ends


def test_a_stopped_worker_leaves_no_lock_or_process(server: Server, tmp_path: Path, pool: list[str]) -> None:
    with worker_with_beat(server, tmp_path, pool) as worker, server.client(db=1) as client:
        family = family_of(worker.pid)
        assert (len(family) > 1) == ("prefork" in pool), "the beat and a child of the pool"
        holder = holder_of(client.get(LOCK))
        assert holder is not None
        assert holder.pid in family, "it is the beat"

        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        ends = ends_of(family)
        assert worker.wait(STOP_SECONDS) == 0, worker.output()
        took = time.monotonic() - began
        # Celery stops the pool and the beat one after the other, in an order left to chance. The pool's
        # child may take its time, see STOP_SECONDS; where its turn is first, beat is told only after that
        told_at = max([began, *(ended for ended in ends.values() if ended < ends[holder.pid])])
        beat_took = ends[holder.pid] - told_at
        print(f"{pool[1]}: beat ended in {beat_took:.2f} s, the worker {took:.2f} s after SIGTERM")
        assert client.get(LOCK) is None
        assert "Traceback" not in worker.output()
        assert beat_took < patience(3)


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
        worker.wait_for("Standing by: another holds")
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
