"""How many entries are in each state, counted slice by slice: for whoever can wait, or has a budget.

Invariant: at most half of the time something is asked of Redis, as beat asks it, too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redbeat.entries.coverage import Coverage
from redbeat.entries.query import STATES, states_of
from redbeat.store.figures import count_entry_states
from redbeat.store.members import count_members
from redbeat.store.store import Store

#: how many entries are counted by one script, and how many of those are read whose state isn't obvious
SLICE, READ = 60, 50
#: for how long it is counted without a rest, so that a small schedule is done at once; seconds
AT_ONCE_SECONDS = 0.05


@dataclass(frozen=True)
class StateCounts(Coverage):
    """How many entries are in each state, as far as they are counted.

    Attributes:
        states: each state to a number.
        seen: how many entries were counted.
        total: how many there are.
    """

    states: Mapping[str, int]
    seen: int
    total: int


def count_states(
    app: Any, max_seconds: float, tell: Callable[[StateCounts], object] = lambda _found: None
) -> StateCounts:
    """Count the entries by their states, for so long at most; ``tell`` is called with what is found so far.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    store, began = Store(app), time.monotonic()
    total, cursor = count_members(store), "0"
    found = Counter[str]()
    parts = list(store.all_parts)
    while parts and time.monotonic() < began + max_seconds:
        slice_began = time.monotonic()
        page = count_entry_states(store, parts[-1], cursor, SLICE)
        cursor = page.cursor
        if cursor == "0":
            parts.pop()
        found.update({"scheduled": page.scheduled, "due": page.due})
        others = list(page.others.items())
        for first in range(0, len(others), READ):
            found.update(states_of(store, dict(others[first : first + READ])))
        if slice_began > began + AT_ONCE_SECONDS:
            time.sleep(time.monotonic() - slice_began)
        tell(_counts_of(found, total))
    counts = _counts_of(found, total)
    return counts if parts else StateCounts(counts.states, total, total)


def _counts_of(found: Counter[str], total: int) -> StateCounts:
    return StateCounts({state: found[state] for state in STATES}, sum(found.values()), total)
