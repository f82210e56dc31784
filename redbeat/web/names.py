"""The names of all entries in order, in the memory of this process: Redis has no index of names.

Owns the thread that reads them. It works for a few milliseconds at a time, and rests for as long, so that
pages are answered meanwhile. Invariant: names are read only while somebody looks at them, and forgotten
FORGOTTEN_SECONDS after nobody does any more.
"""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from redbeat.entries.query import name_pages
from redbeat.entries.search import Place, Row
from redbeat.errors import EntryNotFound, RedBeatError, StoreUnavailable
from redbeat.log.logger import web_logger as logger
from redbeat.log.text import as_stored
from redbeat.store.members import count_members
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: the thread works for so long, and rests for so long
WORK_SECONDS, REST_SECONDS = 0.005, 0.005
#: what is read so quickly is waited for, and read without a rest
QUICK_SECONDS = 0.05
#: names are read again when they are older than that, or than this many times what reading them has taken
OLD_SECONDS, OLD_TIMES = 2.0, 20
FORGOTTEN_SECONDS = 600.0
#: how many names are sorted at a time: nothing else runs meanwhile
RUN = 10_000
#: a name with more bytes isn't written in an address, which servers in front limit: its digest is
LONG_BYTES = 2000
#: how many of these are remembered besides, as they may be newer than what was read
MAX_LONG = 64
#: how long a page waits for the names
LONG_WAIT_SECONDS = 3.0


def digest_of(name: str) -> str | None:
    """Return what stands for a long name in an address; None: the name itself does."""
    stored = as_stored(name)
    return hashlib.sha256(stored).hexdigest() if len(stored) > LONG_BYTES else None


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

    def longer_than(self, size: int) -> Iterator[bytes]:
        """Yield those with more than ``size`` bytes."""
        begin = 0
        for end in self._ends:
            if end - begin > size:
                yield bytes(self._text[begin:end])
            begin = end

    def __iter__(self) -> Iterator[bytes]:
        return (self[at] for at in range(len(self)))


@dataclass(frozen=True)
class Index:
    """The names as they were read: an order of entries, as ``redbeat.entries.search`` takes it.

    Attributes:
        names: as they are in Redis, sorted by their bytes.
        read_at: when they were, by the monotonic clock.
        seconds: how long it took.
    """

    names: SortedTexts
    read_at: float
    seconds: float

    @property
    def age_seconds(self) -> float:
        """How long ago they were read."""
        return time.monotonic() - self.read_at

    @property
    def is_old(self) -> bool:
        """Whether they are to be read again."""
        return self.age_seconds > max(OLD_SECONDS, OLD_TIMES * self.seconds)

    def count(self) -> int:
        """Return how many there are."""
        return len(self.names)

    def offset_of(self, place: Place) -> int:
        """Return how many names are before ``place``."""
        if place.after is None:
            return place.offset
        return bisect_right(self.names, as_stored(place.after.name))

    def called(self, digest: str) -> str | None:
        """Return the long name that ``digest_of`` returns this for; None: there is none."""
        for stored in self.names.longer_than(LONG_BYTES):
            if hashlib.sha256(stored).hexdigest() == digest:
                return str(text_of(stored))
        return None

    def slice(self, offset: int, count: int) -> Sequence[Row]:
        """Return at most ``count`` rows from ``offset`` on."""
        return [Row(text_of(name)) for name in self.names[offset : offset + count]]


