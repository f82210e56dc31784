"""What a call cost, without what the machine's other programs add.

`asleep_seconds` is how long this thread waited for an answer, a lock or a timer: not the time in which it was
ready to go on, and another program had the processor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _busy_seconds() -> float:
    """Return how long this thread has been at work or ready for it; without /proc, how long at work."""
    if not _SCHEDSTAT.exists():
        return time.thread_time()
    at_work, ready, _ = map(int, _SCHEDSTAT.read_text().split())
    return (at_work + ready) / 1e9


class Stopwatch:
    """Measure a block of this thread."""

    seconds = asleep_seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._began, self._busy = time.monotonic(), _busy_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began
        self.asleep_seconds = max(self.seconds - (_busy_seconds() - self._busy), 0.0)


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python the call executes, which is the same on a busy machine."""
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
