"""What only a terminal or a pipe has: colours, questions, Ctrl-C, completion, readers that leave."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.schedules import clocked
from tests.integration.cli.conftest import FAR, commands, fill
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import Terminal, celery_arguments
from tests.support.command_line import run as run_command
from tests.support.hostile import HOSTILE, HOSTILE_SHOWN, find_orders
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE
from tests.support.servers import Server

PASSWORD = "s3cret-w0rd"


Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(project: dict[str, str], tmp_path: Path) -> Run:
    def call(*arguments: str, command: list[str] | None = None, **env: str) -> CompletedProcess[str]:
        return run_command(command or celery_arguments("project", *arguments), tmp_path, {**project, **env})

    return call


@pytest.fixture
def on_terminal(project: dict[str, str], tmp_path: Path) -> Callable[..., Terminal]:
    return lambda *arguments, **env: Terminal(
        celery_arguments("project", *arguments), tmp_path, {**project, **env}
    )


def test_commands_run_as_celery_subcommands(run: Run, app: Celery) -> None:
    assert run("add", "hello", "echo", "--every", "1h", "--queue", "fast").returncode == 0
    shown = run("show", "hello")
    assert ("fast" in shown.stdout, "\x1b" in shown.stdout) == (True, False)
    missing = run("show", "nobody")
    assert (missing.returncode, missing.stdout) == (66, "")
    assert len(missing.stderr.splitlines()) == 1
    Entry("café ☃", "echo", clocked(FAR), app=app).save()
    listed = run("list", PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert ("caf\\xe9 \\u2603" in listed.stdout, listed.stderr) == (True, "")


def test_colours_are_shown_on_a_terminal_only(on_terminal: Callable[..., Terminal], app: Celery) -> None:
    Entry.save_many(Entry(f"[red]x{number}[/red]", "echo", clocked(FAR), app=app) for number in range(60))
    with on_terminal("list") as terminal:
        assert terminal.wait() == 0
        assert "50 of 60 shown" in terminal.shown
        assert "\x1b[32mscheduled" in terminal.shown
        assert "[red]x0[/red]" in terminal.shown
    with on_terminal("list", NO_COLOR="1") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[32m" not in terminal.shown


def test_delete_asks_on_a_terminal(on_terminal: Callable[..., Terminal], app: Celery) -> None:
    Entry("one", "echo", clocked(FAR), app=app).save()
    for answer, code, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        with on_terminal("delete", "one") as terminal:
            terminal.wait_for("Delete 1 entry at redis://")
            terminal.type(answer)
            assert terminal.wait() == code, terminal.shown
        assert Entry.count(app) == left


def test_interrupted_backfill_reports_its_runs(
    on_terminal: Callable[..., Terminal], app: Celery, broker: redis.Redis
) -> None:
    Entry("one", "echo", 1, app=app).save()
    # so many that they aren't all sent by then, and so few that finding them doesn't take long
    span = ("--from", "2024-01-01", "--to", "2024-01-02")
    with on_terminal("backfill", "one", *span, "--limit", "99999", "--yes") as terminal:
        terminal.wait_for("Sending")
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown
        assert "Traceback" not in terminal.shown
    assert f"Interrupted. {broker.llen('celery')} run" in terminal.shown.replace("\r\n", " ")


def test_closed_pipe_ends_a_command_silently(run: Run, app: Celery) -> None:
    Entry.save_many(Entry(f"many-{number}", "echo", 86_400, app=app) for number in range(1500))
    listing = f"{sys.executable} -m celery -A project redbeat list"
    done = run(command=["bash", "-c", f"{listing} --json | head -1; echo ${{PIPESTATUS[0]}}"])
    assert (len(done.stdout.splitlines()), done.stdout.splitlines()[1], done.stderr) == (2, "0", "")
    done = run(command=["bash", "-c", f"{listing} --match nothing >&-"])
    assert (done.returncode, done.stderr) == (0, "There are no such entries.\n")


def test_url_option_works_and_shows_no_password(run: Run, second: Server, project: dict[str, str]) -> None:
    with second.client() as admin:
        admin.acl_setuser("keeper", enabled=True, passwords=[f"+{PASSWORD}"], keys="*", commands=["+@all"])
    url = f"redis://keeper:{PASSWORD}@127.0.0.1:{second.port}/3"
    celery = [sys.executable, "-m", "celery", "redbeat", "--url", url, "--prefix", "mine:"]
    assert run(command=[*celery, "add", "one", "proj.echo", "--cron", "@daily"]).returncode == 0
    with second.client(db=3) as client:
        assert client.exists("mine:one", "mine::schedule") == 2
    done = run(command=[*celery, "delete", "one"])
    assert (done.returncode, PASSWORD in done.stdout + done.stderr) == (64, False)


COMPLETE = """\
import json, sys
from celery.bin.celery import celery
from click.shell_completion import ShellComplete
for words in json.loads(sys.argv[1]):
    complete = ShellComplete(celery, {}, "celery", "_CELERY_COMPLETE")
    print(json.dumps([item.value for item in complete.get_completions(words[:-1], words[-1])]))
