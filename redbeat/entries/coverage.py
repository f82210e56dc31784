"""How much of the schedule something has looked at that had to end in time."""

from __future__ import annotations


class Coverage:
    """What is found may not be all there is.

    Attributes:
        seen: how many entries were looked at.
        total: how many there are.
    """

    seen: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether all were looked at; some may have come or gone meanwhile."""
        return self.seen >= self.total

    @property
    def percent(self) -> int:
        """How much was looked at: 100 only where it was all."""
        return 100 if self.is_whole else min(100 * self.seen // max(self.total, 1), 99)
