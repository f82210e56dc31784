"""What attackers have found: ways in which a command could run twice, or outlive its lock."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from tests.support.command_line import run
from tests.support.logs import has_traceback
from tests.support.machine import require_program
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server
from tests.support.singletons import start_singleton, writer, writes

LOCK = "the-lock"
HOLDER = "redbeat:3:elsewhere:1:1:a"
SHORT = ("--timeout", "3")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
#: root, that may not signal other users, as nobody else may
UNPRIVILEGED = ("setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill")


def _hold_elsewhere(client: redis.Redis) -> None:
    client.config_resetstat()
    client.set(LOCK, HOLDER, px=30_000)


def _await_look(client: redis.Redis) -> None:
    """Wait until a waiting singleton has seen who holds the lock."""
    eventually(lambda: "cmdstat_get" in client.info("commandstats"))


def test_a_mark_of_another_release_doesn_t_tell_that_this_holder_has_released(server: Server) -> None:
    with server.client() as client:
        _hold_elsewhere(client)
        with start_singleton(server.url(), "true", options=SHORT) as waiting:
            _await_look(client)
            # as after a restart from a snapshot, or with a replica that lags
            client.set(f"{LOCK}::released", "redbeat:3:elsewhere:1:1:before", px=60_000)
            client.delete(LOCK)
            waiting.wait_for("it is started in 3 s")
            assert waiting.wait() == 0


def test_the_mark_of_the_holder_that_was_seen_tells_that_it_has_released(server: Server) -> None:
    with server.client() as client:
        _hold_elsewhere(client)
        with start_singleton(server.url(), "true", options=SHORT) as waiting:
            _await_look(client)
            with client.pipeline() as release:
                release.set(f"{LOCK}::released", HOLDER, px=60_000)
                release.delete(LOCK)
                release.execute()
            assert waiting.wait() == 0
            assert "may still be running elsewhere" not in waiting.output()


def test_one_that_is_stopped_while_it_holds_the_lock_for_another_s_command_leaves_the_lock(
    server: Server,
) -> None:
    with server.client() as client:
        _hold_elsewhere(client)
        with start_singleton(server.url(), "true") as waiting:
            _await_look(client)
            client.delete(LOCK)
            waiting.wait_for("it is started in 10 s")
            waiting.signal(signal.SIGTERM)
            assert waiting.wait() == 128 + signal.SIGTERM
            assert client.pttl(LOCK) > 0
            assert not client.exists(f"{LOCK}::released")


def test_ctrl_c_reaches_a_shell_s_child_as_it_would_in_a_terminal(server: Server) -> None:
    script = "sleep 60; echo went on"
    with start_singleton(server.url(), "bash", "-c", script) as singleton:
        singleton.wait_for("Started")
        eventually(lambda: _has_children(singleton))
        singleton.signal(signal.SIGINT)
        assert singleton.wait() == 128 + signal.SIGINT
        assert "went on" not in singleton.output()


def _children(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _has_children(singleton: Process, user: int = 0) -> bool:
    """Whether the command itself runs something already, as this user."""
    [watchdog] = _children(singleton.pid)
    [command] = _children(watchdog)
    return any(Path(f"/proc/{child}").stat().st_uid == user for child in _children(command))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_in_the_instant_of_the_start_is_not_lost(server: Server, moment: str) -> None:
    program = f"""
import os, signal
from redbeat.singleton import command as singleton
from redbeat.singleton import watchdog
tell = watchdog.WatchdogProcess.tell
def tell_and_be_hit(self, line):
    for when in ("before", "after"):
        if line.startswith("start") and when == {moment!r}:
            os.kill(os.getpid(), signal.SIGTERM)
        if when == "before":
            tell(self, line)
watchdog.WatchdogProcess.tell = tell_and_be_hit
singleton.main()
"""
    command = [sys.executable, "-c", program, "--url", server.url(), "--lock", LOCK]
    with Process([*command, "--", "sleep", "3600"]) as singleton:
        assert singleton.wait() == 128 + signal.SIGTERM


@NEEDS_ROOT
def test_a_command_that_has_changed_its_user_is_reported_and_its_lock_kept(server: Server) -> None:
    require_program("setpriv")
    command = ("setpriv", "--reuid", "4712", "sleep", "6")
    with (
        server.client() as client,
        start_singleton(server.url(), *command, options=SHORT, prefix=UNPRIVILEGED) as singleton,
    ):
        singleton.wait_for("Started")
        eventually(lambda: _user_of_the_command(singleton) == 4712)
        singleton.signal(signal.SIGTERM)
        singleton.wait_for("can't be signalled. What runs as another user can't be stopped in time")
        assert client.exists(LOCK)
        assert singleton.wait() == 0, "it has ended by itself"
        assert not client.exists(LOCK)


@NEEDS_ROOT
def test_the_lock_is_not_released_while_a_part_of_the_command_cannot_be_killed(server: Server) -> None:
    require_program("setpriv")
    command = ("sh", "-c", "setpriv --reuid 4712 sleep 10 & echo ready; wait")
    with (
        server.client() as client,
        start_singleton(server.url(), *command, options=SHORT, prefix=UNPRIVILEGED) as singleton,
    ):
        singleton.wait_for("ready")
        eventually(lambda: _has_children(singleton, user=4712))
        singleton.signal(signal.SIGTERM)
        assert singleton.wait() == 128 + signal.SIGTERM
        assert "A process that it has left can't be killed" in singleton.output()
        assert client.get(LOCK)
        assert not client.exists(f"{LOCK}::released")


def _user_of_the_command(singleton: Process) -> int:
    [watchdog] = _children(singleton.pid)
    [command] = _children(watchdog)
    return Path(f"/proc/{command}").stat().st_uid


def test_many_inherited_files_are_no_trouble(server: Server, tmp_path: Path) -> None:
    many = (
        "import os, sys; [os.dup2(0, file) for file in range(3, 1200)]; os.execv(sys.argv[1], sys.argv[1:])"
    )
    prefix = ("bash", "-c", 'ulimit -n 4096; exec "$@"', "-", sys.executable, "-c", many)
    with start_singleton(server.url(), *writer(tmp_path / "written"), prefix=prefix) as singleton:
        eventually(lambda: writes(tmp_path / "written"))
        singleton.stop()
        assert not has_traceback(singleton.output())


def test_a_waiting_one_tells_who_it_waits_for(server: Server) -> None:
    with server.client() as client:
        client.set(LOCK, "somebody's")
        with start_singleton(server.url(), "true") as waiting:
            waiting.wait_for("a program other than RedBeat 3 holds the lock, which never expires")
            client.set(LOCK, HOLDER, px=30_000)
            assert waiting.output().count("Standing by") == 1


def test_a_release_between_two_commands_of_one_look_is_no_lost_lock(server: Server) -> None:
    program = f"""
from redbeat.leadership import lock
from redbeat.singleton import command as singleton
holder = lock.LeaderLock.holder
def holder_after_a_release(self, *mark):
    if not mark:
        return holder(self)
    with self._store.client.pipeline() as release:
        release.set(mark[0], {HOLDER!r}, px=60_000)
        release.delete(self.key)
        release.execute()
    return holder(self, *mark)
lock.LeaderLock.holder = holder_after_a_release
singleton.main()
"""
    with server.client() as client:
        _hold_elsewhere(client)
        command = [sys.executable, "-c", program, "--url", server.url(), "--lock", LOCK]
        with Process([*command, "--", "true"]) as waiting:
            assert waiting.wait() == 0
            assert "may still be running elsewhere" not in waiting.output()


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
