"""The Django project and the FastAPI application of the documentation do what their pages say."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, stop_worker
from tests.support.command_line import run as run_command
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, sent_names
from tests.support.servers import Server

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
assert Entry.get("report-1", app).args == [1]
assert client.get("/reports").json() == {"reports": [made]}

status, wrong = send("post", "/reports", customer="bob", cron="61 * * * *")
why = "report-2: schedule: cron '61 * * * *': minute: '61' is no number from 0 to 59."
assert (status, wrong["error"]) == (400, why), wrong
assert Report.objects.count() == 1, "rolled back"

# rolled back after the entry was made: no entry
try:
    with transaction.atomic():
        Report.objects.create(customer="carl", cron="@daily").schedule()
        raise RuntimeError
except RuntimeError:
    pass
assert names() == ["report-1"]

assert send("patch", "/reports/1", cron="0 8 * * *")[1]["words"] == "At 08:00 (UTC)"
assert send("patch", "/reports/1", cron="no cron")[0] == 400
assert Entry.get("report-1", app).describe() == "At 08:00 (UTC)"
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


Execute = Callable[..., str]


@pytest.fixture
def execute(server: Server, tmp_path: Path) -> Execute:
    """Run Python on the server of the test, or on another, in the project; return what it prints."""

    def run(*words: str, url: str | None = None) -> str:
        done = run_command([sys.executable, *words], tmp_path, {"REDIS_URL": url or server.url(0)}, 120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


#: it refuses connections
AWAY = "redis://:s3cret@127.0.0.1:1/0"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as the page makes it; the packages' empty files go without saying."""
    made = run_command([sys.executable, "-m", "django", "startproject", "proj", "."], tmp_path, {})
    assert made.returncode == 0, made.stderr
    write_files("docs/django.rst", tmp_path)
    for package in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def test_django_project_does_what_its_page_says(execute: Execute, project: Path) -> None:
    assert execute("-c", DJANGO).splitlines() == [
        "1 new, 0 changed, 1 deleted",
        "0 new, 0 changed, 0 deleted",
        "a report for dora",
    ]
    ask = 'answer = client.get("/reports"); print(answer.status_code, answer.json())'
    script = DJANGO.partition("\ndef send(")[0] + ask
    said = "503 {'error': 'The schedule is unavailable; try again later.'}\n"
    assert execute("-c", script, url=AWAY) == said


@pytest.mark.slow
def test_django_commands_work_and_no_check_complains(execute: Execute, project: Path) -> None:
    assert "no issues" in execute("manage.py", "check", "--tag=redbeat", "--fail-level=WARNING")
    execute("manage.py", "redbeat", "add", "cleanup", "shop.tasks.send_report", "--every", "1h")
    assert "cleanup" in execute("manage.py", "redbeat", "list", "--settings=proj.settings")


@pytest.mark.slow
def test_django_beat_and_worker_run_what_a_view_has_saved(
    execute: Execute, project: Path, server: Server, client: redis.Redis, broker: redis.Redis
) -> None:
    execute("-c", DJANGO.partition("status, wrong = ")[0])
    with server.client() as schedule:
        schedule.zadd(SCHEDULE, {"redbeat:report-1": 0})
    env = {"REDIS_URL": server.url(0)}
    with celery_beat(project, "proj", scheduler="redbeat.RedBeatScheduler", env=env) as beat:
        eventually(lambda: sent_names(broker) == ["report-1"] or not beat.is_running)
        assert beat.is_running, beat.output()
    with celery_worker(project, "proj", env=env) as worker:
        worker.wait_for("a report for ann")
        stop_worker(worker)


PAGE = "docs/fastapi.rst"


