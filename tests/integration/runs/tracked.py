"""Workers that track runs, the tasks that they run, and the runs that tests send to them as beat does.

Invariant: one worker serves many runs; each has an entry, and so a history, of its own.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import celery
import redis
from celery import Celery

from redbeat.store.run_record import RunRecord
from tests.support.apps import GREENLETS, ready, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES, Progress, history_of

#: how long the leases of these workers live, seconds
LEASE_SECONDS = 3
#: how long their gates wait for Redis: on a busy machine an answer may take longer than 50 ms
GATE_SECONDS = 20
#: when the runs that tests send are due
DUE = 1_000_000.5

#: the task ``act`` does at its n-th begin the n-th thing that it is told, and later on the last one
TASKS = """
import os

import redbeat
import redbeat.runs
from redbeat.runs import publishing
from celery import chain, chord, group
from celery.exceptions import Ignore, Reject

redbeat.track_runs(app)


def work(task, word):
    runs_client().rpush("work", json.dumps([task.request.id, word, time.time(), os.getpid()]))


def wait_for(key):
    ends_at = time.monotonic() + 600
    while key and time.monotonic() < ends_at and not runs_client().exists(key):
        time.sleep(0.05)


def act(task, *ways):
    work(task, "begin")
    number = runs_client().incr("begun:" + task.request.id)
    way, _, value = ways[min(number, len(ways)) - 1].partition(" ")
    if way == "fail":
        raise ValueError("at redis://me:secret@host/0, password=hunter2\\nand a second line")
    if way == "retry":
        raise task.retry(countdown=float(value or 0), exc=ValueError("not yet"))
    if way == "retry-and-return":
        task.retry(throw=False, countdown=0)
    if way == "ignore":
        raise Ignore()
    if way in ("reject", "requeue"):
        raise Reject("not for me", requeue=way == "requeue")
    if way == "replace":
        raise task.replace(app.tasks["tracked.act"].si("succeed"))
    if way == "kill":
        time.sleep(0.3)  # before its process is known to have it, the pool would give it to another one
        os.kill(os.getpid(), 9)
    if way == "hang":
        time.sleep(600)
    if way == "exit":
        raise SystemExit(3)
    if way == "wait":
        wait_for(value)
        work(task, "end")
    if way == "ask":
        wait_for(value)
        runs_client().set("mine:" + task.request.id, int(redbeat.runs.is_mine()))


LATE = {"acks_late": True, "reject_on_worker_lost": True, "acks_on_failure_or_timeout": False}
for name, options in (("act", {}), ("act_late", LATE), ("act_again", {"retry_on_worker_lost": True})):
    app.task(bind=True, name="tracked." + name, max_retries=2, default_retry_delay=0, **options)(act)


@app.task(bind=True)
def spawn(self, shape, key):
    work(self, "begin")
    parts = [app.tasks["tracked.act"].si("wait " + key) for _ in range(3)]
    if shape == "chain":
        chain(*parts[:2]).apply_async()
    elif shape == "chord":
        chord(parts[:2], parts[2]).apply_async()
    else:
        group(parts[: 2 if shape == "group" else 1]).apply_async()
"""


def can_terminate(pool: str) -> bool:
    """Whether this Celery can terminate tasks in such a pool: greenlets of gevent it couldn't once."""
    if pool == "gevent":
        return "def terminate_job" in Path(celery.__path__[0], "concurrency", "gevent.py").read_text()
    return pool == "prefork"


