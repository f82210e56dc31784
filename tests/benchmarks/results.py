"""What was measured: figures, looked up by case, subject and size."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

OURS = "RedBeat 3"
OLD = "celery-redbeat 2.4.2"
LOOP = "apply_async loop"
BATCHED = "loop in Producer.batch()"
CONFIRMED = "loop with confirms"
FLOOR = "raw LPUSH"
SUBJECTS = (OURS, OLD, LOOP, BATCHED, CONFIRMED, FLOOR)


class Cost(NamedTuple):
    """Processor time of one message, microseconds: of the process that sends it, and of the server."""

    here_us: float
    server_us: float

    @classmethod
    def of(cls, taken: Mapping[str, Any]) -> Cost | None:
        """From what a subject reports of a burst; None where the system didn't tell, or nothing was sent."""
        here, server = taken.get("here_seconds"), taken.get("server_seconds")
        if here is None or server is None or not taken["sent"]:
            return None
        return cls(here * 1e6 / taken["sent"], server * 1e6 / taken["sent"])


@dataclass
class Figure:
    """One measured thing: every repeat of it in `values`, and a `note` where there is something to say.

    `costs` are those of the repeats, where it is about messages.
    """

    case: str
    subject: str
    size: int
    unit: str
    values: list[float] = field(default_factory=list)
    note: str = ""
    costs: list[Cost] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.values)

    @property
    def cost(self) -> Cost | None:
        """The medians of what a message cost; None where that isn't known."""
        if not self.costs:
            return None
        return Cost(*(statistics.median(of_one) for of_one in zip(*self.costs, strict=True)))


class Results:
    """All figures of one run, in the order in which they were first taken, and the cases that failed."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.failures: dict[str, str] = {}

    def add(
        self,
        case: str,
        subject: str,
        size: int,
        unit: str,
        value: float,
        note: str = "",
        cost: Cost | None = None,
    ) -> None:
        """Add one repeat."""
        figure = self.find(case, subject, size)
        if figure is None:
            figure = Figure(case, subject, size, unit)
            self.figures.append(figure)
        figure.values.append(value)
        if cost is not None:
            figure.costs.append(cost)
        figure.note = note or figure.note

    def find(self, case: str, subject: str, size: int) -> Figure | None:
        wanted = (case, subject, size)
        return next((one for one in self.figures if (one.case, one.subject, one.size) == wanted), None)

    def value(self, case: str, subject: str, size: int) -> float | None:
        """The figure's value; None when it was not taken."""
        figure = self.find(case, subject, size)
        return figure.value if figure else None

    def sizes(self, case: str) -> list[int]:
        """The sizes that the case was measured at, in order."""
        return sorted({figure.size for figure in self.figures if figure.case == case})

    def series(self, case: str, subject: str) -> tuple[list[int], list[float]]:
        """Sizes and values of a subject, for a line in a plot."""
        found = {size: self.value(case, subject, size) for size in self.sizes(case)}
        known = {size: value for size, value in found.items() if value is not None}
        return [*known.keys()], [*known.values()]

    def as_json(self) -> list[dict[str, Any]]:
        found = []
        for figure in self.figures:
            shown = {name: getattr(figure, name) for name in ("case", "subject", "size", "unit")}
            costs = [cost._asdict() for cost in figure.costs]
            values = {"value": figure.value, "repeats": figure.values, "processor_us": costs}
            found.append({**shown, **values, "note": figure.note})
        return found


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
    if not (ours and old) or ours.unit not in _BETTER_IS:
        return ""
    better, worse = (ours, old) if _BETTER_IS[ours.unit] == "more" else (old, ours)
    return f"{_number(better.value / worse.value)} x" if worse.value else ""


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    cost = figure.cost
    remarks = [f"{cost.here_us:.0f} + {cost.server_us:.0f} µs"] if cost else []
    remarks += [figure.note] if figure.note else []
    return _number(figure.value) + (f" ({'; '.join(remarks)})" if remarks else "")


def _number(value: float) -> str:
    """Three digits that mean something: 12,345 or 12.3 or 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def shares(values: Iterable[float]) -> dict[str, float]:
    """The middle, the 99th percentile and the largest of some values."""
    ordered = sorted(values)
    assert ordered, "nothing was measured"
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1]}


def write(name: str, is_published: bool, **found: Any) -> None:
    """Write what was found as JSON, with the date; and into the documentation if it is to be published."""
    text = json.dumps({"date": datetime.now(timezone.utc).date().isoformat(), **found}, indent=1)
    for directory in ("build/bench", "docs/_static")[: 1 + is_published]:
        (ROOT / directory).mkdir(parents=True, exist_ok=True)
        (ROOT / directory / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


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
