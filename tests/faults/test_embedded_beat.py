"""The beat inside of a worker, whose pool is itself (solo) or a process (prefork): beat never dies alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redbeat.store.lock_tokens import holder_of
from tests.support.apps import (
    STOP_SECONDS,
    celery_worker,
    stop_worker,
    write_app,
)
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.processes import Process
from tests.support.schedule import (
    LOCK,
)
from tests.support.servers import Server

OFTEN = {"often": {"task": "echo", "schedule": 0.5}}
EACH_POOL = pytest.mark.parametrize("pool", ["solo", "prefork"])


@contextmanager
def worker_with_beat(
    server: Server, folder: Path, pool: str, begins: str = "Sending due task", extra: str = ""
) -> Iterator[Process]:
    """A worker of one child whose beat has said that it `begins`."""
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": OFTEN}
    write_app(folder, "module", server.url(0), extra=extra, **settings)
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(folder / "none"), "-P", pool]
    with celery_worker(folder, "module", *arguments, "-c", "1") as worker:
        worker.wait_for(begins)
        yield worker


@pytest.mark.slow
@pytest.mark.few_cases(1)
@EACH_POOL
def test_a_stopped_worker_leaves_no_lock_or_process(server: Server, tmp_path: Path, pool: str) -> None:
    with worker_with_beat(server, tmp_path, pool) as worker, server.client(db=1) as client:
        family = worker.family()
        assert (len(family) > 1) == (pool == "prefork"), "the beat and a child of the pool"
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
        print(f"{pool}: beat ended in {beat_took:.2f} s, the worker {took:.2f} s after SIGTERM")
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
@EACH_POOL
def test_a_worker_ends_though_the_exit_of_its_beat_is_swallowed(
    server: Server, tmp_path: Path, pool: str
) -> None:
    """The worker tells it once, and waits. Python itself swallows it in a weak reference's callback."""
    with (
        worker_with_beat(server, tmp_path, pool, "the handler begins", SWALLOW) as worker,
        server.client(db=1) as client,
    ):
        stop_worker(worker)
        assert client.get(LOCK) is None
        assert worker.output().count("has swallowed it") == 1
