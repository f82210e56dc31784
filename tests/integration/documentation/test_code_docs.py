"""The files of docs/code.rst do what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat
from tests.support.command_line import run
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS
from tests.support.servers import Server

PAGE = (ROOT / "docs" / "code.rst").read_text("utf-8")

DESCRIBED = """
from proj import app
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.declared import declared_entries

app.loader.import_default_modules()
for name, fields in sorted(declared_entries(app).items()):
    entry = Entry(name, app=app, **fields)
    print(name, entry.task, list(entry.args or ()), entry.kwargs, entry.describe(), sep=" | ")
"""

ENTRIES = """\
chores.clean | chores.clean | ['cache'] | {} | Every 10 minutes
chores.clean-all | chores.clean | ['everything'] | {'deep': True} | At 03:00 (UTC)
chores.inspect | chores.inspect | [] | {} | Every hour
greet-ann | chores.greet | ['ann'] | {} | At 07:00 (UTC)
greet-bob | chores.greet | ['bob'] | {} | At 09:00 (UTC)
reports.report | reports.report | ['weekly'] | {} | \
At 07:30, Monday through Friday (Europe/Berlin), up to 1 min later, not while a run is in progress
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_files("docs/code.rst", tmp_path)


def test_the_modules_of_the_page_declare_what_it_says(files: list[Path], tmp_path: Path) -> None:
    assert [file.name for file in files] == [
        "proj.py",
        "reports.py",
        "chores.py",
        "wrong.py",
        "test_schedule.py",
    ]
    done = run([sys.executable, "-c", DESCRIBED], tmp_path, {}, 60)
    assert done.stdout == ENTRIES, done.stderr


def test_its_test_passes(files: list[Path], tmp_path: Path) -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    pytest_ = [sys.executable, "-m", "pytest", *plugins, "--rootdir", ".", "-q"]
    done = run(pytest_, tmp_path, {"PYTEST_ADDOPTS": ""}, 60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_its_mistake_is_the_error_that_it_shows(files: list[Path], tmp_path: Path) -> None:
    done = run([sys.executable, "-c", "import wrong"], tmp_path, {}, 60)
    (shown,) = re.findall(r"    redbeat\.errors\.DeclarationError: /srv/(.*)", PAGE)
    said = done.stderr.splitlines()[-1]
    assert said == f"redbeat.errors.DeclarationError: {tmp_path}/{shown}"


def test_the_line_that_show_names_is_that_of_the_page(files: list[Path]) -> None:
    (line,) = re.findall(r"``@scheduled at /srv/reports\.py:(\d+)``", PAGE)
    assert files[1].read_text().splitlines()[int(line) - 1] == "@scheduled("


def test_its_beat_stores_them(files: list[Path], tmp_path: Path, server: Server, broker: redis.Redis) -> None:
    env: dict[str, Any] = {"REDIS_URL": server.url(0)}
    with celery_beat(tmp_path, "proj", env=env) as beat:
        eventually(lambda: broker.scard(STATICS) == 6 or not beat.is_running)
        assert beat.is_running, beat.output()
    names = sorted(key.removeprefix("redbeat:") for key in broker.zrange(SCHEDULE, 0, -1))
    assert names == [line.partition(" | ")[0] for line in ENTRIES.splitlines()]
