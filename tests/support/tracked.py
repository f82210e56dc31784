"""Workers that track runs, the tasks that they run, and the runs that tests send to them as beat does.

Invariant: one worker serves many runs; each has an entry, and so a history, of its own.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import celery
import redis
from celery import Celery

from redbeat.store.run_record import RunRecord

from .apps import GREENLETS, write_app
from .polling import eventually
from .processes import Process
from .progress import NAMES, Progress, history_of

#: how long the leases of these workers live, seconds
LEASE_SECONDS = 3
#: how long their gates wait for Redis: on a busy machine an answer may take longer than 50 ms
GATE_SECONDS = 20
#: the lines that begin and end a task's work, in the list "work"
WORK = "work"

TASKS = """
import os
import threading

import redbeat
import redbeat.runs
from redbeat.runs import publishing
from celery import chain, chord, group
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

publishing.PATIENCE_SECONDS = {gate_seconds}
redbeat.track_runs(app)


def work(task, word):
    runs_client().rpush("work", json.dumps([task.request.id, word, time.time(), os.getpid()]))


def wait_for(key, seconds=600):
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and not runs_client().exists(key):
        time.sleep(0.05)


def kill_itself():
    time.sleep(0.3)  # before its process is known to have it, the pool would give it to another one
    os.kill(os.getpid(), 9)


@app.task(bind=True)
def succeed(self):
    work(self, "begin")
    return 1


@app.task(bind=True)
def fail_badly(self):
    work(self, "begin")
    raise ValueError("at redis://me:secret@host/0, password=hunter2\\nand a second line")


@app.task(bind=True, max_retries=5)
def retry(self, fails, countdown=0.0):
    work(self, "begin")
    if self.request.retries < fails:
        raise self.retry(countdown=countdown, exc=ValueError("not yet"))


@app.task(bind=True, max_retries=1, default_retry_delay=0)
def retry_in_vain(self):
    work(self, "begin")
    raise self.retry(exc=ValueError("never"))


@app.task(bind=True)
def ignore(self):
    work(self, "begin")
    raise Ignore()


@app.task(bind=True, acks_late=True)
def reject(self):
    work(self, "begin")
    raise Reject("not for me", requeue=False)


@app.task(bind=True, acks_late=True)
def reject_once(self):
    work(self, "begin")
    if runs_client().incr("rejected:" + self.request.id) == 1:
        raise Reject("later", requeue=True)


@app.task(bind=True)
def replace(self):
    work(self, "begin")
    raise self.replace(succeed.si())


@app.task(bind=True)
def work_until(self, key, seconds=60):
    work(self, "begin")
    wait_for(key, seconds)
    work(self, "end")


@app.task(bind=True)
def be_killed(self):
    work(self, "begin")
    kill_itself()


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def be_killed_once(self):
    work(self, "begin")
    if runs_client().incr("killed:" + self.request.id) == 1:
        kill_itself()


@app.task(bind=True, retry_on_worker_lost=True, default_retry_delay=0)
def be_killed_and_retried(self):
    work(self, "begin")
    if runs_client().incr("killed:" + self.request.id) == 1:
        kill_itself()


@app.task(bind=True, acks_late=True, acks_on_failure_or_timeout=False)
def hang_once(self):
    work(self, "begin")
    if runs_client().incr("hung:" + self.request.id) == 1:
        time.sleep(600)


@app.task(bind=True, default_retry_delay=0)
def retry_and_return(self):
    work(self, "begin")
    if self.request.retries == 0:
        self.retry(throw=False)


@app.task(bind=True)
def exit_badly(self):
    work(self, "begin")
    raise SystemExit(3)


@app.task(bind=True, acks_late=True)
def work_late(self, key):
    work(self, "begin")
    wait_for(key)
    work(self, "end")


@app.task(bind=True)
def ask(self):
    work(self, "begin")
    runs_client().set("mine:" + self.request.id, int(redbeat.runs.is_mine()))


@app.task(bind=True)
def ask_late(self, key):
    work(self, "begin")
    wait_for(key)
    runs_client().set("mine:" + self.request.id, int(redbeat.runs.is_mine()))


@app.task(bind=True)
def spawn(self, shape, key):
    work(self, "begin")
    parts = [child.si(key) for _ in range(3)]
    if shape == "chain":
        chain(*parts[:2]).apply_async()
    elif shape == "chord":
        chord(parts[:2], parts[2]).apply_async()
    else:
        group(parts[: 2 if shape == "group" else 1]).apply_async()


@app.task(bind=True)
def child(self, key):
    work(self, "begin")
    wait_for(key)


{extra}
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
    process = launch_worker(directory, module, pool, concurrency, *arguments, name=name)
    try:
        process.wait_for(re.compile(r"\S+@\S+ ready\."))
    except AssertionError:
        process.kill()
        raise
    return process


