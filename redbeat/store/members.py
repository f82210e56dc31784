"""The members of the schedule's zset, which are entries' keys or their bare names, and their scores.

Each shard has such a zset, and they are listed as one: by due time, those that never run again last, and
members with the same score shard by shard. Invariant: no caller walks through the schedule to come to a place
in it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from math import inf, isqrt
from operator import itemgetter
from typing import Any

from redbeat.errors import StoreRefused
from redbeat.log.text import as_stored
from redbeat.store.nodes import Command
from redbeat.store.parts import CHUNK_SIZE, in_chunks
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how many members of each shard are read at a time at least, where those of several are merged
MIN_PAGE = 50

#: the scores of the members in the order of a list: the lowest and the highest
_SPANS = ("0", "+inf"), ("-inf", "(0")


def _schedules(store: Store) -> list[str]:
    return [part.schedule for part in store.all_parts]


def count_members(store: Store) -> int:
    """Return how many there are."""
    return sum(map(int, store.ask_all([Command("zcard", key) for key in _schedules(store)])))


def total_of(store: Store) -> int:
    """Return how many there are, also for a user like beat's, whose rule has ZCOUNT instead of ZCARD."""
    try:
        return count_members(store)
    except StoreRefused:
        return sum(_counts(store, "-inf", "+inf"))


def scores_of(store: Store, members: Sequence[str]) -> list[float | None]:
    """Return the score of each; None: it isn't a member."""
    part_of = store.parts.of
    return store.ask_all([Command("zscore", part_of(one).schedule, as_stored(one)) for one in members])


def rank_of(store: Store, member: str) -> int | None:
    """Return how many have a lower score, or the same and are before it; None: it isn't a member."""
    own = store.parts.of(member).schedule
    rank: int | None = store.ask(Command("zrank", own, as_stored(member)))
    [score] = scores_of(store, [member]) if rank is not None and store.parts.is_divided else [None]
    return rank if rank is None or score is None else rank + _count_elsewhere(store, own, score, "-inf")


def place_after(store: Store, member: str, score: float) -> int:
    """Return the place, as ``read_slice`` takes it, of the first behind ``member`` with ``score``.

    ``member`` need not be there any more, or may have another score.
    """
    own, text, low = store.parts.of(member).schedule, repr(score), "0" if score >= 0 else "-inf"
    asks = [Command("zcount", own, *span) for span in (("-inf", f"({text}"), (low, f"({text}"), (text, text))]
    asks += [Command(command, own, as_stored(member)) for command in ("zscore", "zrank")]
    below, lower, same, score_now, rank = store.ask_all(asks)

    def member_at(place: int) -> bytes:
        found = store.ask(Command("zrangebyscore", own, text, text, start=place, num=1))
        return as_stored(text_of(found[0])) if found else b"\xff"  # others are removed meanwhile

    if score_now == score:
        before = lower + rank - below + 1
    else:
        before = lower + bisect_right(range(same), as_stored(member), key=member_at)
    before += _count_elsewhere(store, own, score, low)
    return int(before if score >= 0 else before + sum(_counts(store, *_SPANS[0])))


def _count_elsewhere(store: Store, own: str, score: float, low: str) -> int:
    """Return how many members of other schedules than ``own`` are before its members with ``score``.

    Arguments:
        low: the lowest score that counts.
    """
    keys, text = _schedules(store), repr(score)
    at = keys.index(own) if own in keys else 0
    # those with the same score are shard by shard
    highs = [(key, text if place < at else f"({text}") for place, key in enumerate(keys) if key != own]
    return sum(map(int, store.ask_all([Command("zcount", key, low, high) for key, high in highs])))


def _counts(store: Store, low: str, high: str) -> list[int]:
    """Return how many members of each schedule have scores from ``low`` to ``high``."""
    # a beat has no right to ZCARD
    return [*map(int, store.ask_all([Command("zcount", key, low, high) for key in _schedules(store)]))]


def read_slice(store: Store, offset: int, count: int) -> list[tuple[str, float]]:
    """Return at most ``count`` of what ``members_in_order`` yields, from the place ``offset`` on, 0 or more.

    It takes no longer far behind than at the beginning, or hardly.
    """
    rows: list[tuple[str, float]] = []
    for low, high in _SPANS:
        sizes = _counts(store, low, high)
        if offset < sum(sizes) and len(rows) < count:
            wanted = count - len(rows)
            begin, skipped = _begin_of(store, sizes, low, offset)
            skips = [0] * len(sizes)
            for at, same in enumerate(_counts(store, begin, begin) if skipped else ()):
                skips[at] = min(same, skipped)
                skipped -= skips[at]
            size = min(wanted + skipped, CHUNK_SIZE)
            rows += islice(_merged(store, begin, high, size, skips), skipped, skipped + wanted)
        offset = max(offset - sum(sizes), 0)
    return rows


