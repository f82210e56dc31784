"""The examples of the pages on overlap, runs, monitoring and troubleshooting do what the pages say."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import redis
import redis.client
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import run
from tests.support.deadlines import patience
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import LOCK, write_raw
from tests.support.servers import Server

Import = Callable[[str, str], ModuleType]


RECIPES = ("chat_message", "mail", "page")


@pytest.fixture
def import_from(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Import a file that a page shows."""
    monkeypatch.setenv("REDIS_URL", server.url(3))

    def load(document: str, name: str) -> ModuleType:
        [path] = [file for file in write_files(document, tmp_path) if file.name == f"{name}.py"]
        spec = importlib.util.spec_from_file_location(f"page_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_alone_decorator_leaves_out_a_run_while_another_is_at_work(
    import_from: Import, server: Server
) -> None:
    page = import_from("docs/overlap.rst", "tasks")
    begun, may_end = threading.Event(), threading.Event()
    ran: list[str] = []

    @page.app.task(bind=True)
    @page.alone(seconds=600)
    def slow(self: Any) -> str:
        ran.append(self.request.redbeat_entry)
        begun.set()
        may_end.wait(patience())
        return "done"

    def call(entry: str) -> Any:
        slow.push_request(redbeat_entry=entry)  # as a worker does with a message's headers
        try:
            return slow.run()
        finally:
            slow.pop_request()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, "one")
        try:
            assert begun.wait(patience())
            assert call("one") is None
        finally:
            may_end.set()
        assert (call("another"), first.result()) == ("done", "done")
    assert call("one") == "done"
    assert ran == ["one", "another", "one"]
    with server.client(db=3) as client:
        assert client.keys() == []
    assert page.report.apply().get() is None


MONITORED = """
import monitored
from redbeat.delivery.tracers import find_integration
from redbeat.runs.tracking import is_tracked

found = find_integration()
print(found is monitored.crons, found.exclude_beat_tasks, is_tracked(monitored.app))
"""


def test_monitored_application_of_the_page_is_monitored(tmp_path: Path) -> None:
    pytest.importorskip("sentry_sdk")
    write_files("docs/monitoring.rst", tmp_path)
    done = run([sys.executable, "-c", MONITORED], tmp_path)
    assert done.stdout == "True ['private-.*'] True\n", done.stderr


def test_keyspace_notification_names_the_changed_entry(app: Celery, client: redis.Redis) -> None:
    client.config_set("notify-keyspace-events", "Kgh")
    try:
        with client.pubsub(ignore_subscribe_messages=True) as heard:
            heard.psubscribe("__keyspace@1__:redbeat:*")
            heard.get_message(timeout=patience())
            Entry("report", "echo", 60, app=app).save()
            told = heard.get_message(timeout=patience())
        assert told is not None
        assert (told["channel"], told["data"]) == ("__keyspace@1__:redbeat:report", "hset")
    finally:
        client.config_set("notify-keyspace-events", "")


def test_pidfile_of_a_living_process_ends_with_73(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    (tmp_path / "beat.pid").write_text(f"{os.getpid()}\n")
    with celery_beat(tmp_path, "module", "--pidfile", "beat.pid") as beat:
        assert beat.wait() == 73
        assert "Pidfile (beat.pid) already exists" in beat.output()
    assert (tmp_path / "beat.pid").exists()


@pytest.mark.slow
def test_detached_beat_is_stopped_by_the_pid_in_its_file(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    pidfile, logfile = tmp_path / "run" / "beat.pid", tmp_path / "beat.log"
    pidfile.parent.mkdir()
    troubleshooting = (ROOT / "docs" / "troubleshooting.rst").read_text("utf-8")
    [words] = re.findall(r"^ +\$ celery -A proj (beat .*--detach.*)$", troubleshooting, re.MULTILINE)
    words = words.replace("-S redbeat ", "-S redbeat.RedBeatScheduler ")
    words = words.replace("/run/beat/beat.pid", str(pidfile)).replace("/var/log/beat.log", str(logfile))
    command = [sys.executable, "-m", "celery", "-A", "module", *shlex.split(words)]
    start = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60))
    started = start(command)
    assert started.returncode == 0, started.stderr
    try:
        eventually(lambda: logfile.exists() and "beat: Acquired lock" in logfile.read_text())
        pid = int(pidfile.read_text())
        assert f":{pid}:" in str(client.get(LOCK))
        again = start(command)
        assert (again.returncode, "already exists" in again.stderr) == (0, True), "as the page says"
        assert int(pidfile.read_text()) == pid
    finally:
        if pidfile.exists():
            os.kill(int(pidfile.read_text()), signal.SIGTERM)
    eventually(lambda: not pidfile.exists())
    eventually(lambda: not client.exists(LOCK))


