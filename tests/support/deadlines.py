"""How long the suite waits for what must come true: the one place that says so.

A deadline is here to end a test that will never pass. It is no claim, costs nothing where the claim holds,
and so it is long: a machine may be ten times slower than the one a test was written on, or have other things
to do. What a claim says about time is measured with a `Stopwatch`, or counted.
"""

from __future__ import annotations

import os
import time
from collections import deque

__all__ = ["PATIENCE_SECONDS", "patience"]

#: where nothing else is said
PATIENCE_SECONDS = 60.0
#: nothing is waited for any longer because the machine is busy: what hasn't come by then never does
LONGEST_SECONDS = 60.0


class Contention:
    """How many programs share a processor, this one included: from 1, an idle machine, to 5 at most.

    The most in the last minute, as far as was looked. REDBEAT_PATIENCE=3 in the environment: 3, whatever it
    seems to be; for machines that are slow throughout.
    """

    _WORK_SECONDS = 0.03
    _PAUSE_SECONDS = 5.0
    _VALID_SECONDS = 60.0

    def __init__(self) -> None:
        self._given = os.environ.get("REDBEAT_PATIENCE")
        self._looks: deque[tuple[float, float]] = deque()

    def look(self) -> float:
        if self._given:
            return float(self._given)
        began = time.monotonic()
        while self._looks and self._looks[0][0] < began - self._VALID_SECONDS:
            self._looks.popleft()
        if not self._looks or self._looks[-1][0] < began - self._PAUSE_SECONDS:
            works_until = time.thread_time() + self._WORK_SECONDS
            while time.thread_time() < works_until:
                pass
            ended = time.monotonic()
            self._looks.append((ended, min(max((ended - began) / self._WORK_SECONDS, 1.0), 5.0)))
        return max(found for _, found in self._looks)


_contention = Contention()


def patience(seconds: float = PATIENCE_SECONDS) -> float:
    """How long to wait on this machine, as busy as it is, for what takes `seconds` on a quiet one.

    That is up to five times as long, and up to a minute unless it is more on a quiet one.
    """
    return min(seconds * _contention.look(), max(seconds, LONGEST_SECONDS))