def _begin_of(store: Store, sizes: Sequence[int], low: str, offset: int) -> tuple[str, int]:
    """Return a score shortly before a place, and how many members from that score on are before the place.

    Arguments:
        sizes: how many members of each schedule have a score from ``low`` on, and count.
    """
    at = max(range(len(sizes)), key=sizes.__getitem__)
    # shards have about equal shares of each time
    rank = offset * sizes[at] // sum(sizes) - (2 * isqrt(sizes[at]) if len(sizes) > 1 else 0)
    while rank > 0:
        ask = Command("zrangebyscore", _schedules(store)[at], low, "+inf", start=rank, num=1, withscores=True)
        for _, score in store.ask(ask):
            before = sum(_counts(store, low, f"({score!r}"))
            if before <= offset:
                return repr(score), offset - before
        rank //= 2
    return low, offset


def members_in_order(store: Store, last_score: float | None = None) -> Iterator[list[tuple[str, float]]]:
    """Yield the members with their scores, page by page: the lowest score first, negative ones last.

    Members with the same score are in the order of their bytes, shard by shard. One that is moved
    meanwhile may come twice.

    Arguments:
        last_score: only those with a score from 0 to this; None: all.
    """
    spans = _SPANS if last_score is None else (("0", repr(last_score)),)
    return in_chunks(chain.from_iterable(_merged(store, *span, CHUNK_SIZE) for span in spans))


def _merged(
    store: Store, low: str, high: str, count: int, skips: Sequence[int] = ()
) -> Iterator[tuple[str, float]]:
    """Yield the members of all schedules with scores from ``low`` to ``high``.

    Arguments:
        count: how many are read at a time.
        skips: how many members of each schedule with the score ``low`` are left out.
    """
    keys = _schedules(store)
    size = count if len(keys) == 1 else max(count // len(keys), MIN_PAGE)
    readers = [
        _Reader(key, low, high, size, skip) for key, skip in zip(keys, skips or [0] * len(keys), strict=True)
    ]

    def rows_of(reader: _Reader) -> Iterator[tuple[str, float]]:
        while True:
            while reader.is_reading and not reader.rows:
                lacking = [one for one in readers if one.is_reading and len(one.rows) < size // 2 + 1]
                for one, found in zip(lacking, store.ask_all([one.ask() for one in lacking]), strict=True):
                    one.take(found)
            if not reader.rows:
                return
            yield reader.rows.popleft()

    return heapq.merge(*map(rows_of, readers), key=itemgetter(1))


class _Reader:
    """Reads the members of one schedule in order, a page at a time.

    Attributes:
        rows: what was read, and isn't used yet.
        is_reading: there may be more.
    """

    def __init__(self, key: str, low: str, high: str, size: int, skip: int) -> None:
        self.rows, self.is_reading = deque[tuple[str, float]](), True
        self._key, self._low, self._high, self._size = key, low, high, size
        self._seen, self._overlap = skip, 0  # how many members with the score ``_low`` were seen
        self._latest = -inf, b""

    def ask(self) -> Command:
        """Return the command that reads what comes next."""
        start = max(self._seen - self._overlap, 0)  # some of these may have been moved meanwhile
        options: Any = {"start": start, "num": self._overlap + self._size, "withscores": True}
        return Command("zrangebyscore", self._key, self._low, self._high, **options)

    def take(self, answer: Sequence[tuple[Any, float]]) -> None:
        """Take what was answered."""
        places = [(score, as_stored(text_of(member))) for member, score in answer]
        page = [place for place in places if place > self._latest]
        self.rows += ((text_of(member), score) for score, member in page)
        self.is_reading = len(answer) == self._overlap + self._size
        if page:
            self._latest, score = page[-1], repr(page[-1][0])
            same = sum(1 for place in page if place[0] == page[-1][0])
            self._seen = self._seen + same if score == self._low else same
            self._low = score
        else:
            self._seen += self._size
        self._overlap = self._size


def entry_keys(store: Store) -> Iterator[str]:
    """Yield the keys of all entries in the schedule, in order."""
    for page in members_in_order(store):
        yield from (store.keys.entry_of(member) for member, _ in page)


def first_members(store: Store, count: int) -> list[str]:
    """Return at most ``count`` members of one part, the lowest score first; []: no part has any."""
    asks = [Command("zrange", key, 0, count - 1) for key in _schedules(store)]
    return [*map(text_of, next(filter(None, store.ask_all(asks)), []))]


def scan_members(store: Store) -> Iterator[list[tuple[str, float]]]:
    """Yield all members with their scores in any order, about 500 at a time.

    A member that is there all the time comes at least once; one that is moved meanwhile may come twice.
    """
    count = max(CHUNK_SIZE // len(store.all_parts), MIN_PAGE)
    schedules = [partial(Command, "zscan", part.schedule, count=count) for part in store.all_parts]
    for page in store.scan(*schedules):
        yield [(text_of(member), score) for member, score in page]


def remove_members(store: Store, members: Sequence[str]) -> None:
    """Remove members from the schedule; the entries under their keys stay."""
    for chunk in in_chunks(members):
        groups = store.parts.by_part(chunk)
        store.ask_all([Command("zrem", part.schedule, *map(as_stored, those)) for part, those in groups])
