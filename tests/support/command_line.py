"""`celery redbeat …`: in this process, as a command of its own, and on a terminal."""

from __future__ import annotations

import inspect
import os
import pty
import select
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner, Result

from redbeat.cli import redbeat

from .deadlines import PATIENCE_SECONDS, patience
from .starting import start

ROOT = Path(__file__).parents[2]


def call(app: Any, *arguments: str, columns: int | None = None) -> Result:
    """`celery redbeat` with these arguments, in this process."""
    context = SimpleNamespace(app=app, no_color=True)
    env = {"COLUMNS": None if columns is None else str(columns)}
    is_mixing = "mix_stderr" in inspect.signature(CliRunner).parameters  # click before 8.2
    runner = CliRunner(env=env, **({"mix_stderr": False} if is_mixing else {}))
    return runner.invoke(redbeat, list(arguments), obj=context)


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE_SECONDS,
) -> CompletedProcess[str]:
    """Run a command of its own to its end, with `env` laid over this process's environment.

    Raises subprocess.TimeoutExpired where it doesn't end.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        streams = (DEVNULL, output.fileno(), errors.fileno())
        process = start(command, cwd, {**os.environ, **(env or {})}, streams)
        try:
            code = process.wait(patience(timeout))
        finally:
            process.send_signal(signal.SIGKILL)
        texts = [os.pread(stream, os.fstat(stream).st_size, 0).decode() for stream in streams[1:]]
    return CompletedProcess(command, code, *texts)


def installed(directory: Path) -> dict[str, str]:
    """Return the environment in which Celery finds the command of this source tree."""
    site = directory / "site" / "celery_redbeat-3.dist-info"
    site.mkdir(parents=True, exist_ok=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-redbeat\nVersion: 3\n")
    (site / "entry_points.txt").write_text("[celery.commands]\nredbeat = redbeat.cli:redbeat\n")
    paths = [str(site.parent), str(ROOT), str(directory), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Terminal:
    """A command on a pseudo terminal: what it shows, and what is typed."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.shown = ""
        self._file, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm-256color", "LINES": "40", "COLUMNS": "120", **env}
        if "NO_COLOR" not in env:
            environ.pop("NO_COLOR", None)
        self._process = start(command, cwd, environ, (theirs, theirs, theirs))
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._file)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def wait_for(self, *texts: str, timeout: float = PATIENCE_SECONDS) -> None:
        """Read until one of `texts` is shown; AssertionError with all that was shown if none is."""
        deadline = time.monotonic() + patience(timeout)
        while not any(text in self.shown for text in texts):
            if not self._read(deadline):
                raise AssertionError(f"none of {texts!r} was shown, but:\n{self.shown}")

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Read until its end; return its exit code."""
        deadline = time.monotonic() + patience(timeout)
        while self._read(deadline):
            pass
        return self._process.wait()

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._file], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise AssertionError(f"it still runs; shown was:\n{self.shown}")
        try:
            piece = os.read(self._file, 65_536)
        except OSError:  # how Linux tells the end
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)


def celery_arguments(module: str, *arguments: str) -> list[str]:
    """The command `celery -A module redbeat` with these arguments."""
    return [sys.executable, "-m", "celery", "-A", module, "redbeat", *arguments]
