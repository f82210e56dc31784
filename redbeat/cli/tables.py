"""What people see on a terminal: the list of entries, one entry, its runs. Values in, lines out.

Invariant: no text of an entry's is taken for markup, and a narrow terminal loses columns, not sense.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from itertools import chain, islice
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redbeat.cli.grid import (
    SAMPLE,
    UNLIMITED_WIDTH,
    Column,
    Row,
    cut_end,
    cut_middle,
    cut_start,
    lines_of,
)
from redbeat.entries.describe import description_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.entries.marks import clock_changes
from redbeat.entries.runs import Last
from redbeat.entries.wording import (
    clock,
    in_words_of,
    label_of,
    next_run_in_words,
    one_line,
    relative,
)
from redbeat.history import COUNTED_OUTCOMES, ENDED_OUTCOMES, FAILED_OUTCOMES
from redbeat.log.text import counted, printable, shorten

STATE_STYLES = {
    "scheduled": "green",
    "due": "cyan",
    "failing": "red",
    "paused": "yellow",
    "disabled": "yellow",
    "finished": "dim",
    "quarantined": "bold red",
    "missing": "red",
    "unscheduled": "red",
}

#: the width from which on a list has more columns; names and schedules come first
WITH_SCHEDULES, WITH_LAST_RUNS, WITH_DATES, WITH_TASKS, WITH_BOTH = 70, 100, 120, 80, 160
NEVER = UNLIMITED_WIDTH + 1
#: how much of a reason is shown below a row; ``show`` has all of it
_REASON = 300
#: how much of any other text is shown, also in a pipe, as it may be megabytes; --json has all of it
_PIPED = 1_000


def plain_table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def entries_lines(
    entries: Iterable[tuple[RedBeatSchedulerEntry, Last]], now: datetime, zone: tzinfo, console: Console
) -> Iterator[Text]:
    """Yield the table of ``entries``, with the columns for which there is room; times in ``zone``.

    The last outcomes are shown where runs are tracked; on a narrow terminal instead of how many runs there
    were.
    """
    width, coming = console.width, iter(entries)
    sample = list(islice(coming, SAMPLE))
    are_tracked = width >= UNLIMITED_WIDTH or any(last.outcome in ENDED_OUTCOMES for _, last in sample)
    with_dates = width >= WITH_DATES
    next_run, last_run = Column(titled("next run", zone, with_dates)), Column("last run")
    columns = {
        "name": (0, Column("name", share=4, cut=cut_middle)),
        "task": (WITH_TASKS, Column("task", share=2, cut=cut_start)),
        "schedule": (WITH_SCHEDULES, Column("schedule", share=3, cut=cut_end)),
        "next run": (0, next_run),
        "until then": (WITH_BOTH, Column("")),
        "last run": (WITH_LAST_RUNS, last_run),
        "runs": (WITH_LAST_RUNS if are_tracked else WITH_SCHEDULES, Column("runs", is_right=True)),
        "outcome": (WITH_SCHEDULES if are_tracked else NEVER, Column("outcome")),
        "state": (0, Column("state")),
    }
    shown = {title: column for title, (from_width, column) in columns.items() if width >= from_width}

    def rows() -> Iterator[Row]:
        for entry, last in chain(sample, coming):
            cells = {**_cells_of(entry, now, zone, width), "outcome": _outcome_cell(last, width)}
            yield Row([cells[title] for title in shown], below=_error_of(entry, zone, width))

    return lines_of(list(shown.values()), rows(), console, beside="error")


def _outcome_cell(last: Last, width: int) -> Text:
    """Return the last outcome, and how many runs have failed in a row.

    The number stands beside a failure only, as others, such as 'revoked', don't count. Where there is room,
    they are shown with the failures before them.
    """
    outcome = one_line(last.outcome or "")
    if not last.failures:
        return Text(outcome, style=style_of(outcome))
    if outcome in COUNTED_OUTCOMES:
        return Text(f"{outcome} ({last.failures})", style="red")
    before = f", {counted(last.failures, 'failure', 'failures')} before" if width >= WITH_DATES else ""
    return Text(f"{outcome}{before}", style="red")


def style_of(outcome: str) -> str:
    """Return the style of an outcome, or of the state of a run in progress."""
    if outcome in FAILED_OUTCOMES or outcome == "unsent":
        return "red"
    if outcome == "succeeded":
        return "green"
    return "" if outcome in ("sent", "started") else "yellow"


def titled(title: str, zone: tzinfo, with_dates: bool = True) -> str:
    return f"{title}, {label_of(zone)}" if with_dates else title


def _cells_of(entry: RedBeatSchedulerEntry, now: datetime, zone: tzinfo, width: int) -> dict[str, Text]:
    with_dates = width >= WITH_DATES
    next_run, until_then = next_run_in_words(entry, zone, now)
    last, state = entry.last_run_at if entry.total_run_count else None, entry.state or ""
    last_run = "" if last is None else clock(last, zone) if width >= WITH_BOTH else relative(last, now)
    return {
        "name": Text(printable(str(entry.name))),
        "task": Text(shorten(printable(entry.task or ""), _PIPED)),
        "schedule": Text(shorten(printable(description_of(entry, zone)), _PIPED)),
        "next run": Text(next_run if with_dates or next_run in ("never", "at once") else until_then or "-"),
        "until then": Text(until_then),
        "last run": Text(last_run),
        "runs": Text(str(entry.total_run_count)),
        "state": Text(state, style=STATE_STYLES.get(state, "")),
    }


def _error_of(entry: RedBeatSchedulerEntry, zone: tzinfo, width: int) -> Text:
    """Return why an entry doesn't run, or won't; '': it does."""
    is_told = entry.stored is not None and failure_of(entry.stored) is not None
    is_over = is_told and entry.state not in ("quarantined", "failing")
    error = "" if is_over else entry.error  # a stored error is older than that
    if not error:
        return Text()
    reason = in_words_of(printable(error.removeprefix(f"{printable(entry.key)}: ")), zone)
    return Text(
        shorten(reason, _PIPED) if width >= UNLIMITED_WIDTH else one_line(reason, _REASON), style="red"
    )


def fields_lines(
    rows: Sequence[tuple[str, str]], console: Console, state_style: str = "", indent: int = 0
) -> Iterator[Text]:
    """Yield titles with their texts, wrapped at words on a terminal; the state itself in its style.

    Arguments:
        indent: where the texts begin; 0: beside the longest title.
    """
    indent = indent or max(cell_len(title) for title, _ in rows) + 2
    for title, text in rows:
        shown = Text(text)
        if title == "state":
            shown.stylize(state_style, 0, len(text.partition(":")[0]))
        lines = shown.wrap(console, max(console.width - indent, 10)) if console.is_terminal else [shown]
        for number, line in enumerate(lines):
            line.rstrip()
            head = "" if number else title
            yield Text.assemble((head, "bold"), " " * (indent - cell_len(head)), line)


def runs_lines(
    runs: Sequence[tuple[Any, datetime]], now: datetime, zone: tzinfo, console: Console, *, with_names: bool
) -> Iterator[Text]:
    """Yield the table of next runs, with a line between two of them where clocks change.

    Arguments:
        runs: entries with the due times of theirs, in the order of time.
    """
    columns = [Column(titled("next run", zone)), Column("")]
    columns += [Column("name", share=1, cut=cut_middle)] if with_names else []
    rows = []
    for (entry, due), changes in zip(runs, clock_changes(runs, zone), strict=True):
        cells = [Text(clock(due, zone)), Text(relative(due, now))]
        cells += [Text(printable(str(entry.name)))] if with_names else []
        rows.append(Row(cells, above=Text("; ".join(changes), style="yellow")))
    return lines_of(columns, rows, console, beside="clocks" if any(row.above for row in rows) else "")