"""


def test_shell_completes_names(run: Run, app: Celery, server: Server) -> None:
    for name in ("report", "report two", "other", "[red]"):
        Entry(name, "echo", clocked(FAR), app=app).save()
    expected = {
        "-A project redbeat show re": ["report", "report two"],
        "-A project redbeat pause other [": ["[red]"],
        f"redbeat --url {server.url(1)} delete o": ["other"],
        "redbeat --url redis://127.0.0.1:1/0 delete o": [],
        "-A nothing_like_it redbeat delete o": [],
    }
    words = json.dumps([line.split() for line in expected])
    done = run(command=[sys.executable, "-c", COMPLETE, words])
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [*expected.values()]


def test_hostile_text_gives_the_log_of_beat_no_orders(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    statics = {
        f"static{HOSTILE}": {"task": "echo", "schedule": 3600},
        "often": {"task": "echo", "schedule": 1},
    }
    statics[f"bad{HOSTILE}"] = {"task": "echo", "schedule": HOSTILE}  # type: ignore[dict-item]
    extra = "from celery.signals import before_task_publish\n@before_task_publish.connect\n"
    extra += "def fail(sender, **_):\n    if 'task' in sender:\n        raise ValueError(sender)\n"
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": statics, "redbeat_lock_timeout": 30}
    write_app(tmp_path, "module", server.url(0), extra=extra, **settings)
    fill(client, HOSTILE)
    client.set(LOCK, f"redbeat:3:{HOSTILE}:1:2:3")
    with celery_beat(tmp_path, "module", "--loglevel", "DEBUG") as beat:
        beat.wait_for(f"beat: Standing by: process 1 on {HOSTILE_SHOWN[:50]}")
        assert find_orders(beat.output()) == []
    client.set(LOCK, f"token{HOSTILE}")
    with celery_beat(tmp_path, "module", "--loglevel", "DEBUG") as beat:
        beat.wait_for("beat: Standing by: a program other than RedBeat 3 holds the lock")
        client.delete(LOCK)
        beat.wait_for("Sending due task often")
        eventually(lambda: not client.zrangebyscore(SCHEDULE, 0, 1000))
        for words in ("Sending due task name", "Couldn't send", "Quarantined", "Failed to load", "Skipped"):
            beat.wait_for(words)
        client.set(LOCK, f"redbeat:3:{HOSTILE}:1:2:3")
        assert beat.wait() not in (0, None)
        log = beat.output()
    assert "Another beat holds the lock" in log
    assert log.count(HOSTILE_SHOWN) > 20
    assert find_orders(log) == []


#: calls Celery's command line again and again, in one process
DRIVER = """\
import json, sys
from celery.bin.celery import main
for words in json.load(open(sys.argv[1])):
    sys.argv = ["celery", "-A", "project", "redbeat", *words]
    try:
        main()
    except SystemExit:
        pass
print("all", "done")
"""


@pytest.mark.slow
def test_hostile_text_gives_a_terminal_no_orders(
    client: redis.Redis, project: dict[str, str], tmp_path: Path
) -> None:
    client.set(LOCK, f"token{HOSTILE}", ex=1000)
    fill(client, HOSTILE)
    (tmp_path / "commands").write_text(json.dumps(commands(tmp_path / "files", HOSTILE)))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "commands")]
    env = {**os.environ, **project, "COLUMNS": "80"}
    with Terminal(command, tmp_path, env) as terminal:
        while "all done" not in terminal.shown:
            terminal.wait_for("[y/N]", "all done", timeout=120)
            if "[y/N]" in terminal.shown:
                terminal.type("y\n")
                terminal.shown = terminal.shown.replace("[y/N]", "[asked]")
    assert find_orders(terminal.shown, is_terminal=True) == []
