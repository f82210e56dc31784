"""Tables, and lists of fields, on a terminal of any width or in a pipe.

Invariant: a text of an entry's gives a terminal no orders and isn't taken for markup. No line is wider than
the terminal: columns are left out, and then texts are shortened. In a pipe every column is there, a row is a
line, and only very long texts are shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
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
        title: what follows a comma stands below the rest.
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


Row = tuple[Sequence[Text], Text]


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
        below: makes a text that stands below a row, where there is one.
        beside: the title of these texts where the output isn't a terminal, and a row is a line.
    """
    width, is_piped = session.console.width, session.is_piped
    rows: Iterator[Row] = (
        ([_text(column.cell(item)) for column in columns], _text(below(item))) for item in items
    )
    sample = list(islice(rows, SAMPLE))
    if not sample:
        return False
    longest = [max(cells[at].cell_len for cells, _ in sample) for at in range(len(columns))]
    titles = [
        [column.title] if is_piped or cell_len(column.title) <= wide else column.title.split(", ")
        for column, wide in zip(columns, longest, strict=True)
    ]
    natural = [max(wide, *map(cell_len, title)) for wide, title in zip(longest, titles, strict=True)]
    if is_piped:
        shown = list(range(len(columns)))
        widths = [
            min(wide, PIPED_COLUMN) if column.cut is not None else wide
            for wide, column in zip(natural, columns, strict=True)
        ]
    else:
        shown, widths = _fit(columns, natural, [at for at, wide in enumerate(longest) if wide], width)
    moved = [at for at, column in enumerate(columns) if column.is_below and at not in shown]

    def line(cells: Sequence[Text], last: Text) -> Text:
        made = Text()
        for at in shown:
            column, cell = columns[at], cells[at]
            if not is_piped and column.cut is not None and cell.cell_len > widths[at]:
                cell = Text(shortened(cell.plain, widths[at], column.cut), cell.style)
            padding = " " * (widths[at] - cell.cell_len)
            made.append(padding if column.is_right else "").append_text(cell)
            made.append(" " * GAP if column.is_right else padding + " " * GAP)
        made.append_text(last)
        made.rstrip()
        if made.cell_len > width:
            made.truncate(width, overflow="ellipsis")
        return made

    is_beside = is_piped and any(last for _, last in sample)
    for number in range(max(len(titles[at]) for at in shown)):
        heads = [Text("".join(title[number : number + 1]), "bold") for title in titles]
        session.draw([line(heads, Text(beside if is_beside else "", "bold"))])
    rule = "-" if session.console.options.ascii_only else "─"
    wide = sum(widths[at] for at in shown) + GAP * (len(shown) - 1)
    session.draw([Text(rule * min(wide, width))])
    for cells, last in chain(sample, rows):
        if is_piped:
            session.draw([line(cells, last)])
            continue
        session.draw([line(cells, Text())])
        under = Text("; ").join([one for one in (*(cells[at] for at in moved), last) if one])
        for part in under.wrap(session.console, max(width - INDENT, 1)) if under else ():
            part.rstrip()
            part.pad_left(INDENT)
            session.draw([part])
    return True


def styled(text: str, style: str) -> Text:
    """Return anything that was stored as a text that can be shown."""
    return Text(shorten(printable(text), PIPED_TEXT), style)


def _text(value: str | Text) -> Text:
    return value if isinstance(value, Text) else styled(value, "")


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


def print_fields(
    session: Session, rows: Iterable[tuple[str, str]], state_style: str = "", indent: int = 0
) -> None:
    """Print titles with their texts, wrapped at words on a terminal; the state itself in its style.

    Arguments:
        indent: where the texts begin; 0: beside the longest title.
    """
    given = [(title, text) for title, text in rows if text]
    indent = indent or max(cell_len(title) for title, _ in given) + GAP
    for title, text in given:
        shown = Text(text)
        if title == "state":
            shown.stylize(state_style, 0, len(text.partition(":")[0]))
        lines = [shown]
        if session.is_on_terminal:
            lines = list(shown.wrap(session.console, max(session.console.width - indent, 10)))
        for number, line in enumerate(lines):
            line.rstrip()
            head = "" if number else title
            session.draw([Text.assemble((head, "bold"), " " * (indent - cell_len(head)), line)])
