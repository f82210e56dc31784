"""Clocks that lie: source for an app's module whose process sees another time of day than the server."""

from __future__ import annotations

from collections.abc import Sequence

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
