"""The Django project of docs/django.rst does what the page says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, stop_worker
from tests.support.command_line import run as run_command
from tests.support.documents import write_files
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, sent_names
from tests.support.servers import Server

pytest.importorskip("django")

#: run with Django's test client; what is printed at the end is asked for
DJANGO = """
import json, logging, os
os.environ["DJANGO_SETTINGS_MODULE"] = "proj.settings"
import django
django.setup()
logging.disable()
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from proj.celery import app
from redbeat import RedBeatSchedulerEntry as Entry
from shop.models import Report
from shop.tasks import send_report
import shop.views

call_command("migrate", run_syncdb=True, verbosity=0)
client = Client(SERVER_NAME="localhost")

def send(method, path, **body):
    answer = getattr(client, method)(path, json.dumps(body), content_type="application/json")
    return answer.status_code, answer.json()

def names():
    return sorted(entry.name for entry in Entry.list(app))

assert client.get("/reports").json() == {"reports": []}
status, made = send("post", "/reports", customer="ann", cron="30 7 * * *")
assert (status, made["name"], made["words"]) == (201, "report-1", "At 07:30 (UTC)"), made
assert made["due"].endswith("T07:30:00+00:00")
[entry] = Entry.list(app)
assert (entry.task, entry.args) == ("shop.tasks.send_report", [1])
assert client.get("/reports").json() == {"reports": [made]}

status, wrong = send("post", "/reports", customer="bob", cron="61 * * * *")
why = "report-2: schedule: cron '61 * * * *': minute: '61' is no number from 0 to 59."
assert (status, wrong["error"]) == (400, why), wrong
assert Report.objects.count() == 1, "rolled back"
assert names() == ["report-1"]

# rolled back after the entry was made: no entry
try:
    with transaction.atomic():
        Report.objects.create(customer="carl", cron="@daily").schedule()
        raise RuntimeError
except RuntimeError:
    pass
assert names() == ["report-1"]

status, changed = send("patch", "/reports/1", cron="0 8 * * *")
assert (status, changed["words"]) == (200, "At 08:00 (UTC)")
assert send("patch", "/reports/1", cron="no cron")[0] == 400
assert Entry.get("report-1", app).describe() == "At 08:00 (UTC)"
assert Report.objects.get().cron == "0 8 * * *"

assert send("patch", "/reports/1", is_active=False)[1]["is_active"] is False
assert not Entry.get("report-1", app).enabled
assert len(send("post", "/reports/1/send")[1]["task_id"]) == 36
assert send("post", "/reports/9/send") == (404, {"error": "redbeat:report-9: there is no such entry."})

# the schedule and the table are brought together
Report.objects.create(customer="dora", cron="@daily")
Entry("report-77", "shop.tasks.send_report", 60, app=app).save()
Entry("other", "shop.tasks.send_report", 60, app=app).save()
call_command("sync_reports")
call_command("sync_reports")
assert not Entry.get("report-1", app).enabled, "it stays paused"
dora = Report.objects.get(customer="dora")
assert names() == sorted(["other", "report-1", dora.entry_name]), names()

assert send("delete", "/reports/1") == (200, {})
assert names() == sorted(["other", dora.entry_name])
send_report(1)
send_report(dora.pk)
"""

#: what a view answers while Redis is away
AWAY = (503, {"error": "The schedule is unavailable; try again later."})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as the page makes it; the packages' empty files go without saying."""
    made = run_command([sys.executable, "-m", "django", "startproject", "proj", "."], tmp_path, {})
    assert made.returncode == 0, made.stderr
    write_files("docs/django.rst", tmp_path)
    for package in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


@pytest.fixture
def run(server: Server, project: Path) -> Any:
    """Execute a script, or call ``manage.py``, in the project, and return what it prints."""

    def execute(*command: str, url: str | None = None) -> str:
        words = ["manage.py", *command] if len(command) > 1 else ["-c", *command]
        done = run_command([sys.executable, *words], project, {"REDIS_URL": url or server.url(0)}, 120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return execute


def test_the_project_of_the_page_does_what_it_says(run: Any) -> None:
    assert run(DJANGO).splitlines() == [
        "1 new, 0 changed, 1 deleted",
        "0 new, 0 changed, 0 deleted",
        "a report for dora",
    ]


def test_its_commands_work_and_no_check_complains(run: Any) -> None:
    assert "no issues" in run("check", "--tag=redbeat", "--fail-level=WARNING")
    run("redbeat", "add", "cleanup", "shop.tasks.send_report", "--every", "1h", "--args", "[1]")
    assert "cleanup" in run("redbeat", "list")
    run("redbeat", "count", "--settings=proj.settings")


def test_its_beat_and_worker_run_what_a_view_has_saved(
    run: Any, project: Path, server: Server, client: redis.Redis, broker: redis.Redis
) -> None:
    run(DJANGO.partition("status, wrong = ")[0])
    with server.client() as schedule:
        schedule.zadd(SCHEDULE, {"redbeat:report-1": 0})
    env = {"REDIS_URL": server.url(0)}
    with celery_beat(project, "proj", scheduler="redbeat.RedBeatScheduler", env=env) as beat:
        eventually(lambda: sent_names(broker) == ["report-1"] or not beat.is_running)
        assert beat.is_running, beat.output()
    with celery_worker(project, "proj", env=env) as worker:
        worker.wait_for("a report for ann")
        stop_worker(worker)


def test_while_redis_is_away_a_view_says_so_and_no_more(run: Any) -> None:
    ask = 'answer = client.get("/reports"); print((answer.status_code, answer.json()))'
    ready = 'client = Client(SERVER_NAME="localhost")\n'
    script = DJANGO.partition(ready)[0] + ready + ask
    assert run(script, url="redis://:s3cret@127.0.0.1:1/0") == f"{AWAY}\n"
