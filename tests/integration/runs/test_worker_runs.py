"""What workers do about runs besides noting their ends: the gate, leases, terminating, outages, workflows."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol

import celery.apps.worker
import pytest
import redis
from celery import Celery
from celery.app.defaults import NAMESPACES

from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES, Progress
from tests.support.proxy import Proxy
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


def test_a_run_that_is_to_be_replaced_before_it_began_is_superseded_and_not_begun(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("succeed", limits={"overlap": "replace", "terminate": "replaced"})
    worker = start_worker()
    assert tracked.outcome(name)["outcome"] == "superseded"
    assert tracked.work(name) == []
    assert "isn't begun: another run holds its entry" in worker.output()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_run_that_was_given_up_is_not_begun_while_another_holds_its_entry(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    progress, name = tracked.progress, "held"
    progress.send(name, "holder", 2_000_000.0, **SKIP)
    assert progress.begin(progress.delivery(name, "holder", 2_000_000.0, overlap="skip")) == "go"
    worker = start_worker(pool)
    tracked.publish(name, "succeed", limits=SKIP)
    worker.wait_for("isn't begun: another run holds its entry")
    after = tracked.send("succeed")  # its message is gone, so the next one is handled
    tracked.outcome(after)
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


def test_an_acknowledged_message_whose_first_delivery_died_is_begun_when_that_lease_has_ended(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    progress, name = tracked.progress, beginning(tracked, "succeed", **SKIP)
    assert progress.runs.begin(other_delivery(progress, name), 4000).answer.value == "go"
    start_worker()
    tracked.publish(name, "succeed", limits=SKIP)
    assert tracked.outcome(name)["outcome"] == "succeeded"
    assert tracked.work(name) == ["begin"]


def test_an_acknowledged_message_whose_first_delivery_lives_is_a_duplicate(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    progress, name = tracked.progress, beginning(tracked, "succeed", **SKIP)
    first = other_delivery(progress, name)
    assert progress.runs.begin(first, 30_000).answer.value == "go"
    worker = start_worker()
    tracked.publish(name, "succeed", limits=SKIP)

    def is_dropped() -> bool:
        progress.runs.renew([(first, 1.0)], 30_000, "celery@other")
        return "isn't begun: its message was delivered twice" in worker.output()

    eventually(is_dropped)
    tracked.outcome(tracked.send("succeed"))
    assert tracked.work(name) == []
    progress.end(first, "succeeded")
    past = tracked.outcome(name)
    assert (past["outcome"], past["worker"]) == ("succeeded", "celery@other")
    assert "late" not in past


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


def test_a_message_that_waited_too_long_expires_also_if_it_comes_once_more(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    first = start_worker(name="first")
    works = [tracked.send("work_late", "go on") for _ in range(3)]
    for one in works:
        tracked.begun(one)
    name = tracked.send("work_late", "go on", limits=SKIP, **in_an_hour())
    first.wait_for(f"[{name}-id] received")
    first.kill()
    redeliver_expired(tracked, name)
    tracked.client.set("go on", 1)
    second = start_worker(name="second")
    assert tracked.outcome(name)["outcome"] == "expired", second.output()
    assert tracked.work(name) == []
    assert "isn't begun: its message has expired, and no worker had begun it in time" in second.output()


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


def test_a_worker_that_is_killed_leaves_its_leases_to_end(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("work_until", "never")
    worker = start_worker()
    tracked.begun(name)
    worker.kill()
    run = tracked.state(name, "started")
    assert run.worker is not None
    tracked.settle_lost()
    past = tracked.outcome(name)
    assert (past["outcome"], past["worker"]) == ("lost", run.worker)


def test_the_end_of_a_run_that_was_given_up_is_noted_as_late(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("work_until", "done")
    start_worker()
    tracked.begun(name)
    tracked.state(name, "started")
    tracked.settle_lost()
    assert tracked.past(name)["outcome"] == "lost"
    tracked.client.set("done", 1)
    eventually(lambda: tracked.past(name).get("late") == "succeeded")


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


def test_what_a_worker_leaves_behind_at_a_cold_shutdown_is_done_by_another(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("work_late", "go on", limits=SKIP)
    first = start_worker(name="first")
    tracked.begun(name)
    first.signal(signal.SIGQUIT)
    first.wait()
    tracked.client.set("go on", 1)
    start_worker(name="second")
    past = tracked.outcome(name)
    if hasattr(celery.apps.worker, "on_cold_shutdown"):
        assert (past["outcome"], past["worker"]) == ("succeeded", "second@test")
        assert tracked.work(name) == ["begin", "begin", "end"]
    else:  # Celery takes a task for failed whose process it has terminated itself
        assert (past["outcome"], past["worker"]) == ("failed", "first@test")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_task_can_ask_whether_the_run_is_still_its_own(
    tracked: Tracked, start_worker: StartWorker, pool: str
) -> None:
    name = tracked.send("ask")
    start_worker(pool)
    tracked.outcome(name)
    assert tracked.client.get(f"mine:{name}-id") == "1"


def test_a_task_whose_run_was_given_up_is_told_so(tracked: Tracked, start_worker: StartWorker) -> None:
    name = tracked.send("ask_late", "go on")
    start_worker()
    tracked.begun(name)
    tracked.state(name, "started")
    tracked.settle_lost()
    tracked.client.set("go on", 1)
    eventually(lambda: tracked.client.get(f"mine:{name}-id") == "0")


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


def test_a_task_that_does_not_end_at_sigterm_is_killed(tracked: Tracked, start_worker: StartWorker) -> None:
    name = tracked.send("shield", "never")
    start_worker()
    tracked.begun(name)
    tracked.state(name, "started")
    mark(tracked, name, "replaced")
    past = tracked.outcome(name)
    assert (past["outcome"], past["error"]) == ("revoked", "replaced by the next run")


def test_a_pool_that_cannot_terminate_says_so_in_the_record_and_once_in_the_log(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("work_until", "done")
    worker = start_worker("threads")
    tracked.begun(name)
    assert tracked.state(name, "started").is_soft
    mark(tracked, name, "replaced")
    worker.wait_for("can't terminate a task")
    deadline = tracked.progress.deadline_of(name, f"{name}-id") or 0.0
    eventually(lambda: (tracked.progress.deadline_of(name, f"{name}-id") or 0.0) > deadline + 1)
    assert worker.output().count("can't terminate a task") == 1
    tracked.client.set("done", 1)
    assert tracked.outcome(name)["outcome"] == "succeeded"


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


def test_a_lease_that_could_not_be_taken_is_taken_when_redis_is_back(
    make_tracked: MakeTracked, server: Server, proxy: Proxy
) -> None:
    direct = f"\nruns_client = lambda client=redis.Redis.from_url({server.url(1)!r}): client"
    tracked = make_tracked(gate_seconds=0.05, extra=direct, schedule_url=proxy.url(server.url(1)))
    tracked = tracked.directly(server.url(1))
    with tracked.worker("prefork", concurrency=2):
        tracked.outcome(tracked.send("succeed"))
        proxy.refuse()
        proxy.drop()
        name = tracked.send("work_until", "done")
        tracked.begun(name)
        proxy.heal()
        run = tracked.state(name, "started")
        assert run.delivery
        tracked.client.set("done", 1)
        assert tracked.outcome(name)["outcome"] == "succeeded"


# -- other tasks, other requests


def test_tasks_that_entries_did_not_send_cause_no_command(
    make_tracked: MakeTracked, server: Server, redis_session: Server, client: redis.Redis
) -> None:
    direct = f"\nruns_client = lambda client=redis.Redis.from_url({redis_session.url(3)!r}): client"
    redis_session.flush()
    tracked = make_tracked(broker_url=redis_session.url(0), extra=direct)

    def commands() -> int:
        info: Any = client.info("commandstats")
        return sum(row["calls"] for name, row in info.items() if "eval" in name or "_h" in name)

    with tracked.worker("prefork", concurrency=2), redis_session.client(db=3) as notes:
        tracked.outcome(tracked.send("succeed"))  # what is asked once has been asked
        before = commands()
        with tracked.sender() as app:
            for _ in range(50):
                app.send_task("tracked.succeed")
        eventually(lambda: notes.llen("work") == 51)
        caused = commands() - before
    assert caused <= 6, caused  # that the worker lives, perhaps: a script, and what it calls itself


OWN_REQUEST = """
from celery.worker.request import Request


