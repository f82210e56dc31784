"""Who leads, asked from outside: RedBeatScheduler.leader and `celery redbeat status`."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat import RedBeatScheduler
from redbeat.cli import redbeat
from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.leadership.status import read_status
from redbeat.store.beats import LISTED_SECONDS
from tests.conftest import MakeApp
from tests.support.apps import run_beat
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, monitoring, server_now, write_raw
from tests.support.servers import Server
from tests.support.shards import election_in
from tests.support.stored import make_late, store
from tests.support.ticks import memory_app

TICK = "redbeat::tick"


TOKEN_OF_2X = "0123456789abcdef0123456789abcdef"


Ask = Callable[..., Result]


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def ask(make_app: MakeApp) -> Ask:
    """`celery redbeat status` of an app, in this process."""

    def run(*arguments: str, app: Celery | None = None, **settings: Any) -> Result:
        context = SimpleNamespace(app=app or make_app(**settings), no_color=True)
        return CliRunner().invoke(redbeat, ["status", *arguments], obj=context)

    return run


def test_leader_is_read_from_its_token(app: Celery, scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    found = RedBeatScheduler.leader(app)
    assert (found.host, found.pid, found.token) == (socket.gethostname(), os.getpid(), client.get(LOCK))
    assert found.since.utcoffset() == found.last_tick.utcoffset() == timedelta(0)
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    assert timedelta(0) <= now - found.last_tick < timedelta(seconds=30)
    assert found.ttl_seconds == pytest.approx(scheduler.lock_timeout, abs=30)
    scheduler.close()
    assert RedBeatScheduler.leader(app) is None


def test_leader_of_2x_has_only_a_token_and_a_time_to_live(app: Celery, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    client.set(TICK, "1.5")  # left behind by a beat of ours
    found = RedBeatScheduler.leader(app)
    assert (found.host, found.pid, found.since, found.last_tick) == (None, None, None, None)
    assert found.token == TOKEN_OF_2X
    assert found.ttl_seconds == pytest.approx(90, abs=5)


@pytest.mark.parametrize("garbage", ["", "soon", "nan", "1e999", "\udcff"])
def test_invalid_tick_is_unknown(
    app: Celery, scheduler: RedBeatScheduler, client: redis.Redis, garbage: str
) -> None:
    client.set(TICK, garbage.encode("utf-8", "surrogateescape"))
    found = RedBeatScheduler.leader(app)
    assert found.last_tick is None


def test_leader_without_a_lock_is_none(make_app: MakeApp, client: redis.Redis) -> None:
    client.set(LOCK, "left over")
    assert RedBeatScheduler.leader(make_app(redbeat_lock_key=None)) is None


def test_leader_is_read_in_one_round_trip_without_writes(
    server: Server, app: Celery, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    RedBeatScheduler.leader(app)
    before = {key: client.dump(key) for key in client.scan_iter()}
    with monitoring(server) as commands:
        RedBeatScheduler.leader(app)
    asked = [command for command in commands if not command.startswith(("CLIENT", "SELECT", "HELLO"))]
    assert [command.split()[0] for command in asked] == ["EVALSHA", "ZRANGE"]
    assert {key: client.dump(key) for key in client.scan_iter()} == before


# -- celery redbeat status


@pytest.mark.parametrize(
    ("state", "exit_code", "written"),
    [
        ("healthy", 0, {}),
        ("no leader", 1, {"lock": None}),
        ("late", 2, {"entry": -100}),
        ("late", 2, {"tick": -100}),
        ("healthy", 0, {"lock": TOKEN_OF_2X, "tick": -10_000}),
        ("late", 2, {"lock": TOKEN_OF_2X, "entry": -100}),
        ("late", 2, {"message": -100}),
    ],
)
def test_status_has_an_exit_code_for_each_state(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis, state: str, exit_code: int, written: Any
) -> None:
    now = server_now(client)
    if "lock" in written:
        client.delete(LOCK)
        if written["lock"]:
            client.set(LOCK, written["lock"], px=90_000)
    if "tick" in written:
        client.set(TICK, now + written["tick"])
    if "entry" in written:
        write_raw(client, "old", score=now + written["entry"])
    if "message" in written:
        store(memory_app(redbeat_redis_url=scheduler.config.redis_url), "one")
        make_late(client, "one", now + written["message"])
    done = ask("--json")
    found = json.loads(done.output)
    assert re.sub("[-_]", " ", found["state"]) == state
    assert done.exit_code == found["exit_code"] == ask().exit_code == exit_code
    if state == "late":
        assert ask("--late-after", "1000").exit_code == 0


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("shards", [None, 2])
def test_status_is_blocked_while_the_broker_is_away(
    server: Server, second: Server, ask: Ask, tmp_path: Path, shards: int | None
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_shards": shards}
    often = {"often": {"task": "tasks.report", "schedule": 0.5}}
    app = memory_app(**settings)
    with (
        Proxy((second.host, second.port)) as proxy,
        run_beat(tmp_path, proxy.url(second.url(0)), beat_schedule=often, **settings),
        second.client(db=0) as broker,
    ):
        eventually(lambda: broker.llen("celery") > 0)
        eventually(lambda: ask(app=app).exit_code == 0)
        proxy.refuse()
        proxy.drop()
        eventually(lambda: ask(app=app).exit_code == 4)
        found = json.loads(ask("--json", app=app).output)
        assert found["state"] == "blocked"
        assert found["obstacle"] == found["problem"]
        proxy.accept()
        eventually(lambda: ask(app=app).exit_code == 0)


def test_status_without_a_lock_judges_lateness_alone(ask: Ask, client: redis.Redis) -> None:
    client.set(TICK, "1.5")
    done = ask(redbeat_lock_key=None)
    assert done.exit_code == 0, done.output
    assert "redbeat_lock_key is None" in done.output
    write_raw(client, "old", score=server_now(client) - 100)
    assert ask(redbeat_lock_key=None).exit_code == 2


@pytest.mark.parametrize("seconds", ["nan", "-1", "soon"])
def test_status_with_an_invalid_number_of_seconds_exits_with_64(ask: Ask, seconds: str) -> None:
    assert ask("--late-after", seconds).exit_code == 64


BEATS = Keys().beats


def test_status_lists_standbys_that_have_looked_lately(app: Celery, client: redis.Redis, ask: Ask) -> None:
    client.set(LOCK, "somebody", px=60_000)
    standby = election_in(app, Timing(60))
    assert not standby.look()
    now, hostile = server_now(client), "redbeat:3:\x1b[31mhost:1:1700000000:ab"
    client.zadd(BEATS, {"garbage": now, hostile: now - 1, "redbeat:3:gone:1:1:ab": now - LISTED_SECONDS - 1})
    [old, own] = read_status(app).standbys
    assert (own.host, own.pid) == (socket.gethostname(), os.getpid())
    assert (old.host, old.since.timestamp()) == ("\x1b[31mhost", 1_700_000_000)
    assert [one["pid"] for one in json.loads(ask("--json").output)["standbys"]] == [1, os.getpid()]
    assert "\x1b" not in ask().output
    standby.resign()
