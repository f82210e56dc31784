"""The clients of docs/rest.rst, as they stand there, against a real ``celery redbeat web``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from celery import Celery
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from redbeat.web import asgi_app
from tests.support.apps import write_app
from tests.support.command_line import installed, run
from tests.support.dashboards import serving
from tests.support.machine import require_program
from tests.support.processes import Process
from tests.support.programs import token_of
from tests.support.servers import Server

ROOT = Path(__file__).parents[3]


PYTHON = sys.executable


#: recipe: the program that runs it, and the one that it needs
CLIENTS = {"rest.sh": ("sh", "curl"), "rest.mjs": ("node", "node"), "rest.py": (PYTHON, PYTHON)}


VERBS = ["add", "set", "pause", "resume", "trigger", "delete"]


@pytest.fixture(
    params=[
        pytest.param("rest.sh", marks=pytest.mark.services),
        pytest.param("rest.mjs", marks=pytest.mark.services),
        "rest.py",
    ]
)
def recipe(request: pytest.FixtureRequest) -> str:
    if (program := CLIENTS[request.param][1]) != PYTHON:
        require_program(program)
    return str(request.param)


def call(recipe: str, url: str, token: str) -> CompletedProcess[str]:
    environment = {"URL": f"{url}/api/v1", "TOKEN": token}
    return run([CLIENTS[recipe][0], str(ROOT / "docs" / "recipes" / recipe)], env=environment)


def test_client_makes_changes_pauses_runs_and_removes_an_entry(
    server: Server, tmp_path: Path, recipe: str
) -> None:
    write_app(tmp_path, "project", server.url(0), redbeat_redis_url=server.url(1))
    app = Celery("looking", broker=server.url(0), set_as_current=False)
    app.conf.redbeat_redis_url = server.url(1)
    words = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
    with Process(words, tmp_path, installed(tmp_path)) as process:
        home = process.wait_for(re.compile(r"(http://127\.0\.0\.1:\d+)/"))[1]
        token = token_of(app, ["run", "pause", "edit", "delete"], recipe)
        done = call(recipe, home, token)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "report" in done.stdout
        records = find_records(app, user=recipe)
        assert [record.verb for record in reversed(records)] == VERBS
        assert {(record.source, record.names) for record in records} == {("api", ("report",))}
        assert RedBeatSchedulerEntry.count(app) == 0
        with app.connection_for_write() as connection:
            assert connection.default_channel.client.llen("celery") == 1
        assert token not in process.output()


def meddling(application: ASGIApp, meddle: Callable[[], object], patches: list[tuple[int, Any]]) -> ASGIApp:
    """A dashboard where another user changes the entry just before the first PATCH arrives.

    ``patches`` gets the status and the body of each PATCH.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "PATCH":
            await application(scope, receive, send)
            return
        body = await receive()
        if not patches:
            await run_in_threadpool(meddle)

        async def receive_again() -> Message:
            return body

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                patches.append((message["status"], json.loads(body["body"])))
            await send(message)

        await application(scope, receive_again, note)

    return call


def test_client_loses_nothing_that_another_user_has_changed_meanwhile(server: Server, recipe: str) -> None:
    app = Celery("looking", broker=server.url(0), set_as_current=False)
    app.conf.redbeat_redis_url = server.url(1)

    def meddle() -> None:
        RedBeatSchedulerEntry.get("report", app).update(args=["theirs"])

    token, patches = token_of(app, ["admin"], recipe), list[tuple[int, Any]]()
    with serving(meddling(asgi_app(app), meddle, patches)) as home:
        done = call(recipe, home, token)
        statuses = [status for status, _ in patches]
        if recipe == "rest.sh":  # it tells the person who called it, and does no more
            assert (statuses, done.returncode != 0) == ([412], True)
            assert "changed meanwhile" in done.stdout
            assert RedBeatSchedulerEntry.get("report", app).args == ["theirs"]
        else:
            assert (statuses, done.returncode) == ([412, 200], 0), done.stderr
            assert patches[1][1]["args"] == ["theirs", "weekly"]
            RedBeatSchedulerEntry("report", "echo", 60, app=app).save()
        done = call(recipe, home, token)
        assert done.returncode != 0, "it is there already"
        assert "there already" in done.stdout + done.stderr
