"""Commands as child processes: how they are started. `python -m celery …` without half a second of imports.

Such a one is forked by a process that has done the imports, the template. Invariant: the template has
imported modules and done nothing else: it has no thread, no app and no connection. What it forks is a process
like any other, with a session, an environment and a directory of its own.

Whatever is started dies with this process (on Linux the kernel sees to it).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

#: of `python -m`: what is forked
_PROGRAMS = ("celery", "redbeat.singleton")
_IMPORTED = (
    *("celery.bin.celery", "celery.apps.beat", "celery.apps.worker", "celery.concurrency.solo"),
    *("celery.concurrency.thread", "celery.backends.base", "celery.events.state", "celery.fixups.django"),
    *("kombu.transport.redis", "kombu.transport.pyamqp", "redbeat.schedulers", "redbeat.singleton.runner"),
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Forked:
    """As much of `subprocess.Popen` as is needed here.

    Its pid is no other process's until `forget`, or until this object is gone.
    """

    def __init__(self, command: Sequence[str], answers: socket.socket) -> None:
        self._command, self._answers = command, answers
        self.pid = int(answers.recv(20))
        self.returncode: int | None = None

    def forget(self) -> None:
        """Let the pid be another's, when it has ended. Harmless when repeated."""
        self._answers.close()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._command, timeout or 0)
            # there is none where the template was killed, and everything with it
            self.returncode = int(self._answers.recv(20) or -signal.SIGKILL)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(
    command: Sequence[str],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    streams: Sequence[int] = (subprocess.DEVNULL, 1, 2),
) -> subprocess.Popen[bytes] | Forked:
    """Start it in a session of its own; `streams` are its standard input, output and errors.

    `env` is its whole environment; by default, that of this process.
    """
    environment = dict(os.environ if env is None else env)
    if _Template.can_start(command, environment):
        return _Template.get().start(command, str(cwd or Path.cwd()), environment, streams)
    parent = os.getpid()
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        start_new_session=True,
        preexec_fn=lambda: _settle(parent),  # noqa: PLW1509 - takes no lock that another thread could hold
    )


def _settle(parent: int) -> None:
    """In the new process: die with its parent, and have the terminal, where that is its standard input."""
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored where the tests run in the background
        signal.signal(number, signal.SIG_DFL)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _die_with(parent)


def _die_with(parent: int) -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)


class _Template:
    """The process that forks, as it is seen from here: started when it is first needed."""

    _one: _Template | None = None

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs.fileno()]}
            self.popen = subprocess.Popen(command, cwd=ROOT, env=environment, **files)
        self.settings = _read_once(os.environ)

    @classmethod
    def get(cls) -> _Template:
        if cls._one is None or cls._one.popen.poll() is not None:
            cls._one = cls()
        return cls._one

    @classmethod
    def can_start(cls, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        return (
            list(command[:2]) == [sys.executable, "-m"]
            and command[2] in _PROGRAMS
            and sys.platform == "linux"
            # the kernel ends what a thread has started with that thread
            and threading.current_thread() is threading.main_thread()
            and _read_once(environment) == cls.get().settings
        )

    def start(
        self, command: Sequence[str], cwd: str, environment: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"command": command[2:], "cwd": cwd, "environment": environment}
        nothing = os.open(os.devnull, os.O_RDWR)
        files = [nothing if stream == subprocess.DEVNULL else stream for stream in streams]
        with theirs:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*files, theirs.fileno()])
        os.close(nothing)
        return Forked(command, answers)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment counts only while a program is loaded, but for what `_be_template` sees to."""
    names = ("PYTHON", "LD_", "LC_", "LANG")
    own = {name: value for name, value in environment.items() if name.startswith(names)}
    return {**own, "PYTHONPATH": "", "PYTHONUNBUFFERED": "", "PYTHONFAULTHANDLER": ""}


# -- in the template, and in what it forks


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it, in the process that is to become the command."""
    template = os.getpid()
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1_000_000, 4)
        if not message:
            os._exit(0)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        requests.close()
        _die_with(template)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        *streams, answers = files
        guard = os.getpid()
        if pid := os.fork():  # the guard, outside of the command's group, tells its end
            for file in streams:
                os.close(file)
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with contextlib.suppress(OSError):  # nobody wants to know
                os.write(answers, str(code).encode())
                os.read(answers, 1)  # until it is forgotten, it keeps its pid
            os.waitpid(pid, 0)
            os._exit(0)
        os.setsid()
        for number, file in enumerate(streams):
            os.dup2(file, number)
        for file in set(streams):
            os.close(file)
        _settle(guard)
        os.write(answers, str(os.getpid()).encode())
        os.close(answers)
        return dict(json.loads(message))


def _be_template() -> None:
    number, parent = map(int, sys.argv[1:])
    _die_with(parent)
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    request = _serve(socket.socket(fileno=number))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    _open_streams(bool(os.environ.get("PYTHONUNBUFFERED")))
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    module, *sys.argv[1:] = request["command"]
    sys.path[:1] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _open_streams(is_unbuffered: bool) -> None:
    """Anew: Python's own know of the template's files whether they are terminals, and can be sought in."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        known, is_output = getattr(sys, name), number > 0
        buffering = 0 if is_unbuffered and is_output else -1
        binary = open(number, "wb" if is_output else "rb", buffering, closefd=False)  # noqa: SIM115
        is_by_line = number == 2 or binary.isatty()
        text = io.TextIOWrapper(binary, known.encoding, known.errors, None, is_by_line, is_unbuffered)  # type: ignore[arg-type]
        setattr(sys, name, text)


if __name__ == "__main__":
    _be_template()
