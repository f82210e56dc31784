"""Runs whose messages end the connection to the broker: they go last, and take little of a batch's time.

Invariant: a run of which nothing of that kind is known never waits for one of which something is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from redbeat.beat.planner import Run
from redbeat.process.memory import Memory

#: seconds of broken connections after which a batch leaves the runs that may break more of them
BATCH_SECONDS = 0.5


class Disruptions:
    """One beat's memory of what has ended connections, and its watch on the present batch."""

    def __init__(self) -> None:
        self._likenesses = Memory[tuple[Any, ...], bool](limit=1_000)
        self._seconds = 0.0
        self._run_began_at = 0.0

    def begin(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs of a batch in the order to send them in."""
        self._seconds = 0.0
        return self.order(runs)

    def order(self, runs: Iterable[Run]) -> list[Run]:
        """Return ``runs``, those last that have failed before, or are like one that broke a connection."""
        return sorted(runs, key=self._place)

    def _place(self, run: Run) -> int:
        if has_failed(run):
            return 2
        return 1 if self._likenesses and _likeness_of(run) in self._likenesses else 0

    def is_marked(self, run: Run) -> bool:
        """Tell whether ``run`` goes last."""
        return self._place(run) > 0

    def is_spent(self, run: Run) -> bool:
        """Tell whether ``run`` has to wait: it goes last, and the batch has had its time for such."""
        return self._seconds > BATCH_SECONDS and self.is_marked(run)

    def note_begun(self) -> None:
        """Take notice that a run is being sent now."""
        self._run_began_at = time.monotonic()

    def note_broken(self, run: Run) -> None:
        """Take notice that ``run`` has ended a connection."""
        self._seconds += time.monotonic() - self._run_began_at
        self._likenesses[_likeness_of(run)] = True

    def note_sent(self, run: Run) -> None:
        """Take notice that ``run`` has left: others like it may as well."""
        if self._likenesses:
            self._likenesses.pop(_likeness_of(run), None)


def has_failed(run: Run) -> bool:
    """Tell whether ``run`` couldn't be sent before."""
    return run.failure is not None and run.failure.attempts > 0


def _likeness_of(run: Run) -> tuple[Any, ...]:
    """Return what runs that are refused for one reason have in common: the task, and which options."""
    options = run.entry.options
    return run.entry.task, tuple(sorted(options)), tuple(sorted(map(str, options.get("headers") or ())))
