"""The boundary between tracking and the tasks of a worker.

Invariant: what fails behind it is logged, once for each kind of error, and goes no further.
"""

from __future__ import annotations

from types import TracebackType

from billiard.exceptions import SoftTimeLimitExceeded

from redbeat.log.logger import runs_logger
from redbeat.process.memory import Memory

_SAID = Memory[tuple[str, str], bool](1_000)


class Harmless:
    """A context in which an error is logged and forgotten; ``what`` can't be done then, in words."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Return whether there was an error; the task's time limit isn't one, nor is a SystemExit."""
        if not isinstance(error, Exception) or isinstance(error, SoftTimeLimitExceeded):
            return False
        note(self._what, error)
        return True


def note(what: str, error: BaseException) -> None:
    """Log that ``what`` can't be done, unless the same was logged already."""
    if _SAID.is_news((what, type(error).__name__), True):
        runs_logger.error(
            "runs: %s failed, and the task goes on: %s: %s",
            what,
            type(error).__name__,
            error,
            exc_info=error,
        )
