"""How often this process has had trouble with Redis. Only counts: whoever shows them reads them here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Since the process began.

    Attributes:
        errors: commands that have failed, as Redis was away or has refused them.
        retries: commands that were sent again.
    """

    errors: int = 0
    retries: int = 0


COUNTS = Counts()
