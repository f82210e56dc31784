"""Runs whose messages end the connection to the broker: they go last, and take little of a batch's time.

Such a run is marked: it couldn't be sent before, or it is like one that has ended a connection. Invariant: a
run that isn't marked never waits for one that is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from redbeat.beat.planner import OrdinaryRun, Run
from redbeat.process.memory import Memory

#: a batch that has lost this much time to broken connections leaves the marked runs due; seconds
BATCH_SECONDS = 0.5


class Disruptions:
    """Which runs have ended connections so far, and how long those of the present batch took."""

    def __init__(self) -> None:
        self._likenesses = Memory[tuple[Any, ...], bool](limit=1_000)
        self._seconds = 0.0
        self._run_began_at = 0.0

    def begin(self, runs: Sequence[Run]) -> list[Run]:
        """Begin a batch; return its ``runs`` in the order in which to send them."""
        self._seconds = 0.0
        return self.order(runs)

    def order(self, runs: Iterable[Run]) -> list[Run]:
        """Return ``runs`` with the marked ones last."""
        runs = list(runs)
        if not self._likenesses and all(run.failure is None for run in runs):
            return runs
        return sorted(runs, key=self._place)

    def _place(self, run: Run) -> int:
        if has_failed(run):
            return 2
        return 1 if self._likenesses and _likeness_of(run) in self._likenesses else 0

    def is_marked(self, run: Run) -> bool:
        """Tell whether ``run`` goes last, as it has failed or is like one that has ended a connection."""
        return self._place(run) > 0

    def is_spent(self, run: Run) -> bool:
        """Tell whether ``run`` stays due: it is marked, and the batch's time for such runs is spent."""
        return self._seconds > BATCH_SECONDS and self.is_marked(run)

    def note_begun(self) -> None:
        """Note that a run is being sent now."""
        self._run_began_at = time.monotonic()

    def note_broken(self, run: Run) -> None:
        """Note that ``run`` has ended a connection."""
        self._seconds += time.monotonic() - self._run_began_at
        self._likenesses[_likeness_of(run)] = True

    def note_sent(self, run: Run) -> None:
        """Note that ``run`` was sent: runs like it aren't marked any more."""
        if self._likenesses:
            self._likenesses.pop(_likeness_of(run), None)


def has_failed(run: Run) -> bool:
    """Tell whether ``run`` couldn't be sent before."""
    return run.failure is not None and run.failure.attempts > 0


def _likeness_of(run: Run) -> tuple[Any, ...]:
    """Return what makes runs alike: the task, and the names of its options and headers."""
    if not isinstance(run, OrdinaryRun):
        return (run.task,)
    options = run.entry.options
    return run.entry.task, tuple(sorted(options)), tuple(sorted(map(str, options.get("headers") or ())))
