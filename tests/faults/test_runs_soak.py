"""Entries of one second with overlap ``skip``, whose tasks succeed, fail, retry, hang and are killed, while
beats and workers are killed, stopped and resumed at random.

Judged by the tasks' own log: never two runs of one entry at once, and every run ends with exactly one
outcome, which is what the log says. Nothing is held back longer than its limits, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from tests.conftest import MakeApp
from tests.faults.worklog import WAYS, Execution, WorkLog, tasks_source
from tests.integration.runs.tracked import launch_worker
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES, history_of
from tests.support.schedule import expected_id
from tests.support.servers import Server

ENTRIES = 50
NAMES_OF_JOBS = [f"job-{number}" for number in range(ENTRIES)]
SECONDS = 600.0
WORKERS = 3
CHILDREN = 12
#: a task takes at most so long, and one that hangs is killed after its limit
MAX_TASK_SECONDS, TIME_LIMIT_SECONDS = 1.2, 2.0
LEASE_SECONDS = 5.0
#: workers are stopped for less than that: their leases outlive it, as they are renewed ten times in one
MAX_STOP_SECONDS = 3.0
QUEUE_SECONDS = 8.0
TAKEOVER_SECONDS = 5.0
#: a task that is at work for longer was in a renewal, if its begin didn't arrive
UNTOLD_SECONDS = 3 * LEASE_SECONDS / 10
#: three attempts of the longest task, the waits between them, and what each may wait on its queue
MOST_SECONDS = 3 * (TIME_LIMIT_SECONDS + 1 + QUEUE_SECONDS) + 2 * 0.5 + UNTOLD_SECONDS + LEASE_SECONDS


@dataclass(frozen=True)
class Layout:
    """Where the broker is, whether there is a lock, the entries' overlap policies, and the workers' pools.

    Only the first pool can end a task that hangs.
    """

    broker: str = "same"
    has_lock: bool = True
    policies: tuple[str, ...] = ("skip",)
    pools: tuple[str, ...] = ("prefork",)
    seconds: float = SECONDS / 5

    @property
    def ways(self) -> dict[str, int]:
        """What tasks may do."""
        return WAYS if self.pools == ("prefork",) else {**WAYS, "hang": 0}


@dataclass
class Chaos:
    """Two beats and some workers, of which one after the other is hit."""

    app: Celery
    layout: Layout
    server: Server
    folder: Path
    chance: random.Random
    stack: ExitStack
    beats: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    all_workers: list[Process] = field(default_factory=list)
    #: how often the end of each run was told
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    _read_to: str = "-"

    def start(self) -> None:
        self.beats = [self._beat() for _ in range(2)]
        self.workers = [self._worker(number) for number in range(WORKERS)]
        for worker in self.workers:
            worker.wait_for("ready.")

    def _beat(self, _number: int = 0) -> Process:
        return self.stack.enter_context(celery_beat(self.folder, "module"))

    def _worker(self, number: int) -> Process:
        pool = self.layout.pools[number % len(self.layout.pools)]
        worker = launch_worker(self.folder, "module", pool, CHILDREN, name=f"worker-{number}")
        self.all_workers.append(self.stack.enter_context(worker))
        return worker

    def go_on_for(self, seconds: float) -> None:
        """Kill or stop one process after the other; start again what has ended by itself."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.chance.uniform(0.5, 3.0))
            kind = self.chance.choice(["beat", "worker"])
            found, start = (self.beats, self._beat) if kind == "beat" else (self.workers, self._worker)
            place = self.chance.randrange(len(found))
            hit = self.chance.choice(["kill", "stop"])
            if hit == "kill":
                found[place].kill()
                found[place] = start(place)
            else:
                most = 1.5 * TAKEOVER_SECONDS if kind == "beat" else MAX_STOP_SECONDS
                os.killpg(found[place].pid, signal.SIGSTOP)
                time.sleep(self.chance.uniform(0.1, most))
                os.killpg(found[place].pid, signal.SIGCONT)
            self.hits[f"{hit} {kind}"] += 1
            self.hear()
        # a beat that has lost the lock, say
        self.beats = [beat if beat.is_running else self._beat() for beat in self.beats]

    def hear(self) -> None:
        """Note what was told since the last time: not everything is kept until the end."""
        with self.server.client(db=1) as client:
            found: Any = client.xrange(NAMES.events, min=self._read_to)
        for number, values in found:
            self._read_to = f"({number}"
            if values["event"] == "run_ended":
                self.ended[values["entry"], json.loads(values["run"])["task_id"]] += 1


