"""Whatever stands in Redis, the log and the command line stay readable: no orders, no forged lines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.cli import redbeat
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import Terminal, call
from tests.support.hostile import HOSTILE, HOSTILE_SHOWN, find_orders
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, STATICS, write_raw
from tests.support.servers import Server

NAME = f"name{HOSTILE}"
HOURLY: dict[str, Any] = {"__type__": "interval", "every": 3600}


def fill(client: redis.Redis, *, now: float = 1.0) -> None:
    """A schedule in which every text is hostile; all of it is due."""
    write_raw(client, NAME, task=f"task{HOSTILE}", schedule=HOURLY, score=now)
    write_raw(client, f"calm{HOSTILE}", task="echo", schedule=HOURLY, score=now)
    for number, fields in enumerate(
        (
            {"task": "echo", "options": {"serializer": f"serializer{HOSTILE}"}},
            {"task": "echo", "options": {"exchange": HOSTILE, "routing_key": HOSTILE, "queue": HOSTILE}},
            {"task": "echo", "args": [HOSTILE], "kwargs": {HOSTILE: HOSTILE}, "options": {HOSTILE: HOSTILE}},
            {"task": "echo", "schedule": {"__type__": f"kind{HOSTILE}"}},
            {"task": "echo", "schedule": {"__type__": "crontab", "minute": HOSTILE}},
            {"task": "echo", "schedule": HOSTILE},
            {"task": "echo", "schedule": {"__type__": "rrule", "freq": 4, f"byhour{HOSTILE}": 1}},
            {"task": "echo", "jiter": 1, f"taks{HOSTILE}": "x", "enabled": HOSTILE},
            {"task": [HOSTILE]},
        )
    ):
        write_raw(client, f"{number}{HOSTILE}", {"schedule": HOURLY, **fields}, score=now)
    write_raw(client, f"broken{HOSTILE}", f"{{{HOSTILE}", score=now)
    write_raw(client, f"meta{HOSTILE}", meta=f'"{HOSTILE}', score=now)
    for name, policy in {
        "excluded": {"exclude": f"calendar{HOSTILE}"},
        "missing": {"exclude": f"none{HOSTILE}"},
        "wrong": {"exclude": f"wrong{HOSTILE}"},
        "zone": {"timezone": f"Mars/{HOSTILE}"},
        "paused": {"paused": True, "pause_note": HOSTILE},
        "misspelt": {f"jitterr{HOSTILE}": 5, "misfire": HOSTILE},
    }.items():
        write_raw(client, f"{name}{HOSTILE}", score=now)
        client.hset(f"redbeat:{name}{HOSTILE}", "policy", json.dumps(policy))
    client.hset(f"redbeat::calendar:calendar{HOSTILE}", mapping={"about": HOSTILE, "2001-01-01": HOSTILE})
    client.hset(f"redbeat::calendar:wrong{HOSTILE}", mapping={"about": HOSTILE, HOSTILE: HOSTILE})
    client.zadd(SCHEDULE, {f"redbeat:gone{HOSTILE}": now, f"bare{HOSTILE}": now})
    client.set(f"redbeat:text{HOSTILE}", HOSTILE)
    client.zadd(SCHEDULE, {f"redbeat:text{HOSTILE}": now, b"redbeat:no-text\xff\x1b[2J": now})
    client.sadd(STATICS, NAME, f"old{HOSTILE}")
    client.sadd("redbeat::static-owners", f"owner{HOSTILE}\t{NAME}")
    client.sadd(f"redbeat::owner:owner{HOSTILE}", NAME)
    record = {"due": 1.5e9, "at": 1.5e9, "outcome": HOSTILE, "why": HOSTILE, "id": HOSTILE}
    for key in (NAME, f"broken{HOSTILE}", f"left over{HOSTILE}"):
        client.lpush(f"redbeat::history:{key}", json.dumps(record), HOSTILE)
    client.sadd(f"redbeat::backfilled:left over{HOSTILE}", HOSTILE)
    ended = {
        **record,
        "outcome": "failed",
        "ended": 1.6e9,
        "worker": HOSTILE,
        "error": HOSTILE,
        "held_by": HOSTILE,
    }
    client.lpush(f"redbeat::history:2{HOSTILE}", json.dumps({**ended, "late": HOSTILE, "rerun_of": HOSTILE}))
    run = {
        "due": "1500000000",
        "state": "started",
        "started": "1500000000",
        "worker": HOSTILE,
        "error": HOSTILE,
    }
    for running in (f"redbeat::running:{NAME}", f"redbeat::running:left over{HOSTILE}"):
        client.hset(running, HOSTILE, json.dumps(run))
        client.zadd("redbeat::deadlines", {f"{HOSTILE}\0{running}": now})
    client.set(f"redbeat::failing:2{HOSTILE}", 5)
    failed = {"entry": f"2{HOSTILE}", "id": HOSTILE, "due": "1500000000", "outcome": "lost", "error": HOSTILE}
    client.xadd("redbeat::failures", {**failed, "worker": HOSTILE})
    changed = dict.fromkeys(("user", "host", "verb", "source", "outcome"), HOSTILE)
    about = {"names": json.dumps([HOSTILE]), "details": json.dumps({HOSTILE: HOSTILE})}
    client.hset("redbeat::tokens", HOSTILE, HOSTILE)
    client.xadd("redbeat::audit", {**changed, **about})  # type: ignore[dict-item]
    client.hset("redbeat::workers", HOSTILE, json.dumps({"at": now, "pool": HOSTILE}))
    error = {"reason": HOSTILE, "since": 1.0, "attempts": 2, "about": HOSTILE, "retry_at": "1", "due": "1"}
    client.hset(f"redbeat:calm{HOSTILE}", "error", json.dumps(error))
    message = dict.fromkeys(("task_id", "task", "exchange", "routing_key"), HOSTILE)
    headers = dict.fromkeys(("argsrepr", "root_id", "expires", "group"), HOSTILE)
    for kind, body in (("json", json.dumps([[HOSTILE], {HOSTILE: HOSTILE}, {}])), ("no json", HOSTILE)):
        stored = {**message, "body": body, "headers": headers, "properties": {"priority": HOSTILE}}
        client.hset(f"redbeat::later:{kind}{HOSTILE}", mapping={"message": json.dumps(stored)})
        client.hset(f"redbeat::later:{kind}{HOSTILE}", "error", json.dumps({**error, "definition_sha1": ""}))
        client.zadd("redbeat::later", {f"redbeat::later:{kind}{HOSTILE}": 4e9})
    client.hset(
        f"redbeat::later:broken{HOSTILE}", "message", json.dumps({"body": HOSTILE, "task_id": [HOSTILE]})
    )
    client.zadd("redbeat::later", {f"redbeat::later:broken{HOSTILE}": 4e9, f"stray{HOSTILE}": 4e9})


def test_a_beat_s_log_has_no_order_and_no_forged_line(
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
    fill(client)
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


def commands(folder: Path) -> list[list[str]]:
    """Every command, with all its ways to show what is stored."""
    folder.mkdir(exist_ok=True)
    (folder / "file.json").write_text(
        json.dumps(
            {
                "owner": "me",
                "entries": {f"new{HOSTILE}": {"task": HOSTILE, "schedule": 60, "kwargs": {HOSTILE: HOSTILE}}},
                "calendars": {f"days{HOSTILE}": {"about": HOSTILE, "days": {"2026-12-25": HOSTILE}}},
            }
        )
    )
    (folder / "bad.json").write_text(json.dumps({"owner": "me", "entries": {NAME: {"task": 5}}}))
    file, bad = str(folder / "file.json"), str(folder / "bad.json")
    shown = [
        [*words, *more]
        for words in (
            ["list"],
            ["list", "--state", "quarantined"],
            ["show", NAME],
            ["show", f"broken{HOSTILE}"],
            ["show", f"paused{HOSTILE}"],
            ["show", f"calm{HOSTILE}"],
            ["show", f"2{HOSTILE}"],
            ["count", "--match", HOSTILE],
            ["next"],
            ["next", NAME],
            ["next", f"excluded{HOSTILE}"],
            ["timeline"],
            ["why", NAME],
            ["why", f"broken{HOSTILE}"],
            ["why", NAME, "--at", "2017-07-14T02:40:00Z"],
            ["runs"],
            ["runs", NAME],
            ["audit"],
            ["token", "list"],
            ["runs", "--state", "failed,lost,sent,unsent"],
            ["rerun", f"2{HOSTILE}", "--dry-run"],
            ["rerun", "--all-failed", "--since", "2001-01-01", "--dry-run"],
            ["doctor", "--all"],
            ["status"],
            ["plan", file],
            ["plan", file, "--prune", "--take-over", "--owner", "me"],
            ["plan", bad],
            ["apply", file, "--dry-run"],
            ["import", file, "--dry-run"],
            ["purge", "--dry-run"],
            ["calendar", "list"],
            ["calendar", "show", f"calendar{HOSTILE}"],
            ["calendar", "show", f"wrong{HOSTILE}"],
            ["downgrade"],
            ["reshard", "--to", "4", "--dry-run"],
            ["reshard", "--to", HOSTILE],
            ["route", NAME],
            ["route", f"1{HOSTILE}"],
            ["list", "--later"],
            ["later", "list"],
            ["later", "count"],
            *(["later", "show", f"{kind}{HOSTILE}"] for kind in ("json", "no json", "broken", "none")),
        )
        for more in ([], ["--json"])
    ]
    return [
        *shown,
        ["export"],
        ["export", "--history", "--json"],
        ["export", str(folder / f"out{HOSTILE}")],
        ["doctor", "--all", "--fix", "--dry-run"],
        ["show", f"none{HOSTILE}"],
        ["show", HOSTILE, HOSTILE],
        ["add", NAME, HOSTILE, "--every", "1h"],
        ["add", f"other{HOSTILE}", HOSTILE, "--every", HOSTILE],
        ["add", f"other{HOSTILE}", HOSTILE, "--every", "1h", "--queue", HOSTILE],
        ["set", f"2{HOSTILE}", "--task", HOSTILE],
        ["pause", f"2{HOSTILE}", "--note", HOSTILE],
        ["resume", f"2{HOSTILE}"],
        ["pause", "--match", f"*{HOSTILE}"],
        ["trigger", f"2{HOSTILE}"],
        ["trigger", f"0{HOSTILE}"],
        ["backfill", f"2{HOSTILE}", "--from", "2024-01-01", "--to", "2024-01-02", "--dry-run"],
        ["rerun", f"2{HOSTILE}"],
        ["rerun", "--all-failed", "--since", "2001-01-01", "--yes"],
        ["apply", file, "--yes"],
        ["import", file, "--replace"],
        ["import", file, "--replace", "--yes"],
        ["later", "cancel", f"none{HOSTILE}", f"json{HOSTILE}"],
        ["later", "cancel", f"none{HOSTILE}", f"json{HOSTILE}", "--yes"],
        ["later", "release", f"no json{HOSTILE}", "--yes"],
        ["purge", "--yes"],
        ["doctor", "--all", "--fix"],
        ["delete", NAME],
        ["delete", "--match", f"*{HOSTILE}", "--yes"],
    ]


def test_every_command_is_looked_at(tmp_path: Path) -> None:
    silent = {"monitoring", "singleton", "web"}  # they print nothing of what is in Redis
    assert {words[0] for words in commands(tmp_path)} | silent == set(redbeat.commands)


def test_no_command_gives_orders_in_a_pipe(app: Celery, client: redis.Redis, tmp_path: Path) -> None:
    client.set(LOCK, f"token{HOSTILE}", ex=1000)
    fill(client)
    for words in commands(tmp_path):
        done = call(app, *words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        assert find_orders(done.output) == [], words
        if "--json" in words and done.exit_code in (0, 1, 2) and words[0] != "export":
            assert [json.loads(line) for line in done.stdout.splitlines()] or words[0] == "list"


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


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("columns", ["80", "160"])
def test_no_command_gives_orders_on_a_terminal(
    client: redis.Redis, project: dict[str, str], tmp_path: Path, columns: str
) -> None:
    client.set(LOCK, f"token{HOSTILE}", ex=1000)
    fill(client)
    (tmp_path / "commands").write_text(json.dumps(commands(tmp_path / "files")))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "commands")]
    env = {**os.environ, **project, "COLUMNS": columns}
    with Terminal(command, tmp_path, env) as terminal:
        while "all done" not in terminal.shown:
            terminal.wait_for_one_of("[y/N]", "all done", timeout=120)
            if "[y/N]" in terminal.shown:
                terminal.type("y\n")
                terminal.shown = terminal.shown.replace("[y/N]", "[asked]")
    assert find_orders(terminal.shown, is_terminal=True) == []
