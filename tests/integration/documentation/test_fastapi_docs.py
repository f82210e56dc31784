"""The application of docs/fastapi.rst, its test and its other examples do what the page says."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run as run_command
from tests.support.documents import ROOT, write_files
from tests.support.servers import Server

pytest.importorskip("fastapi")

PAGE = "docs/fastapi.rst"

#: what it answers while Redis is away
AWAY = (503, {"detail": "The schedule can't be reached; try again later."})

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
    found = [made.json()[field] for field in ("name", "words", "state")]
    assert found == ["report-ann", "At 07:30 (Europe/Berlin)", "scheduled"]
    again = client.post("/reports", json={"customer": "ann", "cron": "30 7 * * *"})
    assert (again.status_code, "there is such an entry by now" in again.json()["detail"]) == (409, True)
    wrong = client.post("/reports", json={"customer": "ann", "cron": "61 * * * *"})
    why = "report-ann: schedule: cron '61 * * * *': minute: '61' is no number from 0 to 59."
    assert (wrong.status_code, wrong.json()) == (422, {"detail": why}), wrong.json()
    zone = client.post("/reports", json={"customer": "bob", "cron": "@daily", "timezone": "Europe/Belin"})
    assert (zone.status_code, "Did you mean Europe/Berlin?" in zone.json()["detail"]) == (422, True)
    assert client.post("/reports", json={"customer": "bob"}).status_code == 422, "as FastAPI itself says it"
    changed = client.patch("/reports/ann", json={"cron": "0 8 * * *"})
    assert changed.json()["words"] == "At 08:00 (Europe/Berlin)"
    assert client.patch("/reports/ann", json={"cron": "no cron"}).status_code == 422
    assert [one["name"] for one in client.get("/reports").json()] == ["report-ann"]
    assert client.post("/reports/ann/pause").json()["state"] == "paused"
    assert len(client.post("/reports/ann/send").json()["task_id"]) == 36
    assert client.patch("/reports/eve", json={"cron": "@daily"}).status_code == 404
    assert "Log in · RedBeat" in client.get("/redbeat/", headers={"host": "127.0.0.1"}).text
    assert Entry.get("report-ann", celery_app).pause_note == "by the customer"
    assert client.delete("/reports/ann").status_code == 204
    assert client.get("/reports").json() == []
    assert len(celery_app.redbeat_redis_async_made._kept) == 1
assert not celery_app.redbeat_redis_async_made._kept, "the lifespan has closed it"
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


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Any:
    """Execute a script beside the files of the page, and return what it prints."""
    write_files(PAGE, tmp_path)

    def execute(*words: str, url: str | None = None) -> str:
        done = run_command([sys.executable, *words], tmp_path, {"REDIS_URL": url or server.url(0)}, 120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return execute


def coroutine(caption: str) -> str:
    """The example of the page that has this caption, as the body of a coroutine."""
    found = re.search(rf"   :caption: {caption}\n\n((?:    .*\n|\n)+)", (ROOT / PAGE).read_text("utf-8"))
    assert found
    return textwrap.indent(textwrap.dedent(found[1]), "    ")


def test_the_application_does_what_the_page_says_also_for_many_requests_at_once(run: Any) -> None:
    printed = run("-W", "error::ResourceWarning", "-c", USE + MANY_REQUESTS)
    assert printed == "([201, 409], 150, 150)\n", "each report is added once"


def test_while_redis_is_away_it_says_so_and_no_more(run: Any) -> None:
    ask = '    answer = client.get("/reports"); print((answer.status_code, answer.json()))'
    ready = "with TestClient(api) as client:\n"
    script = USE.partition(ready)[0] + ready + ask
    assert run("-c", script, url="redis://:s3cret@127.0.0.1:1/0") == f"{AWAY}\n"


def test_its_own_test_passes_without_a_server(run: Any) -> None:
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_api.py", url="redis://127.0.0.1:1/0")
    assert "1 passed" in printed


def test_the_other_examples_run_as_they_stand_there(run: Any) -> None:
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
    name, zone = run("-c", script).splitlines()
    assert name.startswith("report ")
    assert name.endswith("At 08:00, Monday through Friday (Europe/Berlin)")
    assert zone == "Europe/Berlin"
