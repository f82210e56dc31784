"""Real workers: the gate, leases, terminating, outages, workflows, and runs that are sent again."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis
from celery import Celery
from celery.app.defaults import NAMESPACES

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from tests.support.deadlines import PATIENCE_SECONDS, patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES, Progress
from tests.support.proxy import Proxy
from tests.support.schedule import server_now
from tests.support.servers import Server
from tests.support.tracked import LEASE_SECONDS, Tracked, can_terminate

SKIP = {"overlap": "skip"}


class MakeTracked(Protocol):
    def __call__(self, broker_url: str = "", schedule_url: str = "", **settings: Any) -> Tracked: ...


class StartWorker(Protocol):
    def __call__(self, pool: str = "prefork", *arguments: str, name: str = "") -> Process: ...


@pytest.fixture
def make_tracked(server: Server, client: redis.Redis, tmp_path: Path) -> Iterator[MakeTracked]:
    with ExitStack() as at_end:

        def make(broker_url: str = "", schedule_url: str = "", **settings: Any) -> Tracked:
            schedule_url = schedule_url or server.url(1)
            tracked = Tracked.write(tmp_path, broker_url or server.url(0), schedule_url, client, **settings)
            at_end.callback(tracked.app.close)
            return tracked

        yield make


@pytest.fixture
def tracked(make_tracked: MakeTracked) -> Tracked:
    return make_tracked()


@pytest.fixture
def start_worker(tracked: Tracked) -> Iterator[StartWorker]:
    with ExitStack() as at_end:

        def start(pool: str = "prefork", *arguments: str, name: str = "") -> Process:
            worker = tracked.worker(pool, *arguments, name=name, concurrency=3)
            at_end.callback(lambda: print(worker.output()))
            at_end.callback(worker.kill)
            return worker

        yield start


def other_delivery(progress: Progress, name: str) -> Any:
    """Another worker's delivery of the run that is sent to an entry."""
    return progress.delivery(name, f"{name}-id", 1_000_000.5, worker="celery@other", overlap="skip")


def beginning(tracked: Tracked, task: str, *args: Any, **limits: Any) -> str:
    """A run that another worker has begun; its message isn't sent yet."""
    name = f"{task}-begun"
    tracked.progress.send(name, f"{name}-id", 1_000_000.5, **limits)
    return name


