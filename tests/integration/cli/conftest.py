"""The command line in this process, over a schedule of one server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from click.testing import Result

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import clocked
from tests.conftest import MakeApp
from tests.support.apps import write_app
from tests.support.command_line import call, installed
from tests.support.servers import Server

Call = Callable[..., Result]
FAR = datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc)


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def app(make_app: MakeApp, request: pytest.FixtureRequest) -> Celery:
    """An app in the time zone TIMEZONE of the module that asks for it."""
    return make_app(timezone=getattr(request.module, "TIMEZONE", None))


@pytest.fixture
def ask(app: Celery) -> Call:
    """Call a command that ends with the exit code `code`."""

    def run(*arguments: str, columns: int | None = None, code: int = 0) -> Result:
        done = call(app, *arguments, columns=columns)
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture
def add(app: Celery) -> Callable[..., RedBeatSchedulerEntry]:
    """Save an entry that is due in many years, unless another schedule is given."""

    def make(name: str, schedule: Any = None, **values: Any) -> RedBeatSchedulerEntry:
        task = values.pop("task", "echo")
        return RedBeatSchedulerEntry(name, task, schedule or clocked(FAR), app=app, **values).save()

    return make


@pytest.fixture
def project(server: Server, tmp_path: Path) -> dict[str, str]:
    """An application in a file, and the environment to use it in."""
    write_app(tmp_path, "project", server.url(0), redbeat_redis_url=server.url(1))
    return installed(tmp_path)
