"""`celery redbeat` as a command of its own: on a terminal, in a pipe, without an application."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import clocked
from tests.support.command_line import ROOT, Terminal, call, celery_arguments
from tests.support.command_line import run as run_command
from tests.support.servers import Server

FAR = clocked(datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc))
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


def test_a_day_with_the_command_line(run: Run, client: redis.Redis) -> None:
    assert run("add", "hello", "echo", "--every", "1h", "--args", "[1]").returncode == 0
    assert run("set", "hello", "--queue", "fast").returncode == 0
    assert json.loads(run("show", "hello", "--json").stdout)["options"] == {"queue": "fast"}
    assert "\x1b" not in run("list").stdout
    triggered = run("trigger", "hello")
    assert triggered.returncode == 0, triggered.stderr
    assert run("delete", "hello", "--yes").returncode == 0
    missing = run("show", "hello")
    assert (missing.returncode, missing.stdout) == (66, "")
    assert len(missing.stderr.splitlines()) == 1


def test_colours_are_for_terminals(on_terminal: Callable[..., Terminal], app: Celery) -> None:
    RedBeatSchedulerEntry("[red]x[/red]", "echo", FAR, app=app).save()
    with on_terminal("list") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[32mscheduled" in terminal.shown
        assert "[red]x[/red]" in terminal.shown
    with on_terminal("list", NO_COLOR="1") as terminal:
        assert terminal.wait() == 0
        assert "\x1b[32m" not in terminal.shown
    with on_terminal("list", "--json") as terminal:
        assert terminal.wait() == 0
        assert "\x1b" not in terminal.shown


def test_deleting_is_asked_for_on_a_terminal(on_terminal: Callable[..., Terminal], app: Celery) -> None:
    RedBeatSchedulerEntry("one", "echo", FAR, app=app).save()
    for answer, code, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        with on_terminal("delete", "one") as terminal:
            terminal.wait_for("Delete 1 entry at redis://")
            terminal.type(answer)
            assert terminal.wait() == code, terminal.shown
        assert RedBeatSchedulerEntry.count(app) == left


def test_ctrl_c_at_a_question_deletes_nothing(on_terminal: Callable[..., Terminal], app: Celery) -> None:
    RedBeatSchedulerEntry("one", "echo", FAR, app=app).save()
    with on_terminal("delete", "one") as terminal:
        terminal.wait_for("[y/N]")
        assert terminal.interrupt() in (1, 130)
        assert "Traceback" not in terminal.shown
        assert "\nError: Interrupted." in terminal.shown
    assert RedBeatSchedulerEntry.count(app) == 1


def test_ctrl_c_ends_a_backfill_and_tells_how_far_it_came(
    on_terminal: Callable[..., Terminal], app: Celery, broker: redis.Redis
) -> None:
    entry = RedBeatSchedulerEntry("one", "echo", 1, app=app).save()
    # so many that they aren't all sent by then, and so few that finding them doesn't take long
    with on_terminal(
        "backfill", "one", "--from", "2024-01-01", "--to", "2024-01-02", "--limit", "99999", "--yes"
    ) as terminal:
        terminal.wait_for("Sending")
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown
        assert "Interrupted. " in terminal.shown
        assert "Traceback" not in terminal.shown
    sent = broker.llen("celery")
    were = "run was" if sent == 1 else "runs were"
    assert f"Interrupted. {sent} {were} sent" in terminal.shown.replace("\r\n", " ")
    assert len(entry.backfill(datetime(2024, 1, 1), datetime(2024, 1, 1), dry_run=True)) == 0


def test_a_reader_that_has_seen_enough_ends_the_list_in_silence(run: Run, app: Celery) -> None:
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(f"many-{number}", "echo", 86_400, app=app) for number in range(3000)
    )
    for options in ("--json", "--limit 3000"):
        command = (
            f"{sys.executable} -m celery -A project redbeat list {options} | head -1; echo ${{PIPESTATUS[0]}}"
        )
        done = run(command=["bash", "-c", command])
        assert len(done.stdout.splitlines()) == 2, done.stdout
        assert done.stdout.splitlines()[1] == "0"
        assert done.stderr == ""


@pytest.mark.parametrize("command", ["status", "status --json"])
def test_a_reader_that_has_seen_enough_changes_nothing_about_the_exit_code_of_status(
    command: str, run: Run
) -> None:
    piped = f"{sys.executable} -m celery -A project redbeat {command} | true; echo ${{PIPESTATUS[0]}}"
    done = run(command=["bash", "-c", piped])
    assert (done.stdout, done.stderr) == ("1\n", ""), "no leader"


@pytest.mark.parametrize("command", ["doctor --all", "doctor --all --json", "why one"])
def test_a_reader_that_has_seen_enough_ends_a_diagnosis_in_silence(
    command: str, run: Run, client: redis.Redis, app: Celery
) -> None:
    RedBeatSchedulerEntry("one", "echo", 1, app=app).save()
    client.zadd("redbeat::schedule", {f"redbeat:gone-{number}": 9e9 for number in range(2000)})
    piped = f"{sys.executable} -m celery -A project redbeat {command} | true; echo ${{PIPESTATUS[0]}}"
    done = run(command=["bash", "-c", piped])
    assert (done.stdout.split()[-1:], done.stderr) == (["0"], "")


def test_ctrl_c_ends_a_doctor_that_is_at_work(
    on_terminal: Callable[..., Terminal], client: redis.Redis
) -> None:
    client.zadd("redbeat::schedule", {"redbeat:gone": 9e9})
    with on_terminal("doctor", "--fix") as terminal:
        terminal.wait_for("looked at")  # it waits a moment before it repairs
        terminal.type("\x03")
        assert terminal.wait() == 130, terminal.shown
        assert "Error: Interrupted." in terminal.shown


def test_without_a_stdout_there_is_no_traceback(run: Run) -> None:
    done = run(command=["bash", "-c", f"{sys.executable} -m celery -A project redbeat list >&-"])
    assert (done.returncode, done.stderr) == (0, "There are no such entries.\n")


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b2J", "\u202egnp", "\nerror: forged"])
def test_nothing_stored_can_give_orders_to_the_terminal_or_forge_a_line(
    text: str, app: Celery, client: redis.Redis
) -> None:
    name = f"name{text}"
    RedBeatSchedulerEntry(name, "echo", FAR, app=app).save()
    record = {"due": 1.5e9, "at": 1.5e9, "outcome": f"outcome{text}", "why": f"why{text}", "id": f"id{text}"}
    client.lpush(f"redbeat::history:{name}", json.dumps(record))
    broken = {"__type__": "crontab", "minute": text}
    client.hset(f"redbeat:broken{text}", "definition", json.dumps({"task": text, "schedule": broken}))
    client.zadd("redbeat::schedule", {f"redbeat:broken{text}": 5, f"redbeat:gone{text}": 5})
    for arguments in (
        ("list",),
        ("show", name),
        ("show", f"broken{text}"),
        ("why", name, "--at", "2017-07-14T02:40:00Z"),
        ("why", f"broken{text}"),
        ("doctor", "--all"),
        ("doctor", "--all", "--fix", "--dry-run"),
        ("purge", "--dry-run"),
    ):
        lines = call(app, *arguments).output.split("\n")
        assert len(lines) > 2, arguments
        assert all(line.isprintable() and not line.startswith("error: forged") for line in lines), lines


def test_a_url_is_enough_and_its_password_is_not_shown(
    run: Run, second: Server, project: dict[str, str]
) -> None:
    with second.client() as admin:
        admin.acl_setuser("keeper", enabled=True, passwords=[f"+{PASSWORD}"], keys="*", commands=["+@all"])
    url = f"redis://keeper:{PASSWORD}@127.0.0.1:{second.port}/3"
    celery = [sys.executable, "-m", "celery", "redbeat", "--url", url, "--prefix", "mine:"]
    assert run(command=[*celery, "add", "one", "proj.echo", "--cron", "@daily"]).returncode == 0
    listed = run(command=[*celery, "list", "--json"])
    assert json.loads(listed.stdout)["name"] == "one"
    with second.client(db=3) as client:
        assert client.exists("mine:one", "mine::schedule") == 2
    for arguments in (["show", "two"], ["delete", "one"], ["trigger", "one"]):
        done = run(command=[*celery, *arguments])
        assert done.returncode in (64, 66)
        assert PASSWORD not in done.stdout + done.stderr


COMPLETE = """\
import sys
from celery.bin.celery import celery
from click.shell_completion import ShellComplete
complete = ShellComplete(celery, {}, "celery", "_CELERY_COMPLETE")
for item in complete.get_completions(sys.argv[1:-1], sys.argv[-1]):
    print(item.value)
