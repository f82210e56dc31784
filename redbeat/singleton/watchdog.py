"""The watchdog: a small process that runs the command of ``redbeat-singleton``, and ends it in time.

Both ends of the protocol between it and its runner are here. It owns the command and its process group. It is
a process of its own so that it can act when the runner can't, because that is paused, waits for a dead
network, or was killed.
Invariant: whatever happens to the runner, the group is gone before another machine may hold the lock.

It is run as a file, and imports only the standard library: no redis, no Celery, no settings.

The runner sends these lines; the end of the file means that the runner is gone:

``start UNTIL``, ``lives UNTIL``
    Run the command; the lock lives until that time, by :func:`now`.
``signal NUMBER``
    Pass a signal on to the command; SIGINT to its whole group, as a terminal does.
``kill``
    Kill the whole group at once: another machine has the lock.

It sends these lines:

``started PID``
    The command runs.
``failed REASON``
    It can't be started.
``denied``
    It runs as another user now, and can't be signalled.
``ending``
    The lock runs out, so the command is being ended.
``ended STATUS CAUSE``
    The group is gone. STATUS is the command's exit code, or 128 and the signal's number; CAUSE is ``itself``,
    ``deadline`` or ``order``. A third word, ``survived``, means that a part of the group can't be killed.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

#: the longest sleep while a command runs, and so the time after which a suspended machine is noticed
MAX_SLEEP_SECONDS = 0.25

#: how often a group that is being ended is checked
LOOK_SECONDS = 0.02

#: how long to wait for a group to end after SIGKILL; a process may hang in the kernel, on a dead disk, say
LINGER_SECONDS = 2.0

#: from linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return the seconds of a clock that all processes share, and that runs while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def wait_readable(files: list[int], seconds: float | None) -> list[int]:
    """Return which of the file descriptors can be read, after ``seconds`` at the most (None: no limit)."""
    poll = select.poll()  # not select(), which can't use descriptors above 1023
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))]


class Running:
    """A command that was started and whose group isn't gone yet.

    Attributes:
        group: the id of its process, and of the group that it leads.
        lives_until: when the lock ends.
        status: the command's exit code; None: it hasn't ended.
        cause: why it has ended.
        is_denied: the runner was told that it can't be signalled.
        kill_at: when the group is killed; None: it isn't being ended.
        killed_at: when SIGKILL was first sent; None: it wasn't.
    """

    def __init__(self, popen: subprocess.Popen[bytes], lives_until: float) -> None:
        self.popen = popen
        self.group = popen.pid
        self.lives_until = lives_until
        self.status: int | None = None
        self.cause = "itself"
        self.is_denied = False
        self.kill_at: float | None = None
        self.killed_at: float | None = None


class Watchdog:
    """Runs one command after the other, always the same one.

    Arguments:
        command: the program and its arguments.
        control: the file descriptor from which the runner's lines are read.
        report: the file descriptor to which lines for the runner are written.
        grace_seconds: the time from SIGTERM to SIGKILL.
        margin_seconds: how long before the lock's end the group must be gone.
    """

    def __init__(
        self, command: list[str], control: int, report: int, grace_seconds: float, margin_seconds: float
    ) -> None:
        self._command = command
        self._control = control
        os.set_blocking(control, False)
        self._report = report
        self._grace_seconds = grace_seconds
        self._margin_seconds = margin_seconds
        self._unread = b""
        self._is_orphan = False
        self._running: Running | None = None
        self._wakeup, waker = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._prctl = _find_prctl()
        if self._prctl is not None:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1)  # processes that a command leaves behind are reaped here

    def run(self) -> None:
        """Follow the runner's orders, until the runner and the group are gone."""
        while not self._is_orphan or self._running is not None:
            self._wait()
            self._reap()
            if self._running is not None:
                self._watch(self._running)

    def _wait(self) -> None:
        sources = [self._wakeup] if self._is_orphan else [self._wakeup, self._control]
        ready = wait_readable(sources, self._seconds_to_sleep())
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        if self._control in ready:
            self._read()

    def _seconds_to_sleep(self) -> float | None:
        running = self._running
        if running is None:
            return None
        if running.kill_at is not None or running.status is not None:
            return LOOK_SECONDS
        return max(min(self._end_by(running.lives_until) - now(), MAX_SLEEP_SECONDS), 0)

    def _end_by(self, lives_until: float) -> float:
        """Return when the command must be told to end, for a lock that lives until ``lives_until``."""
        return lives_until - self._margin_seconds - self._grace_seconds

    def _read(self) -> None:
        read = b""
        with suppress(BlockingIOError):  # all lines, as after a pause the last one counts
            while more := os.read(self._control, 65536):
                read += more
            self._is_orphan = True
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            self._obey(word, value)
        if self._is_orphan and self._running is not None:
            self._end(self._running, "order")

    def _obey(self, word: str, value: str) -> None:
        running = self._running
        if word == "start":
            self._start(float(value))
        elif running is None:
            pass  # the command has ended meanwhile
        elif word == "lives":
            running.lives_until = float(value)
        elif word == "signal" and running.status is None:
            # SIGINT goes to the group: a shell that waits for its child goes on unless the child gets it, too
            self._signal(running, int(value), os.killpg if int(value) == signal.SIGINT else os.kill)
        elif word == "kill":
            self._end(running, "order", grace_seconds=0)

    def _start(self, lives_until: float) -> None:
        if now() >= self._end_by(lives_until):  # the runner was paused before it sent the line
            self._tell("ended 0 deadline")
            return
        try:
            popen = subprocess.Popen(  # noqa: S603 - the command is what this is for
                self._command,
                start_new_session=True,
                preexec_fn=self._die_with_parent,  # noqa: PLW1509 - the watchdog has one thread
            )
        except OSError as exc:
            self._tell(f"failed {exc.strerror}")
            return
        self._running = Running(popen, lives_until)
        self._tell(f"started {popen.pid}")

    def _die_with_parent(self) -> None:
        """In the child: let the kernel kill it when the watchdog dies."""
        if self._prctl is not None:
            watchdog = os.getppid()
            self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != watchdog:
                os.kill(os.getpid(), signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self._running is not None and pid == self._running.group:
                    code = os.waitstatus_to_exitcode(wait_status)
                    self._running.status = code if code >= 0 else 128 - code
                    # or it would look for its process when it is dropped
                    self._running.popen.returncode = code

    def _watch(self, running: Running) -> None:
        moment = now()
        if running.kill_at is None and moment >= self._end_by(running.lives_until):
            self._tell("ending")
            self._end(running, "deadline")
        latest = running.lives_until - self._margin_seconds
        if running.kill_at is not None and moment >= min(running.kill_at, latest):
            running.killed_at = running.killed_at or moment
            self._signal(running, signal.SIGKILL)
        if running.status is None:
            return
        is_over = running.killed_at is not None and moment > running.killed_at + LINGER_SECONDS
        is_alive = self._is_alive(running)
        if is_alive and not is_over:
            self._end(running, running.cause)  # ends processes that the command has left behind
            return
        self._running = None
        self._tell(f"ended {Ended(running.status, running.cause, is_alive)}")

    def _end(self, running: Running, cause: str, grace_seconds: float | None = None) -> None:
        """Send SIGTERM to the group, and SIGKILL later; a second call can only make SIGKILL come earlier."""
        kill_at = now() + (self._grace_seconds if grace_seconds is None else grace_seconds)
        if running.kill_at is not None:
            running.kill_at = min(running.kill_at, kill_at)
            return
        running.kill_at = kill_at
        if running.status is None:
            running.cause = cause
        self._signal(running, signal.SIGTERM)

    def _signal(self, running: Running, number: int, send: Callable[[int, int], None] = os.killpg) -> None:
        """Send a signal to the group, or to the process with ``os.kill`` as ``send``."""
        try:
            send(running.group, number)
        except ProcessLookupError:
            pass
        except PermissionError:  # the command runs as another user now
            if not running.is_denied:
                self._tell("denied")
            running.is_denied = True

    @staticmethod
    def _is_alive(running: Running) -> bool:
        try:
            os.killpg(running.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _tell(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the runner is gone
            os.write(self._report, f"{line}\n".encode())


class Ended(NamedTuple):
    """How a command has ended: the words of the line ``ended``."""

    status: int
    cause: str
    has_survived: bool

    @classmethod
    def of(cls, value: str) -> Ended:
        status, cause, *survivor = value.split()
        return cls(int(status), cause, bool(survivor))

    def __str__(self) -> str:
        return f"{self.status} {self.cause}{' survived' if self.has_survived else ''}"


class WatchdogProcess:
    """The watchdog as its runner sees it; a context manager that ends the command at its end.

    Arguments:
        command, grace_seconds, margin_seconds: as for :class:`Watchdog`.
    """

    def __init__(self, command: list[str], grace_seconds: float, margin_seconds: float) -> None:
        self._patience_seconds = grace_seconds + LINGER_SECONDS + 1
        control, self._control = os.pipe()
        os.set_blocking(self._control, False)  # a paused watchdog must not block its runner
        self._report, report = os.pipe()
        options = [str(control), str(report), str(grace_seconds), str(margin_seconds)]
        self._popen = subprocess.Popen(  # noqa: S603 - this file, and the command as a list
            [sys.executable, "-I", "-S", __file__, *options, *command],
            pass_fds=(control, report),
            start_new_session=True,  # so that Ctrl-C and Ctrl-Z reach the runner only
        )
        os.close(control)
        os.close(report)
        self._unread = b""
        self._group = 0
        self._has_killed = False

    def __enter__(self) -> WatchdogProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._control)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(self._patience_seconds)
        os.close(self._report)

    def reap_strangers(self) -> None:
        """In process 1, reap other processes that became its children, as after ``docker exec``."""
        if os.getpid() != 1:
            return
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (found := os.waitid(os.P_ALL, 0, options)) is not None and found.si_pid != self._popen.pid:
                os.waitpid(found.si_pid, os.WNOHANG)

    def tell(self, line: str) -> None:
        """Send one line, in one write, so that a signal handler may do it at any time."""
        # broken: it was killed, which the next wait reports; blocking: it is paused, and the pipe is full
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._control, f"{line}\n".encode())

    def kill(self) -> None:
        """Kill the command at once, whatever the watchdog is doing."""
        self._has_killed = True
        self.tell("kill")
        self._kill_group()

    def _kill_group(self) -> None:
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def wait(self, seconds: float | None, wakeup: int) -> list[tuple[str, str]]:
        """Return the watchdog's lines, (word, value) each.

        ("gone", ""): it was killed, and the command with it; this kills the rest of its group. Waits at most
        ``seconds``, None: for ever, for a line, or until the file ``wakeup`` can be read.
        """
        patience = None if seconds is None else max(seconds, 0)
        ready = wait_readable([self._report, wakeup], patience)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if self._report not in ready:
            return []
        read = os.read(self._report, 4096)
        if not read:
            self._kill_group()
            return [("gone", "")]
        *lines, self._unread = (self._unread + read).split(b"\n")
        return [self._note(*line.decode().partition(" ")[::2]) for line in lines]

    def _note(self, word: str, value: str) -> tuple[str, str]:
        if word == "started":
            self._group, self._has_killed = int(value), False
        elif word == "ended":
            self._group = 0
            if self._has_killed:  # the watchdog was paused, and hasn't read the order
                value = str(Ended.of(value)._replace(cause="order"))
        return word, value


def _find_prctl() -> Any:
    """Return Linux's prctl; None: another system."""
    return getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing; used instead of SIG_IGN, which the command would inherit."""


def _main(arguments: list[str]) -> None:
    control, report, grace_seconds, margin_seconds, *command = arguments
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
            signal.signal(number, _ignore)  # the runner passes signals for the command on
    watchdog = Watchdog(command, int(control), int(report), float(grace_seconds), float(margin_seconds))
    watchdog.run()


if __name__ == "__main__":
    _main(sys.argv[1:])