class Names:
    """The names of one schedule, read when somebody looks.

    Arguments:
        dashboard: asks Redis.
        forgotten_seconds: how long they are kept after the last look.
    """

    def __init__(self, dashboard: Any, *, forgotten_seconds: float = FORGOTTEN_SECONDS) -> None:
        self._app = dashboard.app
        self._dashboard = dashboard
        self._forgotten_seconds = forgotten_seconds
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._index: Index | None = None
        self._problem: RedBeatError | None = None
        self._is_wanted = False
        self._looked_at = 0.0
        self._long: dict[str, str] = {}
        #: how many were read so far, and about how many there are
        self.progress = (0, 0)

    @property
    def are_kept(self) -> bool:
        """Whether they are in memory, or are being read."""
        return self._thread is not None

    def digest_of(self, name: str) -> str | None:
        """Return what stands for ``name`` in an address, and remember it; None: the name itself does."""
        digest = digest_of(name)
        if digest is not None:
            self._long.pop(digest, None)
            self._long[digest] = name
            for oldest in list(self._long)[:-MAX_LONG]:
                self._long.pop(oldest, None)
        return digest

    def called(self, digest: str) -> str:
        """Return the name that a digest stands for.

        Raises:
            EntryNotFound: there is none.
            StoreUnavailable: the names are still being read.
        """
        known = self._long.get(digest)
        if known is not None:
            return known
        end = time.monotonic() + LONG_WAIT_SECONDS
        while (index := self.look()) is None:
            if time.monotonic() > end:
                raise StoreUnavailable("The names of entries are being read: try again in a few seconds.")
        found = index.called(digest)
        if found is None:
            raise EntryNotFound("There is no entry with such a long name.", "")
        return found

    def look(self) -> Index | None:
        """Return the names; None: they are being read, see ``progress``.

        Names that are old are returned, too, and read again meanwhile; where that is quick, it is waited for.

        Raises:
            RedBeatError: they couldn't be read.
        """
        with self._news:
            self._looked_at = time.monotonic()
            if self._index is None or self._index.is_old:
                self._ask()
                if self._index is None or self._index.seconds < QUICK_SECONDS:
                    self._news.wait_for(lambda: not self._is_wanted, 2 * QUICK_SECONDS)
            problem, self._problem = self._problem, None
            if problem is not None:
                raise problem
            return self._index

    def _ask(self) -> None:
        self._is_wanted = True
        self._news.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="redbeat-names", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        """Read the names whenever they are wanted, until they are forgotten."""
        while True:
            index, problem = None, None
            try:
                index = self._dashboard.in_haste(self._read)
            except RedBeatError as exc:
                problem = exc
            except Exception as exc:  # whoever looks is told, and the next look tries again
                logger.exception("The names of entries can't be read")
                problem = RedBeatError(
                    f"The names of entries can't be read: {type(exc).__name__}; see the log."
                )
            with self._news:
                self._index, self._problem = index or self._index, problem
                self._is_wanted = False
                self._news.notify_all()
                while not self._is_wanted:
                    rest = self._looked_at + self._forgotten_seconds - time.monotonic()
                    if rest <= 0:
                        self._index = self._thread = None
                        return
                    self._news.wait(rest)

    def _read(self) -> Index:
        store, began_at = Store(self._app), time.monotonic()
        pace, runs, some, seen = _Pace(began_at), list[SortedTexts](), list[bytes](), 0
        count = count_members(store)
        self.progress = (0, count)
        for page in name_pages(store):
            some += map(as_stored, page)
            seen += len(page)
            self.progress = (seen, max(count, seen))
            if len(some) >= RUN:
                runs.append(SortedTexts(sorted(some)))
                some.clear()
            pace.rest()
        names = SortedTexts(pace.over(merge(*runs, sorted(some))))
        now = time.monotonic()
        return Index(names, now, now - began_at)


class _Pace:
    """Rests after each few milliseconds of work, but not while all may be done soon.

    Arguments:
        began_at: when the work began, by the monotonic clock.
    """

    def __init__(self, began_at: float) -> None:
        self._rests_at = began_at + QUICK_SECONDS

    def rest(self) -> None:
        """Sleep, if it is time for it."""
        if time.monotonic() >= self._rests_at:
            time.sleep(REST_SECONDS)
            self._rests_at = time.monotonic() + WORK_SECONDS

    def over(self, items: Iterable[bytes]) -> Iterator[bytes]:
        """Yield ``items``, and rest in between."""
        for number, item in enumerate(items):
            if number % 500 == 0:
                self.rest()
            yield item
