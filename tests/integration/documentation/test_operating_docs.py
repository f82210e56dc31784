"""The examples of the pages on overlap, monitoring and troubleshooting do what the pages say."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu
import pytest
import redis
import redis.client
from celery import Celery, Task
from celery.app import trace
from celery.beat import Scheduler
from celery.schedules import schedule
from celery.signals import task_failure, task_retry, task_success

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.runs.tracking import is_tracked
from redbeat.schedules import rrule
from redbeat.telemetry.sentry.sentry import excluded_by, find_integration
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import LOCK
from tests.support.servers import Server

Import = Callable[[str, str], ModuleType]


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


def test_a_run_is_left_out_while_another_of_its_entry_is_at_work(import_from: Import, server: Server) -> None:
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

    def run(entry: str) -> Any:
        slow.push_request(redbeat_entry=entry)  # as a worker does with a message's headers
        try:
            return slow.run()
        finally:
            slow.pop_request()

    first = threading.Thread(target=run, args=["one"])
    first.start()
    try:
        assert begun.wait(patience())
        assert run("one") is None
        may_end.set()
        assert run("another") == "done"
    finally:
        may_end.set()
        first.join()
    assert run("one") == "done"
    assert ran == ["one", "another", "one"]
    with server.client(db=3) as client:
        assert client.keys() == []
    assert page.report.apply().get() is None


def test_sentrys_own_monitors_are_as_wrong_as_the_page_says(make_app: MakeApp) -> None:
    beat = pytest.importorskip("sentry_sdk.integrations.celery.beat")
    app = make_app()

    def monitor(kind: Any, **policy: Any) -> dict[str, Any]:
        entry = Entry("report", "echo", kind, app=app, **policy).save()
        stored = Entry.from_key(entry.key, app=app)
        found: dict[str, Any] = beat._get_monitor_config(stored.schedule, app, "report")  # noqa: SLF001 - Sentry's
        return found

    assert str(monitor("30 7 * * *", timezone="Europe/Berlin")["timezone"]) == "UTC"
    assert monitor("0 9 L * *")["schedule"]["value"] == "* * * * *"
    assert monitor("30 7 * * mon-fri")["schedule"]["value"] == "30 7 * * mon-fri"
    assert monitor(rrule("MONTHLY", bymonthday=-1)) == {}
    assert monitor(schedule(90)) == {}


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Sentry replaces is put back at the end: here it would be found by every test that follows."""
    for owner, name in (
        (Task, "apply_async"),
        (Celery, "send_task"),
        (Scheduler, "apply_entry"),
        (RedBeatScheduler, "apply_async"),
        (kombu.Producer, "publish"),
        (trace, "build_tracer"),
        (redis.Redis, "execute_command"),
        (redis.Redis, "pipeline"),
        (redis.client.Pipeline, "execute"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])


@pytest.mark.usefixtures("unpatched")
def test_the_pages_application_is_one_whose_entries_redbeat_monitors(import_from: Import) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    from sentry_sdk.integrations.celery import beat

    try:
        page = import_from("docs/monitoring.rst", "monitored")
        integration = find_integration()
        assert integration is page.crons
        assert excluded_by(integration) == ["private-.*"]
        assert is_tracked(page.app)
    finally:
        sentry_sdk.init()
        task_success.disconnect(beat.crons_task_success)
        task_failure.disconnect(beat.crons_task_failure)
        task_retry.disconnect(beat.crons_task_retry)
    assert find_integration() is None


def test_keyspace_notifications_tell_which_entry_changes(app: Celery, client: redis.Redis) -> None:
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


def test_a_pidfile_that_names_a_living_process_is_73(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    with celery_beat(tmp_path, "module", "--pidfile", "beat.pid") as first:
        first.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module", "--pidfile", "beat.pid") as second:
            assert second.wait() == 73
            assert "Pidfile (beat.pid) already exists" in second.output()
        first.kill()
        assert (tmp_path / "beat.pid").exists()
    with celery_beat(tmp_path, "module", "--pidfile", "beat.pid") as next_one:
        next_one.wait_for("Stale pidfile exists - Removing it.")
        next_one.wait_for("beat: Standing by")  # a signal amid imports may be lost in a destructor
        assert next_one.stop() == 0
    assert not (tmp_path / "beat.pid").exists()


def test_a_detached_beat_is_stopped_by_the_pid_in_its_file(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    pidfile, logfile = tmp_path / "run" / "beat.pid", tmp_path / "beat.log"
    pidfile.parent.mkdir()
    troubleshooting = (ROOT / "docs" / "troubleshooting.rst").read_text("utf-8")
    [words] = re.findall(r"^ +\$ celery -A proj (beat .*--detach.*)$", troubleshooting, re.MULTILINE)
    assert "-S redbeat " in words
    words = words.replace("-S redbeat ", "-S redbeat.RedBeatScheduler ")
    words = words.replace("/run/beat/beat.pid", str(pidfile)).replace("/var/log/beat.log", str(logfile))
    command = [sys.executable, "-m", "celery", "-A", "module", *shlex.split(words)]

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False
        )

    started = start()
    assert started.returncode == 0, started.stderr
    try:
        eventually(lambda: logfile.exists() and "beat: Acquired lock" in logfile.read_text())
        pid = int(pidfile.read_text())
        assert f":{pid}:" in str(client.get(LOCK))
        again = start()
        assert (again.returncode, "already exists" in again.stderr) == (0, True), "as the page says"
        assert int(pidfile.read_text()) == pid
    finally:
        if pidfile.exists():
            os.kill(int(pidfile.read_text()), signal.SIGTERM)
    eventually(lambda: not pidfile.exists())
    eventually(lambda: not client.exists(LOCK))
    assert "beat: Releasing lock" in logfile.read_text()
