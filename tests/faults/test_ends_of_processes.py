"""The run of a task that is killed ends when its process has ended, and the next one begins after that.

The tasks handle SIGTERM, as those do that clean up: they go on until SIGKILL. Judged by what they write
themselves while they live.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import pytest
import redis
from celery import Celery

import redbeat
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.policy.policy import Overlap
from redbeat.store.runs import Delivery, End
from tests.conftest import MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.apps import celery_beat, celery_worker, runs, stop_worker, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import LEASE_MS, NAMES, Progress
from tests.support.schedule import LOCK, SCHEDULE, messages, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader
from tests.support.tracked import start_worker
from tests.support.worklog import WorkLog, tasks_source

ENTRY_NAMES = [f"entry-{number}" for number in range(6)]
LEASE_SECONDS = 2
TASKS = """
import signal
import redbeat
from redbeat.runs import publishing

publishing.PATIENCE_SECONDS = 20
redbeat.track_runs(app)

def cling(task, name):
    signal.signal(signal.SIGTERM, lambda *_: stamp(task, name, "term"))
    stamp(task, name, "begin")
    while True:
        time.sleep(0.005)
        stamp(task, name, "work")

@app.task(name="limited", bind=True, time_limit=1)
def limited(self, name):
    cling(self, name)

@app.task(name="limited_late", bind=True, time_limit=1, acks_late=True)
def limited_late(self, name):
    cling(self, name)

@app.task(name="endless", bind=True)
def endless(self, name):
    cling(self, name)

@app.task(name="endless_late", bind=True, acks_late=True)
def endless_late(self, name):
    cling(self, name)
"""


class Site:
    """A beat, and two workers whose tasks are killed."""

    def __init__(self, folder: Path, broker_url: str, stack: ExitStack) -> None:
        self.folder = folder
        self.broker_url = broker_url
        self._stack = stack
        self.workers = [self._start_worker(name) for name in ("one", "two")]
        stack.enter_context(celery_beat(folder, "module"))

    def _start_worker(self, name: str) -> Process:
        return self._stack.enter_context(
            start_worker(self.folder, "module", "prefork", len(ENTRY_NAMES), name=name)
        )

    @property
    def log(self) -> WorkLog:
        return WorkLog.read(self.folder)

    def let_be(self) -> None:
        """Wait until RedBeat or Celery has killed some tasks."""
        time.sleep(0.5)

    def kill_processes(self) -> None:
        """Kill the processes that were at work last."""
        time.sleep(0.5)
        for one in self.log.executions[-len(ENTRY_NAMES) :]:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def revoke(self) -> None:
        """Revoke what is at work, by a signal that the tasks handle; kill their processes later."""
        ids = [one.task_id for one in self.log.executions[-len(ENTRY_NAMES) :]]
        with Celery("control", broker=self.broker_url, set_as_current=False) as app:
            app.control.revoke(ids, terminate=True)
        self.kill_processes()

    def shut_down(self) -> None:
        """Shut a worker down at once; kill it when its tasks go on all the same."""
        self.workers.reverse()
        self.workers[0].signal(signal.SIGQUIT)
        time.sleep(1.5)
        self.workers[0].kill()
        self.workers[0] = self._start_worker(f"next-{time.time():.0f}")


#: how tasks are killed, by which task, overlap policy, and how many executions are looked at
WAYS: dict[str, tuple[str, Overlap, Callable[[Site], None], int]] = {
    "hard time limit": ("limited", "skip", Site.let_be, 54),
    "hard time limit, acknowledged late": ("limited_late", "buffer_one", Site.let_be, 54),
    "replaced": ("endless", "replace", Site.let_be, 24),
    "process lost": ("endless", "skip", Site.kill_processes, 24),
    "revoked": ("endless", "skip", Site.revoke, 24),
    "cold shutdown": ("endless", "skip", Site.shut_down, 18),
    "cold shutdown, acknowledged late": ("endless_late", "skip", Site.shut_down, 18),
}


@pytest.mark.slow
@pytest.mark.few_cases(3)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_run_begins_when_the_process_of_a_killed_task_has_ended(
    server: Server, make_app: MakeApp, tmp_path: Path, way: str
) -> None:
    task, overlap, kill, executions = WAYS[way]
    settings = {
        "redbeat_redis_url": server.url(1),
        "redbeat_run_lease": LEASE_SECONDS,
        "worker_prefetch_multiplier": 1,
        "broker_transport_options": {"visibility_timeout": 5},
    }
    write_app(tmp_path, "module", server.url(0), extra=tasks_source(1, 60) + TASKS, **settings)
    app = make_app(**settings)
    Entry.save_many([Entry(name, task, 0.3, args=[name], overlap=overlap, app=app) for name in ENTRY_NAMES])
    with ExitStack() as stack:
        site = Site(tmp_path, server.url(0), stack)
        gives_up_at = time.monotonic() + 300
        while len(site.log.executions) < executions:
            assert time.monotonic() < gives_up_at, site.log.executions
            kill(site)
        for worker in site.workers:
            worker.kill()
        log = site.log
    overlaps = [
        (str(earlier), str(later), round(earlier.last - later.began, 3)) for earlier, later in log.overlaps()
    ]
    print(f"{way}: {len(overlaps)} overlaps in {len(log.executions)} executions")
    assert overlaps == []


ENTRIES = 500 if IS_LONG else 100
ROUNDS = 200 if IS_LONG else 4
FINAL = ["succeeded", "failed", "revoked", "expired", "rejected", "ignored"]
INTERVAL = {"__type__": "interval", "every": 60}
#: keys that are there once, whatever the number of runs
SINGLE = {f":{name}" for name in ("schedule", "lock", "tick", "released", "failures", "events")}


def deliver(progress: Progress, broker: redis.Redis, chance: random.Random) -> int:
    """Let workers take all messages: most runs end, some are begun and never heard of again, or not begun."""
    sent = messages(broker)
    broker.delete("celery")
    ends = []
    for message in sent:
        headers = message["headers"]
        due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
        token = headers["id"][:8]
        delivery = Delivery(headers["redbeat_entry"], headers["id"], f"{due:.6f}", token, "celery@test")
        way = chance.random()
        if way > 0.02:
            progress.runs.begin(delivery, LEASE_MS)
        if way > 0.04:
            ends.append(End(delivery, chance.choice(FINAL), "ValueError: no", 0.5))
    progress.runs.end(ends)
    return len(sent)


def test_runs_leave_histories_and_nothing_else(
    make_app: MakeApp, client: redis.Redis, server: Server, chance: random.Random
) -> None:
    app = make_app()
    redbeat.track_runs(app)
    progress = Progress(app, client)
    names = [f"entry-{number}" for number in range(ENTRIES)]
    total = 0
    with leader(app) as scheduler, server.client(db=0) as broker:
        for name in names:
            write_raw(client, name, schedule=INTERVAL)
        for _ in range(ROUNDS):
            now = server_now(client)
            client.zadd(SCHEDULE, {f"redbeat:{name}": f"{now - 1:.6f}" for name in names})
            while scheduler.tick() == 0:
                pass
            total += deliver(progress, broker, chance)
            scheduler.tick()
            progress.settle(at=server_now(client) + 1e6)
    assert total == ENTRIES * ROUNDS
    kinds = Counter(kind_of(key) for key in client.scan_iter("*", count=1000))
    print(f"{total} runs; keys: {dict(kinds)}")
    assert kinds.pop("history") == ENTRIES
    assert kinds.pop("entry") == ENTRIES
    assert kinds.pop("failing", 0) <= ENTRIES
    assert set(kinds) <= {
        ":schedule",
        ":lock",
        ":tick",
        ":failures",
        ":events",
        ":statics",
        ":released",
        *(":figures", ":expected", ":streaks"),
    }
    assert max(client.zcard(NAMES.expected), client.zcard(NAMES.streaks)) <= ENTRIES
    assert client.hlen(NAMES.figures) < 10_000, "there are labels for 200 entries"
    assert max(client.llen(NAMES.about(name).history) for name in names) <= 20
    assert client.xlen(NAMES.events) <= 11_000
    assert client.xlen(NAMES.failures) <= 11_000


def kind_of(key: str) -> str:
    name = key.removeprefix("redbeat:")
    if name.startswith((":history:", ":failing:")):
        return name.split(":")[1]
    return name if name.startswith(":") else "entry"


VISIBILITY_SECONDS = 5
ETA_SECONDS = 20
COUNT = 10
#: several, as each of them looks for what hasn't been acknowledged
WORKERS = 2

#: called in a process of its own, as that of a web server
SENDING = """
def send(count, eta_seconds):
    for number in range(count):
        echo.apply_async([number], countdown=eta_seconds)
