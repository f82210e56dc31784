"""The processor time that a process has taken, whichever process it is."""

from __future__ import annotations

import ctypes
import time


def processor_seconds(pid: int) -> float | None:
    """Processor time of the process and all its threads so far; None where the system can't tell: macOS."""
    find_clock = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)
    clock = ctypes.c_int()
    if find_clock is None or find_clock(ctypes.c_int(pid), ctypes.byref(clock)):
        return None
    return time.clock_gettime(clock.value)


def since(before: float | None, after: float | None) -> float | None:
    """What lies between two such times."""
    return None if before is None or after is None else after - before
