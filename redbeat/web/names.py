"""The names of all entries in order, in the memory of this process: Redis has no index of names.

They are the result of a read (``jobs.py``): read again when they are old and a page shows them, and dropped
some time after the last page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any

from redbeat.entries.query import name_pages
from redbeat.entries.search import Place, Row
from redbeat.log.text import as_stored
from redbeat.store.members import count_members
from redbeat.store.records import text_of
from redbeat.store.store import Store
from redbeat.web.jobs import Jobs, Pace, Result

#: how old names may be, seconds
FRESH_SECONDS = 2.0
#: how many names are sorted at a time: nothing else runs meanwhile
RUN = 10_000


@dataclass(frozen=True)
class ByName:
    """An order of entries, as ``redbeat.entries.search`` takes it.

    Attributes:
        names: as they are in Redis, sorted by their bytes.
        age_seconds: how long ago they were read.
    """

    names: Sequence[bytes]
    age_seconds: float

    def count(self) -> int:
        """Return how many names there are."""
        return len(self.names)

    def offset_of(self, place: Place) -> int:
        """Return how many names are before ``place``."""
        if place.after is None:
            return place.offset
        return bisect_right(self.names, as_stored(place.after.name))

    def slice(self, offset: int, count: int) -> Sequence[Row]:
        """Return at most ``count`` rows from ``offset`` on."""
        return [Row(text_of(name)) for name in self.names[offset : offset + count]]


def read_names(app: Any, jobs: Jobs) -> Result[Any]:
    """Return the names in order; until all were read, how many were, and about how many there are."""

    def read(tell: Callable[[Any], None]) -> list[bytes]:
        store, pace = Store(app), Pace()
        runs, seen, count = [list[bytes]()], 0, count_members(store)
        for page in name_pages(store):
            runs[-1] += map(as_stored, page)
            seen += len(page)
            tell((seen, max(count, seen)))
            if len(runs[-1]) >= RUN:
                runs[-1].sort()
                runs.append([])
            pace.rest()
        runs[-1].sort()
        names = list[bytes]()
        for name, _ in groupby(merge(*runs)):  # one may come twice
            names.append(name)
            if len(names) % 500 == 0:
                pace.rest()
        return names

    return jobs.read("names", "", read, fresh_seconds=FRESH_SECONDS, is_queued=False)