@contextmanager
def serving(handler: Any) -> Iterator[int]:
    """Serve in a thread; yields the port."""
    with ThreadPoolExecutor(1) as pool, socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        pool.submit(server.serve_forever, poll_interval=0.05)
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def test_recipes_send_a_chat_message_a_mail_and_a_page(
    server: Server, client: redis.Redis, tmp_path: Path, make_app: MakeApp
) -> None:
    posted, mails = WebServer.posted, MailServer.mails = list[tuple[str, Any]](), list[str]()
    for recipe in RECIPES:
        shutil.copy(ROOT / "docs" / "recipes" / f"{recipe}.py", tmp_path)
    imports = "".join(f"import {recipe}\n" for recipe in RECIPES)
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), extra=imports)

    def add(event: str, name: str, **run: Any) -> None:
        run = {"task_id": f"id-of-{name}", "due": "1769844600.000000", **run}
        client.xadd("redbeat::events", {"event": event, "entry": name, "run": json.dumps(run)})

    with serving(WebServer) as web_port, serving(MailServer) as mail_port:
        env = {"CHAT_URL": f"http://127.0.0.1:{web_port}/chat", "PAGER_KEY": "the-key"}
        env |= {"PAGER_URL": f"http://127.0.0.1:{web_port}/page", "MAIL_TO": "ann@example.org"}
        env |= {"MAIL_HOST": "127.0.0.1", "MAIL_PORT": str(mail_port)}
        with celery_beat(tmp_path, "module", env=env) as beat:
            eventually(lambda: client.exists("redbeat::events-read"))
            add("run_ended", "good", outcome="succeeded")
            add("run_ended", "bad", outcome="failed", error="ValueError: no such customer", worker="celery@a")
            add("run_overdue", "slow", worker="celery@a")
            add("run_ended", "slow", outcome="succeeded")
            for outcome in ("never_started", "failed", "succeeded"):
                add("run_ended", "waiting", outcome=outcome)
            entry = Entry("often", "echo", 3600, app=make_app()).save()
            entry.pause("paused after 3 failures in a row; the last: ValueError: no", by="redbeat")
            entry.resume()
            entry.pause("ann is here", by="ann")
            write_raw(client, "broken", "{oops")
            eventually(lambda: len(posted) >= 7 and len(mails) >= 2)
            assert "raised" not in beat.output(), beat.output()
    assert [body["text"] for path, body in posted if path == "/chat"] == [
        "bad failed, due at 2026-01-31 07:30 UTC, on celery@a: ValueError: no such customer",
        "waiting never started, due at 2026-01-31 07:30 UTC",
        "waiting failed, due at 2026-01-31 07:30 UTC",
    ]
    pages = [body for path, body in posted if path == "/page"]
    assert [(one["event_action"], one["dedup_key"], one["routing_key"]) for one in pages] == [
        ("trigger", "id-of-slow", "the-key"),
        ("resolve", "id-of-slow", "the-key"), ("trigger", "waiting", "the-key"),
        ("resolve", "waiting", "the-key"),
    ]  # fmt: skip
    [paused] = [mail for mail in mails if "Subject: often is paused" in mail]
    assert "often is paused after 3 failures in a row; the last: ValueError: no" in paused
    assert "To: ann@example.org" in paused
    [quarantined] = [mail for mail in mails if "Subject: broken can't be used" in mail]
    assert "redbeat:broken" in quarantined
    assert len(mails) == 2


class WebServer(BaseHTTPRequestHandler):
    """Notes what is posted to it."""

    posted: ClassVar[list[tuple[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, json.loads(body)))
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


class MailServer(socketserver.StreamRequestHandler):
    """Takes every mail; Python has none any more."""

    mails: ClassVar[list[str]]

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().strip().upper():
            if line == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                self.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 fine\r\n")
