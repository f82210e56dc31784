"""`python -m demo [--seconds N]`: starts the parts, tells the story, prints runs as they happen, sums up.

Ends after N seconds or at Ctrl-C with exit code 0; with 1, and that part's log, when a part fails, and
when an entry that should have run did not.
"""

import argparse
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import cast

import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry

from . import screen
from .parts import Part, PartFailed, Parts, find_server
from .story import STEPS, TOLD_SECONDS
from .tasks import RUNS_KEY, Run
from .visitor import Visitor

READY_SECONDS = 20.0  # how long a part may take to start
NEVER = -1.0
GRACE_SECONDS = 2.0  # a run due so shortly before the end need not have been recorded
CELERY = (sys.executable, "-m", "celery", "--config", "exampleconf")


class Demo:
    def __init__(self, parts: Parts, stop: threading.Event, seconds: float | None) -> None:
        self.parts = parts
        self.stop = stop
        self.seconds = seconds
        self.port = find_free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url)
        self.link = ""  # the dashboard's
        self.runs: dict[str, list[Run]] = defaultdict(list)

    def run(self) -> int:
        screen.say("RedBeat demo", screen.BOLD)
        screen.say(
            "Starting Valkey, a Celery worker, a Celery beat and the dashboard; that takes about 5 s ..."
        )
        try:
            self.start_parts()
            self.play()
            is_complete = self.sum_up()
        except redis.RedisError:
            time.sleep(0.5)  # time for the server's end to be seen ...
            self.parts.check()  # ... and told
            raise
        if self.stop.is_set():
            screen.say("\nGoodbye.")
        elif not is_complete:
            screen.say("\nAn entry that was due has not run.", screen.RED)
            return 1
        return 0

    def start_parts(self) -> None:
        """Start each part when the one before is ready, so that the first runs aren't late already."""
        os.environ["REDIS_URL"] = self.url  # exampleconf.py reads it, here and in the children
        for name in [name for name in os.environ if name.startswith("CELERY_")]:
            del os.environ[name]  # these would override exampleconf.py

        save_nothing = ("--save", "", "--dir", str(self.parts.directory))
        in_silence = ("--without-mingle", "--without-gossip")  # there is no other worker to talk to
        log = ("--loglevel", "INFO")
        self.start("server", find_server(), "--port", str(self.port), "--bind", "127.0.0.1", *save_nothing)
        self.start("worker", *CELERY, "worker", "--pool", "threads", "--concurrency", "4", *in_silence, *log)
        self.start("beat", *CELERY, "beat", "-S", "redbeat.RedBeatScheduler", *log)
        self.start("dashboard", *CELERY, "redbeat", "web", "--port", "0")

    def start(self, name: str, *command: str) -> None:
        if self.stop.is_set():
            return
        part = self.parts.start(name, *command)
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_ready(part) and not self.stop.wait(0.05):
            self.parts.check()
            if time.monotonic() > deadline:
                raise PartFailed(part.describe(f"was not ready after {READY_SECONDS:.0f} s"))

    def is_ready(self, part: Part) -> bool:
        if part.name == "server":
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        if part.name == "worker":
            return b" ready." in part.log.read_bytes()
        if part.name == "dashboard":
            self.link = find_link(part.log.read_text())
            return bool(self.link)
        return self.client.exists("redbeat::schedule") == 1  # written when beat has become the leader

    def play(self) -> None:
        """Take the steps and print the runs, until the time is up or somebody wants it to stop."""
        app = Celery("demo")
        app.config_from_object("exampleconf")
        names = {
            "LINK": self.link,
            "Visitor": Visitor,
            "app": app,
            "schedule": schedule,
            "RedBeatSchedulerEntry": RedBeatSchedulerEntry,
        }
        steps = [step for step in STEPS if self.seconds is None or not step.is_invitation]
        pace = 1.0 if self.seconds is None else min(1.0, self.seconds / TOLD_SECONDS)
        started_at = time.monotonic()
        while not self.stop.wait(0.03):
            self.parts.check()
            self.show_runs()
            elapsed = time.monotonic() - started_at
            if self.seconds is not None and elapsed >= self.seconds:
                return
            if steps and elapsed >= steps[0].at_seconds * pace:
                step = steps.pop(0)
                screen.announce(elapsed, step.title, step.shown(self.port, self.link))
                step.run(names, self.client)

    def show_runs(self) -> None:
        """Print the runs recorded since the last look."""
        records = cast("list[bytes] | None", self.client.lpop(RUNS_KEY, 100))
        for record in records or ():
            run = Run(*json.loads(record))
            self.runs[run.entry].append(run)
            screen.show_run(run)

    def sum_up(self) -> bool:
        """Print the table; return whether everything that should have run did."""
        app = Celery("demo")
        app.config_from_object("exampleconf")
        found = [(str(entry.name), entry.next_due_at) for entry in RedBeatSchedulerEntry.list(app)]
        next_runs = {name: due.timestamp() if due else NEVER for name, due in found}
        entries = dict.fromkeys([*self.runs, *next_runs])  # in the order of their first runs
        if entries:
            screen.show_summary((entry, self.runs[entry], next_runs.get(entry)) for entry in entries)
        overdue_since = time.time() - GRACE_SECONDS
        return not any(0 <= next_runs[entry] < overdue_since for entry in entries if not self.runs[entry])


def find_link(log: str) -> str:
    """The link that the dashboard has printed, '' as long as it hasn't."""
    found = re.search(r"http://\S+token=\S+(?=\n)", log)
    return found[0] if found else ""


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="RedBeat at work.")
    parser.add_argument("--seconds", type=float, help="end after so many seconds (default: at Ctrl-C)")
    arguments = parser.parse_args()

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())

    with tempfile.TemporaryDirectory(prefix="redbeat-demo-") as directory, Parts(Path(directory)) as parts:
        demo = Demo(parts, stop, arguments.seconds)
        try:
            return demo.run()
        except PartFailed as failure:
            headline, _, log = str(failure).partition("\n")
            screen.say(f"\n{headline}", screen.RED)
            screen.say(log)
        except BrokenPipeError:  # nobody reads any more: `make demo | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
