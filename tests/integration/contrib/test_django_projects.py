"""Django projects as people have them: their commands, worker and beat start, whatever the schedule holds."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_command, celery_worker, stop_worker
from tests.support.command_line import run
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import sent_names
from tests.support.servers import Server

pytest.importorskip("django")

#: what is appended to the settings of ``startproject``, and what they read from the environment
SETTINGS = """
import os
from redbeat.schedules import cron
INSTALLED_APPS += ["redbeat.contrib.django", "shop"]
CELERY_BROKER_URL = CELERY_REDBEAT_REDIS_URL = os.environ["REDIS_URL"]
CELERY_BEAT_SCHEDULER = "redbeat.RedBeatScheduler"
CELERY_BEAT_SCHEDULE = {
    f"static-{number}": {"task": "shop.tasks.report", "schedule": 1.0, "args": (number,)}
    for number in range(int(os.environ["STATIC_ENTRIES"]))
}
if CELERY_BEAT_SCHEDULE:
    CELERY_BEAT_SCHEDULE["last-day"] = {"task": "shop.tasks.report", "schedule": cron("0 9 L * *")}
"""
CELERY = """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
TASKS = """
import sys
from celery import shared_task
from redbeat import scheduled

print("tasks imported", file=sys.stderr)

@shared_task
def report(number):
    print(f"report-{number};")

@shared_task
@scheduled(every=1)
def declared():
    print("declared")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What ``startproject`` writes, with a Celery app and an application that has tasks."""
    made = run([sys.executable, "-m", "django", "startproject", "proj", "."], tmp_path)
    assert made.returncode == 0, made.stderr
    with (tmp_path / "proj/settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (tmp_path / "proj/__init__.py").write_text("from .celery import app as celery_app\n")
    (tmp_path / "proj/celery.py").write_text(CELERY)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/tasks.py").write_text(TASKS)
    return tmp_path


@contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A server that never answers, and its URL: a command that connects is noticed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server, f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_its_commands_neither_import_tasks_nor_connect(project: Path, count: int) -> None:
    commands = (["check"], ["check", "--tag=redbeat", "--deploy"], ["migrate"])
    with listening() as (server, url):
        env = {"REDIS_URL": url, "STATIC_ENTRIES": str(count)}
        for words in commands:
            done = run([sys.executable, "manage.py", *words], project, env)
            assert done.returncode == 0, done.stderr[-2000:]
            assert "tasks imported" not in done.stderr, words
        runserver = [sys.executable, "manage.py", "runserver", "--noreload", "127.0.0.1:0"]
        with Process(runserver, cwd=project, env=env) as served:
            served.wait_for(re.compile(r"Starting development server at"))
            assert "tasks imported" not in served.output()
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_its_worker_and_beat_run_every_entry(
    project: Path, server: Server, broker: redis.Redis, count: int
) -> None:
    env = {"REDIS_URL": server.url(0), "STATIC_ENTRIES": str(count)}
    expected = {"shop.tasks.declared", *(f"static-{number}" for number in range(count))}
    with celery_command(project, "proj", "beat", "-l", "INFO", env=env) as beat:
        eventually(lambda: expected <= set(sent_names(broker)) or not beat.is_running)
        done = run([sys.executable, "manage.py", "redbeat", "doctor"], project, env)
        assert re.search(rf"; {len(expected) + (count > 0)} entr(y|ies) looked at\.", done.stdout), (
            done.stdout
        )
        assert done.stderr.count("tasks imported") == 1
        assert beat.stop() == 0
        assert beat.output().count("tasks imported") == 1
        assert "RecursionError" not in beat.output()
    broker.flushdb()
    with celery_worker(project, "proj", "-B", env=env) as worker:
        wanted = ["declared", *(f"report-{number};" for number in range(count))]
        eventually(lambda: all(one in worker.output() for one in wanted) or not worker.is_running)
        assert worker.output().count("tasks imported") == 1
        assert "RecursionError" not in worker.output()
        stop_worker(worker)
