"""A worker whose main thread hangs, so that nobody tells any more what becomes of its tasks: they end all the
same, and hold their entries no longer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.deadlines import PATIENCE_SECONDS, patience
from tests.support.polling import eventually
from tests.support.progress import NAMES
from tests.support.proxy import Proxy
from tests.support.schedule import server_now
from tests.support.servers import Server
from tests.support.tracked import LEASE_SECONDS, Tracked

UNTOLD_SECONDS = 1.0
SETTINGS = f"""
import signal
from celery.concurrency.asynpool import Worker
from redbeat.runs import keeper

keeper.UNTOLD_SECONDS = {UNTOLD_SECONDS}
make_methods = Worker._make_child_methods

def make_methods_that_stop_the_main_process(self, *args):
    make_methods(self, *args)
    wait_for_job = self.wait_for_job

    def wait():
        job = wait_for_job()
        if job and os.path.exists("stop"):
            os.kill(os.getppid(), 19)
        return job

    self.wait_for_job = wait

Worker._make_child_methods = make_methods_that_stop_the_main_process

"""
SKIP = {"overlap": "skip"}


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as made:
        yield made


@pytest.fixture
def tracked(server: Server, proxy: Proxy, client: redis.Redis, tmp_path: Path) -> Iterator[Tracked]:
    """An app with its own way to the broker."""
    made = Tracked.write(
        tmp_path,
        proxy.url(server.url(0)),
        server.url(1),
        client,
        extra=SETTINGS,
        worker_cancel_long_running_tasks_on_connection_loss=True,
    )
    with made.app:
        yield made


def lease_of(tracked: Tracked, name: str) -> float:
    """When the lease of an entry's run ends."""
    ends_at = tracked.progress.deadline_of(name, f"{name}-id")
    assert ends_at is not None
    return ends_at


def is_let_go(tracked: Tracked, name: str) -> bool:
    """Whether the lease of an entry's run has run out."""
    return lease_of(tracked, name) < server_now(tracked.client)


@pytest.mark.slow
def test_a_run_is_lost_when_its_task_has_ended_or_its_process_is_gone_and_one_at_work_is_not(
    tracked: Tracked, proxy: Proxy, client: redis.Redis
) -> None:
    worker = tracked.worker("prefork", concurrency=4)
    try:
        first = tracked.begun(tracked.send("work_late", "hang"))
        others = [tracked.send("work_until", key, limits=SKIP) for key in ("end", "never", "later")]
        ends, dies, lasts = (tracked.begun(name) for name in others)
        first_leases = {lease_of(tracked, name) for name in others}
        # so their worker knows that they have begun
        eventually(lambda: first_leases.isdisjoint(lease_of(tracked, name) for name in others))
        is_frozen = proxy.freeze_on(b"ZREM")  # what acknowledges a message; Kombu has other reasons to ask
        client.set("hang", 1)
        assert is_frozen.wait(patience(PATIENCE_SECONDS))
        assert tracked.outcome(first)["outcome"] == "succeeded", "then it is acknowledged, without an answer"
        client.set("end", 1)
        os.kill(tracked.pids(dies)[0], signal.SIGKILL)
        eventually(lambda: is_let_go(tracked, ends) and is_let_go(tracked, dies))
        assert not is_let_go(tracked, lasts)
        tracked.progress.settle(at=server_now(client))
        assert [tracked.outcome(name)["outcome"] for name in (ends, dies)] == ["lost", "lost"]
        assert tracked.running(lasts)
        told = worker.output()
        assert all(f"The run {name}-id of {name} has ended" in told for name in (ends, dies))
        assert told.count("it seems to hang") == 2

        proxy.thaw()
        eventually(lambda: tracked.past(ends).get("late") == "succeeded")
        eventually(lambda: tracked.past(dies).get("late") == "failed")
        client.set("later", 1)
        assert tracked.outcome(lasts)["outcome"] == "succeeded"
        assert not client.exists(NAMES.deadlines)
    finally:
        worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_task_at_work_keeps_its_lease_while_the_main_process_is_stopped(
    tracked: Tracked, client: redis.Redis, tmp_path: Path, is_accepted: bool
) -> None:
    """Stopped when the pool's process has got the task, and hasn't said so; or later."""
    worker = tracked.worker("prefork", concurrency=1)
    try:
        if not is_accepted:
            (tmp_path / "stop").touch()
        name = tracked.begun(tracked.send("work_until", "end", limits=SKIP))
        if is_accepted:
            os.kill(worker.pid, signal.SIGSTOP)
        began_at = server_now(client)
        eventually(lambda: server_now(client) > began_at + 3 * LEASE_SECONDS or is_let_go(tracked, name))
        assert not is_let_go(tracked, name)
        (tmp_path / "stop").unlink(missing_ok=True)
        client.set("end", 1)
        eventually(lambda: tracked.work(name) == ["begin", "end"])
        eventually(lambda: is_let_go(tracked, name))
        os.kill(worker.pid, signal.SIGCONT)
        assert tracked.outcome(name)["outcome"] == "succeeded"
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        worker.kill()
