"""The command line in this process, over a schedule of one server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import clocked
from tests.conftest import MakeApp
from tests.support.apps import write_app
from tests.support.command_line import call, installed
from tests.support.schedule import SCHEDULE, STATICS, write_raw
from tests.support.servers import Server

Call = Callable[..., Result]
FAR = datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc)
HOURLY: dict[str, Any] = {"__type__": "interval", "every": 3600}


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


def fill(client: redis.Redis, text: str = "", now: float = 1.0) -> None:
    """A schedule with everything that commands show, valid and invalid; `text` is in all of its texts."""
    own = text or "own"
    write_raw(client, f"name{text}", task=f"task{text}", schedule=HOURLY, score=now)
    write_raw(client, f"calm{text}", task="echo", schedule=HOURLY, score=now)
    later = {"__type__": "clocked", "clocked_time": "2099-01-01T12:00:00+00:00"}
    write_raw(client, f"far{text}", schedule=later, score=4070952000)
    for number, fields in enumerate(
        (
            {"task": "echo", "options": {"serializer": f"serializer{text}"}},
            {"task": "echo", "options": {"exchange": own, "routing_key": own, "queue": own}},
            {"task": "echo", "args": [own], "kwargs": {own: own}, "options": {own: own}},
            {"task": "echo", "schedule": {"__type__": f"kind{text}"}},
            {"task": "echo", "schedule": {"__type__": "crontab", "minute": own}},
            {"task": "echo", "schedule": own},
            {"task": "echo", "schedule": {"__type__": "rrule", "freq": 4, f"byhour{text}": 1}},
            {"task": "echo", "jiter": 1, f"taks{text}": "x", "enabled": own},
            {"task": [own]},
        )
    ):
        write_raw(client, f"{number}{text}", {"schedule": HOURLY, **fields}, score=now)
    write_raw(client, f"broken{text}", f"{{{text}", score=now)
    write_raw(client, f"meta{text}", meta=f'"{text}', score=now)
    for name, policy in {
        "excluded": {"exclude": f"calendar{text}"},
        "missing": {"exclude": f"none{text}"},
        "wrong": {"exclude": f"wrong{text}"},
        "zone": {"timezone": f"Mars/{text}"},
        "paused": {"paused": True, "pause_note": own},
        "misspelt": {f"jitterr{text}": 5, "misfire": own},
    }.items():
        write_raw(client, f"{name}{text}", score=now)
        client.hset(f"redbeat:{name}{text}", "policy", json.dumps(policy))
    client.hset(f"redbeat::calendar:calendar{text}", mapping={"about": own, "2001-01-01": own})
    client.hset(f"redbeat::calendar:wrong{text}", mapping={"about": own, own: own})
    client.zadd(SCHEDULE, {f"redbeat:gone{text}": now, f"bare{text}": now})
    client.set(f"redbeat:text{text}", own)
    client.zadd(SCHEDULE, {f"redbeat:text{text}": now, b"redbeat:no-text\xff\x1b[2J": now})
    client.sadd(STATICS, f"name{text}", f"old{text}")
    client.sadd("redbeat::static-owners", f"owner{text}\tname{text}")
    client.sadd(f"redbeat::owner:owner{text}", f"name{text}")
    record = {"due": 1.5e9, "at": 1.5e9, "outcome": own, "why": own, "id": own}
    for key in (f"name{text}", f"broken{text}", f"left over{text}"):
        client.lpush(f"redbeat::history:{key}", json.dumps(record), own)
    client.sadd(f"redbeat::backfilled:left over{text}", own)
    ended = {**record, "outcome": "failed", "ended": 1.6e9, "worker": own, "error": own, "held_by": own}
    client.lpush(f"redbeat::history:2{text}", json.dumps({**ended, "late": own, "rerun_of": own}))
    run = {"due": "1500000000", "state": "started", "started": "1500000000", "worker": own, "error": own}
    for running in (f"redbeat::running:name{text}", f"redbeat::running:left over{text}"):
        client.hset(running, own, json.dumps(run))
        client.zadd("redbeat::deadlines", {f"{own}\0{running}": now})
    client.set(f"redbeat::failing:2{text}", 5)
    failed = {"entry": f"2{text}", "id": own, "due": "1500000000", "outcome": "lost", "error": own}
    client.xadd("redbeat::failures", {**failed, "worker": own})
    changed = dict.fromkeys(("user", "host", "verb", "source", "outcome"), own)
    about = {"names": json.dumps([own]), "details": json.dumps({own: own})}
    client.hset("redbeat::tokens", own, own)
    client.xadd("redbeat::audit", {**changed, **about})  # type: ignore[dict-item]
    client.hset("redbeat::workers", own, json.dumps({"at": now, "pool": own}))
    error = {"reason": own, "since": 1.0, "attempts": 2, "about": own, "retry_at": "1", "due": "1"}
    client.hset(f"redbeat:calm{text}", "error", json.dumps(error))
    message = dict.fromkeys(("task_id", "task", "exchange", "routing_key"), own)
    headers = dict.fromkeys(("argsrepr", "root_id", "expires", "group"), own)
    for kind, body in (("json", json.dumps([[own], {own: own}, {}])), ("no json", own)):
        stored = {**message, "body": body, "headers": headers, "properties": {"priority": own}}
        client.hset(f"redbeat::later:{kind}{text}", mapping={"message": json.dumps(stored)})
        client.hset(f"redbeat::later:{kind}{text}", "error", json.dumps({**error, "definition_sha1": ""}))
        client.zadd("redbeat::later", {f"redbeat::later:{kind}{text}": 4e9})
    client.hset(f"redbeat::later:broken{text}", "message", json.dumps({"body": own, "task_id": [own]}))
    client.zadd("redbeat::later", {f"redbeat::later:broken{text}": 4e9, f"stray{text}": 4e9})


def commands(folder: Path, text: str = "") -> list[list[str]]:
    """Every command, with all its ways to show what is stored."""
    own, name = text or "own", f"name{text}"
    folder.mkdir(exist_ok=True)
    (folder / "file.json").write_text(
        json.dumps(
            {
                "owner": "me",
                "entries": {f"new{text}": {"task": own, "schedule": 60, "kwargs": {own: own}}},
                "calendars": {f"days{text}": {"about": own, "days": {"2026-12-25": own}}},
            }
        )
    )
    (folder / "bad.json").write_text(json.dumps({"owner": "me", "entries": {name: {"task": 5}}}))
    (folder / "days").write_text("2099-02-01 closed")
    file, bad = str(folder / "file.json"), str(folder / "bad.json")
    fixed = (
        "list | list --state quarantined | list --later | runs | next --after 2098-12-31 | audit | status"
        " | timeline --start 2099-01-01 | token list | doctor --all | downgrade | purge --dry-run"
        " | runs --state failed,lost,sent,unsent | rerun --all-failed --since 2001-01-01 --dry-run"
        " | calendar list | reshard --to 4 --dry-run | later list | later count"
    )
    shown = [line.split() for line in fixed.split(" | ")]
    shown += [["count", "--match", own], ["runs", name], ["rerun", f"2{text}", "--dry-run"]]
    shown += [["show", f"{kind}{text}"] for kind in ("name", "broken", "paused", "calm", "2", "far")]
    shown += [["next", f"far{text}"], ["next", f"excluded{text}"], ["why", name], ["why", f"broken{text}"]]
    shown += [["why", name, "--at", "2017-07-14T02:40:00Z"], ["plan", file], ["plan", bad]]
    shown += [["plan", file, "--prune", "--take-over", "--owner", "me"], ["reshard", "--to", own]]
    shown += [["apply", file, "--dry-run"], ["import", file, "--dry-run"]]
    shown += [["calendar", "show", f"{kind}{text}"] for kind in ("calendar", "wrong")]
    shown += [["route", name], ["route", f"1{text}"]]
    shown += [["later", "show", f"{kind}{text}"] for kind in ("json", "no json", "broken", "none")]
    return [
        *(call for words in shown for call in (words, [*words, "--json"])),
        *(["export"], ["export", "--history", "--json"], ["export", str(folder / f"out{text}")]),
        *(["doctor", "--all", "--fix", "--dry-run"], ["show", f"none{text}"], ["show", own, own]),
        *(["add", name, own, "--every", "1h"], ["add", f"other{text}", own, "--every", own]),
        ["add", f"other{text}", own, "--every", "1h", "--queue", own, "--json"],
        *(["set", f"2{text}", "--task", own], ["pause", f"2{text}", "--note", own], ["resume", f"2{text}"]),
        *(["pause", "--match", f"*{text}"], ["trigger", f"2{text}"], ["trigger", f"0{text}"]),
        ["backfill", f"2{text}", "--from", "2024-01-01", "--to", "2024-01-02", "--dry-run"],
        *(["rerun", f"2{text}"], ["rerun", "--all-failed", "--since", "2001-01-01", "--yes"]),
        *(["apply", file, "--yes"], ["import", file, "--replace"], ["import", file, "--replace", "--yes"]),
        ["later", "cancel", f"none{text}", f"json{text}"],
        ["later", "cancel", f"none{text}", f"json{text}", "--yes"],
        ["later", "release", f"no json{text}", "--yes"],
        ["calendar", "set", "days", "2099-01-01=closed"],
        ["calendar", "import", "days", str(folder / "days"), "--add"],
        *(["calendar", "delete", "days", "--yes"], ["token", "add", name, "--right", "run"]),
        *(["token", "revoke", name, "--yes"], ["purge", "--yes"], ["doctor", "--all", "--fix"]),
        *(["delete", name], ["delete", "--match", f"*{text}", "--yes"]),
        *(["monitoring"], ["singleton", "--help"], ["web", "--help"]),
    ]
