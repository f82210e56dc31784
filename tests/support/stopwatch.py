"""What a call cost: told apart by what the machine's other programs can't add to.

A clock on the wall counts them, too. So a limit is for one of these: `processor_seconds`, of this process at
work; `asleep_seconds`, of this thread waiting for an answer, a lock or a timer. The time in which it was
ready to go on, and another program had the processor, is in neither.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Stopwatch", "effort", "lines_run"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _busy_seconds() -> float:
    """How long this thread has been at work, or ready for it; where the system can't tell: at work."""
    if not _SCHEDSTAT.exists():
        return time.thread_time()
    at_work, ready, _ = map(int, _SCHEDSTAT.read_text().split())
    return (at_work + ready) / 1e9


class Stopwatch:
    """A block that is measured; the figures are there when it has ended, in this thread."""

    seconds = 0.0
    processor_seconds = 0.0
    asleep_seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic(), time.process_time(), _busy_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        wall, work, busy = self._began
        self.seconds = time.monotonic() - wall
        self.processor_seconds = time.process_time() - work
        self.asleep_seconds = max(self.seconds - (_busy_seconds() - busy), 0.0)

    def __str__(self) -> str:
        return (
            f"{self.seconds:.2f} s, {self.processor_seconds:.2f} s of them at work, "
            f"{self.asleep_seconds:.2f} s asleep"
        )


def effort(call: Callable[[], object], repeats: int = 3) -> float:
    """Processor seconds that the call takes: the least of so many, to be compared with another's.

    Never 0, so that it may be divided by.
    """
    found = []
    for _ in range(repeats):
        with Stopwatch() as watch:
            call()
        found.append(watch.processor_seconds)
    return max(min(found), 1e-7)


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python the call takes: the same on any machine, however busy."""
    count = 0

    def trace(_frame: object, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
