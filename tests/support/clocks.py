"""Clocks that lie: one that a process of an app sees, and a server's, which can jump."""

from __future__ import annotations

import atexit
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .machine import require_program

_SOURCE = """
import itertools, threading, time, time_machine

_shown = itertools.cycle({offsets})
_clock = time_machine.travel(time.time() + next(_shown)).start()


def _step():
    for offset in _shown:
        threading.Event().wait({pause_seconds})
        _clock.move_to(time_machine.escape_hatch.time.time() + offset)


threading.Thread(target=_step, daemon=True).start()
"""


def lying_clock(offsets_seconds: Sequence[float], pause_seconds: float = 0.3) -> str:
    """Source that sets the process's clock off by each of `offsets_seconds`, in turn, again and again.

    How long the process waits isn't changed: only a clock on the wall can be wrong.
    """
    return _SOURCE.format(offsets=list(offsets_seconds), pause_seconds=pause_seconds)


class ServerClock:
    """The clock on the wall of a server that is started with it; it can jump. Harmless to others.

    It needs a C compiler.
    """

    def __init__(self) -> None:
        self._library = _build_library()
        self._file = Path(tempfile.mkstemp(prefix="redbeat-clock-")[1])
        self._offset_seconds = 0
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        """What the server's process needs in its environment."""
        return {"LD_PRELOAD": str(self._library), "SERVER_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Set the clock forward by whole `seconds`, or back by them."""
        self._offset_seconds += seconds
        with self._file.open("r+b" if self._file.stat().st_size else "wb") as file:
            file.write(struct.pack("d", self._offset_seconds))

    def close(self) -> None:
        """Remove the file. A server that runs keeps its time."""
        self._file.unlink(missing_ok=True)


@cache
def _build_library() -> Path:
    compiler = require_program("cc", "gcc", purpose="to build a wrong clock of a server")
    directory = Path(tempfile.mkdtemp(prefix="redbeat-clock-"))
    library = directory / "server_clock.so"
    source = Path(__file__).with_name("server_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return library
