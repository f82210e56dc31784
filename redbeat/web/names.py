"""The names of all entries in order, in the memory of this process: Redis has no index of names.

They are the result of a read (``jobs.py``): read again when they are old and a page shows them, and dropped
some time after the last page.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from redbeat.entries.query import name_pages
from redbeat.entries.search import Place, Row
from redbeat.log.text import as_stored
from redbeat.store.members import count_members
from redbeat.store.records import text_of
from redbeat.store.store import Store
from redbeat.web.jobs import Jobs, Pace, Result

#: how old names may be, and for how long they are kept after the last look; seconds
FRESH_SECONDS, KEPT_SECONDS = 2.0, 600.0
#: how many names are sorted at a time: nothing else runs meanwhile
RUN = 10_000


class SortedTexts(Sequence[bytes]):
    """Sorted texts in two blocks of memory, as a million objects would take three times as much.

    Arguments:
        texts: in order; one that comes twice in a row is kept once.
    """

    def __init__(self, texts: Iterable[bytes] = ()) -> None:
        self._text, self._ends = bytearray(), array("Q", [0])
        last = None
        for text in texts:
            if text != last:
                self._text += text
                self._ends.append(len(self._text))
                last = text

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        return bytes(self._text[self._ends[at] : self._ends[at + 1]])


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

    def read(tell: Callable[[Any], None]) -> SortedTexts:
        store, pace = Store(app), Pace()
        runs, some, seen, count = list[SortedTexts](), list[bytes](), 0, count_members(store)
        for page in name_pages(store):
            some += map(as_stored, page)
            seen += len(page)
            tell((seen, max(count, seen)))
            if len(some) >= RUN:
                runs.append(SortedTexts(sorted(some)))
                some.clear()
            pace.rest()
        return SortedTexts(_paced(merge(*runs, sorted(some)), pace))

    return jobs.read(
        "names", "", read, fresh_seconds=FRESH_SECONDS, kept_seconds=KEPT_SECONDS, is_queued=False
    )


def _paced(items: Iterable[bytes], pace: Pace) -> Iterator[bytes]:
    for number, item in enumerate(items):
        if number % 500 == 0:
            pace.rest()
        yield item
