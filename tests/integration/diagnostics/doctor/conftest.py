"""The doctor, called in this process, and what it is to find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat.cli import redbeat
from tests.conftest import MakeApp
from tests.support.doctoring import (
    BACKFILLED,
    HISTORY,
    LATER,
    Ask,
    Findings,
)
from tests.support.schedule import (
    SCHEDULE,
    STATICS,
    write_raw,
)
from tests.support.servers import Server


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    """One kind is enough; this one keeps what it has."""
    with valkey.client() as admin:
        admin.config_set("save", "3600 1")
        yield valkey
        admin.config_set("save", "")
        admin.config_set("maxmemory-policy", "noeviction")


@pytest.fixture
def ask(make_app: MakeApp) -> Ask:
    """`celery redbeat doctor` of an app, in this process."""

    def run(*arguments: str, app: Celery | None = None, command: str = "doctor", **settings: Any) -> Result:
        settings.setdefault("redbeat_redis_options", {"retry_period": 5})  # as recommended
        context = SimpleNamespace(app=app or make_app(**settings), no_color=True)
        return CliRunner().invoke(redbeat, [command, *arguments], obj=context)

    return run


@pytest.fixture
def findings(ask: Ask) -> Callable[..., Findings]:
    """What it finds, by kind; what celery-redbeat 2.x would make of entries is left out, and advice."""

    def run(*arguments: str, **settings: Any) -> Findings:
        done = ask("--json", *arguments, **settings)
        document = json.loads(done.output)
        assert done.exit_code == document["exit_code"]
        found: Findings = {}
        for finding in document["findings"]:
            assert finding["problem"][-1] in ".?", finding
            if finding["kind"] in ("downgrade", "retry-period"):
                continue
            found.setdefault(finding["kind"], []).append(finding)
        for of_kind in found.values():
            of_kind.sort(key=lambda finding: str(finding["about"]))  # Redis gives keys in any order
        return found

    return run


@pytest.fixture
def sick(client: redis.Redis) -> None:
    """One of each that can be repaired, and others that mustn't be touched."""
    write_raw(client, "well", score=LATER)
    client.rpush(f"{HISTORY}well", "x")
    client.sadd(STATICS, "well")
    client.zadd(SCHEDULE, {"redbeat:gone": LATER, "gone-too": -1})
    write_raw(client, "lost", score=None)
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {"bare": LATER})
    client.sadd(STATICS, "old")
    client.rpush(f"{HISTORY}old", "x")
    client.sadd(f"{BACKFILLED}old", "x")
    client.hset("redbeat:nothing-of-ours", "a", "b")
    client.set("redbeat:text", "x")
    # another schedule, whose prefix begins with ours
    client.zadd("redbeat:two::schedule", {"redbeat:two:other": LATER})
    client.hset("redbeat:two:lost", "definition", "{}")
