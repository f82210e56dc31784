"""The dashboard as its users have it: `celery redbeat web`, beats and a worker, each a real command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from playwright.sync_api import Browser, Page

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.entries.audit import find_records

from .apps import celery_beat, celery_worker, write_app
from .browser import visit
from .polling import eventually
from .processes import Process
from .servers import Server

_EXTRA = """\
import redbeat
redbeat.track_runs(app)
app.conf.beat_schedule = {"hourly": {"task": "echo", "schedule": 3600.0}}

import os, sys, time
if "web" in sys.argv:
    from redbeat.web.verbs import files

    def plan_when_let(*args, **given):
        while os.path.exists("held"):
            time.sleep(0.05)
        return plan(*args, **given)

    plan, files.plan = files.plan, plan_when_let
"""


class Whole:
    """One Redis, a beat, a worker that tracks runs, and the server of the dashboard.

    Attributes:
        link: what the command has printed.
        home: the dashboard's address, without a slash at its end.
        app: for looks into Redis.
        client: on the schedule's database.
        broker: on that of the queues.
        leader: the first beat.
    """

    def __init__(self, server: Server, directory: Path) -> None:
        self._directory = directory
        settings: dict[str, Any] = {"redbeat_redis_url": server.url(1), "redbeat_takeover_after": 5}
        settings |= {"redbeat_lock_timeout": 120, "beat_max_loop_interval": 1}
        write_app(directory, "project", server.url(0), extra=_EXTRA, **settings)
        self._broker_url, self._settings = server.url(0), settings
        self.app = self._make_app()
        self.client, self.broker = server.client(db=1), server.client(db=0)
        self.processes: list[Process] = []
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _make_app(self) -> Celery:
        app = Celery("whole", broker=self._broker_url, set_as_current=False)
        app.conf.update(self._settings)
        track_runs(app)
        return app

    @contextmanager
    def holding_plans(self) -> Iterator[None]:
        """Have a plan take as long as one of very many entries: until the end of the block."""
        held = self._directory / "held"
        held.touch()
        try:
            yield
        finally:
            held.unlink()

    def renew_app(self) -> None:
        """Make another app for the next test: kombu's connections end with each test."""
        self.app.close()
        self.app = self._make_app()

    def _start(self) -> None:
        words = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
        self.web = Process(words, self._directory)
        self.processes.append(self.web)
        self.leader = self.start_beat("one")
        self.processes.append(celery_worker(self._directory, "project", concurrency=4))
        self.link = self.web.wait_for(re.compile(r"http://127\.0\.0\.1:\d+/login\?token=[\w-]+"))[0]
        self.home = self.link.partition("/login")[0]
        eventually(lambda: self.client.exists("redbeat:hourly"))

    def start_beat(self, name: str) -> Process:
        self.processes.append(celery_beat(self._directory, "project", "-s", name))
        return self.processes[-1]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        self.client.close()
        self.broker.close()
        self.app.close()

    def add(self, name: str, schedule: Any = 86_400, task: str = "echo", **fields: Any) -> Entry:
        return Entry(name, task, schedule, app=self.app, **fields).save()

    def get(self, name: str) -> Entry:
        return Entry.get(name, self.app)

    @contextmanager
    def visitor(self, browser: Browser, *expected: str, **options: Any) -> Iterator[Page]:
        """Somebody who has opened the link; at the end they complain about nothing but what is expected."""
        with visit(browser, **options) as (context, complaints):
            complaints.expected += expected
            page = context.new_page()
            page.goto(self.link)
            yield page

    @contextmanager
    def doing(self, page: Page, verb: str, *names: str) -> Iterator[None]:
        """Within this, who is at the page does one thing, and the audit list has it: who, what, of what."""
        user = page.get_by_text("User: ").locator("..").inner_text().removeprefix("User:").strip()
        before = next(iter(find_records(self.app, limit=1)), None)
        yield
        added = find_records(self.app, limit=3)
        added = added[: next((at for at, one in enumerate(added) if one == before), len(added))]
        found = [(one.verb, one.user, one.source, one.names, one.outcome) for one in added]
        assert found == [(verb, user, "web", names, "")]
