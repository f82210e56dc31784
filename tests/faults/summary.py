"""What was killed and what became of it, added up over all tests, wherever they ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

#: the name of the user property that holds a test's title and its tally's counts
TALLY = "tally"


def lines_of(properties: Iterable[tuple[str, Any]]) -> list[str]:
    """A table of the tallies among tests' user properties; empty when there are none."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for name, value in properties:
        if name == TALLY:
            title, counts = value
            sums[title] = [known + more for known, more in zip(sums[title], counts, strict=True)]
    rows = ["".join(f"{count:8}" for count in sums[title]) + f"          {title}" for title in sums]
    return ["   kills    runs    lost doubled another id  out of order", *rows] if rows else []
