"""What the doctor finds about settings, the server, and who leads; provoked on a real server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.why import explain
from redbeat.leadership.status import BROKER_AWAY
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.doctoring import (
    LATER,
    TOKEN_OF_2X,
    only,
)
from tests.support.polling import eventually
from tests.support.rights import documented_rights
from tests.support.schedule import (
    LOCK,
    TICK,
    field,
    meta_json,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.topologies import ClusterTopology


def test_unknown_settings(findings: Any) -> None:
    found = only(findings(redbeat_lock_timout=5), "unknown-setting", "warning")
    assert found["about"] == "redbeat_lock_timout"
    assert "redbeat_lock_timeout" in found["problem"]


def test_wrong_settings_are_a_finding(findings: Any) -> None:
    found = only(findings(redbeat_lock_timeout="soon"), "setting", "error")
    assert found["about"] == "redbeat_lock_timeout"


def test_a_prefix_without_a_hash_tag_in_a_cluster(findings: Any, cluster: ClusterTopology) -> None:
    options = {"cluster": True}
    settings = {"redbeat_redis_url": cluster.url(), "redbeat_redis_options": options}
    found = only(findings(**settings, redbeat_key_prefix="redbeat:"), "setting", "error")
    assert "hash tag" in found["problem"]


def test_a_server_that_may_evict(findings: Any, server: Server, client: redis.Redis) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in only(findings(), "eviction", "error")["problem"]


def test_a_server_that_keeps_nothing(findings: Any, client: redis.Redis) -> None:
    client.config_set("save", "")
    assert "restart" in only(findings(), "persistence", "warning")["problem"]


def test_a_server_that_is_a_replica(findings: Any, server: Server, second: Server) -> None:
    with second.client() as admin:
        admin.replicaof(server.host, str(server.port))
        try:
            [found] = findings(redbeat_redis_url=second.url())["replica"]
        finally:
            admin.replicaof("NO", "ONE")
    assert found["severity"] == "error"
    assert f"{server.host}:{server.port}" in found["problem"]


def test_a_clock_that_is_wrong(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr("redbeat.diagnostics.checks.server.time", SimpleNamespace(time=lambda: real() - 40))
    found = only(findings(), "clock", "warning")
    assert "40.0 s behind the server's" in found["problem"]


def test_rights_that_beat_lacks(server: Server, findings: Any, sick: None) -> None:
    rules = ["on", *documented_rights("beat"), "+info", "+scan", "+acl|whoami", "+acl|dryrun", ">secret"]
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "rich", *rules)
        admin.execute_command("ACL SETUSER", "poor", *rules, "-zadd", "-publish")
    as_admin = findings()
    assert findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://rich:secret@")) == as_admin
    found = findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://poor:secret@"))
    whose = "The doctor was called as this user. It lacks rights that"
    assert {finding["severity"]: finding["problem"] for finding in found["rights"]} == {
        "error": f"{whose} beat needs: ZADD redbeat::schedule.",
        "warning": f"{whose} some features of beat need: PUBLISH redbeat::wake.",
    }
    assert all("if beat has another one, call the doctor" in one["advice"] for one in found["rights"])
    assert found["rights"][0]["about"] == "user poor"


def test_a_user_that_may_not_ask_gets_notes(server: Server, findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", "{", score=LATER)
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "shy", "on", *documented_rights("beat"), ">secret", "-config")
    found = findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://shy:secret@"))
    assert found.keys() == {"eviction", "persistence", "rights", "quarantined", "refused"}
    assert {finding["severity"] for kind in found if kind != "quarantined" for finding in found[kind]} == {
        "note"
    }


def test_no_leader_though_entries_are_due(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "a", score=server_now(client) - 300)
    found = only(findings(), "no-leader", "error")
    assert found["problem"] == "No beat holds the lock, and 1 entry is due, the oldest for 5 min."


def test_a_leader_that_does_not_get_on(
    findings: Any, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    make_scheduler()
    write_raw(client, "a", score=server_now(client) - 300)
    only(findings(), "late", "error")


def test_a_lock_that_never_ends(findings: Any, client: redis.Redis) -> None:
    client.set(LOCK, "somebody")
    found = only(findings(), "lock-for-ever", "error")
    assert found["advice"] == "Delete it: redis-cli DEL redbeat::lock"


@pytest.mark.parametrize("lock_key", ["redbeat:lock", "mine"])
def test_a_lock_that_writers_may_overwrite_is_a_note(
    findings: Any, make_scheduler: MakeScheduler, lock_key: str
) -> None:
    make_scheduler(redbeat_lock_key=lock_key)
    found = only(findings(redbeat_lock_key=lock_key), "open-lock", "note")
    assert f"redbeat:{lock_key.removeprefix('redbeat:')} could be an entry's" in found["problem"]
    assert "set redbeat_lock_key to 'redbeat::lock'" in found["advice"]


@pytest.mark.parametrize("lock_key", [None, ":lock", "redbeat::my-lock"])
def test_a_lock_that_no_writer_may_touch_is_in_order(findings: Any, lock_key: str | None) -> None:
    assert "open-lock" not in findings(redbeat_lock_key=lock_key)


def test_a_lock_of_2x_seems_to_be_one(findings: Any, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    assert "seems to be a celery-redbeat 2.x's" in only(findings(), "foreign-leader", "warning")["problem"]
    client.set(LOCK, "words", px=90_000)
    assert "isn't one of RedBeat 3" in only(findings(), "foreign-leader", "warning")["problem"]


def test_a_lock_whose_holder_is_dead(findings: Any, client: redis.Redis) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    client.set(LOCK, f"redbeat:3:{socket.gethostname()}:{ended.pid}:1:ab", px=90_000)
    assert f"Process {ended.pid} of this machine" in only(findings(), "dead-leader", "warning")["problem"]
    client.set(TICK, server_now(client) - 1)  # it is in another container, which calls itself so as well
    assert findings() == {}
    client.set(TICK, server_now(client) - 400)
    client.set(LOCK, "redbeat:3:elsewhere:1:1:ab", px=90_000)
    assert "for 7 min" in only(findings(), "silent-leader", "warning")["problem"]


def test_a_leader_that_cannot_reach_the_broker_is_an_error(
    app: Celery, findings: Any, client: redis.Redis
) -> None:
    write_raw(client, "waiting", score=server_now(client) - 5)
    client.set(LOCK, "redbeat:3:elsewhere:1:1:ab", px=90_000)
    client.set(TICK, f"{server_now(client)} {BROKER_AWAY}")
    problem = only(findings(), "blocked", "error")["problem"]
    assert problem.startswith("The leader sends nothing, and 1 entry is due")
    assert problem.endswith(BROKER_AWAY)
    assert BROKER_AWAY in explain(read_facts(app, "waiting")).reason


def test_runs_that_2x_seems_to_have_recorded(
    findings: Any, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    now = datetime.now(timezone.utc)
    client.set(TICK, server_now(client))
    since = int(now.timestamp()) - 7200
    client.set(LOCK, f"redbeat:3:web-1:1:{since}:ab", px=90_000)
    write_raw(client, "ran", score=LATER, meta=meta_json(now - timedelta(hours=1), 7))
    write_raw(client, "before", score=LATER, meta=meta_json(now - timedelta(hours=9), 7))
    write_raw(client, "never", score=LATER, meta=meta_json(now - timedelta(hours=1), 0))
    write_raw(client, "ours", score=LATER, meta=meta_json(now - timedelta(hours=1), 7) + " ")
    found = only(findings(), "mixed-versions", "warning")
    assert (found["about"], "seems" in found["problem"]) == ("redbeat:ran", True)


def test_a_beat_of_2x_that_works_without_the_lock_is_noticed(
    tmp_path: Path, server: Server, findings: Any, client: redis.Redis, redbeat2_python: Path
) -> None:
    since = int(time.time()) - 60
    often = {"__type__": "interval", "every": 2, "relative": False}
    write_raw(client, "report", schedule=often, args=[], kwargs={}, options={}, enabled=True)
    settings = {"redbeat_redis_url": server.url(1), "redbeat_lock_key": None, "beat_max_loop_interval": 1}
    write_app(tmp_path, "old", server.url(0), **settings)
    with celery_beat(tmp_path, "old", python=redbeat2_python):
        eventually(lambda: (field(client, "report", "meta") or {}).get("total_run_count"))
    client.set(LOCK, f"redbeat:3:web-1:1:{since}:ab", px=90_000)
    client.set(TICK, server_now(client))
    found = only(findings(), "mixed-versions", "warning")
    assert found["about"] == "redbeat:report"
