"""Another's work on every processor, so that each program of a run gets about half of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.processes import Process

#: the loops end by themselves after this time, whatever becomes of the run
_LIMIT_SECONDS = 2 * 3600

_LOOP = f"""
import os, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {{int(sys.argv[1])}})
end = time.monotonic() + {_LIMIT_SECONDS}
while time.monotonic() < end:
    pass
"""


@contextmanager
def busy_processors() -> Iterator[int]:
    """Keep a loop running on each processor, at the same priority, in the block; yield how many they are."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    with ExitStack() as stack:
        for processor in processors:
            stack.enter_context(Process([sys.executable, "-c", _LOOP, str(processor)]))
        yield len(processors)