# -- the gate


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_that_was_given_up_is_not_begun_while_another_holds_its_entry(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    progress, name = tracked.progress, "held"
    progress.send(name, "holder", 2_000_000.0, **SKIP)
    assert progress.begin(progress.delivery(name, "holder", 2_000_000.0, overlap="skip")) == "go"
    worker = start_worker(pool)
    tracked.publish(name, "succeed", limits=SKIP)
    worker.wait_for("isn't begun: another run holds its entry")
    tracked.outcome(tracked.send("succeed"))  # the message is gone, so the next one is handled
    assert tracked.work(name) == []
    assert [run.task_id for run in tracked.running(name)] == ["holder"]


def test_a_message_that_is_delivered_twice_is_put_back_until_the_first_one_has_ended(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    progress, name = tracked.progress, beginning(tracked, "work_late", **SKIP)
    first = other_delivery(progress, name)
    assert progress.begin(first) == "go"
    worker = start_worker()
    tracked.client.set("go on", 1)
    tracked.publish(name, "work_late", "go on", limits=SKIP)
    worker.wait_for("isn't begun: its message was delivered twice")
    worker.wait_for(re.compile(r"(reject requeue=True|work_late.*received)(.|\n)*work_late.*received"))
    assert tracked.work(name) == []
    assert [run.worker for run in tracked.running(name)] == ["celery@other"]
    progress.end(first, "requeued")
    assert tracked.outcome(name)["outcome"] == "succeeded"
    assert tracked.work(name) == ["begin", "end"]


# -- what comes back late


def redeliver_expired(tracked: Tracked, name: str) -> None:
    """Do what workers do about the message of a worker that was killed, when long enough has passed; its
    `queue_timeout` is over by then.
    """
    task_id = f"{name}-id"
    with (
        Celery("tracked", broker=tracked.app.conf.broker_url, set_as_current=False) as app,
        app.connection(transport_options={"visibility_timeout": -1}) as connection,
    ):
        channel: Any = connection.default_channel
        for tag, text in channel.client.hgetall("unacked").items():
            message, *place = json.loads(text)
            if message["headers"]["id"] == task_id:
                message["headers"]["expires"] = "2026-01-01T00:00:00+00:00"
                channel.client.hset("unacked", tag, json.dumps([message, *place]))
        channel.qos.restore_visible()


def in_an_hour() -> dict[str, Any]:
    """The options of a message that expires by `queue_timeout`."""
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    return {"expires": at, "headers": {"redbeat_queue_timeout": 3600.0}}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("limits", [{}, SKIP], ids=["allow", "skip"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_whose_worker_was_killed_begins_again_also_after_its_queue_timeout(
    tracked: Tracked, start_worker: StartWorker, pool: str, limits: dict[str, Any]
) -> None:
    name = tracked.send("work_late", "go on", limits=limits, **in_an_hour())
    first = start_worker(pool, name="first")
    tracked.begun(name)
    tracked.state(name, "started")
    first.kill()
    tracked.settle_lost()
    redeliver_expired(tracked, name)
    start_worker(pool, name="second")
    tracked.begun(name, 2)
    assert tracked.state(name, "started").worker == "second@test"
    tracked.client.set("go on", 1)
    eventually(lambda: tracked.past(name).get("late") == "succeeded")
    assert tracked.past(name)["outcome"] == "lost"
    assert tracked.work(name) == ["begin", "begin", "end"]


# -- leases


def test_a_lease_is_renewed_as_long_as_the_task_works(tracked: Tracked, start_worker: StartWorker) -> None:
    name = tracked.send("work_until", "done")
    start_worker()
    tracked.begun(name)
    lease_ends = tracked.progress.deadline_of(name, f"{name}-id") or 0.0

    def is_renewed_twice() -> bool:
        return (tracked.progress.deadline_of(name, f"{name}-id") or 0.0) > lease_ends + LEASE_SECONDS

    eventually(is_renewed_twice)
    tracked.client.set("done", 1)
    assert tracked.outcome(name)["ran"] > LEASE_SECONDS


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_is_told_to_stop_notes_what_becomes_of_its_last_tasks(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    name = tracked.send("work_until", "done")
    worker = start_worker(pool)
    tracked.begun(name)
    worker.signal(signal.SIGTERM)
    worker.wait_for("Warm shutdown")
    tracked.client.set("done", 1)
    assert worker.wait() == 0
    assert tracked.past(name)["outcome"] == "succeeded"
    assert not tracked.progress.runs.workers()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_task_can_ask_whether_the_run_is_still_its_own(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    own = tracked.send("ask")
    start_worker(pool)
    tracked.outcome(own)
    given_up = tracked.begun(tracked.send("ask_late", "go on"))
    tracked.state(given_up, "started")
    tracked.settle_lost()
    tracked.client.set("go on", 1)
    eventually(lambda: tracked.client.get(f"mine:{given_up}-id") == "0")
    assert tracked.client.get(f"mine:{own}-id") == "1"


# -- terminating


def mark(tracked: Tracked, name: str, why: str) -> None:
    """Ask the worker to terminate a run, as beat does."""
    running, task_id = NAMES.about(name).running, f"{name}-id"
    record = json.loads(str(tracked.client.hget(running, task_id)))
    tracked.client.hset(running, task_id, json.dumps({**record, "terminate": why}))


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
@pytest.mark.parametrize(
    ("why", "error"), [("replaced", "replaced by the next run"), ("overdue", "longer than max_runtime")]
)
def test_a_run_that_beat_gives_up_is_terminated(
    tracked: Tracked, start_worker: StartWorker, why: str, error: str, pool: str
) -> None:
    if not can_terminate(pool):
        pytest.skip(f"{pool} can't terminate tasks in this version of Celery")
    name = tracked.send("work_until", "never")
    worker = start_worker(pool)
    tracked.begun(name)
    tracked.state(name, "started")
    mark(tracked, name, why)
    past = tracked.outcome(name)
    assert (past["outcome"], past["error"]) == ("revoked", error)
    assert tracked.work(name) == ["begin"]
    assert tracked.outcome(tracked.send("succeed"))["outcome"] == "succeeded", worker.output()


# -- Redis away


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as made:
        yield made


def durations(tracked: Tracked) -> list[float]:
    return [float(text) for text in tracked.client.lrange("gate", 0, -1)]  # type: ignore[union-attr]


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


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("how", ["frozen", "refused"])
def test_without_redis_a_task_begins_at_once_and_its_outcome_comes_later(
    make_tracked: MakeTracked, server: Server, proxy: Proxy, pool: str, how: str
) -> None:
    # the list of work goes straight to the server, and what tracks goes through the proxy
    tracked = make_tracked(
        gate_seconds=0.05,
        extra=MEASURE + f"\nruns_client = lambda client=redis.Redis.from_url({server.url(1)!r}): client",
        schedule_url=proxy.url(server.url(1)),
    ).directly(server.url(1))
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
    waited = durations(tracked)
    # 50 ms at most, and some for a busy machine; of several in a row only the first ones wait
    assert max(waited) < 0.5, waited
    assert min(waited[1:]) < 0.05


# -- other tasks, other requests


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_run_whose_task_the_worker_does_not_know_is_rejected(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    name = tracked.send("unheard_of")
    start_worker(pool)
    past = tracked.outcome(name)
    assert past["outcome"] == "rejected"
    assert past["error"] == "NotRegistered: tracked.unheard_of"


# -- what a run's task sends


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_workflow_is_over_when_all_its_tasks_are(
    make_tracked: MakeTracked, server: Server, pool: str
) -> None:
    tracked = make_tracked(result_backend=server.url(2))
    shapes = {"one": 1, "chain": 1, "group": 2, "chord": 2}
    names = {tracked.send("spawn", shape, "go on", limits={"workflow": 1}): shape for shape in shapes}
    with tracked.worker(pool):
        for name, shape in names.items():
            tracked.state(name, "spawned")
            eventually(lambda name=name, shape=shape: len(tracked.running(name)) > shapes[shape])
            assert {run.root for run in tracked.running(name) if run.root} == {f"{name}-id"}
            assert "outcome" not in tracked.past(name)
        tracked.client.set("go on", 1)
        assert {tracked.outcome(name)["outcome"] for name in names} == {"succeeded"}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("task", ["succeed", "fail_badly", "be_killed"])
def test_task_linked_to_a_tracked_run_runs_and_belongs_to_its_workflow(
    tracked: Tracked, start_worker: StartWorker, task: str
) -> None:
    link = {"task": "tracked.child", "args": ["go on"], "kwargs": {}, "options": {}, "immutable": True}
    outcome, option = ("succeeded", "link") if task == "succeed" else ("failed", "link_error")
    name = tracked.send(task, limits={"workflow": 1}, **{option: [link]})
    start_worker()
    assert tracked.state(name, "spawned").outcome == outcome
    assert [run.root for run in tracked.running(name) if run.root] == [f"{name}-id"]
    tracked.client.set("go on", 1)
    assert tracked.outcome(name)["outcome"] == outcome


@pytest.mark.slow
@pytest.mark.skipif("pool_start_method" not in NAMESPACES["worker"], reason="this Celery can only fork")
def test_processes_that_are_started_anew_instead_of_forked_have_the_gate(make_tracked: MakeTracked) -> None:
    tracked = make_tracked(worker_pool_start_method="spawn")
    name = tracked.send("succeed", limits={"overlap": "replace", "terminate": "replaced"})
    with tracked.worker("prefork", concurrency=1):
        assert tracked.outcome(name)["outcome"] == "superseded"
        assert tracked.outcome(tracked.send("retry", 1))["outcome"] == "succeeded"


def test_a_run_that_failed_is_seen_and_rerun_until_it_succeeds(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    track_runs(tracked.app)
    start_worker()
    entry = Entry("job", "tracked.fail_badly", 3600, overlap="skip", app=tracked.app).save()
    entry.trigger()
    eventually(lambda: [run.outcome for run in entry.runs()] == ["failed"])
    [failed] = entry.runs()
    assert (failed.attempt, failed.is_manual) == (1, True)
    assert "secret" not in str(failed.error)
    entry.update(task="tracked.succeed")
    result = entry.rerun()
    eventually(lambda: [run.outcome for run in entry.runs()] == ["succeeded", "failed"])
    again = entry.runs()[0]
    assert (again.task_id, again.due, again.rerun_of) == (result.id, failed.due, failed.task_id)
    assert (again.wait_seconds or 0) < 60, "counted from when it was sent, not from when it was due"
    assert entry.figures().failures_in_a_row == 0


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
def hanging(server: Server, proxy: Proxy, client: redis.Redis, tmp_path: Path) -> Iterator[Tracked]:
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
    hanging: Tracked, proxy: Proxy, client: redis.Redis
) -> None:
    worker = hanging.worker("prefork", concurrency=4)
    try:
        first = hanging.begun(hanging.send("work_late", "hang"))
        others = [hanging.send("work_until", key, limits=SKIP) for key in ("end", "never", "later")]
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
        name = hanging.begun(hanging.send("work_until", "end", limits=SKIP))
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
