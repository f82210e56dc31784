"""Django projects as people have them: ``manage.py redbeat``, and their commands, worker and beat."""

from __future__ import annotations

import io
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from django.core.management import CommandError, call_command

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.process import exit_codes as exits
from tests.support.apps import celery_command, celery_worker, stop_worker
from tests.support.command_line import installed, run
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import sent_names
from tests.support.servers import Server

#: what is appended to the settings of ``startproject``, and what they read from the environment
SETTINGS = """
import os
from redbeat.schedules import cron
INSTALLED_APPS += ["redbeat.contrib.django", "shop"]
CELERY_BROKER_URL = CELERY_REDBEAT_REDIS_URL = os.environ["REDIS_URL"]
CELERY_BEAT_SCHEDULER = "redbeat.RedBeatScheduler"
CELERY_BEAT_SCHEDULE = {
    f"static-{number}": {"task": "shop.tasks.report", "schedule": schedule, "args": (number,)}
    for number, schedule in enumerate((1.0, 1.0, cron("0 9 L * *")) if "STATIC" in os.environ else ())
}
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
    call_command("startproject", "proj", str(tmp_path))
    with (tmp_path / "proj/settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (tmp_path / "proj/__init__.py").write_text("from .celery import app as celery_app\n")
    (tmp_path / "proj/celery.py").write_text(CELERY)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/tasks.py").write_text(TASKS)
    return tmp_path


def call_redbeat(*words: str, **options: Any) -> str:
    """What the command prints."""
    out = io.StringIO()
    call_command("redbeat", *words, stdout=out, **options)
    return out.getvalue()


def test_commands_of_django_neither_import_tasks_nor_connect(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it never answers
        server.setblocking(False)
        env = {"REDIS_URL": f"redis://127.0.0.1:{server.getsockname()[1]}/0", "STATIC": "yes"}
        done = run([sys.executable, "manage.py", "check", "--tag=redbeat", "--deploy"], project, env)
        assert (done.returncode, "tasks imported" in done.stderr) == (0, False), done.stderr[-2000:]
        runserver = [sys.executable, "manage.py", "runserver", "--noreload", "127.0.0.1:0"]
        with Process(runserver, cwd=project, env=env) as served:
            served.wait_for(re.compile(r"Starting development server at"))
            assert "tasks imported" not in served.output()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_worker_and_beat_run_every_entry(project: Path, server: Server, broker: redis.Redis) -> None:
    env = {"REDIS_URL": server.url(0), "STATIC": "yes"}
    with celery_command(project, "proj", "beat", "-l", "INFO", env=env) as beat:
        expected = {"shop.tasks.declared", "static-0", "static-1"}
        eventually(lambda: expected <= set(sent_names(broker)) or not beat.is_running)
        assert beat.stop() == 0
        assert beat.output().count("tasks imported") == 1
    broker.flushdb()
    with celery_worker(project, "proj", "-B", env=env) as worker:
        wanted = ("declared", "report-0;", "report-1;")
        eventually(lambda: all(one in worker.output() for one in wanted) or not worker.is_running)
        assert worker.output().count("tasks imported") == 1
        stop_worker(worker)


def test_manage_redbeat_prints_and_exits_as_celery_redbeat(project: Path, server: Server) -> None:
    env = {**installed(project), "REDIS_URL": server.url(0)}

    def call(*words: str) -> Any:
        return run([sys.executable, *words], project, env)

    ours = call("manage.py", "redbeat", "show", "gone")
    theirs = call("-m", "celery", "-A", "proj", "redbeat", "show", "gone")
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
    assert ours.stderr.replace("manage.py redbeat", "celery redbeat") == theirs.stderr
    for module in ("__init__", "celery"):
        (project / f"proj/{module}.py").write_text("")
    done = call("manage.py", "redbeat", "--settings=proj.settings", "list")
    assert (done.returncode, "REDBEAT_CELERY_APP" in done.stderr) == (exits.CONFIG, True)


def test_call_command_returns_the_output_or_raises_with_the_exit_code(app: Celery) -> None:
    Entry("report", "echo", 60, app=app).save()
    assert call_redbeat("count") == call_redbeat("count", no_color=True) == "1\n"
    assert '"name": "report"' in call_redbeat("list", "--json")
    for words, code in ((["show", "gone"], exits.NO_INPUT), (["lisst"], exits.USAGE)):
        with pytest.raises(CommandError) as caught:
            call_redbeat(*words)
        assert caught.value.returncode == code