class Own(Request):
    def on_accepted(self, pid, time_accepted):
        runs_client().rpush("own", "accepted")
        super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info, send_failed_event=True, return_ok=False):
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        runs_client().rpush("own", "failed")


class Raising(Request):
    def on_failure(self, exc_info, send_failed_event=True, return_ok=False):
        raise RuntimeError("the user's own")

    def acknowledge(self):
        super().acknowledge()
        runs_client().rpush("own", "acknowledged")


class OfOwn(app.Task):
    Request = Own


@app.task(base=OfOwn)
def fail_on_its_own():
    raise ValueError("as it should")


class OfRaising(app.Task):
    Request = "tracked:Raising"


@app.task(base=OfRaising)
def fail_and_raise():
    raise ValueError("as it should")
"""


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_request_class_of_the_users_own_works_as_before(make_tracked: MakeTracked, pool: str) -> None:
    tracked = make_tracked(extra=OWN_REQUEST)
    with tracked.worker(pool, concurrency=2):
        past = tracked.outcome(tracked.send("fail_on_its_own"))
        assert (past["outcome"], past["error"]) == ("failed", "ValueError: as it should")
        eventually(lambda: tracked.client.lrange("own", 0, -1) == ["accepted", "failed"])
        with tracked.sender() as app:
            app.send_task("tracked.fail_on_its_own")
        eventually(lambda: tracked.client.lrange("own", 0, -1) == 2 * ["accepted", "failed"])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_request_class_whose_methods_raise_loses_no_outcome(make_tracked: MakeTracked, pool: str) -> None:
    tracked = make_tracked(extra=OWN_REQUEST)
    with tracked.worker(pool, concurrency=2):
        past = tracked.outcome(tracked.send("fail_and_raise"))
        assert (past["outcome"], past["error"]) == ("failed", "ValueError: as it should")
        assert tracked.client.lrange("own", 0, -1) == ["acknowledged"]


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


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
@pytest.mark.parametrize(("shape", "tasks"), [("one", 1), ("chain", 1), ("group", 2)])
def test_a_workflow_is_over_when_all_its_tasks_are(
    tracked: Tracked, start_worker: StartWorker, pool: str, shape: str, tasks: int
) -> None:
    name = tracked.send("spawn", shape, "go on", limits={"workflow": 1})
    start_worker(pool)
    tracked.state(name, "spawned")
    eventually(lambda: len(tracked.running(name)) == 1 + tasks)
    children = [run for run in tracked.running(name) if run.root]
    assert [run.root for run in children] == tasks * [f"{name}-id"]
    assert "outcome" not in tracked.past(name)
    tracked.client.set("go on", 1)
    assert tracked.outcome(name)["outcome"] == "succeeded"


def test_a_workflow_with_a_chord_is_over_when_its_last_task_is(
    make_tracked: MakeTracked, server: Server
) -> None:
    tracked = make_tracked(result_backend=server.url(2))
    name = tracked.send("spawn", "chord", "go on", limits={"workflow": 1})
    with tracked.worker("prefork", concurrency=3):
        tracked.state(name, "spawned")
        eventually(lambda: tracked.client.llen("work") == 3)
        tracked.client.set("go on", 1)
        assert tracked.outcome(name)["outcome"] == "succeeded"
        assert tracked.client.llen("work") == 4


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("task", ["succeed", "fail_badly", "be_killed"])
def test_what_is_linked_to_a_workflows_task_belongs_to_it(
    tracked: Tracked, start_worker: StartWorker, task: str
) -> None:
    link = {"task": "tracked.child", "args": ["go on"], "kwargs": {}, "options": {}, "immutable": True}
    options = {"link": [link]} if task == "succeed" else {"link_error": [link]}
    name = tracked.send(task, limits={"workflow": 1}, **options)
    start_worker()
    run = tracked.state(name, "spawned")
    assert run.outcome == ("succeeded" if task == "succeed" else "failed")
    assert [one.root for one in tracked.running(name) if one.root] == [f"{name}-id"]
    tracked.client.set("go on", 1)
    assert tracked.outcome(name)["outcome"] == run.outcome


def test_a_workflow_that_has_failed_says_which_task_has(tracked: Tracked, start_worker: StartWorker) -> None:
    link = {"task": "tracked.fail_badly", "args": [], "kwargs": {}, "options": {}, "immutable": True}
    name = tracked.send("succeed", limits={"workflow": 1}, link=[link])
    start_worker()
    past = tracked.outcome(name)
    assert past["outcome"] == "failed"
    assert past["error"].startswith("tracked.fail_badly: ValueError: at redis://")
    assert "secret" not in past["error"]


def test_the_tasks_of_a_run_that_is_over_with_its_own_task_are_none_of_its(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("spawn", "group", "go on")
    start_worker()
    assert tracked.outcome(name)["outcome"] == "succeeded"
    tracked.client.set("go on", 1)
    eventually(lambda: tracked.client.llen("work") == 3)
    assert tracked.running(name) == []


def test_a_retry_keeps_what_the_message_says_of_its_run_and_may_wait_as_long_again(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    start_worker()  # before it is sent, as its message expires soon
    expires = datetime.now(timezone.utc) + timedelta(seconds=10)
    headers = {"redbeat_queue_timeout": 10.0, "redbeat_tracks": "workflow"}
    limits = {"overlap": "skip", "queue": 10}
    name = tracked.send("retry", 1, 13.0, limits=limits, headers=headers, expires=expires)
    run = tracked.state(name, "retrying")
    assert run.error == "ValueError: not yet"
    past = tracked.outcome(name)  # the retry comes after the first message would have expired
    assert (past["outcome"], past["attempt"]) == ("succeeded", 2)


def test_a_run_whose_retry_waits_is_in_progress_though_nobody_renews_it(
    tracked: Tracked, start_worker: StartWorker
) -> None:
    name = tracked.send("retry", 1, 600.0, limits={"queue": 60})
    start_worker()
    run = tracked.state(name, "retrying")
    assert run.attempt == 2
    deadline = tracked.progress.deadline_of(name, f"{name}-id") or 0.0
    assert time.time() + 600 < deadline < time.time() + 700


# -- worker -B


def test_the_runs_of_a_beat_inside_the_worker_are_tracked(
    make_tracked: MakeTracked,
) -> None:
    schedule = {"often": {"task": "tracked.succeed", "schedule": 1.0}}
    tracked = make_tracked(beat_schedule=schedule, beat_scheduler="redbeat.RedBeatScheduler")
    with tracked.worker("prefork", "-B", concurrency=2) as worker:
        try:
            eventually(lambda: tracked.client.llen("work") >= 3)
            eventually(lambda: tracked.past("often").get("outcome") == "succeeded")
        except AssertionError:
            print(worker.output())
            raise
        assert "aren't compiled" not in worker.output()


@pytest.mark.skipif("pool_start_method" not in NAMESPACES["worker"], reason="this Celery can only fork")
def test_processes_that_are_started_anew_instead_of_forked_have_the_gate(make_tracked: MakeTracked) -> None:
    tracked = make_tracked(worker_pool_start_method="spawn")
    name = tracked.send("succeed", limits={"overlap": "replace", "terminate": "replaced"})
    with tracked.worker("prefork", concurrency=1):
        assert tracked.outcome(name)["outcome"] == "superseded"
        assert tracked.outcome(tracked.send("retry", 1))["outcome"] == "succeeded"
