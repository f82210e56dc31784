"""One command on one machine at a time: how it starts, how it ends, and that it never outlives its lock."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import write_app
from tests.support.command_line import run
from tests.support.logs import has_traceback
from tests.support.machine import require_program
from tests.support.polling import eventually
from tests.support.processes import Process, is_alive
from tests.support.proxy import Proxy
from tests.support.servers import Certificates, Server
from tests.support.singletons import start_singleton, writer, writes
from tests.support.topologies import ClusterTopology, SentinelTopology

LOCK = "the-lock"
FAST = ("--timeout", "2", "--grace", "0.5")
SLEEPER = ("sleep", "3600")


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as connected:
        yield connected


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as leading:
        yield leading


def started(process: Process) -> int:
    """Wait for the command; its pid."""
    return int(process.wait_for(re.compile(r"Started .* \(process (\d+)\)"))[1])


def _children(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def watchdog_of(process: Process) -> int:
    return int(_children(process.pid)[0])


def has_ended(pid: int) -> None:
    eventually(lambda: not is_alive(pid), message=f"process {pid} lives")


@pytest.mark.parametrize(
    ("end", "code"), [("exit 0", 0), ("exit 77", 77), ("kill -9 $$", 128 + 9)], ids=["0", "77", "killed"]
)
def test_input_output_environment_and_exit_code_are_the_command_s_and_the_lock_is_released(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, end: str, code: int
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "kept")
    command = ("sh", "-c", f"cat; echo $OF_THE_CALLER $1; {end}", "sh", "an argument")
    with start_singleton(server.url(), *command) as singleton:
        assert singleton.wait() == code
        assert "\nkept an argument\n" in singleton.output()
    assert sorted(client.keys("*")) == [f"{LOCK}::released", f"{LOCK}::tick"]
    assert all(0 < client.pttl(key) <= 60_000 for key in client.keys("*")), "they end by themselves"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda it: it.name)
def test_signals_are_passed_to_the_command(
    server: Server, client: redis.Redis, number: signal.Signals
) -> None:
    handler = f"trap 'echo got it; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with start_singleton(server.url(), "sh", "-c", handler) as singleton:
        singleton.wait_for("\nready\n")
        singleton.signal(number)
        assert singleton.wait() == 5
        assert "got it" in singleton.output()
        assert client.get(LOCK) is None


def test_a_hang_up_that_is_ignored_stays_ignored(server: Server, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo ready; while [ ! -e end ]; do sleep 0.05; done"]
    singleton = [sys.executable, "-m", "redbeat.singleton", "--url", server.url(), "--lock", LOCK, "--"]
    with Process(["nohup", *singleton, *command], cwd=tmp_path) as process:
        process.wait_for("\nready\n")
        process.signal(signal.SIGHUP)
        os.kill(started(process), signal.SIGHUP)
        (tmp_path / "end").touch()
        assert process.wait() == 0


def test_a_standby_ends_at_a_signal_and_leaves_the_lock_alone(server: Server, client: redis.Redis) -> None:
    client.set(LOCK, "another", px=60_000)
    with start_singleton(server.url(), *SLEEPER) as singleton:
        singleton.wait_for("Acquiring lock")
        singleton.signal(signal.SIGTERM)
        assert singleton.wait() == 128 + signal.SIGTERM
        assert "Started" not in singleton.output()
        assert client.get(LOCK) == "another"


def test_a_second_one_waits_and_runs_when_the_first_has_ended(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "written"
    with (
        start_singleton(server.url(), *writer(file)) as first,
        start_singleton(server.url(), *writer(file)) as second,
    ):
        eventually(lambda: "Started" in first.output() + second.output())
        leads, waits = (first, second) if "Started" in first.output() else (second, first)
        assert "Started" not in waits.output()
        leads.signal(signal.SIGTERM)
        assert leads.wait() == 128 + signal.SIGTERM
        handed_over = started(waits)
        eventually(lambda: handed_over in {pid for pid, _ in writes(file)[-1:]})
        assert "Somebody may still" not in waits.output()
        pids = [pid for pid, _ in writes(file)]
        assert pids == sorted(pids, key=pids.index), "both have written at once"


def test_what_the_command_leaves_running_ends_before_the_lock_is_free(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    stubborn = "trap '' TERM; echo $$ >stubborn; while :; do sleep 0.05; done"
    command = f'sh -c "{stubborn}" & until [ -s stubborn ]; do sleep 0.01; done; exit 3'
    program = [sys.executable, "-m", "redbeat.singleton", "--url", server.url(), "--lock", LOCK, *FAST]
    with Process([*program, "--", "sh", "-c", command.replace("$$", r"\$\$")], cwd=tmp_path) as singleton:
        eventually(lambda: (tmp_path / "stubborn").exists() and (tmp_path / "stubborn").read_text().strip())
        stubborn_pid = int((tmp_path / "stubborn").read_text())
        eventually(lambda: client.get(LOCK) is None)
        assert not is_alive(stubborn_pid)
        assert singleton.wait() == 3


def test_killed_with_9_it_takes_the_command_and_its_children_along(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    command = ("sh", "-c", f"sleep 3600 & echo $! >{tmp_path}/child; wait")
    with start_singleton(server.url(), *command) as singleton:
        pid = started(singleton)
        child = int(eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text()))
        singleton.signal(signal.SIGKILL)
        singleton.wait()
        has_ended(pid)
        has_ended(child)
        assert client.get(LOCK), "it ends by itself"


def test_a_command_whose_watchdog_is_killed_dies_with_it(server: Server) -> None:
    with start_singleton(server.url(), "sh", "-c", "sleep 3600 & wait") as singleton:
        pid = started(singleton)
        os.kill(watchdog_of(singleton), signal.SIGKILL)
        assert singleton.wait() == os.EX_UNAVAILABLE
        assert "was killed" in singleton.output()
        assert not has_traceback(singleton.output())
        has_ended(pid)


def test_a_command_dies_with_its_watchdog_though_the_singleton_can_not_end_it(server: Server) -> None:
    with start_singleton(server.url(), *SLEEPER) as singleton:
        pid, watchdog = started(singleton), watchdog_of(singleton)
        singleton.signal(signal.SIGSTOP)
        os.kill(watchdog, signal.SIGKILL)
        has_ended(pid)
        singleton.signal(signal.SIGKILL)
        singleton.wait()


def test_a_lock_that_is_deleted_is_taken_back_and_the_command_goes_on(
    server: Server, client: redis.Redis
) -> None:
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        pid = started(singleton)
        client.delete(LOCK)
        singleton.wait_for("was gone and is taken back")
        assert client.get(LOCK).startswith("redbeat:3:")
        assert is_alive(pid)


@pytest.mark.parametrize("policy", ["standby", "exit"])
def test_a_lock_taken_by_another_holder_ends_the_command(
    server: Server, client: redis.Redis, policy: str
) -> None:
    with start_singleton(server.url(), *SLEEPER, options=(*FAST, "--lock-lost", policy)) as singleton:
        pid = started(singleton)
        client.set(LOCK, "another")
        has_ended(pid)
        if policy == "exit":
            assert singleton.wait() == os.EX_TEMPFAIL
        assert client.get(LOCK) == "another"
        client.delete(LOCK)
        if policy == "standby":
            eventually(lambda: singleton.output().count("Started") == 2)


@pytest.mark.parametrize("fault", ["freeze", "close", "freeze while the watchdog is paused"])
def test_without_redis_the_command_ends_before_its_lock(
    server: Server, client: redis.Redis, proxy: Proxy, fault: str
) -> None:
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    is_paused = "paused" in fault
    command = SLEEPER if is_paused else stubborn
    with start_singleton(proxy.url(server.url()), *command, options=FAST) as singleton:
        pid, watchdog = started(singleton), watchdog_of(singleton)
        if is_paused:
            os.kill(watchdog, signal.SIGSTOP)
        getattr(proxy, fault.split(maxsplit=1)[0])()
        eventually(lambda: not is_alive(pid), interval=0.005)
        assert client.get(LOCK), "the lock has ended before the command"
        if fault != "close":
            proxy.thaw()
            os.kill(watchdog, signal.SIGCONT)
            eventually(lambda: singleton.output().count("Started") == 2)
        singleton.kill()  # a stubborn command goes on for as long as it likes


def test_it_waits_for_a_server_that_is_not_there_yet_and_says_so_once(server: Server, second: Server) -> None:
    second.kill()
    with start_singleton(second.url(), "echo", "at work", options=FAST) as singleton:
        singleton.wait_for("Trying again until Redis is back")
        second.restart()
        assert singleton.wait() == 0
        assert singleton.output().count("Trying again") == 1
        assert singleton.output().count("singleton: Redis is back") == 1


def test_celerys_own_command_takes_the_server_of_the_application(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0))
    celery = [sys.executable, "-m", "celery", "-A", "module", "redbeat", "singleton"]
    with Process([*celery, "--", "sh", "-c", "echo ready; sleep 3600"], cwd=tmp_path) as singleton:
        singleton.wait_for("\nready\n")
        keys = [key for key in client.scan_iter("redbeat::singleton:sh-*") if not key.endswith("::tick")]
        assert len(keys) == 1
        assert client.get(keys[0]).startswith("redbeat:3:")
        singleton.signal(signal.SIGTERM)
        assert singleton.wait() == 128 + signal.SIGTERM
        assert client.get(keys[0]) is None


HOLDER = "redbeat:3:elsewhere:1:1:a"
SHORT = ("--timeout", "3")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
#: root, that may not signal other users, as nobody else may
UNPRIVILEGED = ("setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill")


@pytest.mark.parametrize("has_released", [True, False])
def test_lock_is_free_at_once_only_where_the_holder_that_was_seen_has_released_it(
    server: Server, client: redis.Redis, has_released: bool
) -> None:
    client.config_resetstat()
    client.set(LOCK, HOLDER, px=30_000)
    with start_singleton(server.url(), "true", options=SHORT) as waiting:
        eventually(lambda: "cmdstat_get" in client.info("commandstats"), message="it has not seen the holder")
        # after a restart from a snapshot, or with a replica that lags, the mark is an older one
        released_by = HOLDER if has_released else "redbeat:3:elsewhere:1:1:before"
        with client.pipeline() as release:
            release.set(f"{LOCK}::released", released_by, px=60_000)
            release.delete(LOCK)
            release.execute()
        assert waiting.wait() == 0
        assert ("it is started in 3 s" in waiting.output()) is not has_released


def _has_children(singleton: Process, user: int) -> bool:
    """Whether the command itself runs something already, as this user."""
    [command] = _children(watchdog_of(singleton))
    return any(Path(f"/proc/{child}").stat().st_uid == user for child in _children(command))


def test_a_signal_at_the_start_of_the_command_is_not_lost(server: Server) -> None:
    program = """
