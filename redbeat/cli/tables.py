"""Tables, and lists of fields, on a terminal of any width or in a pipe; a progress bar on stderr.

Invariant: a text of an entry's gives a terminal no orders and isn't taken for markup. No line is wider than
the terminal: columns are left out, and then texts are shortened. In a pipe every column is there, a row is a
line, and only very long texts are shortened.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from redbeat.cli.session import Session
from redbeat.entries.wording import label_of
from redbeat.log.text import printable, shorten

Item = TypeVar("Item")

#: by how many rows the widths are chosen; all others are shown in these widths
SAMPLE = 1000
#: where the output isn't a terminal, a longer text extends beyond its column, and a much longer one is
#: shortened, as it may be megabytes; --json has all of it
PIPED_COLUMN, PIPED_TEXT = 80, 1000
GAP = INDENT = 2
#: how a column is shortened: its end is left out, its middle, or its beginning
END, MIDDLE, START = 1.0, 0.5, 0.0


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a table.

    Attributes:
        cell: makes the text of a row; one without a style may be anything that was stored.
        rank: where the terminal is too narrow, columns are left out, the highest rank first; 0: never.
        cut: ``END``, ``MIDDLE`` or ``START``; None: it is never shortened.
        least: other columns are left out before this one is shortened to less.
        is_below: where it is left out, its text stands below the row.
    """

    title: str
    cell: Callable[[Item], str | Text]
    rank: int = 0
    cut: float | None = None
    least: int = 16
    is_right: bool = False
    is_below: bool = False


def print_table(
    session: Session,
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    below: Callable[[Item], str | Text] = lambda _item: "",
    beside: str = "",
) -> bool:
    """Print a table, with the columns for which there is room; the items after the first ones as they come.

    Columns in which the first items have nothing are left out on a terminal. Return False, and print nothing,
    if there is no item.

    Arguments:
        below: makes a text that stands below a row; in a pipe it is a column.
        beside: the title of that column.
    """
    width, is_piped = session.console.width, session.is_piped
    if is_piped and beside:
        columns = [*columns, Column(beside, below)]
    rows = (([_text(column.cell(item)) for column in columns], item) for item in items)
    sample = list(islice(rows, SAMPLE))
    if not sample:
        return False
    longest = [max(cells[at].cell_len for cells, _ in sample) for at in range(len(columns))]
    natural = [max(wide, cell_len(column.title)) for wide, column in zip(longest, columns, strict=True)]
    if is_piped:
        shown = list(range(len(columns)))
        widths = [min(wide, PIPED_COLUMN) for wide in natural]
    else:
        shown, widths = _fit(columns, natural, [at for at, wide in enumerate(longest) if wide], width)
    moved = [at for at, column in enumerate(columns) if column.is_below and at not in shown]

    def line(cells: Sequence[Text]) -> Text:
        made = Text()
        for at in shown:
            made.append_text(_cell_of(columns[at], cells[at], widths[at], is_piped)).append(" " * GAP)
        made.rstrip()
        made.truncate(width, overflow="ellipsis")
        return made

    rule = "-" if session.console.options.ascii_only else "─"
    wide = sum(widths[at] for at in shown) + GAP * (len(shown) - 1)
    titles = [Text(column.title, "bold") for column in columns]
    session.draw([line(titles), Text(rule * min(wide, width))])
    for cells, item in chain(sample, rows):
        session.draw([line(cells)])
        under = [] if is_piped else [*(cells[at] for at in moved), _text(below(item))]
        if any(under):
            text = Text("; ").join(filter(None, under))
            session.draw(session.wrapped(text, INDENT), INDENT)
    return True


def print_page(
    session: Session,
    items: Iterable[Item],
    document: Callable[[Item], Any],
    columns: Sequence[Column[Item]],
    nothing: str,
    below: Callable[[Item], str | Text] = lambda _item: "",
    beside: str = "",
    *,
    limit: int | None = None,
    offset: int | None = None,
    total: Callable[[], int] | None = None,
) -> None:
    """Print a list: with ``--json`` a document per line, else a table; and say on stderr if there is more.

    Arguments:
        nothing: the sentence that says that the list is empty.
        limit: see ``Session.rows``.
        offset: how many items are left out; None: the command has no such option.
        total: counts all items; None: that would take long.
    """
    rest, rows = islice(items, offset or 0, None), session.rows(limit)
    page = rest if rows is None else islice(rest, rows)
    if session.is_json:
        for item in page:
            session.print_json(document(item))
    elif not print_table(session, columns, page, below, beside):
        session.note(nothing)
    if rows is not None and next(rest, None) is not None:
        following = "" if offset is None else f", --offset {offset + rows} the next"
        count = f"There are more than {rows}" if total is None else f"{rows} of {total()} shown"
        session.note(f"{count}: --limit 0 shows all{following}.")


def styled(text: str, style: str) -> Text:
    """Return anything that was stored as a text that can be shown."""
    return Text(shorten(printable(text), PIPED_TEXT), style)


def _text(value: str | Text) -> Text:
    return value if isinstance(value, Text) else styled(value, "")


def _cell_of(column: Column[Any], text: Text, width: int, is_piped: bool) -> Text:
    if text.cell_len > width and column.cut is not None and not is_piped:
        text = Text(shortened(text.plain, width, column.cut), text.style)
    (text.pad_left if column.is_right else text.pad_right)(width - text.cell_len)
    return text


def _fit(
    columns: Sequence[Column[Any]], natural: Sequence[int], filled: Sequence[int], width: int
) -> tuple[list[int], list[int]]:
    """Return the places of the columns that are shown, of those with texts, and the widths of all."""
    widths = [
        wide if column.cut is None else min(wide, column.least)
        for wide, column in zip(natural, columns, strict=True)
    ]
    shown = [*filled]

    def spare() -> int:
        return width - sum(widths[at] for at in shown) - GAP * (len(shown) - 1)

    for at in sorted(filled, key=lambda at: -columns[at].rank):
        if spare() < 0 and columns[at].rank:
            shown.remove(at)
    for at in shown:
        widths[at] += min(natural[at] - widths[at], max(spare(), 0))
    flexible = [at for at in shown if columns[at].cut is not None]
    while spare() < 0 and flexible and max(widths[at] for at in flexible) > 1:
        widths[max(flexible, key=widths.__getitem__)] -= 1
    return shown, widths


def shortened(text: str, width: int, cut: float) -> str:
    """Return ``text``, or as much of it as fits into ``width`` cells with an ellipsis for the rest."""
    if cell_len(text) <= width:
        return text
    head = int((width - 1) * cut)
    return f"{set_cell_size(text, head)}…{set_cell_size(text[::-1], width - 1 - head)[::-1]}"


def titled(title: str, zone: tzinfo) -> str:
    """Return the title of a column of times in ``zone``."""
    return f"{title}, {label_of(zone)}"


def print_fields(session: Session, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print titles with their texts, wrapped at words on a terminal."""
    given = [(title, _text(text)) for title, text in rows if text]
    indent = max(cell_len(title) for title, _ in given) + GAP
    for title, text in given:
        first, *rest = session.wrapped(text, indent)
        session.draw([Text.assemble((title.ljust(indent), "bold"), first)])
        session.draw(rest, indent)


# -- progress

#: the bar isn't shown earlier
PATIENCE_SECONDS = 1.0


class Meter:
    """Called with the number of things that are done; draws a bar on a terminal once it has taken a while."""

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
