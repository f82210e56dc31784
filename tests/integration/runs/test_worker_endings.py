"""Every way in which a task can end has one outcome, in workers of each pool and on each kind of broker."""

from __future__ import annotations

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
from tests.support.processes import Process
from tests.support.progress import NAMES, events_of
from tests.support.servers import Server
from tests.support.tracked import Tracked, can_terminate

PREFORK, GEVENT, EVERY_POOL = ("prefork",), ("gevent",), ("prefork", "threads", "solo", "gevent")


@dataclass(frozen=True)
class Case:
    """One way to end: what is sent, and what becomes of it."""

    name: str
    task: str
    args: tuple[Any, ...] = ()
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
FOR_EVER = ("never", 600)
CASES = [
    Case("succeeds", "succeed"),
    Case("fails", "fail_badly", outcome="failed", error=f"ValueError: {URL}"),
    Case("is retried and succeeds", "retry", (2,), attempt=3, begins=3),
    Case("is retried after a while", "retry", (1, 0.5), attempt=2, begins=2),
    Case("is retried in vain", "retry_in_vain", (), {}, "failed", "ValueError: never", attempt=2, begins=2),
    Case("ignores itself", "ignore", outcome="ignored"),
    Case("is rejected", "reject", outcome="rejected", error="not for me"),
    Case("is put back once", "reject_once", begins=2),
    Case("is replaced", "replace", begins=2, attempt=None),
    Case("expires", "succeed", options={"expires": PAST}, outcome="expired", begins=0),
    Case("reaches its soft limit", "work_until", FOR_EVER, {"soft_time_limit": 1}, "failed",
         "SoftTimeLimitExceeded", pools=PREFORK),
    Case("reaches its hard limit", "work_until", FOR_EVER, {"time_limit": 1}, "failed",
         "TimeLimitExceeded: 1", pools=PREFORK + GEVENT),
    Case("loses its process", "be_killed", outcome="failed", error="WorkerLostError: .*", pools=PREFORK),
    Case("is retried and returns", "retry_and_return", attempt=2, begins=2),
    Case("exits", "exit_badly", outcome="failed", error="(SystemExit|WorkerLostError).*",
         pools=("prefork", "threads")),
    Case("loses its process and is retried", "be_killed_and_retried", attempt=2, begins=2,
         pools=PREFORK if RETRIES_LOST else ()),
    Case("reaches its hard limit and begins again", "hang_once", (), {"time_limit": 1}, begins=2,
         pools=PREFORK if REQUEUES_TIMEOUTS else ()),
    Case("reaches its hard limit and is rejected", "hang_once", (), {"time_limit": 1}, "failed",
         "TimeLimitExceeded: 1", pools=() if REQUEUES_TIMEOUTS else PREFORK),
    Case("loses its process and begins again", "be_killed_once", begins=2, pools=PREFORK),
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
        tracked = Tracked.write(directory, url, schedule.url(1), client)
        with tracked.worker(pool) as worker:
            # a run of an entry without a policy is begun whoever else has it, and ends the same
            limits = {} if broker == "same" else {"overlap": "skip"}
            names = {
                case.name: tracked.send(case.task, *case.args, limits=limits, **case.options)
                for case in CASES
                if pool in case.pools
            }
            yield Place(tracked, worker, pool, names)
        tracked.app.close()


def places_of(*pools: str) -> list[str]:
    return [place for place in PLACES if place.split()[0] in pools]


TERMINATING = [at(place) for place in places_of(*filter(can_terminate, EVERY_POOL))]


@pytest.mark.parametrize(
    ("place", "case"),
    [at(place, case) for case in CASES for place in places_of(*case.pools)],
    indirect=["place"],
    scope="module",
)
def test_a_run_ends_once_with_what_became_of_its_task(place: Place, case: Case) -> None:
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
        assert past["ran"] >= 0
        assert past["wait"] >= 0
    assert not tracked.client.zscore(NAMES.deadlines, f"{name}-id\0{NAMES.about(name).running}")


def test_a_run_that_is_revoked_before_it_begins_is_revoked(place: Place) -> None:
    tracked = place.tracked
    tracked.revoke("succeed-revoked", reply=True, timeout=60, limit=1)
    tracked.progress.send("succeed-revoked", "succeed-revoked-id", 1_000_000.5)
    tracked.publish("succeed-revoked", "succeed")
    past = tracked.outcome("succeed-revoked")
    assert past["outcome"] == "revoked"
    assert not tracked.work("succeed-revoked")


@pytest.mark.parametrize("place", TERMINATING, indirect=True, scope="module")
def test_a_task_that_is_terminated_amid_its_work_is_revoked(place: Place) -> None:
    tracked = place.tracked
    name = tracked.begun(tracked.send("work_until", *FOR_EVER))
    tracked.revoke(name, terminate=True)
    past = tracked.outcome(name)
    assert (past["outcome"], past["error"]) == ("revoked", "terminated")
    assert tracked.work(name) == ["begin"]


def test_a_worker_ends_within_seconds_and_leaves_nothing_behind(place: Place) -> None:
    tracked = place.tracked
    # the tests of some cases may be another process's
    for name in [*place.names.values(), *(tracked.send("succeed") for _ in range(5))]:
        tracked.outcome(name)
    row = tracked.progress.runs.workers()
    assert [one["pool"] for one in row.values()] == [place.pool]
    began = time.monotonic()
    place.worker.signal(signal.SIGTERM)
    assert place.worker.wait() == 0
    assert time.monotonic() - began < 60
    assert not tracked.progress.runs.workers()
    left = tracked.client.zrange(NAMES.deadlines, 0, -1)
    assert left == [], [*tracked.progress.runs.all()]
    assert "runs:" not in place.worker.output(), place.worker.output()
