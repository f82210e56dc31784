"""The examples of the README and of the pages on code, testing, later, managing and time run."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
import redis
from celery import Celery

from demo.story import STEPS
from tests.benchmarks import cases
from tests.support.apps import celery_beat
from tests.support.command_line import run
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS
from tests.support.servers import Server

README = (ROOT / "README.rst").read_text("utf-8")
CODE = (ROOT / "docs" / "code.rst").read_text("utf-8")


EXAMPLES = [
    textwrap.dedent(block).strip()
    for block in re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", README, re.MULTILINE)
]


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


PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", ".", "-q"]


@pytest.mark.usefixtures("proj")
def test_readme_first_steps_and_redis_cli_block_run(broker: redis.Redis, tmp_path: Path) -> None:
    steps = EXAMPLES[1:]
    assert len(steps) >= 5
    with celery_beat(tmp_path, "proj") as beat:
        beat.wait_for("Scheduler: Sending due task every-ten-seconds")
        eventually(lambda: broker.llen("celery"))
        seen = 'print(app.redbeat_redis.zscore("redbeat::schedule", "redbeat:greet"))'
        done = run([sys.executable, "-c", "\n".join([steps[0], seen, *steps[1:], seen])], tmp_path)
        assert done.returncode == 0, done.stderr
        stored, gone = done.stdout.split()
        assert (float(stored) > 0, gone) == (True, "None")
        assert broker.zscore(SCHEDULE, "redbeat:every-ten-seconds") is not None
        [block] = re.findall(r"^    redis-cli HSET .*\n(?:    .*\n)+", README, re.MULTILINE)
        for command in block.split("redis-cli ")[1:]:
            broker.execute_command(*shlex.split(command))
        beat.wait_for("Scheduler: Sending due task report (proj.hello)")
        eventually(lambda: broker.hget("redbeat:report", "meta"))
        assert beat.stop() == 0


@pytest.mark.slow
def test_demo_runs_to_its_end() -> None:
    done = run([sys.executable, "-m", "demo", "--seconds", "20"], ROOT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert re.search(r"http://127\.0\.0\.1:\d+/login\?token=\S+", done.stdout)
    assert re.search(r"raw .*none: paused", done.stdout), "the dashboard was at work"
    # the last step invites to stay, where there is no end
    assert [step.title for step in STEPS if not step.is_invitation and step.title not in done.stdout] == []


@pytest.mark.parametrize(("page", "least"), [("managing", 25), ("time", 15)])
def test_examples_of_page_print_what_it_shows(app: Celery, page: str, least: int) -> None:
    path = str(ROOT / "docs" / f"{page}.rst")
    failed, tried = doctest.testfile(path, module_relative=False, globs={"app": app})
    assert (failed, tried > least) == (0, True)


def test_files_of_later_page_print_what_it_says(server: Server, tmp_path: Path) -> None:
    for file in write_files("docs/later.rst", tmp_path):
        file.write_text(file.read_text().replace("redis://localhost:6379/0", server.url(0)))
    names = ("call", "call_many", "cancel")
    code = f"import runpy\nfor name in {names}:\n    runpy.run_path(name + '.py', run_name='__main__')"
    done = run([sys.executable, "-c", code], tmp_path, {}, 60)
    assert done.returncode == 0, done.stderr
    assert re.match(r"[0-9a-f-]{36} PENDING\n4\nREVOKED \[\]\n", done.stdout), done.stdout


@pytest.mark.slow
def test_benchmarks_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--quick", "--only", "trips,saving", "--out", str(tmp_path)]
    done = run([sys.executable, "-m", "tests.benchmarks", *words], ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert {figure["case"] for figure in found["figures"]} >= {cases.BATCH_TRIPS, cases.SAVE_MANY}


@pytest.fixture
def proj(server: Server, tmp_path: Path) -> None:
    """The application of the README, on the server of the tests."""
    text = EXAMPLES[0].replace("redis://127.0.0.1:6379/0", server.url(0))
    (tmp_path / "proj.py").write_text(text.replace("10.0", "1.0"))


def test_code_page_declares_its_entries_and_beat_stores_them(
    tmp_path: Path, server: Server, broker: redis.Redis
) -> None:
    write_files("docs/code.rst", tmp_path)
    done = run([sys.executable, "-c", DESCRIBED], tmp_path, {}, 60)
    assert done.stdout == ENTRIES, done.stderr
    done = run([sys.executable, "-c", "import wrong"], tmp_path, {}, 60)
    (shown,) = re.findall(r"    redbeat\.errors\.DeclarationError: /srv/(.*)", CODE)
    assert done.stderr.splitlines()[-1] == f"redbeat.errors.DeclarationError: {tmp_path}/{shown}"
    with celery_beat(tmp_path, "proj", env={"REDIS_URL": server.url(0)}) as beat:
        eventually(lambda: broker.scard(STATICS) == 6 or not beat.is_running)
        assert beat.is_running, beat.output()
    names = sorted(key.removeprefix("redbeat:") for key in broker.zrange(SCHEDULE, 0, -1))
    assert names == [line.partition(" | ")[0] for line in ENTRIES.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), [("code", 1), ("testing", 12)])
def test_tests_of_page_pass_and_notice_another_schedule(tmp_path: Path, page: str, count: int) -> None:
    files = write_files(f"docs/{page}.rst", tmp_path)
    done = run(PYTEST, tmp_path, {"PYTEST_ADDOPTS": ""}, 120)
    assert (done.returncode, f"{count} passed" in done.stdout) == (0, True), done.stdout + done.stderr
    if page == "code":
        return
    for file in files:
        text = file.read_text().replace("30 7 * * mon-fri", "30 8 * * mon-fri")
        file.write_text(text.replace('"proj.report", 3600, args', '"proj.report", 7200, args'))
    done = run(PYTEST, tmp_path, {"PYTEST_ADDOPTS": ""}, 120)
    assert (done.returncode, "3 failed" in done.stdout) == (1, True), done.stdout + done.stderr
