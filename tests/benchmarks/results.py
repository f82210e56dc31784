"""What was measured: figures, looked up by case, subject and size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OURS = "RedBeat 3"
OLD = "celery-redbeat 2.4.2"
LOOP = "apply_async loop"
BATCHED = "loop in Producer.batch()"
CONFIRMED = "loop with confirms"
FLOOR = "raw LPUSH"
SUBJECTS = (OURS, OLD, LOOP, BATCHED, CONFIRMED, FLOOR)

NOT_YET = "not there yet"


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
        value: float | None,
        note: str = "",
        cost: Cost | None = None,
    ) -> None:
        """Add one repeat; None for what can't be measured, for the reason in `note`."""
        figure = self.find(case, subject, size)
        if figure is None:
            figure = Figure(case, subject, size, unit)
            self.figures.append(figure)
        if value is not None:
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
        return figure.value if figure and figure.values else None

    def sizes(self, case: str) -> list[int]:
        """The sizes that the case was measured at, in order."""
        return sorted({figure.size for figure in self.figures if figure.case == case})

    def series(self, case: str, subject: str) -> tuple[list[int], list[float]]:
        """Sizes and values of a subject, for a line in a plot."""
        points = [(size, self.value(case, subject, size)) for size in self.sizes(case)]
        known = [(size, value) for size, value in points if value is not None]
        return [size for size, _ in known], [value for _, value in known]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "case": figure.case,
                "subject": figure.subject,
                "size": figure.size,
                "unit": figure.unit,
                "value": figure.value if figure.values else None,
                "repeats": figure.values,
                "processor_us": [cost._asdict() for cost in figure.costs],
                "note": figure.note,
            }
            for figure in self.figures
        ]
