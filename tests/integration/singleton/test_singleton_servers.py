"""Singletons on every kind of server that beat knows, as a user with few rights, and with BeatCop's file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates
from tests.support.logs import has_traceback
from tests.support.processes import Process
from tests.support.servers import Server
from tests.support.singletons import start_singleton
from tests.support.topologies import ClusterTopology, SentinelTopology

RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "singleton.acl"
PASSWORD = "p@ss:w/rd#%"
QUOTED_PASSWORD = "p%40ss%3Aw%2Frd%23%25"


def assert_it_runs(url: str, client: Any, *options: str, lock: str = "feed") -> None:
    """The lock is held while the command runs, and gone afterwards; the password isn't shown."""
    waiting = ("sh", "-c", "echo ready; read line")
    with start_singleton(url, *waiting, lock=lock, options=options) as singleton:
        assert singleton.wait() == 1, "its standard input is empty"
        assert "\nready\n" in singleton.output()
        assert PASSWORD not in singleton.output()
        assert QUOTED_PASSWORD not in singleton.output()
    with start_singleton(url, "sleep", "3600", lock=lock, options=options) as singleton:
        singleton.wait_for("Started")
        assert client.get(lock).startswith("redbeat:3:")
        singleton.stop()
        assert client.get(lock) is None


@pytest.fixture(scope="module")
def guarded() -> Any:
    with Server("valkey", unix_socket=True, requirepass=PASSWORD) as server:
        yield server


def test_a_password_and_a_database(guarded: Server) -> None:
    url = f"redis://:{QUOTED_PASSWORD}@{guarded.host}:{guarded.port}/3"
    with guarded.client(db=3) as client:
        assert_it_runs(url, client)


def test_the_url_may_stand_in_the_environment(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDBEAT_REDIS_URL", f"redis://:{QUOTED_PASSWORD}@{guarded.host}:{guarded.port}/0")
    with Process([sys.executable, "-m", "redbeat.singleton", "echo", "at work"]) as singleton:
        assert singleton.wait() == 0
        assert "\nat work\n" in singleton.output()


def test_a_socket(guarded: Server) -> None:
    with guarded.client() as client:
        assert_it_runs(f"unix://:{QUOTED_PASSWORD}@{guarded.socket_path}", client)


def test_tls(tls: Server) -> None:
    assert isinstance(tls.certificates, Certificates)
    with tls.client() as client:
        assert_it_runs(f"rediss://{tls.host}:{tls.port}/0?ssl_ca_certs={tls.certificates.ca}", client)


def test_sentinel(sentinel: SentinelTopology) -> None:
    options = json.dumps(
        {
            "service_name": sentinel.service_name,
            "sentinel_kwargs": {"password": sentinel.sentinel_password},
        }
    )
    assert_it_runs(sentinel.url(), sentinel.client(), "--redis-options", options)


@pytest.mark.parametrize("lock", ["feed", "{proj}:feed"])
def test_a_cluster(cluster: ClusterTopology, lock: str) -> None:
    options = json.dumps({"cluster": True})
    assert_it_runs(cluster.url(), cluster.client(), "--redis-options", options, lock=lock)


@pytest.mark.parametrize(
    ("userinfo", "words"),
    [("", "NOAUTH|password|authenticate"), (":wrong@", "WRONGPASS|invalid")],
    ids=["none", "wrong"],
)
def test_a_password_that_is_refused_ends_it_with_no_permission(
    guarded: Server, userinfo: str, words: str
) -> None:
    with start_singleton(f"redis://{userinfo}{guarded.host}:{guarded.port}/0", "true") as singleton:
        assert singleton.wait() == 77
        assert re.search(words, singleton.output())
        assert not has_traceback(singleton.output())


def test_a_lock_that_is_something_else_ends_it_with_a_sentence(server: Server) -> None:
    with server.client() as client:
        client.hset("feed", "a", "b")
        with start_singleton(server.url(), "true", lock="feed") as singleton:
            assert singleton.wait() == 78
            assert "feed holds something that is no lock: choose another --lock." in singleton.output()
        assert client.hgetall("feed") == {"a": "b"}


def test_the_documented_user_may_do_all_that_a_singleton_does(server: Server) -> None:
    rules = RECIPE.read_text("utf-8").split()
    assert rules[:4] == ["user", "singleton", "on", ">secret"]
    with server.client(db=0) as client:
        client.execute_command("ACL SETUSER", "singleton", "reset", "on", *rules[4:], f">{PASSWORD}")
        client.acl_log_reset()
        url = f"redis://singleton:{QUOTED_PASSWORD}@{server.host}:{server.port}/0"
        assert_it_runs(url, client)
        log: Any = client.acl_log()
        refused = [entry["object"] for entry in log if entry["username"] == "singleton"]
        assert [what for what in refused if not what.startswith("client")] == []
        with start_singleton(url, "true", lock="another") as singleton:
            assert singleton.wait() == 77
        assert client.get("another") is None


@pytest.mark.parametrize("shell", ["yes", "no"])
def test_a_beatcop_ini_is_run_with_the_lock_that_beatcop_would_take(
    guarded: Server, tmp_path: Path, shell: str
) -> None:
    (tmp_path / "beatcop.ini").write_text(
        f"[redis]\nhost = {guarded.host}\nport = {guarded.port}\n"
        f"password = {PASSWORD.replace('%', '%%')}\ndatabase = 2\n"
        f"[beatcop]\ncommand = sh -c 'echo \"a  b\"; sleep 3600'\nshell = {shell}\n"
        "timeout = 1500\nlockname = the-singleton\n"
    )
    program = [sys.executable, "-m", "redbeat.singleton", "--config", "beatcop.ini"]
    with Process(program, cwd=tmp_path) as singleton, guarded.client(db=2) as client:
        singleton.wait_for("\na  b\n")
        assert client.get("the-singleton")
        assert 0 < client.pttl("the-singleton") <= 1500
        singleton.stop()
        assert client.get("the-singleton") is None
    with Process([*program, "--lock", "other", "--", "echo", "of", "here"], cwd=tmp_path) as singleton:
        assert singleton.wait() == 0
        assert "\nof here\n" in singleton.output()
        assert "Acquired lock other" in singleton.output()
    with Process([*program, "--", "echo", "of", "here"], cwd=tmp_path) as singleton:
        assert singleton.wait() == 0
        assert "Acquired lock the-singleton" in singleton.output(), "the command is no other lock"


def test_keys_beside_the_lock_end_by_themselves(server: Server) -> None:
    with server.client() as client:
        with start_singleton(server.url(), "true", lock="feed") as singleton:
            assert singleton.wait() == 0
        assert sorted(client.keys("*")) == ["feed::released", "feed::tick"]
        assert all(0 < client.pttl(key) <= 60_000 for key in client.keys("*"))
