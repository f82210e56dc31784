"""Celery applications in files of their own, run by real `celery beat` and `celery worker` commands.

Their tasks note every run on a Redis list, so that a test asks what ran, not what was logged. The module
written has no need of this package: any Python with Celery 5.3 and redis 4.6, or newer, can run it.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from .logs import has_traceback
from .processes import Process

#: how long a worker with a pool of processes may take to stop. That is Celery's own doing: where SIGTERM
#: comes while a task's result is on its way, the pool's child waits up to 30 s for that to be read
STOP_SECONDS = 45.0

#: what lets the threads of a program be a library's, and no threads
GREENLETS = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}

_MODULE = """\
import datetime
import functools
import json
import time

import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

app = Celery({module!r}, broker={broker_url!r}, set_as_current=True)
app.conf.update({settings!r})


@functools.lru_cache(maxsize=None)
def runs_client():
    return redis.Redis.from_url({runs_url!r})


def note(task, *args, **kwargs):
    headers = {{name: value for name, value in vars(task.request).items() if name.startswith("redbeat")}}
    run = {{"task": task.name, "args": args, "kwargs": kwargs, "id": task.request.id, "headers": headers}}
    run["time"] = time.time()
    run["is_redelivered"] = bool((task.request.delivery_info or {{}}).get("redelivered"))
    runs_client().rpush("runs", json.dumps(run))


@app.task(name="echo", bind=True)
def echo(self, *args, **kwargs):
    note(self, *args, **kwargs)


@app.task(name="add", bind=True)
def add(self, x, y):
    note(self, x, y)
    return x + y


@app.task(name="fail", bind=True)
def fail(self, *args, **kwargs):
    note(self, *args, **kwargs)
    raise RuntimeError("this task always fails")


@app.task(name="slow", bind=True)
def slow(self, seconds):
    note(self, seconds)
    time.sleep(seconds)


{extra}
"""


@dataclass(frozen=True)
class Run:
    """One run of a task, as noted by the worker: `time` in UNIX seconds, `headers` those named redbeat*.

    `is_redelivered`: of a message that came once more, as the worker that had it was stopped.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    id: str
    time: float
    headers: dict[str, Any]
    is_redelivered: bool


def write_app(
    directory: Path,
    module: str,
    broker_url: str,
    runs_url: str | None = None,
    extra: str = "",
    **settings: Any,
) -> Path:
    """Write `module`.py with the Celery app `app` and the tasks echo, add(x, y), fail and slow(seconds).

    `settings` are written by repr; what has no such form (a crontab, say) goes into `extra`, source appended
    to the module, where app, crontab, schedule, solar and datetime are at hand. Runs are noted at `runs_url`,
    by default the broker. Raises SyntaxError when the settings are not Python once written.
    """
    path = Path(directory, f"{module}.py")
    source = _MODULE.format(
        module=module, broker_url=broker_url, runs_url=runs_url or broker_url, extra=extra, settings=settings
    )
    compile(source, str(path), "exec")
    path.write_text(source, encoding="utf-8")
    return path


def runs(client: redis.Redis) -> list[Run]:
    """All runs noted so far on the database of `client`, in the order they began."""
    notes: Any = client.lrange("runs", 0, -1)
    return [Run(**json.loads(note)) for note in notes]


def celery_beat(
    directory: Path,
    module: str,
    *arguments: str,
    python: str | Path = sys.executable,
    scheduler: str = "redbeat.RedBeatScheduler",
    env: Mapping[str, str] | None = None,
) -> Process:
    """`celery beat` on the app of `module` in `directory`; it is not waited for."""
    beat = ["beat", "-S", scheduler, "-l", "INFO"]
    process = celery_command(directory, module, *beat, *arguments, python=python, env=env)
    process.may_miss_sigterm = str(python) != sys.executable
    return process


def patched_beat(
    directory: Path, module: str, library: str, scheduler: str = "redbeat.RedBeatScheduler"
) -> Process:
    """`celery beat`, as `celery_beat`, with the threads of one of GREENLETS; it is not waited for."""
    program = f"{GREENLETS[library]}\nfrom celery.__main__ import main\nmain()"
    arguments = ["-A", module, "beat", "-S", scheduler, "-l", "INFO"]
    return Process([sys.executable, "-c", program, *arguments], cwd=directory)


def run_beat(directory: Path, broker_url: str, extra: str = "", **settings: Any) -> Process:
    """`celery beat` on an app that is written for it; it is not waited for."""
    write_app(directory, "module", broker_url, extra=extra, **settings)
    return celery_beat(directory, "module")


def celery_worker(
    directory: Path,
    module: str,
    *arguments: str,
    python: str | Path = sys.executable,
    concurrency: int = 1,
    env: Mapping[str, str] | None = None,
) -> Process:
    """`celery worker` on the app of `module`, ready for tasks; above one at a time by a pool of threads."""
    pool = ["-P", "solo"] if concurrency == 1 else ["-P", "threads", "-c", str(concurrency)]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = ["worker", *pool, *quiet, "-l", "INFO"]
    return ready(celery_command(directory, module, *worker, *arguments, python=python, env=env))


def ready(worker: Process) -> Process:
    """Wait until the worker takes tasks, and return it; kill it if it does not."""
    try:
        worker.wait_for(re.compile(r"\S+@\S+ ready\."))
    except AssertionError:
        worker.kill()
        raise
    return worker


def stop_worker(worker: Process) -> None:
    """SIGTERM; wait for the ends of the worker, and of a beat inside it, for which Celery doesn't wait."""
    family = worker.family()
    worker.signal(signal.SIGTERM)
    worker.ends_of(family, STOP_SECONDS)
    assert worker.wait(STOP_SECONDS) == 0, worker.output()
    assert not has_traceback(worker.output()), worker.output()


def celery_command(
    directory: Path,
    module: str,
    *arguments: str,
    python: str | Path = sys.executable,
    env: Mapping[str, str] | None = None,
) -> Process:
    """`celery -A module` and `arguments` in `directory`; it is not waited for."""
    # Another environment must not find this one's redbeat by an inherited path.
    isolation = {} if str(python) == sys.executable else {"PYTHONPATH": ""}
    command = [python, "-m", "celery", "-A", module, *arguments]
    return Process(command, cwd=directory, env={**isolation, **(env or {})})