"""


def test_the_shell_completes_names(run: Run, app: Celery, server: Server) -> None:
    for name in ("report", "report two", "other", "[red]"):
        RedBeatSchedulerEntry(name, "echo", FAR, app=app).save()

    def complete(*words: str) -> list[str]:
        done = run(command=[sys.executable, "-c", COMPLETE, *words])
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert complete("-A", "project", "redbeat", "show", "re") == ["report", "report two"]
    assert complete("-A", "project", "redbeat", "pause", "other", "[") == ["[red]"]
    assert complete("redbeat", "--url", server.url(1), "delete", "o") == ["other"]
    states = ["failed,retrying", "failed,revoked", "failed,rejected"]
    assert complete("redbeat", "runs", "--state", "failed,re") == states
    assert complete("redbeat", "--url", "redis://127.0.0.1:1/0", "delete", "o") == []
    assert complete("-A", "nothing_like_it", "redbeat", "delete", "o") == []


def test_names_that_the_terminal_has_no_letters_for_are_written_out(run: Run, app: Celery) -> None:
    RedBeatSchedulerEntry("café ☃", "echo", FAR, app=app).save()
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    listed = run("list", **ascii_only)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "caf\\xe9 \\u2603" in listed.stdout
    assert json.loads(run("list", "--json", **ascii_only).stdout)["name"] == "café ☃"


def test_the_entry_point_is_the_group_that_is_tested_here() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '[project.entry-points."celery.commands"]\nredbeat = "redbeat.cli:redbeat"' in pyproject
