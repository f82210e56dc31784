"""All that a running beat shows of itself, started and stopped together.

Invariant: a part that fails costs neither the tick nor the other parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from redbeat.log.events import TELEMETRY_FAILED
from redbeat.log.logger import logger
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
            try:
                part.look()
            except Exception as exc:  # noqa: BLE001 - the boundary of a part
                self._report(part, exc)

    def stop(self) -> None:
        """Stop all of them; beat ends."""
        for part in self._parts:
            try:
                part.stop()
            except Exception as exc:  # noqa: BLE001 - the boundary of a part
                self._report(part, exc)

    def _report(self, part: Part, exc: Exception) -> None:
        """Log what a part has raised: once, until its text changes."""
        name = type(part).__name__
        if self._said.is_news(name, f"{type(exc).__name__}: {exc}"):
            logger.error(
                "beat: %s doesn't work now, and beat goes on without",
                name,
                exc_info=exc,
                extra=TELEMETRY_FAILED.of(part=name, reason=f"{type(exc).__name__}: {exc}"),
            )
