"""The FastAPI application of docs/fastapi.rst does what the page says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ONE_SERVER
from tests.support.command_line import run as run_command
from tests.support.documents import write_files
from tests.support.servers import Server

pytestmark = ONE_SERVER

#: what it answers while Redis is away
AWAY = (503, {"error": "The schedule can't be reached; try again later."})

FASTAPI = """
import logging
from fastapi.testclient import TestClient
from api import api
from tasks import celery_app
from redbeat import RedBeatSchedulerEntry as Entry

logging.disable()
client = TestClient(api)
made = client.post("/reports", json={"customer": "ann", "cron": "30 7 * * *", "timezone": "Europe/Berlin"})
assert (made.status_code, made.json()) == (201, {"name": "report-ann", "words": "At 07:30 (Europe/Berlin)"})
again = client.post("/reports", json={"customer": "ann", "cron": "30 7 * * *"})
assert again.status_code == 409, again.json()
wrong = client.post("/reports", json={"customer": "bob", "cron": "30 7 * *"})
assert wrong.status_code == 400
assert "instead of five" in wrong.json()["error"]
zone = client.post("/reports", json={"customer": "bob", "cron": "@daily", "timezone": "Europe/Belin"})
assert (zone.status_code, "Did you mean Europe/Berlin?" in zone.json()["error"]) == (400, True)
changed = client.patch("/reports/ann", json={"cron": "0 8 * * *"})
assert changed.json()["words"] == "At 08:00 (Europe/Berlin)"
assert [one["name"] for one in client.get("/reports").json()] == ["report-ann"]
assert client.post("/reports/ann/pause").status_code == 200
assert Entry.get("report-ann", celery_app).pause_note == "by the customer"
assert client.patch("/reports/eve", json={"cron": "@daily"}).status_code == 404
assert client.delete("/reports/ann").status_code == 204
assert client.get("/reports").json() == []
"""


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Any:
    """Execute a script beside the files of the page, and return what it prints."""
    write_files("docs/fastapi.rst", tmp_path)

    def execute(script: str, url: str | None = None) -> str:
        done = run_command([sys.executable, "-c", script], tmp_path, {"REDIS_URL": url or server.url(0)}, 120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return execute


def test_the_fastapi_application_of_the_page_does_what_it_says(run: Any) -> None:
    pytest.importorskip("fastapi")
    assert run(FASTAPI) == ""


def test_while_redis_is_away_it_says_so_and_no_more(run: Any) -> None:
    pytest.importorskip("fastapi")
    ask = 'answer = client.get("/reports"); print((answer.status_code, answer.json()))'
    ready = "client = TestClient(api)\n"
    script = FASTAPI.partition(ready)[0] + ready + ask
    assert run(script, "redis://:s3cret@127.0.0.1:1/0") == f"{AWAY}\n"
