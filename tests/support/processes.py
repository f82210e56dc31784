"""Real commands as child processes: started, watched by their output, and always ended by their own pid.

Invariant: a `Process` never outlives its parent, not even one ended by SIGKILL (`starting`), and its own
children never outlive it: it leads a session, and the group is killed when it has ended.
The kernel ties a child to the *thread* that started it: start processes in a thread that lives as long.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from .deadlines import PATIENCE_SECONDS, patience
from .polling import eventually
from .starting import Forked, start


def is_alive(pid: int) -> bool:
    """Whether any process has this pid and has not ended; one that nobody has reaped yet has ended."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it went away in between, or this system has no /proc
        return sys.platform != "linux"
    return state not in "ZX"


def _family_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children] + [one for child in children for one in _family_of(int(child))]


class Process:
    """A running command whose stdout and stderr are kept, together, for `output()`.

    `env` is laid over this process's environment. The output goes to a file without a name: there is no pipe
    to fill and nothing to clean up.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.command = [str(word) for word in command]
        self._log, path = tempfile.mkstemp(prefix="redbeat-log-")
        Path(path).unlink()
        weakref.finalize(self, os.close, self._log)
        self._has_ended = False
        #: whether one SIGTERM may not be enough, as for a beat of 2.x, which loses it amid a message
        self.may_miss_sigterm = False
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(env or {})}
        self._popen = start(self.command, cwd, environment, (subprocess.DEVNULL, self._log, self._log))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        code = self._popen.poll()
        if code is not None and not self._has_ended:
            self._has_ended = True
            self._kill_group()  # before its pid, which is the group's, can be another's
            if isinstance(self._popen, Forked):
                self._popen.forget()
        return code

    @property
    def is_running(self) -> bool:
        return self.returncode is None

    def output(self) -> str:
        """Everything it wrote so far; readable after its end too."""
        # pread: a seek here would move the offset at which the child writes.
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")

    def wait_for(self, pattern: str | re.Pattern[str], timeout: float = PATIENCE_SECONDS) -> re.Match[str]:
        """Wait until the output has the text, or matches the compiled expression.

        Raises AssertionError with the whole output after `timeout` seconds (on a quiet machine, as everywhere
        here; `deadlines`), or at once when it has ended.
        """
        regex = re.compile(re.escape(pattern)) if isinstance(pattern, str) else pattern
        timeout = patience(timeout)
        deadline = time.monotonic() + timeout
        while True:
            # before the output, so none is missed
            code, is_late = self.returncode, time.monotonic() >= deadline
            match = regex.search(self.output())
            if match:
                return match
            if code is not None:
                raise AssertionError(self._describe(f"ended with {code} before {regex.pattern!r} came"))
            if is_late:
                raise AssertionError(self._describe(f"did not write {regex.pattern!r} within {timeout:g} s"))
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its children; nothing when it has ended."""
        self._popen.send_signal(number)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Wait for its end and return its exit code; AssertionError with the output when it stays."""
        try:
            self._popen.wait(patience(timeout))
        except subprocess.TimeoutExpired as exc:
            raise AssertionError(self._describe(f"still runs after {patience(timeout):g} s")) from exc
        return self.returncode or 0

    def seconds_to_end(self, timeout: float = PATIENCE_SECONDS) -> float:
        """Send SIGTERM, wait for the end and return how long it took; AssertionError when it stays."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.wait(timeout)
        return time.monotonic() - began

    def family(self) -> list[int]:
        """The pids of its children and of theirs."""
        return _family_of(self.pid)

    def ends_of(self, family: list[int], timeout: float = PATIENCE_SECONDS) -> dict[int, float]:
        """Wait until these have ended, and return when each has, monotonic; AssertionError when one stays.

        To be called before its own end is asked for, as that ends what it has left behind.
        """
        ends: dict[int, float] = {}

        def have_ended() -> bool:
            ended = [pid for pid in family if pid not in ends and not is_alive(pid)]
            ends.update(dict.fromkeys(ended, time.monotonic()))
            return len(ends) == len(family)

        eventually(have_ended, timeout=timeout, interval=0.005)
        return ends

    def stop(self, timeout: float = PATIENCE_SECONDS) -> int:
        """SIGTERM, then an end by force after `timeout` seconds; returns the exit code. May be repeated.

        Where it must be ended by force, Python writes first where its threads are.
        """
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process would not see the SIGTERM
        if self.may_miss_sigterm:
            with contextlib.suppress(AssertionError):
                return self.wait(timeout / 2)
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except AssertionError:
            self.signal(signal.SIGABRT)
            with contextlib.suppress(AssertionError):
                self.wait(5)
            return self.kill()

    def kill(self) -> int:
        """SIGKILL to it and its children, as a crash would; returns the exit code."""
        if not self.is_running:
            return self.wait()
        family: list[int] = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # without /proc, or it ends just now
            family = self.family()
        self._kill_group()
        code = self.wait()
        # its children have its connections, and the server gives the next message to one that isn't closed
        self.ends_of(family)
        return code

    def __enter__(self) -> Process:
        """Leave with SIGTERM; a process that stays all the same is killed, and fails the test.

        Where the block has failed, what it has written is shown with the failure.
        """
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        by_force = (-signal.SIGKILL, -signal.SIGABRT)
        if self.is_running and self.stop() in by_force and error is None:
            raise AssertionError(self._describe("had to be killed, as it didn't end at SIGTERM"))
        if error is not None:
            print(self._describe(f"ended with {self.returncode} after the test had failed"))

    def _kill_group(self) -> None:
        # macOS answers PermissionError for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _describe(self, event: str) -> str:
        return f"{' '.join(self.command)}\n{event}; its output:\n{self.output()}"
