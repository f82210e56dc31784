"""One command on one machine at a time: how it starts, how it ends, and that it never outlives its lock."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.apps import write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process, is_alive
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.singletons import start_singleton, writer, writes

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


def watchdog_of(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def has_ended(pid: int) -> None:
    eventually(lambda: not is_alive(pid), message=f"process {pid} lives")


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_it_ends_with_the_commands_exit_code_and_leaves_no_lock(
    server: Server, client: redis.Redis, code: int
) -> None:
    with start_singleton(server.url(), "sh", "-c", f"echo at work; exit {code}") as singleton:
        assert singleton.wait() == code
        assert "\nat work\n" in singleton.output()
        assert client.get(LOCK) is None


def test_a_command_that_a_signal_has_ended_gives_128_and_its_number(server: Server) -> None:
    with start_singleton(server.url(), "sh", "-c", "kill -9 $$") as singleton:
        assert singleton.wait() == 128 + 9


def test_standard_input_output_and_the_environment_are_the_commands(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "kept")
    with start_singleton(server.url(), "sh", "-c", "cat; echo $OF_THE_CALLER $1", "sh", "an argument") as it:
        assert it.wait() == 0
        assert "\nkept an argument\n" in it.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda it: it.name)
def test_signals_are_passed_on_to_the_command_which_decides_what_to_do(
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda it: it.name)
def test_one_that_waits_ends_at_a_signal_and_leaves_the_holder_alone(
    server: Server, client: redis.Redis, number: signal.Signals
) -> None:
    client.set(LOCK, "another", px=60_000)
    with start_singleton(server.url(), *SLEEPER) as singleton:
        singleton.wait_for("Acquiring lock")
        singleton.signal(number)
        assert singleton.wait() == 128 + number
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


def test_a_standby_whose_watchdog_is_killed_ends_and_leaves_the_lock_alone(server: Server) -> None:
    with start_singleton(server.url(), *SLEEPER) as holder:
        pid = started(holder)
        with start_singleton(server.url(), *SLEEPER) as standby:
            standby.wait_for("Standing by")
            os.kill(watchdog_of(standby), signal.SIGKILL)
            assert standby.wait() == os.EX_UNAVAILABLE
            assert "watches over sleep was killed." in standby.output()
        assert is_alive(pid)
        holder.signal(signal.SIGTERM)
        holder.wait()


def test_a_lock_that_is_deleted_is_taken_back_and_the_command_goes_on(
    server: Server, client: redis.Redis
) -> None:
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        pid = started(singleton)
        client.delete(LOCK)
        singleton.wait_for("was gone and is taken back")
        assert client.get(LOCK).startswith("redbeat:3:")
        assert is_alive(pid)


def test_a_lock_that_another_has_ends_the_command_and_is_waited_for(
    server: Server, client: redis.Redis
) -> None:
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        pid = started(singleton)
        client.set(LOCK, "another")
        singleton.wait_for("a program other than RedBeat 3 holds the lock the-lock now")
        has_ended(pid)
        eventually(lambda: singleton.output().count("Acquiring lock") == 2)
        client.delete(LOCK)
        eventually(lambda: singleton.output().count("Started") == 2)


def test_with_lock_lost_exit_it_ends_with_temporary_failure(server: Server, client: redis.Redis) -> None:
    with start_singleton(server.url(), *SLEEPER, options=(*FAST, "--lock-lost", "exit")) as singleton:
        pid = started(singleton)
        client.set(LOCK, "another")
        assert singleton.wait() == os.EX_TEMPFAIL
        assert not is_alive(pid)
        assert client.get(LOCK) == "another"


@pytest.mark.parametrize("fault", ["freeze", "drop"])
def test_without_redis_the_command_is_gone_before_its_lock_is(
    server: Server, client: redis.Redis, proxy: Proxy, tmp_path: Path, fault: str
) -> None:
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    with start_singleton(proxy.url(server.url()), *stubborn, options=FAST) as singleton:
        pid = started(singleton)
        if fault == "freeze":
            proxy.freeze()
        else:
            proxy.close()
        eventually(lambda: not is_alive(pid), interval=0.005)
        assert client.get(LOCK), "the lock has ended before the command"
        singleton.wait_for("couldn't be renewed and runs out")
        if fault == "freeze":
            proxy.thaw()
            eventually(lambda: singleton.output().count("Started") == 2)
            assert singleton.output().count("Trying again until Redis is back") <= 2
            assert "singleton: Redis is back" in singleton.output()
        singleton.kill()  # such a command goes on for as long as it likes


def test_while_it_is_paused_the_command_is_ended_in_time(server: Server, client: redis.Redis) -> None:
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        pid = started(singleton)
        singleton.signal(signal.SIGSTOP)
        eventually(lambda: not is_alive(pid), interval=0.005)
        assert client.get(LOCK), "the lock has ended before the command"
        singleton.signal(signal.SIGCONT)
        singleton.wait_for("couldn't be renewed and runs out")
        eventually(lambda: singleton.output().count("Started") == 2)


def test_a_lock_that_vanishes_under_a_waiting_one_is_held_before_the_command_starts(
    server: Server, client: redis.Redis
) -> None:
    client.set(LOCK, "another", px=60_000)
    client.config_resetstat()
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        eventually(lambda: client.info("commandstats").get("cmdstat_pttl", {}).get("calls", 0) >= 2)
        client.delete(LOCK)
        singleton.wait_for("The command may still be running elsewhere")
        assert client.get(LOCK).startswith("redbeat:3:")
        assert "Started" not in singleton.output()
        started(singleton)


def test_another_programs_lock_of_the_same_name_is_waited_for(server: Server, client: redis.Redis) -> None:
    assert client.set(LOCK, "web-1:4711", nx=True, px=1500), "as BeatCop takes it"
    with start_singleton(server.url(), *SLEEPER, options=FAST) as singleton:
        started(singleton)
        assert "Somebody may still" not in singleton.output()
        assert client.set(LOCK, "web-1:4712", nx=True, px=1500) is None


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


def test_while_its_watchdog_is_paused_the_singleton_itself_ends_the_command_in_time(
    server: Server, client: redis.Redis, proxy: Proxy
) -> None:
    with start_singleton(proxy.url(server.url()), *SLEEPER, options=FAST) as singleton:
        pid, watchdog = started(singleton), watchdog_of(singleton)
        os.kill(watchdog, signal.SIGSTOP)
        proxy.freeze()
        eventually(lambda: not is_alive(pid), interval=0.005)
        assert client.get(LOCK), "the lock has ended before the command"
        proxy.thaw()
        os.kill(watchdog, signal.SIGCONT)
        eventually(lambda: singleton.output().count("Started") == 2)


def test_a_server_that_takes_no_writes_is_waited_for_with_one_line(
    server: Server, client: redis.Redis
) -> None:
    client.config_set("min-replicas-to-write", 1)
    client.config_resetstat()
    try:
        with start_singleton(server.url(), "echo", "at work", options=FAST) as singleton:
            eventually(lambda: client.info("commandstats").get("cmdstat_pttl", {}).get("calls", 0) >= 4)
            assert len(singleton.output().splitlines()) == 2, singleton.output()
            client.config_set("min-replicas-to-write", 0)
            assert singleton.wait() == 0
    finally:
        client.config_set("min-replicas-to-write", 0)