import os, signal
from redbeat.singleton import command as singleton
from redbeat.singleton import watchdog
tell = watchdog.WatchdogProcess.tell
def tell_and_be_hit(self, line):
    if line.startswith("start"):
        os.kill(os.getpid(), signal.SIGTERM)
    tell(self, line)
watchdog.WatchdogProcess.tell = tell_and_be_hit
singleton.main()
"""
    command = [sys.executable, "-c", program, "--url", server.url(), "--lock", LOCK]
    with Process([*command, "--", "sleep", "3600"]) as singleton:
        assert singleton.wait() == 128 + signal.SIGTERM


@pytest.mark.services
@NEEDS_ROOT
def test_the_lock_is_not_released_while_a_part_of_the_command_cannot_be_killed(
    server: Server, client: redis.Redis
) -> None:
    require_program("setpriv")
    command = ("sh", "-c", "setpriv --reuid 4712 sleep 10 & echo ready; wait")
    with start_singleton(server.url(), *command, options=SHORT, prefix=UNPRIVILEGED) as singleton:
        singleton.wait_for("ready")
        eventually(lambda: _has_children(singleton, user=4712))
        singleton.signal(signal.SIGTERM)
        assert singleton.wait() == 128 + signal.SIGTERM
        assert "A process that it has left can't be killed" in singleton.output()
        assert client.get(LOCK)
        assert not client.exists(f"{LOCK}::released")


@pytest.mark.services
def test_as_process_1_it_reaps_what_it_is_given(server: Server) -> None:
    require_program("unshare")
    require_program("nsenter")
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if run([*inside, "true"]).returncode:
        pytest.skip("needs the right to make namespaces")  # root mostly has it, in a container often not
    with start_singleton(server.url(), "sleep", "3600", prefix=inside) as namespace:
        namespace.wait_for("Started")
        [runner] = _children(namespace.pid)
        [watchdog] = _children(runner)
        # as docker exec does: the shell has ended, and what it has left is process 1's
        orphan = ("nsenter", "--target", runner, "--pid", "sh", "-c", "sleep 1 & echo left")
        with Process(orphan) as shell:
            shell.wait_for("left")
            eventually(lambda: len(_children(runner)) == 2, message="it wasn't given the orphan")
            eventually(lambda: _children(runner) == [watchdog], message="the orphan isn't reaped")
        os.kill(int(runner), signal.SIGTERM)  # unshare doesn't pass it on
        namespace.wait()


RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "singleton.acl"
PASSWORD = "p@ss:w/rd#%"
QUOTED_PASSWORD = "p%40ss%3Aw%2Frd%23%25"


def assert_it_runs(url: str, client: Any, *options: str, lock: str = "feed") -> None:
    """The lock is held while the command runs, and gone afterwards; the password isn't shown."""
    with start_singleton(url, "sh", "-c", "echo ready; sleep 3600", lock=lock, options=options) as singleton:
        singleton.wait_for("\nready\n")
        assert client.get(lock).startswith("redbeat:3:")
        singleton.stop()
        assert client.get(lock) is None
        assert PASSWORD not in singleton.output()
        assert QUOTED_PASSWORD not in singleton.output()