USE = """
import logging
from fastapi.testclient import TestClient
from api import api
from tasks import celery_app
from redbeat import RedBeatSchedulerEntry as Entry

logging.disable()
with TestClient(api) as client:
    report = {"customer": "ann", "cron": "30 7 * * *", "timezone": "Europe/Berlin"}
    made = client.post("/reports", json=report)
    assert made.status_code == 201, made.text
    assert made.json()["words"] == "At 07:30 (Europe/Berlin)"
    again = client.post("/reports", json={"customer": "ann", "cron": "30 7 * * *"})
    assert (again.status_code, "there is such an entry by now" in again.json()["detail"]) == (409, True)
    wrong = client.post("/reports", json={"customer": "ann", "cron": "61 * * * *"})
    why = "report-ann: schedule: cron '61 * * * *': minute: '61' is no number from 0 to 59."
    assert (wrong.status_code, wrong.json()) == (422, {"detail": why}), wrong.json()
    zone = client.post("/reports", json={"customer": "bob", "cron": "@daily", "timezone": "Europe/Belin"})
    assert (zone.status_code, "Did you mean Europe/Berlin?" in zone.json()["detail"]) == (422, True)
    assert client.patch("/reports/ann", json={"cron": "0 8 * * *"}).status_code == 200
    assert client.patch("/reports/ann", json={"cron": "no cron"}).status_code == 422
    assert [one["name"] for one in client.get("/reports").json()] == ["report-ann"]
    assert client.post("/reports/ann/pause").json()["state"] == "paused"
    assert len(client.post("/reports/ann/send").json()["task_id"]) == 36
    assert client.patch("/reports/eve", json={"cron": "@daily"}).status_code == 404
    assert "Log in · RedBeat" in client.get("/redbeat/", headers={"host": "127.0.0.1"}).text
    assert Entry.get("report-ann", celery_app).pause_note == "by the customer"
    assert client.delete("/reports/ann").status_code == 204
    assert client.get("/reports").json() == []
"""


MANY_REQUESTS = """
import asyncio, httpx
from api import api

async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client:
        async def add(number):
            report = {"customer": str(number % 150), "cron": "30 7 * * *"}
            return (await client.post("/reports", json=report)).status_code
        statuses = await asyncio.gather(*map(add, range(300)))
        reports = (await client.get("/reports", params={"limit": 1000})).json()
        return sorted(set(statuses)), statuses.count(201), len(reports)

print(asyncio.run(main()))
"""


def coroutine(caption: str) -> str:
    """The example of the page that has this caption, as the body of a coroutine."""
    found = re.search(rf"   :caption: {caption}\n\n((?:    .*\n|\n)+)", (ROOT / PAGE).read_text("utf-8"))
    assert found
    return textwrap.indent(textwrap.dedent(found[1]), "    ")


def test_fastapi_application_does_what_its_page_says_for_many_requests_at_once(
    execute: Execute, tmp_path: Path
) -> None:
    write_files(PAGE, tmp_path)
    printed = execute("-W", "error::ResourceWarning", "-c", USE + MANY_REQUESTS)
    assert printed == "([201, 409], 150, 150)\n", "each report is added once"
    ready = "with TestClient(api) as client:\n"
    ask = '    answer = client.get("/reports"); print(answer.status_code, answer.json())'
    said = "503 {'detail': \"The schedule can't be reached; try again later.\"}\n"
    assert execute("-c", USE.partition(ready)[0] + ready + ask, url=AWAY) == said


@pytest.mark.slow
def test_fastapi_example_test_passes_without_a_server(execute: Execute, tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    printed = execute("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_api.py", url=AWAY)
    assert "1 passed" in printed


def test_fastapi_coroutines_run_as_they_stand_there(execute: Execute, tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    script = f"""
import asyncio
from redbeat import RedBeatSchedulerEntry as Entry
from tasks import celery_app

async def first():
{coroutine("in any coroutine")}
async def second():
    await Entry("report-ann", "tasks.send_report", "30 7 * * *", app=celery_app).asave()
{coroutine("also in a coroutine")}
    print((await Entry.aget("report-ann", celery_app)).timezone)

asyncio.run(first())
asyncio.run(second())
"""
    name, zone = execute("-c", script).splitlines()
    assert name.startswith("report ")
    assert name.endswith("At 08:00, Monday through Friday (Europe/Berlin)")
    assert zone == "Europe/Berlin"
