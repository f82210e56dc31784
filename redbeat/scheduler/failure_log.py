"""The log of runs that couldn't be sent: the first ones of each kind of error, and then only how many more.

The first runs of a kind have a line each. The others are counted, and logged together after a while; then
once a minute as long as there are more. A kind of which there was none for so long is new again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from redbeat.log.events import RUN_FAILED_TO_SEND, RUN_LOST, RUN_SKIPPED, RUNS_FAILED, LogEvent
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable, shorten
from redbeat.scheduler.decisions import Send

#: how many runs of a kind have a line each, and how many entries are named in the line about the others
NAMED_ALONE, NAMED_TOGETHER = 3, 10
#: when the others are logged first, and how often after that; seconds
FIRST_SECONDS, SECONDS = 5.0, 60.0
#: how many kinds are told apart; all others are one more
MAX_KINDS = 100


@dataclass
class _Kind:
    """One kind of error.

    Attributes:
        logged: how many of its runs had a line.
        counted: how many others there are since the last line about them.
        names: of the first entries among these.
        reason: why the last one failed.
        log_at: when to log them, or to forget the kind; monotonic.
    """

    log_at: float
    logged: int = 0
    counted: int = 0
    names: dict[str, None] = field(default_factory=dict)
    reason: str = ""


class FailureLog:
    """What one beat has logged of runs that couldn't be sent."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def report_skipped(self, run: Send, reason: str, kind: str) -> None:
        """Log that ``run`` is skipped, as the application's own code has raised an error of this kind."""
        if self._has_line("Skipped", run, reason, kind):
            due = float(run.nominal)
            logger.error(
                "beat: Skipped a run of %s (%s), its own code raised an error: %s",
                run.name,
                run.task,
                reason,
                extra=RUN_SKIPPED.of(entry=run.name, task_id=run.task_id, due=due, reason=reason),
            )

    def report_unsent(self, run: Send, reason: str, kind: str) -> None:
        """Log that ``run`` couldn't be sent because of an error of this kind, and is tried again."""
        if self._has_line("Couldn't send", run, reason, kind):
            attempts = (0 if run.failure is None else run.failure.attempts) + 1
            logger.error(
                "beat: Couldn't send %s (%s), trying again: %s",
                run.name,
                run.task,
                reason,
                extra=_extra(RUN_FAILED_TO_SEND, run, reason, attempts=attempts),
            )

    def report_lost(self, run: Send, reason: str) -> None:
        """Log that ``run`` is recorded as sent, and its message could not be sent; each has a line."""
        logger.error(
            "beat: Lost a run of %s (%s), as redbeat_delivery is 'at_most_once': %s",
            run.name,
            run.task,
            reason,
            extra=_extra(RUN_LOST, run, reason),
        )

    def _has_line(self, what: str, run: Send, reason: str, kind: str) -> bool:
        """Count ``run``; return True if it has a line of its own."""
        if (what, kind) not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = ""
        found = self._kinds.setdefault((what, kind), _Kind(time.monotonic() + FIRST_SECONDS))
        if found.logged < NAMED_ALONE:
            found.logged += 1
            return True
        found.counted, found.reason = found.counted + 1, reason
        if len(found.names) < NAMED_TOGETHER:
            found.names[run.name] = None
        return False

    def log_counted(self, *, is_ending: bool = False) -> None:
        """Log the runs that were counted for long enough; to be called often.

        Arguments:
            is_ending: beat ends, so that this is the last time.
        """
        now = time.monotonic()
        for (what, kind), found in list(self._kinds.items()):
            if now < found.log_at and not is_ending:
                continue
            if not found.counted:
                del self._kinds[what, kind]
                continue
            names = ", ".join(printable(shorten(name, 100)) for name in found.names)
            logger.error(
                "beat: %s %s by the same kind of error, the last: %s (%s%s)",
                what,
                counted(found.counted, "more run", "more runs"),
                found.reason,
                names,
                ", ..." if found.counted > len(found.names) else "",
                extra=RUNS_FAILED.of(count=found.counted, entries=list(found.names), reason=found.reason),
            )
            found.counted, found.log_at = 0, now + SECONDS
            found.names.clear()


def _extra(event: LogEvent, run: Send, reason: str, **fields: int) -> dict[str, dict[str, Any]]:
    task_id, due = run.task_id, float(run.nominal)
    return event.of(entry=run.name, task=run.task, task_id=task_id, due=due, reason=reason, **fields)
