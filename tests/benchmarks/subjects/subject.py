"""What the subjects share: the app, a leading scheduler, the measures, the report."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis
from celery import Celery
from fill import TASK
from processor import processor_seconds, since

import redbeat
from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock

QUEUE = "celery"


class TimeUp(BaseException):
    """The time that a subject has is over; no `except Exception` may swallow it."""


def read_options() -> SimpleNamespace:
    """The script's argument; `server` is the URL of the server without a database, ending in a slash."""
    return SimpleNamespace(**json.loads(sys.argv[1]))


def report(**values: Any) -> None:
    print(json.dumps({"package": str(Path(redbeat.__file__).parent), **values}))


def make_app(server: str, db: int, **settings: Any) -> Celery:
    """An app with its broker on database 0 and its schedule on database `db`, logging as beat does."""
    logging.basicConfig(level=logging.WARNING)
    app = Celery("bench", set_as_current=False)
    app.conf.update(broker_url=f"{server}0", redbeat_redis_url=f"{server}{db}", **settings)
    app.conf.result_expires = None  # no entry celery.backend_cleanup among those that are counted

    @app.task(name=TASK)
    def nothing() -> None:
        pass

    return app


def lead(app: Celery) -> RedBeatScheduler:
    """A scheduler that has the lock."""
    scheduler = RedBeatScheduler(app)
    acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler))
    assert scheduler.lock, "no lock"
    return scheduler


def send_due(scheduler: RedBeatScheduler) -> None:
    """Tick until nothing is due."""
    while scheduler.tick() <= 0:
        pass


def sender(app: Celery) -> Callable[[int], None]:
    """What sends the task so often, with one producer; it has sent one already, so all connections stand."""
    task, producer = app.tasks[TASK], app.amqp.producer_pool.acquire()

    def send(count: int) -> None:
        for _ in range(count):
            task.apply_async(producer=producer)

    send(1)
    return send


def connect(options: SimpleNamespace) -> tuple[redis.Redis, redis.Redis]:
    """Clients of the broker and of the schedule; the newest client waits no longer than 5 s by default."""
    urls = (f"{options.server}0", f"{options.server}{options.db}")
    broker, schedule = (redis.Redis.from_url(url, socket_timeout=None) for url in urls)
    return broker, schedule


@contextmanager
def time_limit(seconds: float) -> Any:
    """End the block after so many seconds, whatever it is doing."""

    def stop(*_: Any) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def measure(send: Callable[[], None], options: SimpleNamespace) -> dict[str, Any]:
    """What sending took, in seconds: on the clock, and of the processors, of this process and of the server.

    Options: `limit_seconds` for it, and `server_pid`.
    """
    pids = {"here_seconds": os.getpid(), "server_seconds": options.server_pid}
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    started = time.monotonic()
    with time_limit(options.limit_seconds):
        send()
    ended = time.monotonic()
    taken = {name: since(before[name], processor_seconds(pid)) for name, pid in pids.items()}
    return {"started": started, "ended": ended, "seconds": ended - started, **taken}


class RoundTrips:
    """Counts how often the main thread waits for a server after it has sent something through redis-py.

    A pipeline is one, as are commands that are sent one after the other before their replies are read.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_waiting = True
        send, read = redis.Connection.send_packed_command, redis.Connection.read_response

        def send_and_note(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self._is_waiting = False
            return send(*args, **kwargs)

        def read_and_count(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and not self._is_waiting:
                self.count += 1
                self._is_waiting = True
            return read(*args, **kwargs)

        redis.Connection.send_packed_command = send_and_note  # type: ignore[method-assign]
        redis.Connection.read_response = read_and_count  # type: ignore[method-assign]


def peak_rss_bytes() -> int:
    """The most memory that this process has had at any time."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes where there is no /proc: macOS
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
