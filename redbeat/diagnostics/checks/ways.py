"""How many entries' messages aren't compiled, and why, judged by this program's code.

It is told only of so many that it may matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.diagnostics.ways import find_app_obstacle, find_entry_obstacle
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable, shorten

#: fewer entries leave quickly in any way
MANY = 100

#: how many reasons are told, and how many are counted apart: texts of entries may be in them
MAX_TOLD, MAX_COUNTED = 5, 1_000

_OTHERS = "other reasons"


class Ways:
    """Counts the entries whose messages go one by one."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._seen = 0

    def note_entry(self, context: Context, row: Row) -> Iterator[Finding]:
        """Note why the entry's own messages aren't compiled."""
        if row.entry is not None and context.has_tasks:
            self._seen += 1
            try:
                reason = find_entry_obstacle(context.app, row.entry)
            except Exception as exc:  # noqa: BLE001 - the application's own classes
                reason = type(exc).__name__
            if reason:
                is_known = reason in self._counts or len(self._counts) < MAX_COUNTED
                self._counts[reason if is_known else _OTHERS] += 1
        yield from ()

    def tell(self, context: Context) -> Iterator[Finding]:
        """Say how many there are, or that it is so with all of them."""
        if self._seen < MANY:
            return
        try:
            obstacle = find_app_obstacle(context.app)
        except Exception as exc:  # noqa: BLE001 - the application's own classes
            logger.debug("doctor: which way messages go isn't known: %r", exc)
            return
        if obstacle:
            problem = f"Those of all entries go one by one: {shorten(printable(obstacle))}."
        elif self._counts.total() >= MANY:
            told = [
                f"{shorten(printable(reason), 200)} ({count:,})"
                for reason, count in self._counts.most_common(MAX_TOLD)
            ]
            more = len(self._counts) - len(told)
            told += [f"and {counted(more, 'more reason', 'more reasons')}"] if more > 0 else []
            some = f"{self._counts.total():,} of {counted(self._seen)}"
            problem = f"Those of {some} go one by one: {'; '.join(told)}."
        else:
            return
        yield Finding(
            Severity.NOTE,
            "one-by-one",
            "messages",
            problem,
            "Nothing, unless many of them are due at once: then see the page on performance.",
        )
