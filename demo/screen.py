"""What the demo prints: at most 100 columns, in colours on a terminal."""

import os
import statistics
import sys
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import cycle

from .tasks import Run

WIDTH = 96
BOLD, DIM, RED = "1", "2", "31"
ENTRY_COLOURS = cycle(("36", "33", "32", "35", "34"))  # cyan, yellow, green, magenta, blue
IS_COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ

# An entry's name, its runs, and its score: the next due time, below 0 for never, None when deleted.
Row = tuple[str, list[Run], float | None]


def paint(text: str, *codes: str) -> str:
    return f"\033[{';'.join(codes)}m{text}\033[0m" if IS_COLOURED and codes else text


def say(text: str = "", *codes: str) -> None:
    print(paint(text.rstrip(), *codes), flush=True)


def announce(seconds: float, title: str, lines: Iterable[str]) -> None:
    """A step of the story, and what a user would type for it."""
    say()
    say(f"── {seconds:.1f} s ── {title} ".ljust(WIDTH, "─"), BOLD)
    for line in lines:
        say(f"   {line}", DIM)


@cache
def colour_of(entry: str) -> str:  # noqa: ARG001 - the cache's key: each entry gets the next colour, and keeps it
    return next(ENTRY_COLOURS)


def clock(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds).astimezone().strftime("%H:%M:%S.%f")[:-3]


def show_run(run: Run) -> None:
    entry = paint(f"{run.entry:<18.18}", colour_of(run.entry))
    late = "" if run.late_ms is None else f"{run.late_ms:.0f} ms late"
    say(f"{paint(clock(run.started_at), DIM)}  {entry}  {run.words:<40.40}  {late:>18}")


def show_summary(rows: Iterable[Row]) -> None:
    say()
    say(f"{'entry':<22}{'runs':>6}{'late, median':>16}{'late, most':>14}   next run", BOLD)
    for name, runs, next_run in rows:
        entry = paint(f"{name:<22}", colour_of(name))
        late = [run.late_ms for run in runs if run.late_ms is not None]
        median = f"{statistics.median(late):.0f} ms" if late else "-"
        most = f"{max(late):.0f} ms" if late else "-"
        following = (
            "none: deleted" if next_run is None else "none: paused" if next_run < 0 else clock(next_run)
        )
        say(f"{entry}{len(runs):>6}{median:>16}{most:>14}   {following}")
