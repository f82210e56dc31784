"""A progress bar for what takes longer than a second, on stderr, and on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: the bar isn't shown earlier
PATIENCE_SECONDS = 1.0


class Meter:
    """Called with the number of things that are done; draws a bar once it has taken a while."""

    def __init__(self, title: str, total: int | None) -> None:
        self.done = 0
        self._shown_from = time.monotonic() + PATIENCE_SECONDS
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self._task = self._bar.add_task(title, total=total)

    def __call__(self, done: int) -> None:
        self.done = done
        self._bar.update(self._task, completed=done)
        if sys.stderr.isatty() and time.monotonic() >= self._shown_from:
            self._bar.start()

    def end(self) -> None:
        """Remove the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


@contextmanager
def meter(title: str, total: int | None = None) -> Iterator[Meter]:
    """Yield a function to call with the number of things that are done."""
    made = Meter(title, total)
    try:
        yield made
    finally:
        made.end()
