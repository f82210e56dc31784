"""Figures of an entry: how long its runs take, how long they wait, and how many succeed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from redbeat.history import ENDED_OUTCOMES, PastRun


@dataclass(frozen=True)
class Figures:
    """Figures of an entry's last runs, as many as its history keeps; None: there is nothing to compute it by.

    Attributes:
        runs: of how many runs it is known what became of them.
        succeeded: how many of these have succeeded.
        median_run_seconds: half of them took longer.
        p95_run_seconds: 95 of 100 took no longer.
        median_wait_seconds: half of them waited longer on their queue.
        failures_in_a_row: how many of its last runs have failed or were lost, back to the last that has
            succeeded; also those that the history doesn't have any more.
    """

    runs: int = 0
    succeeded: int = 0
    median_run_seconds: float | None = None
    p95_run_seconds: float | None = None
    median_wait_seconds: float | None = None
    failures_in_a_row: int = 0

    @property
    def success_rate(self) -> float | None:
        """How many of these runs have succeeded, from 0 to 1."""
        return self.succeeded / self.runs if self.runs else None

    def to_dict(self) -> dict[str, Any]:
        """Return them as a dict of plain JSON."""
        return {**asdict(self), "success_rate": self.success_rate}


def figures_of(history: Iterable[PastRun], failures_in_a_row: int = 0) -> Figures:
    """Return the figures of the runs in ``history``."""
    ended = [run for run in history if run.outcome in ENDED_OUTCOMES]
    took = sorted(run.run_seconds for run in ended if run.run_seconds is not None)
    waited = sorted(run.wait_seconds for run in ended if run.wait_seconds is not None)
    return Figures(
        runs=len(ended),
        succeeded=sum(run.outcome == "succeeded" for run in ended),
        median_run_seconds=_median(took),
        p95_run_seconds=took[ceil(0.95 * len(took)) - 1] if took else None,
        median_wait_seconds=_median(waited),
        failures_in_a_row=failures_in_a_row,
    )


def _median(ordered: Sequence[float]) -> float | None:
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