LAYOUTS = {
    "skip": Layout(seconds=SECONDS),
    "all_policies": Layout(policies=("skip", "buffer_one", "replace")),
    "another_server": Layout(broker="other"),
    "RabbitMQ": Layout(broker="rabbitmq", policies=("skip", "buffer_one", "replace")),
    "without_a_lock": Layout(has_lock=False),
    "all_pools": Layout(policies=("skip", "buffer_one"), pools=("prefork", "threads", "gevent")),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(params=LAYOUTS)
def chaos(
    server: Server,
    make_app: MakeApp,
    tmp_path: Path,
    chance: random.Random,
    request: pytest.FixtureRequest,
    stack: ExitStack,
) -> Chaos:
    layout = LAYOUTS[request.param]
    settings: dict[str, Any] = {
        **({} if layout.has_lock else {"redbeat_lock_key": None}),
        "redbeat_redis_url": server.url(1),
        "redbeat_redis_options": {"retry_period": -1},
        "redbeat_run_lease": LEASE_SECONDS,
        "redbeat_takeover_after": TAKEOVER_SECONDS,
        "redbeat_lock_lost": "standby",
        "redbeat_history": 1000,
        "broker_transport_options": {} if layout.broker == "rabbitmq" else {"visibility_timeout": 15},
        "worker_prefetch_multiplier": 1,
    }
    extra = (
        tasks_source(MAX_TASK_SECONDS, TIME_LIMIT_SECONDS, layout.ways)
        + "\nimport redbeat\nredbeat.track_runs(app)\n"
        + f"from redbeat.runs import keeper\nkeeper.UNTOLD_SECONDS = {UNTOLD_SECONDS}\n"
    )
    brokers = {"same": "server", "other": "redis", "rabbitmq": "rabbitmq"}
    broker: Any = request.getfixturevalue(brokers[layout.broker])
    url = broker.url() if layout.broker == "rabbitmq" else broker.url(0)
    write_app(tmp_path, "module", url, extra=extra, **settings)
    app = make_app(**settings)
    RedBeatSchedulerEntry.save_many(
        [
            RedBeatSchedulerEntry(
                name,
                chance.choice(["module.work", "module.work_late"]),
                1.0,
                args=[name],
                overlap=chance.choice(layout.policies),
                queue_timeout=QUEUE_SECONDS,
                app=app,
            )
            for name in NAMES_OF_JOBS
        ],
    )
    return Chaos(app, layout, server, tmp_path, chance, stack)


@pytest.mark.long_form
def test_never_two_at_once_and_one_outcome_for_each_run(
    chaos: Chaos, stack: ExitStack, tmp_path: Path
) -> None:
    client = stack.enter_context(chaos.server.client(db=1))
    chaos.start()
    chaos.go_on_for(chaos.layout.seconds)
    RedBeatSchedulerEntry.pause_many(NAMES_OF_JOBS, app=chaos.app)
    # what is on its way ends, or is given up
    eventually(lambda: not client.exists(NAMES.deadlines), timeout=MOST_SECONDS + 30, interval=0.2)

    log = WorkLog.read(tmp_path)
    histories = {name: history_of(client, name) for name in NAMES_OF_JOBS}
    outcomes = Counter(one.get("outcome", "sent") for found in histories.values() for one in found)
    told = f"hits: {dict(chaos.hits)}; executions: {len(log.executions)}; outcomes: {dict(outcomes)}"
    print(told)

    assert log.overlaps() == [], told
    runs = [one for found in histories.values() for one in found if one.get("outcome") not in NOT_SENT]
    assert [one for one in runs if "outcome" not in one] == [], "each run has an outcome"
    chaos.hear()
    assert set(chaos.ended.values()) == {1}, "exactly one"
    assert sum(chaos.ended.values()) == len(runs)
    assert contradictions(log, histories) == []
    assert held_too_long(log, histories) == []
    assert [*client.scan_iter("redbeat::running*")] == []
    assert len(runs) > ENTRIES, told
    broken = [
        worker.output() for worker in chaos.all_workers if "failed, and the task goes on" in worker.output()
    ]
    assert broken == [], "tracking fails no task"


#: outcomes of what wasn't sent
NOT_SENT = {"skipped", "merged", "unsent", "waiting"}


def expected_words(record: dict[str, Any]) -> set[str]:
    """What the log may say last of the run with this record of its history."""
    anything = {"", "begin", "work", "retry", "failed", "succeeded", "ignored"}
    if record.get("error", "").startswith(("TimeLimitExceeded", "WorkerLostError")):
        return anything  # a process that is stopped is killed after its end, or before it has said a word
    return {
        "succeeded": {"succeeded"},
        "ignored": {"ignored"},
        "failed": {"failed"},
        "revoked": anything,  # replaced by the next one
        "lost": anything,  # its worker was killed before it could tell
        # a retry that nobody has begun, or nothing at all; or its worker was killed before Redis had answered
        "never_started": {"", "retry", "begin", "work"},
        "expired": {"", "retry"},
        "superseded": {"", "retry", "work", "begin"},
    }[record["outcome"]]


def contradictions(log: WorkLog, histories: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Runs of which the history says something else than the tasks' log."""
    by_entry: defaultdict[str, list[Execution]] = defaultdict(list)
    for one in log.executions:
        by_entry[one.entry].append(one)
    found = []
    for name, records in histories.items():
        ids = {one["task_id"] for one in records if "task_id" in one}
        known = {id_of(name, one): one for one in records if one.get("outcome") not in NOT_SENT}
        strangers = {one.task_id for one in by_entry[name]} - known.keys() - ids
        found += [f"{name} {task_id}: began, and isn't in the history" for task_id in strangers]
        for task_id, record in known.items():
            executions = log.of(task_id)
            word = executions[-1].word if executions else ""
            if record["outcome"] == "never_started" and word not in ("", "retry"):
                seconds = executions[-1].last - executions[-1].began
                word = f"{word} for {seconds} s" if seconds >= UNTOLD_SECONDS else "begin"
            if word not in expected_words(record) and "late" not in record:
                found.append(
                    f"{name} {task_id}: {record}, and the log says {word!r}: {list(map(str, executions))}"
                )
    return found


def id_of(name: str, record: dict[str, Any]) -> str:
    """The task id of a run that was sent."""
    return str(record.get("id") or expected_id(name, float(record["due"])))


def held_too_long(log: WorkLog, histories: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Runs that were skipped longer after the run that held them was sent than all limits together allow.

    Not those whose holder was still at work: a worker whose main process hangs in billiard, as it does now
    and then after a hard limit, keeps no limits.
    """
    found = []
    for name, records in histories.items():
        sent_at = {id_of(name, one): one["at"] for one in records if one.get("outcome") not in NOT_SENT}
        for one in records:
            holder = one.get("held_by")
            if holder in sent_at and one["at"] - sent_at[holder] > MOST_SECONDS + patience(5):
                last = max((worked.last for worked in log.of(str(holder))), default=0.0)
                if one["at"] > last + UNTOLD_SECONDS + LEASE_SECONDS:
                    found.append(f"{name}: {one}, held since {sent_at[holder]}")
    return found
