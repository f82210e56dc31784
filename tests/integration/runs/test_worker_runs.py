"""Workers that are killed, stopped, cut off from Redis, or start their processes anew."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
from celery.app.defaults import NAMESPACES

from tests.integration.runs.tracked import LEASE_SECONDS, Tracked
from tests.support.deadlines import PATIENCE_SECONDS, patience
from tests.support.polling import eventually
from tests.support.progress import NAMES
from tests.support.proxy import Proxy
from tests.support.schedule import server_now
from tests.support.servers import Server

SKIP = {"overlap": "skip"}


class MakeTracked(Protocol):
    def __call__(self, broker_url: str = "", schedule_url: str = "", **settings: Any) -> Tracked: ...


@pytest.fixture
def make_tracked(server: Server, client: redis.Redis, tmp_path: Path) -> Iterator[MakeTracked]:
    with ExitStack() as at_end:

        def make(broker_url: str = "", schedule_url: str = "", **settings: Any) -> Tracked:
            urls = broker_url or server.url(0), schedule_url or server.url(1)
            tracked = Tracked.write(tmp_path, *urls, client, **settings)
            at_end.callback(tracked.app.close)
            return tracked

        yield make


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as made:
        yield made


def redeliver_expired(tracked: Tracked, name: str) -> None:
    """Do what workers do about the message of a worker that was killed, when long enough has passed; its
    `queue_timeout` is over by then.
    """
    options = {"visibility_timeout": -1}
    with tracked.sender() as app, app.connection(transport_options=options) as connection:
        channel: Any = connection.default_channel
        for tag, text in channel.client.hgetall("unacked").items():
            message, *place = json.loads(text)
            if message["headers"]["id"] == f"{name}-id":
                message["headers"]["expires"] = "2026-01-01T00:00:00+00:00"
                channel.client.hset("unacked", tag, json.dumps([message, *place]))
        channel.qos.restore_visible()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("limits", [{}, SKIP], ids=["allow", "skip"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_task_of_a_killed_worker_begins_again_also_after_its_queue_timeout(
    make_tracked: MakeTracked, pool: str, limits: dict[str, Any]
) -> None:
    tracked = make_tracked()
    in_an_hour = datetime.now(timezone.utc) + timedelta(hours=1)
    expiring: dict[str, Any] = {"expires": in_an_hour, "headers": {"redbeat_queue_timeout": 3600.0}}
    name = tracked.send("wait go on", task="act_late", limits=limits, **expiring)
    with tracked.worker(pool, name="first") as first:
        tracked.begun(name)
        tracked.state(name, "started")
        first.kill()
    tracked.settle_lost()
    redeliver_expired(tracked, name)
    with tracked.worker(pool, name="second"):
        tracked.begun(name, 2)
        assert tracked.state(name, "started").worker == "second@test"
        tracked.client.set("go on", 1)
        eventually(lambda: tracked.past(name).get("late") == "succeeded")
    assert tracked.past(name)["outcome"] == "lost"
    assert tracked.work(name) == ["begin", "begin", "end"]


#: measures how long a run's task is kept waiting by its gate
MEASURE = """
from redbeat.runs import gate, request
passing = gate._find_refusal
def measured(run):
    began = time.monotonic()
    try:
        return passing(run)
    finally:
        runs_client().rpush("gate", time.monotonic() - began)
