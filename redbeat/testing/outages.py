"""Times at which no beat leads. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime


class Outages:
    """Spans of time, from one instant to another that isn't included; those that overlap or adjoin are one.

    Raises:
        ValueError: one of them ends before it begins.
    """

    def __init__(self, spans: Iterable[tuple[datetime, datetime]] = ()) -> None:
        self._begins: list[datetime] = []
        self._ends: list[datetime] = []
        for begin, end in sorted(spans):
            if end < begin:
                raise ValueError(f"outages: {begin} to {end} ends before it begins.")
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def end_around(self, moment: datetime) -> datetime | None:
        """Return when a beat is back that is away at ``moment``; None: it isn't."""
        place = bisect_right(self._begins, moment) - 1
        return self._ends[place] if place >= 0 and moment < self._ends[place] else None
