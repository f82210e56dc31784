"""Workers of each pool on each kind of broker: how tasks end, and which runs the gate and beat stop."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery.app.task import Task

from tests.faults.rounds import some_of
from tests.integration.runs.tracked import DUE, Tracked, can_terminate
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES, events_of
from tests.support.servers import Server

PREFORK, GEVENT, EVERY_POOL = ("prefork",), ("gevent",), ("prefork", "threads", "solo", "gevent")
SKIP = {"overlap": "skip"}


@dataclass(frozen=True)
class Case:
    """One way to end: what a task does at each of its begins, and how its run ends."""

    name: str
    ways: tuple[str, ...]
    task: str = "act"
    options: dict[str, Any] = field(default_factory=dict)
    outcome: str = "succeeded"
    error: str = ""
    attempt: int | None = 1
    begins: int = 1
    pools: tuple[str, ...] = EVERY_POOL

    def __str__(self) -> str:
        return self.name


URL = r"at redis://me:\*\*@host/0, password=\*\*"
#: what newer versions of Celery do with what can't go on
RETRIES_LOST, REQUEUES_TIMEOUTS = hasattr(Task, "retry_on_worker_lost"), hasattr(Task, "acks_on_timeout")
PAST = datetime.now(timezone.utc) - timedelta(hours=1)
FOR_EVER, LIMIT = ("wait never",), {"time_limit": 1}
CASES = [
    Case("succeeds", ("succeed",)),
    Case("fails", ("fail",), outcome="failed", error=f"ValueError: {URL}"),
    Case("is retried and succeeds", ("retry", "retry 0.5", "succeed"), attempt=3, begins=3),
    Case("is retried in vain", ("retry",), "act", {}, "failed", "ValueError: not yet", attempt=3, begins=3),
    Case("ignores itself", ("ignore",), outcome="ignored"),
    Case("is rejected", ("reject",), "act_late", outcome="rejected", error="not for me"),
    Case("is put back once", ("requeue", "succeed"), "act_late", begins=2),
    Case("is replaced", ("replace", "succeed"), begins=2, attempt=None),
    Case("expires", ("succeed",), options={"expires": PAST}, outcome="expired", begins=0),
    Case("is unknown", ("succeed",), "unheard_of", {}, "rejected", "NotRegistered: tracked.unheard_of",
         begins=0, attempt=None),
    Case("reaches its soft limit", FOR_EVER, "act", {"soft_time_limit": 1}, "failed",
         "SoftTimeLimitExceeded", pools=PREFORK),
    Case("reaches its hard limit", FOR_EVER, "act", LIMIT, "failed", "TimeLimitExceeded: 1",
         pools=PREFORK + GEVENT),
    Case("loses its process", ("kill",), outcome="failed", error="WorkerLostError: .*", pools=PREFORK),
    Case("is retried and returns", ("retry-and-return", "succeed"), attempt=2, begins=2),
    Case("exits", ("exit",), outcome="failed", error="(SystemExit|WorkerLostError).*",
         pools=("prefork", "threads")),
    Case("loses its process and is retried", ("kill", "succeed"), "act_again", attempt=2, begins=2,
         pools=PREFORK if RETRIES_LOST else ()),
    Case("reaches its hard limit and begins again", ("hang", "succeed"), "act_late", LIMIT, begins=2,
         pools=PREFORK if REQUEUES_TIMEOUTS else ()),
    Case("reaches its hard limit and is rejected", ("hang", "succeed"), "act_late", LIMIT, "failed",
         "TimeLimitExceeded: 1", pools=() if REQUEUES_TIMEOUTS else PREFORK),
    Case("loses its process and begins again", ("kill", "succeed"), "act_late", begins=2, pools=PREFORK),
]  # fmt: skip


@dataclass
class Place:
    """A worker, and the runs that it was sent."""

    tracked: Tracked
    worker: Process
    pool: str
    names: dict[str, str]


@pytest.fixture(scope="module")
def schedule(valkey_session: Server) -> Server:
    return valkey_session


#: each pool with one of the Redis brokers, and in `make test-all` one pool with RabbitMQ
ROUNDS = [
    [f"{pool} {('same', 'other')[(turn + number) % 2]}" for number, pool in enumerate(EVERY_POOL)]
    for turn in range(2)
]
PLACES = [place for places in some_of(ROUNDS, 1) for place in places]
PLACES += some_of([f"{pool} rabbitmq" for pool in EVERY_POOL], 1)


def at(place: str, *values: Any) -> Any:
    """Return the parameters of a test at a place."""
    marks = [pytest.mark.services] if "rabbitmq" in place else []
    return pytest.param(place, *values, id="-".join(map(str, (place, *values))), marks=marks)


def in_pools(*pools: str) -> pytest.MarkDecorator:
    """Run a test in each place whose worker has one of these pools."""
    places = [at(place) for place in PLACES if place.split()[0] in pools]
    return pytest.mark.parametrize("place", places, indirect=True, scope="module")


@pytest.fixture(scope="module", params=[at(place) for place in PLACES])
def place(
    request: pytest.FixtureRequest, schedule: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """All cases are sent at once, and each test waits for its own."""
    pool, broker = request.param.split()
    directory: Path = tmp_path_factory.mktemp("tracked")
    schedule.flush()
    url = schedule.url(1)
    if broker == "rabbitmq":
        node = request.getfixturevalue("rabbitmq_session")
        node.flush()  # of what the worker before this one hasn't done
        url = node.url()
    elif broker == "other":
        other = request.getfixturevalue("redis_session")
        other.flush()
        url = other.url(0)
    with schedule.client(db=1) as client:
        tracked = Tracked.write(directory, url, schedule.url(1), client, result_backend=schedule.url(2))
        with tracked.worker(pool) as worker:
            # a run of an entry without a policy is begun whoever else has it, and ends the same
            limits = {} if broker == "same" else SKIP
            names = {
                case.name: tracked.send(*case.ways, task=case.task, limits=limits, **case.options)
                for case in CASES
                if pool in case.pools
            }
            yield Place(tracked, worker, pool, names)
        tracked.app.close()


@pytest.mark.parametrize(
    ("place", "case"),
    [at(place, case) for case in CASES for place in PLACES if place.split()[0] in case.pools],
    indirect=["place"],
    scope="module",
)
def test_run_ends_once_with_the_outcome_of_its_task(place: Place, case: Case) -> None:
    name, tracked = place.names[case.name], place.tracked
    try:
        past = tracked.outcome(name)
    except AssertionError:
        print(place.worker.output())
        raise
    assert past["outcome"] == case.outcome, place.worker.output()
    assert re.fullmatch(case.error, past.get("error", "")), past
    assert "late" not in past
    if case.attempt is not None:
        assert past["attempt"] == case.attempt
    assert tracked.work(name).count("begin") == case.begins
    ended = [one for one in events_of(tracked.client, "run_ended") if one["entry"] == name]
    assert [one["outcome"] for one in ended] == [case.outcome]
    if case.begins:
        assert past["worker"].startswith("celery@")
        assert min(past["ran"], past["wait"]) >= 0
    assert not tracked.client.zscore(NAMES.deadlines, f"{name}-id\0{NAMES.about(name).running}")


def test_run_revoked_before_it_begins_is_revoked(place: Place) -> None:
    tracked = place.tracked
    tracked.revoke("revoked", reply=True, timeout=60, limit=1)
    tracked.progress.send("revoked", "revoked-id", DUE)
    tracked.publish("revoked", "succeed")
    assert tracked.outcome("revoked")["outcome"] == "revoked"
    assert not tracked.work("revoked")


@in_pools(*filter(can_terminate, EVERY_POOL))
@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("", "terminated"),
        ("replaced", "replaced by the next run"),
        ("overdue", "longer than max_runtime"),
    ],
)
def test_run_terminated_by_a_user_or_by_beat_is_revoked(place: Place, why: str, error: str) -> None:
    tracked = place.tracked
    name = tracked.begun(tracked.send("wait never"))
    running = NAMES.about(name).running
    if why:
        tracked.state(name, "started")
        record = json.loads(str(tracked.client.hget(running, f"{name}-id")))
        tracked.client.hset(running, f"{name}-id", json.dumps({**record, "terminate": why}))
    else:
        tracked.revoke(name, terminate=True)
    past = tracked.outcome(name)
    assert (past["outcome"], past["error"]) == ("revoked", error)
    assert tracked.work(name) == ["begin"]


def test_run_given_up_is_not_begun_while_another_run_holds_its_entry(place: Place) -> None:
    tracked, progress = place.tracked, place.tracked.progress
    holder = progress.started("held", "holder", 2 * DUE, **SKIP)
    tracked.publish("held", "succeed", limits=SKIP)
    place.worker.wait_for("The run held-id of held isn't begun: another run holds its entry")
    tracked.outcome(tracked.send("succeed"))  # the message is gone, so the next one is handled
    assert tracked.work("held") == []
    assert [run.task_id for run in tracked.running("held")] == ["holder"]
    progress.end(holder, "succeeded")


@in_pools(*PREFORK)
def test_message_delivered_twice_is_put_back_until_the_first_delivery_has_ended(place: Place) -> None:
    tracked, progress = place.tracked, place.tracked.progress
    first = progress.started("twice", "twice-id", DUE, **SKIP)
    tracked.publish("twice", "succeed", task="act_late", limits=SKIP)
    place.worker.wait_for("The run twice-id of twice isn't begun: its message was delivered twice")
    place.worker.wait_for(re.compile(r"twice-id\] received(.|\n)*twice-id\] received"))
    assert tracked.work("twice") == []
    assert [run.worker for run in tracked.running("twice")] == ["celery@test"]
    progress.end(first, "requeued")
    assert tracked.outcome("twice")["outcome"] == "succeeded"
    assert tracked.work("twice") == ["begin"]


def test_task_can_ask_whether_the_run_is_still_its_own(place: Place) -> None:
    tracked = place.tracked
    own, given_up = tracked.send("ask"), tracked.send("ask go on")
    tracked.state(tracked.begun(given_up), "started")
    tracked.progress.settle(at=time.time() + 1e6, only=f"{given_up}-id")
    tracked.client.set("go on", 1)
    for name, answer in ((own, "1"), (given_up, "0")):
        eventually(lambda name=name, answer=answer: tracked.client.get(f"mine:{name}-id") == answer)


@pytest.mark.few_cases(2)
@in_pools("prefork", "threads", "gevent")
def test_workflow_is_over_when_all_its_tasks_are(place: Place) -> None:
    tracked = place.tracked
    shapes = {"one": 1, "chain": 1, "group": 2, "chord": 2}
    names = {tracked.send(shape, "finish", task="spawn", limits={"workflow": 1}): shape for shape in shapes}
    for name, shape in names.items():
        tracked.state(name, "spawned")
        eventually(lambda name=name, shape=shape: len(tracked.running(name)) > shapes[shape])
        assert {run.root for run in tracked.running(name) if run.root} == {f"{name}-id"}
        assert "outcome" not in tracked.past(name)
    tracked.client.set("finish", 1)
    assert {tracked.outcome(name)["outcome"] for name in names} == {"succeeded"}


@in_pools(*PREFORK)
@pytest.mark.parametrize("way", ["succeed", "fail", "kill"])
def test_task_linked_to_a_tracked_run_runs_and_belongs_to_its_workflow(place: Place, way: str) -> None:
    tracked, key = place.tracked, f"linked to {way}"
    link = {"task": "tracked.act", "args": [f"wait {key}"], "kwargs": {}, "options": {}, "immutable": True}
    outcome, option = ("succeeded", "link") if way == "succeed" else ("failed", "link_error")
    name = tracked.send(way, limits={"workflow": 1}, **{option: [link]})
    assert tracked.state(name, "spawned").outcome == outcome
    assert [run.root for run in tracked.running(name) if run.root] == [f"{name}-id"]
    tracked.client.set(key, 1)
    assert tracked.outcome(name)["outcome"] == outcome


def test_stopping_worker_finishes_its_task_and_leaves_nothing_behind(place: Place) -> None:
    tracked, worker = place.tracked, place.worker
    # the tests of some cases may be another process's
    for name in [*place.names.values(), *(tracked.send("succeed") for _ in range(5))]:
        tracked.outcome(name)
    row = tracked.progress.runs.workers()
    assert [one["pool"] for one in row.values()] == [place.pool]
    last = tracked.begun(tracked.send("wait stop"))
    worker.signal(signal.SIGTERM)
    worker.wait_for("Warm shutdown")
    tracked.client.set("stop", 1)
    assert worker.wait() == 0
    assert tracked.past(last)["outcome"] == "succeeded"
    assert not tracked.progress.runs.workers()
    left = tracked.client.zrange(NAMES.deadlines, 0, -1)
    assert left == [], [*tracked.progress.runs.all()]
    expected = r"runs: The run \S+ of \S+ (isn't begun|is terminated)"
    assert "runs:" not in re.sub(expected, "", worker.output()), worker.output()