gate._find_refusal = measured
"""


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("how", ["frozen", "refused"])
def test_task_without_redis_begins_at_once_and_its_outcome_comes_later(
    make_tracked: MakeTracked, server: Server, proxy: Proxy, pool: str, how: str
) -> None:
    # the list of work goes straight to the server, and what tracks goes through the proxy
    direct = f"\nruns_client = lambda client=redis.Redis.from_url({server.url(1)!r}): client"
    url = proxy.url(server.url(1))
    tracked = make_tracked(redbeat_redis_url=url, gate_seconds=0.05, extra=MEASURE + direct)
    with tracked.worker(pool, concurrency=2) as worker:
        tracked.outcome(tracked.send("succeed"))
        if how == "frozen":
            proxy.freeze()
        else:
            proxy.refuse()
            proxy.drop()
        names = [tracked.send("succeed") for _ in range(5)]
        for name in names:
            tracked.begun(name)
        worker.wait_for("Runs can't be tracked at the moment")
        assert not any("outcome" in tracked.past(name) for name in names)
        proxy.heal()
        for name in names:
            eventually(lambda name=name: tracked.past(name).get("outcome") == "succeeded")
        worker.wait_for("Runs are tracked again")
        eventually(lambda: not tracked.client.exists(NAMES.deadlines))
        said = worker.output()
    assert said.count("Runs can't be tracked at the moment") == 1, said
    waited = [float(text) for text in tracked.client.lrange("gate", 0, -1)]  # type: ignore[union-attr]
    # 50 ms at most, and some for a busy machine; of several in a row only the first ones wait
    assert max(waited) < 0.5, waited
    assert min(waited[1:]) < 0.05


@pytest.mark.slow
@pytest.mark.skipif("pool_start_method" not in NAMESPACES["worker"], reason="this Celery can only fork")
def test_processes_that_are_started_anew_instead_of_forked_have_the_gate(make_tracked: MakeTracked) -> None:
    tracked = make_tracked(worker_pool_start_method="spawn")
    name = tracked.send("succeed", limits={"overlap": "replace", "terminate": "replaced"})
    with tracked.worker("prefork", concurrency=1):
        assert tracked.outcome(name)["outcome"] == "superseded"
        assert tracked.outcome(tracked.send("retry", "succeed"))["outcome"] == "succeeded"


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


@pytest.fixture
def hanging(make_tracked: MakeTracked, server: Server, proxy: Proxy) -> Tracked:
    """An app with its own way to the broker."""
    settings = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    return make_tracked(proxy.url(server.url(0)), extra=SETTINGS, **settings)


def lease_of(tracked: Tracked, name: str) -> Any:
    """When the lease of an entry's run ends."""
    return tracked.progress.deadline_of(name, f"{name}-id")


def is_let_go(tracked: Tracked, name: str) -> bool:
    """Whether the lease of an entry's run has run out."""
    return bool(lease_of(tracked, name) < server_now(tracked.client))


@pytest.mark.slow
def test_a_run_is_lost_when_its_task_has_ended_or_its_process_is_gone_and_one_at_work_is_not(
    hanging: Tracked, proxy: Proxy, client: redis.Redis
) -> None:
    worker = hanging.worker("prefork", concurrency=4)
    try:
        first = hanging.begun(hanging.send("wait hang", task="act_late"))
        others = [hanging.send(f"wait {key}", limits=SKIP) for key in ("end", "never", "later")]
        ends, dies, lasts = (hanging.begun(name) for name in others)
        first_leases = {lease_of(hanging, name) for name in others}
        # so their worker knows that they have begun
        eventually(lambda: first_leases.isdisjoint(lease_of(hanging, name) for name in others))
        is_frozen = proxy.freeze_on(b"ZREM")  # what acknowledges a message; Kombu has other reasons to ask
        client.set("hang", 1)
        assert is_frozen.wait(patience(PATIENCE_SECONDS))
        assert hanging.outcome(first)["outcome"] == "succeeded", "then it is acknowledged, without an answer"
        client.set("end", 1)
        os.kill(hanging.pids(dies)[0], signal.SIGKILL)
        eventually(lambda: is_let_go(hanging, ends) and is_let_go(hanging, dies))
        assert not is_let_go(hanging, lasts)
        hanging.progress.settle(at=server_now(client))
        assert [hanging.outcome(name)["outcome"] for name in (ends, dies)] == ["lost", "lost"]
        assert hanging.running(lasts)
        told = worker.output()
        assert all(f"The run {name}-id of {name} has ended" in told for name in (ends, dies))
        assert told.count("it seems to hang") == 2

        proxy.thaw()
        eventually(lambda: hanging.past(ends).get("late") == "succeeded")
        eventually(lambda: hanging.past(dies).get("late") == "failed")
        client.set("later", 1)
        assert hanging.outcome(lasts)["outcome"] == "succeeded"
        assert not client.exists(NAMES.deadlines)
    finally:
        worker.kill()


@pytest.mark.slow
def test_a_task_at_work_keeps_its_lease_while_the_main_process_is_stopped(
    hanging: Tracked, client: redis.Redis, tmp_path: Path
) -> None:
    """Stopped when the pool's process has got the task, and hasn't said so."""
    worker = hanging.worker("prefork", concurrency=1)
    try:
        (tmp_path / "stop").touch()
        name = hanging.begun(hanging.send("wait end", limits=SKIP))
        began_at = server_now(client)
        eventually(lambda: server_now(client) > began_at + 3 * LEASE_SECONDS or is_let_go(hanging, name))
        assert not is_let_go(hanging, name)
        (tmp_path / "stop").unlink()
        client.set("end", 1)
        eventually(lambda: hanging.work(name) == ["begin", "end"])
        eventually(lambda: is_let_go(hanging, name))
        os.kill(worker.pid, signal.SIGCONT)
        assert hanging.outcome(name)["outcome"] == "succeeded"
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        worker.kill()