@pytest.fixture(scope="module")
def guarded() -> Any:
    with Server("valkey", unix_socket=True, requirepass=PASSWORD) as server:
        yield server


def test_a_singleton_on_a_server_with_a_password(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"redis://:{QUOTED_PASSWORD}@{guarded.host}:{guarded.port}/3"
    with guarded.client(db=3) as client:
        assert_it_runs(url, client)
    with guarded.client() as client:
        assert_it_runs(f"unix://:{QUOTED_PASSWORD}@{guarded.socket_path}", client)
    monkeypatch.setenv("REDBEAT_REDIS_URL", url)
    with Process([sys.executable, "-m", "redbeat.singleton", "echo", "at work"]) as singleton:
        assert singleton.wait() == 0


def test_tls(tls: Server) -> None:
    assert isinstance(tls.certificates, Certificates)
    with tls.client() as client:
        assert_it_runs(f"rediss://{tls.host}:{tls.port}/0?ssl_ca_certs={tls.certificates.ca}", client)


def test_sentinel(sentinel: SentinelTopology) -> None:
    password = {"password": sentinel.sentinel_password}
    options = {"service_name": sentinel.service_name, "sentinel_kwargs": password}
    assert_it_runs(sentinel.url(), sentinel.client(), "--redis-options", json.dumps(options))


@pytest.mark.parametrize("lock", ["feed", "{proj}:feed"])
def test_a_cluster(cluster: ClusterTopology, lock: str) -> None:
    options = json.dumps({"cluster": True})
    assert_it_runs(cluster.url(), cluster.client(), "--redis-options", options, lock=lock)


@pytest.mark.parametrize("userinfo", ["", ":wrong@"], ids=["missing", "wrong"])
def test_missing_or_wrong_password_exits_with_77(guarded: Server, userinfo: str) -> None:
    with start_singleton(f"redis://{userinfo}{guarded.host}:{guarded.port}/0", "true") as singleton:
        assert singleton.wait() == 77
        assert not has_traceback(singleton.output())


def test_a_lock_key_of_another_type_exits_with_78(server: Server, client: redis.Redis) -> None:
    client.hset("feed", "a", "b")
    with start_singleton(server.url(), "true", lock="feed") as singleton:
        assert singleton.wait() == 78
        assert "feed holds something that is no lock" in singleton.output()
    assert client.hgetall("feed") == {"a": "b"}


def test_the_documented_user_may_do_all_that_a_singleton_does(server: Server, client: redis.Redis) -> None:
    rules = RECIPE.read_text("utf-8").split()
    assert rules[:4] == ["user", "singleton", "on", ">secret"]
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


def test_a_beatcop_ini_is_run_with_the_lock_that_beatcop_would_take(guarded: Server, tmp_path: Path) -> None:
    (tmp_path / "beatcop.ini").write_text(
        f"[redis]\nhost = {guarded.host}\nport = {guarded.port}\n"
        f"password = {PASSWORD.replace('%', '%%')}\ndatabase = 2\n"
        "[beatcop]\ncommand = sh -c 'echo \"a  b\"; sleep 3600'\nshell = yes\n"
        "timeout = 1500\nlockname = the-singleton\n"
    )
    program = [sys.executable, "-m", "redbeat.singleton", "--config", "beatcop.ini"]
    with Process(program, cwd=tmp_path) as singleton, guarded.client(db=2) as client:
        singleton.wait_for("\na  b\n")
        assert 0 < client.pttl("the-singleton") <= 1500
        singleton.stop()
        assert client.get("the-singleton") is None
    with Process([*program, "--lock", "other", "--", "echo", "of", "here"], cwd=tmp_path) as singleton:
        assert singleton.wait() == 0
        assert "\nof here\n" in singleton.output()
        assert "Acquired lock other" in singleton.output()