def launch_worker(
    directory: Path, module: str, pool: str, concurrency: int = 6, *arguments: str, name: str = ""
) -> Process:
    """A worker with this pool; it is not waited for."""
    options = ["-A", module, "worker", "-P", pool, "-c", str(concurrency), "-l", "INFO"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    options += ["-n", f"{name}@test"] if name else []
    program = ["-m", "celery"]
    if pool in GREENLETS:  # before anything else is imported
        program = ["-c", f"{GREENLETS[pool]}\nfrom celery.__main__ import main\nmain()"]
    return Process([sys.executable, *program, *options, *arguments], cwd=directory)


def start_worker(
    directory: Path, module: str, pool: str, concurrency: int = 6, *arguments: str, name: str = ""
) -> Process:
    """A worker with this pool, ready for tasks."""
    return ready(launch_worker(directory, module, pool, concurrency, *arguments, name=name))


@dataclass
class Tracked:
    """An app whose workers track runs: sends runs to them, and reads what the runs have left."""

    app: Celery
    client: redis.Redis
    directory: Path
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def write(
        cls,
        directory: Path,
        broker_url: str,
        schedule_url: str,
        client: redis.Redis,
        extra: str = "",
        gate_seconds: float = GATE_SECONDS,
        **settings: Any,
    ) -> Tracked:
        """Write its module; the schedule is at `schedule_url`, of which `client` is one."""
        extra = f"{TASKS}\npublishing.PATIENCE_SECONDS = {gate_seconds}\n{extra}"
        given = {"redbeat_run_lease": LEASE_SECONDS, "broker_connection_retry_on_startup": True, **settings}
        given.setdefault("redbeat_redis_url", schedule_url)
        write_app(directory, "tracked", broker_url, schedule_url, extra=extra, **given)
        app = Celery("tracked", broker=broker_url, set_as_current=False)
        app.conf.redbeat_redis_url = schedule_url
        return cls(app, client, directory)

    @property
    def progress(self) -> Progress:
        return Progress(self.app, self.client)

    def worker(self, pool: str, *arguments: str, concurrency: int = 6, name: str = "") -> Process:
        return start_worker(self.directory, "tracked", pool, concurrency, *arguments, name=name)

    @contextmanager
    def sender(self) -> Iterator[Celery]:
        """An app that sends; each test has its own, as kombu's pools are closed after each."""
        with Celery("tracked", broker=self.app.conf.broker_url, set_as_current=False) as app:
            app.conf.redbeat_redis_url = self.app.conf.redbeat_redis_url
            yield app

    def send(self, *ways: str, limits: Any = None, **options: Any) -> str:
        """Record a run of an entry of its own as sent, as beat does, and send it; return the entry's name.

        The task id is the name and "-id".
        """
        name = f"{ways[0].partition(' ')[0]}-{next(self._numbers)}"
        self.progress.send(name, f"{name}-id", DUE, **(limits or {}))
        self.publish(name, *ways, limits=limits, **options)
        return name

    def publish(
        self,
        name: str,
        *ways: str,
        task: str = "act",
        limits: Any = None,
        headers: Any = None,
        **options: Any,
    ) -> None:
        """Send the message of a run, once more if it was sent before."""
        due = datetime.fromtimestamp(DUE, timezone.utc).isoformat(timespec="microseconds")
        of_run = {"redbeat_entry": name, "redbeat_due": due, **(headers or {})}
        if limits and "overlap" in limits:
            of_run["redbeat_overlap"] = limits["overlap"]
        if limits and "workflow" in limits:
            of_run["redbeat_tracks"] = "workflow"
        with self.sender() as app:
            app.send_task(f"tracked.{task}", ways, task_id=f"{name}-id", headers=of_run, **options)

    def revoke(self, name: str, **options: Any) -> None:
        """Revoke a run by Celery's means."""
        with self.sender() as app:
            app.control.revoke(f"{name}-id", **options)

    def running(self, name: str) -> list[RunRecord]:
        """The runs of an entry that are in progress."""
        return self.progress.runs.read([NAMES.entry(name)])[0]

    def past(self, name: str) -> dict[str, Any]:
        """The record of an entry's run in its history."""
        return history_of(self.client, name)[0]

    def outcome(self, name: str) -> dict[str, Any]:
        """Wait until the run is over, and return its record."""

        def is_over() -> bool:
            return "outcome" in self.past(name) and not self.running(name)

        eventually(is_over, message=f"the run of {name} isn't over: {self.running(name)}, {self.past(name)}")
        return self.past(name)

    def _work(self, name: str) -> list[Any]:
        lines: Any = self.client.lrange("work", 0, -1)
        return [line for line in map(json.loads, lines) if line[0] == f"{name}-id"]

    def work(self, name: str) -> list[str]:
        """What the tasks of a run have noted themselves: begin, end."""
        return [line[1] for line in self._work(name)]

    def pids(self, name: str) -> list[int]:
        """The processes that have worked for a run."""
        return [line[3] for line in self._work(name)]

    def begun(self, name: str, times: int = 1) -> str:
        """Wait until the task of a run has begun; return the entry's name."""
        eventually(lambda: self.work(name).count("begin") >= times, message=f"{name} isn't begun")
        return name

    def state(self, name: str, state: str) -> RunRecord:
        """Wait until a run's record has this state; return it."""

        def find() -> list[RunRecord]:
            return [one for one in self.running(name) if one.state.value == state]

        eventually(find, message=f"{name} isn't {state}")
        return find()[0]

    def settle_lost(self) -> None:
        """Let time pass, as far as the judge is concerned."""
        self.progress.settle(at=time.time() + 10 * LEASE_SECONDS)