"""
DURABLE = "import redbeat.later\nredbeat.later.install(app)\n"


@pytest.mark.long_form
def test_a_far_away_eta_runs_once_where_celery_alone_runs_it_several_times(
    server: Server, tmp_path: Path
) -> None:
    plain = runs_of(server, tmp_path / "plain", SENDING)
    server.flush()
    durable = runs_of(server, tmp_path / "durable", DURABLE + SENDING, redbeat_durable_after=1)
    print(
        f"{COUNT} tasks with an eta of {ETA_SECONDS} s, visibility_timeout {VISIBILITY_SECONDS} s, "
        f"{WORKERS} workers: Celery alone ran them {sorted(plain.values())} times, with RedBeat "
        f"{sorted(durable.values())} times"
    )
    assert set(durable) == set(range(COUNT))
    assert set(durable.values()) == {1}
    assert sum(plain.values()) > COUNT, "the fault that this is about isn't there any more"


def runs_of(server: Server, directory: Path, extra: str, **settings: float) -> Counter[int]:
    """Send the tasks to real workers; return how often each has run, long after its eta."""
    directory.mkdir()
    # a worker looks for what it may deliver again every second, instead of every 100, as all times are short
    transport = {
        "visibility_timeout": VISIBILITY_SECONDS,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    write_app(
        directory,
        "module",
        server.url(0),
        runs_url=server.url(1),
        extra=extra,
        broker_transport_options=transport,
        **settings,
    )
    client: redis.Redis = server.client(db=1)
    with ExitStack() as stack:
        beat = None
        if settings:
            beat = stack.enter_context(celery_beat(directory, "module"))
            eventually(lambda: server.client().exists(LOCK), message="beat doesn't lead")
        workers = [
            stack.enter_context(celery_worker(directory, "module", "-n", f"worker{number}", concurrency=4))
            for number in range(WORKERS)
        ]
        send = f"import module; module.send({COUNT}, {ETA_SECONDS})"
        with Process([sys.executable, "-c", send], cwd=directory) as sender:
            assert sender.wait(60) == 0, sender.output()
        sent_at = time.monotonic()
        eventually(lambda: len({run.args[0] for run in runs(client)}) == COUNT, patience(60), 0.2)
        # what was delivered again runs at the same time, or soon after it
        while time.monotonic() < sent_at + ETA_SECONDS + 3 * VISIBILITY_SECONDS:
            time.sleep(0.2)
        if beat is not None:
            assert beat.is_running, beat.output()
        for worker in workers:
            stop_worker(worker)
    return Counter(run.args[0] for run in runs(client))
