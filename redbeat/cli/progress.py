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
        self._title, self._total = title, total
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._is_wanted = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        self.done = done
        if not self._is_wanted or time.monotonic() - self._began < PATIENCE_SECONDS:
            return
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        self._bar.update(self._task, completed=done)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def meter(title: str, total: int | None = None) -> Iterator[Meter]:
    """Yield a function to call with the number of things that are done."""
    made = Meter(title, total)
    try:
        yield made
    finally:
        made.end()
