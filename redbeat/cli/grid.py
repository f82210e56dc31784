"""Tables for a terminal of any width: columns that share its room, and texts that are shortened to fit.

Invariant: no line is wider than the terminal, and nothing is broken in two: what doesn't fit is shortened,
with an ellipsis in its place. Where there is no terminal, nothing is shortened. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

#: the width where the output isn't a terminal
UNLIMITED_WIDTH = 10_000
#: by how many rows the widths are chosen; all others are shown in these widths
SAMPLE = 1000
#: where the output isn't a terminal, a longer text extends beyond its column
PIPED_COLUMN = 80
GAP = 2
INDENT = 2
#: the least width of a column
_LEAST = 4

Cut = Callable[[str, int], str]


def cut_end(text: str, width: int) -> str:
    """Return ``text``, or as much of its beginning as fits into ``width`` cells with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return f"{_first(text, width - 1)}…" if width > 0 else ""


def cut_start(text: str, width: int) -> str:
    """Return ``text``, or as much of its end as fits: the last part of a dotted name says most."""
    if cell_len(text) <= width:
        return text
    return f"…{_last(text, width - 1)}" if width > 0 else ""


def cut_middle(text: str, width: int) -> str:
    """Return ``text``, or its beginning and its end: names that begin alike often differ there."""
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{_first(text, width - 1 - tail)}…{_last(text, tail)}" if width > 0 else ""


def _first(text: str, width: int) -> str:
    used = 0
    for number, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:number]
    return text


def _last(text: str, width: int) -> str:
    used = 0
    for number in range(len(text), 0, -1):
        used += cell_len(text[number - 1])
        if used > width:
            return text[number:]
    return text


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        share: how much of the room that is left this one gets, beside the others' shares. 0: it is as wide as
            its longest cell, and never shortened.
        cut: how it is shortened.
    """

    title: str
    share: int = 0
    cut: Cut = cut_end
    is_right: bool = False


@dataclass(frozen=True)
class Row:
    """The cells of a row, and texts above and below it in lines of their own; by default there are none."""

    cells: Sequence[Text]
    below: Text = field(default_factory=Text)
    above: Text = field(default_factory=Text)


def lines_of(
    columns: Sequence[Column], rows: Iterable[Row], console: Console, beside: str = ""
) -> Iterator[Text]:
    """Yield the lines of a table on ``console``: its titles, a rule, and the rows as they come.

    Where there is no terminal, what would stand above or below a row is a last cell of it instead, under the
    title ``beside``: a row a line.
    """
    is_piped = console.width >= UNLIMITED_WIDTH
    coming = iter(rows)
    sample = list(islice(coming, SAMPLE))
    widths = _widths(columns, sample, console.width)
    titles = [_wrapped(column.title, width) for column, width in zip(columns, widths, strict=True)]
    for number in range(max(map(len, titles), default=0)):
        texts = [Text(lines[number] if number < len(lines) else "", "bold") for lines in titles]
        line = _line(columns, widths, texts, [Text(beside, "bold")] if is_piped else [])
        line.truncate(console.width)
        yield line
    rule = "-" if console.options.ascii_only else "─"
    length = sum(widths) + GAP * (len(widths) - 1)
    if is_piped and beside:
        length += GAP + max([cell_len(beside), *(_cells_beside(row) for row in sample)])
    yield Text(rule * min(length, console.width))
    for row in chain(sample, coming):
        if is_piped:
            yield _line(columns, widths, row.cells, [text for text in (row.above, row.below) if text])
            continue
        yield from _indented(row.above, console)
        cells = [
            _shortened(cell, column, width)
            for cell, column, width in zip(row.cells, columns, widths, strict=True)
        ]
        line = _line(columns, widths, cells)
        line.truncate(console.width, overflow="ellipsis")
        yield line
        yield from _indented(row.below, console)


def least_width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Return the width from which on nothing of a table with these rows is shortened."""
    return sum(_narrow(columns, _longest(columns, rows[:SAMPLE]))) + GAP * (len(columns) - 1)


def _longest(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    """Return the width of the longest cell of each column."""
    return [max((cell_len(row.cells[at].plain) for row in rows), default=0) for at in range(len(columns))]


def _narrow(columns: Sequence[Column], longest: Sequence[int]) -> list[int]:
    """Return the width of each column if only its title is wrapped."""
    return [
        max(cells, *map(cell_len, _parts(one.title))) for cells, one in zip(longest, columns, strict=True)
    ]


def _widths(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    """Return the width of each column: that of its cells, or less if the terminal is too narrow."""
    longest = _longest(columns, rows)
    natural = [max(cells, cell_len(one.title)) for cells, one in zip(longest, columns, strict=True)]
    if width >= UNLIMITED_WIDTH:  # one very long text must not widen all rows
        return [
            min(wide, PIPED_COLUMN) if one.share else wide for wide, one in zip(natural, columns, strict=True)
        ]
    room = width - GAP * (len(columns) - 1)
    if sum(natural) <= room:
        return natural
    # titles are wrapped at their commas before anything is shortened
    narrow = _narrow(columns, longest)
    if sum(narrow) <= room:
        spare = room - sum(narrow)
        for at, most in enumerate(natural):
            more = min(most - narrow[at], spare)
            if narrow[at] + more == most:
                narrow[at], spare = most, spare - more
        return narrow
    sharing = {at: column.share for at, column in enumerate(columns) if column.share}
    room -= sum(wanted for at, wanted in enumerate(narrow) if at not in sharing)
    while sharing:
        shares = sum(sharing.values())
        modest = [at for at, share in sharing.items() if narrow[at] <= max(room * share // shares, _LEAST)]
        if not modest:
            break
        for at in modest:
            room -= narrow[at]
            del sharing[at]
    for at, share in list(sharing.items()):
        narrow[at] = max(room * share // sum(sharing.values()), _LEAST)
        room -= narrow[at]
        del sharing[at]
    return narrow


def _parts(title: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=,) ", title)]


def _wrapped(title: str, width: int) -> list[str]:
    return [title] if cell_len(title) <= width else _parts(title)


def _shortened(cell: Text, column: Column, width: int) -> Text:
    if cell_len(cell.plain) <= width:
        return cell
    return Text(column.cut(cell.plain, width) if column.share else cell.plain, cell.style)


def _line(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Text], more: Sequence[Text] = ()
) -> Text:
    line = Text()
    for number, (column, width, cell) in enumerate(zip(columns, widths, cells, strict=True)):
        padding = " " * (width - cell_len(cell.plain))
        if number:
            line.append(" " * GAP)
        if column.is_right:
            line.append(padding)
        line.append_text(cell)
        if not column.is_right:
            line.append(padding)
    for text in more:
        line.append(" " * GAP)
        line.append_text(text)
    line.rstrip()
    return line


def _cells_beside(row: Row) -> int:
    """Return the width of the texts above and below a row, if they were beside it."""
    return sum(cell_len(text.plain) + GAP for text in (row.above, row.below) if text) - GAP


def _indented(text: Text, console: Console) -> Iterator[Text]:
    """Yield ``text`` wrapped at words, a little to the right."""
    if not text:
        return
    for line in text.wrap(console, max(console.width - INDENT, 1)):
        line.rstrip()
        line.pad_left(INDENT)
        yield line
