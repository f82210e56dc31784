"""The tables, as rows of text: printed here, and written into the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .results import CONFIRMED, LOOP, OLD, OURS, SUBJECTS, Figure, Results

#: another loop, for one case: it has a row, not a column
_COLUMNS = [subject for subject in SUBJECTS if subject != CONFIRMED]
FIGURES_HEADER = ["case", "entries", *_COLUMNS, "3 against 2.4.2"]
TARGETS_HEADER = ["target", "measured", "wanted", "reached"]

#: by unit; figures in another unit are not compared
_BETTER_IS = {"messages/s": "more", "entries/s": "more", "s": "less", "ms": "less"}
_BETTER_IS |= {"round trips": "less", "MB": "less"}


def figure_rows(results: Results) -> Iterator[list[str]]:
    """One row for each case and size: the medians of all subjects, and how many times better ours is.

    Beside a rate, in brackets, stands the processor time of a message: of the process that sends it + of the
    server.
    """
    seen: dict[tuple[str, int], None] = dict.fromkeys((one.case, one.size) for one in results.figures)
    for case, size in seen:
        figures = {subject: results.find(case, subject, size) for subject in _COLUMNS}
        cells = map(_cell, figures.values())
        yield [case, f"{size:,}", *cells, _gain(figures[OURS], figures[OLD])]
        confirmed = results.find(case, CONFIRMED, size)
        if confirmed:
            of_loop = [_cell(confirmed) if subject == LOOP else "" for subject in _COLUMNS]
            yield [case.replace(", ", f", {CONFIRMED}, "), f"{size:,}", *of_loop, ""]


def _gain(ours: Figure | None, old: Figure | None) -> str:
    """How many times better ours is: faster, or cheaper."""
    if not (ours and old and ours.values and old.values) or ours.unit not in _BETTER_IS:
        return ""
    better, worse = (ours, old) if _BETTER_IS[ours.unit] == "more" else (old, ours)
    return f"{_number(better.value / worse.value)} x" if worse.value else ""


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if not figure.values:
        return figure.note
    cost = figure.cost
    remarks = [f"{cost.here_us:.0f} + {cost.server_us:.0f} µs"] if cost else []
    remarks += [figure.note] if figure.note else []
    return _number(figure.value) + (f" ({'; '.join(remarks)})" if remarks else "")


def _number(value: float) -> str:
    """Three digits that mean something: 12,345 or 12.3 or 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Header and rows without the columns that no row has anything in."""
    is_filled = [any(row[column] for row in rows) for column in range(len(header))]
    return [
        [cell for cell, is_kept in zip(row, is_filled, strict=True) if is_kept] for row in (header, *rows)
    ]


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows as text: the first column to the left, the others to the right."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = []
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    lines.insert(1, "-" * sum(widths, 2 * (len(widths) - 1)))
    return "\n".join(lines)