@dataclass
class Tracked:
    """An app whose workers track runs: sends runs, and looks what became of them."""

    app: Celery
    client: redis.Redis
    directory: Path
    module: str
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def write(
        cls,
        directory: Path,
        broker_url: str,
        schedule_url: str,
        client: redis.Redis,
        extra: str = "",
        **settings: Any,
    ) -> Tracked:
        """Write its module; the schedule is at `schedule_url`, of which `client` is one."""
        given = {
            "redbeat_redis_url": schedule_url,
            "redbeat_run_lease": LEASE_SECONDS,
            "broker_connection_retry_on_startup": True,
            **settings,
        }
        source = TASKS.format(gate_seconds=settings.pop("gate_seconds", GATE_SECONDS), extra=extra)
        given.pop("gate_seconds", None)
        write_app(directory, "tracked", broker_url, schedule_url, extra=source, **given)
        app = Celery("tracked", broker=broker_url, set_as_current=False)
        app.conf.redbeat_redis_url = schedule_url
        return cls(app, client, directory, "tracked")

    @property
    def progress(self) -> Progress:
        return Progress(self.app, self.client)

    def directly(self, schedule_url: str) -> Tracked:
        """The same, whose own commands take another way to the schedule than the workers'."""
        app = Celery("tracked", broker=self.app.conf.broker_url, set_as_current=False)
        app.conf.redbeat_redis_url = schedule_url
        return replace(self, app=app)

    def worker(self, pool: str, *arguments: str, concurrency: int = 6, name: str = "") -> Process:
        return start_worker(self.directory, self.module, pool, concurrency, *arguments, name=name)

    @contextmanager
    def sender(self) -> Iterator[Celery]:
        """An app that sends; each test has its own, as kombu's pools are closed after each."""
        app = Celery("tracked", broker=self.app.conf.broker_url, set_as_current=False)
        try:
            yield app
        finally:
            app.close()

    def send(
        self,
        task: str,
        *args: Any,
        limits: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Send a run of an entry of its own, and record it, as beat does; return the entry's name.

        The task id is the name and "-id".
        """
        name = f"{task}-{next(self._numbers)}"
        limits = dict(limits or {})
        due = 1_000_000.5
        self.progress.send(name, f"{name}-id", due, **limits)
        self.publish(name, task, *args, limits=limits, headers=headers, **options)
        return name

    def publish(
        self,
        name: str,
        task: str,
        *args: Any,
        limits: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Send the message of a run, once more if it was sent before."""
        due = datetime.fromtimestamp(1_000_000.5, timezone.utc).isoformat(timespec="microseconds")
        of_run = {"redbeat_entry": name, "redbeat_due": due}
        if limits and limits.get("overlap", "allow") != "allow":
            of_run["redbeat_overlap"] = limits["overlap"]
        if limits and limits.get("workflow"):
            of_run["redbeat_tracks"] = "workflow"
        options["headers"] = {**of_run, **(headers or {})}
        with self.sender() as app:
            app.send_task(f"tracked.{task}", args, task_id=f"{name}-id", **options)

    def revoke(self, name: str, **options: Any) -> None:
        """Revoke a run by Celery's means."""
        with self.sender() as app:
            app.control.revoke(f"{name}-id", **options)

    def running(self, name: str) -> list[RunRecord]:
        """The runs of an entry that are in progress."""
        return self.progress.runs.read([NAMES.entry(name)])[0]

    def past(self, name: str) -> dict[str, Any]:
        """What became of an entry's run."""
        return history_of(self.client, name)[0]

    def outcome(self, name: str) -> dict[str, Any]:
        """Wait until the run is over, and return what became of it."""

        def is_over() -> bool:
            return "outcome" in self.past(name) and not self.running(name)

        eventually(is_over, message=f"the run of {name} isn't over: {self.running(name)}, {self.past(name)}")
        return self.past(name)

    def work(self, name: str) -> list[str]:
        """What the tasks of a run have noted themselves: begin, end."""
        return [word for task_id, word, *_ in map(json.loads, self._lines()) if task_id == f"{name}-id"]

    def pids(self, name: str) -> list[int]:
        """The processes that have worked for a run."""
        return [line[3] for line in map(json.loads, self._lines()) if line[0] == f"{name}-id"]

    def _lines(self) -> list[Any]:
        lines: Any = self.client.lrange(WORK, 0, -1)
        return lines

    def begun(self, name: str, times: int = 1) -> str:
        """Wait until the task of a run has begun; return the entry's name."""
        eventually(lambda: self.work(name).count("begin") >= times, message=f"{name} isn't begun")
        return name

    def state(self, name: str, state: str) -> RunRecord:
        """Wait until a run's record has this state; return it."""

        def find() -> RunRecord | None:
            return next((one for one in self.running(name) if one.state.value == state), None)

        found = eventually(find, message=f"{name} isn't {state}")
        assert found is not None
        return found

    def settle_lost(self) -> None:
        """Let time pass, as far as the judge is concerned."""
        self.progress.settle(at=time.time() + 10 * LEASE_SECONDS)
