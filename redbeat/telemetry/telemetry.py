"""All that a running beat shows of itself, started and stopped together.

Invariant: a part that fails costs neither the tick nor the other parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from redbeat.process.background import surviving
from redbeat.process.memory import Memory


class Part(Protocol):
    """One thing that is shown. Both methods are called in the thread of the tick, and return at once."""

    def look(self) -> None:
        """Start what isn't running, and note what is news; called at each tick, so it must be quick."""

    def stop(self) -> None:
        """Stop; what is on its way has a second or two."""


class Telemetry:
    """The parts of one running beat."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = list(parts)
        self._said = Memory[str, str]()

    def look(self) -> None:
        """Start what isn't running: called at each tick of a running beat."""
        for part in self._parts:
            with surviving(type(part).__name__, self._said):
                part.look()

    def stop(self) -> None:
        """Stop all of them, the last one first; beat ends."""
        for part in reversed(self._parts):
            with surviving(type(part).__name__, self._said):
                part.stop()
