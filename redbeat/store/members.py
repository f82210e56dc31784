"""The members of the schedule's zset, which are entries' keys or their bare names, and their scores.

Each shard has such a zset, and they are listed as one: by due time, and members with the same score shard by
shard. So the place of a member among all follows from its score, its shard and its rank there. Invariant:
no caller walks through the schedule to come to a place in it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from operator import attrgetter, methodcaller
from typing import Any

from redbeat.keys import Keys
from redbeat.log.text import as_stored
from redbeat.store.parts import CHUNK_SIZE, in_chunks
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: if so many members or fewer are before a place, they are read, too
NEAR = 50
#: how many members of each shard are read at a time at least, where those of several are merged
MIN_PAGE = 50


def _schedules(store: Store) -> list[str]:
    return [part.schedule for part in store.all_parts]


def count_members(store: Store) -> int:
    """Return how many there are."""
    return sum(_numbers(store, [methodcaller("zcard", key) for key in _schedules(store)]))


def _numbers(store: Store, asks: Sequence[Any]) -> list[int]:
    return [*map(int, store.ask_each(asks))]


def scores_of(store: Store, members: Sequence[str]) -> list[float | None]:
    """Return the score of each; None: it isn't a member."""
    part_of = store.parts.of
    return store.ask_each([methodcaller("zscore", part_of(one).schedule, as_stored(one)) for one in members])


def rank_of(store: Store, member: str) -> int | None:
    """Return how many have a lower score, or the same and are before it; None: it isn't a member."""
    rank = _rank_in_part(store, member)
    if rank is None or not store.parts.is_divided:
        return rank
    [score] = scores_of(store, [member])
    if score is None:
        return None
    asks = [methodcaller("zcount", key, "-inf", last) for key, last in _others(store, member, score)]
    return rank + sum(_numbers(store, asks))


def _rank_in_part(store: Store, member: str) -> int | None:
    key = store.parts.of(member).schedule
    rank: int | None = store.ask(lambda client: client.zrank(key, as_stored(member)))
    return rank


def _others(store: Store, member: str, score: float) -> list[tuple[str, str]]:
    """Return the schedules of the other parts, and the last score of those before ``member`` in each."""
    keys, own = _schedules(store), store.parts.of(member).schedule
    at = keys.index(own) if own in keys else 0
    # those with the same score are shard by shard
    return [(key, f"{'(' if n > at else ''}{score!r}") for n, key in enumerate(keys) if n != at]


def read_slice(store: Store, offset: int, count: int) -> list[tuple[str, float]]:
    """Return at most ``count`` of what ``members_in_order`` yields, from the place ``offset`` on, 0 or more.

    It takes no longer far behind than at the beginning, or hardly: in one part a place is a rank; in
    several :func:`_approach` finds the ranks.
    """
    keys = _schedules(store)
    nevers, sizes = _sizes(store, keys)
    rows: list[tuple[str, float]] = []
    for low, firsts, ends in (("0", nevers, sizes), ("-inf", [0] * len(keys), nevers)):
        number = sum(ends) - sum(firsts)
        if offset < number and len(rows) < count:
            rows += _read_from(store, low, firsts, ends, offset, count - len(rows))
        offset = max(offset - number, 0)
    return rows


def _sizes(store: Store, keys: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return how many members of each schedule never run again, and how many it has."""
    nevers = [methodcaller("zcount", key, "-inf", "(0") for key in keys]
    # a beat has no right to ZCARD
    found = _numbers(store, [*nevers, *(methodcaller("zcount", key, "-inf", "+inf") for key in keys)])
    return found[: len(keys)], found[len(keys) :]


def _read_from(
    store: Store, low: str, firsts: Sequence[int], ends: Sequence[int], offset: int, count: int
) -> list[tuple[str, float]]:
    """Return at most ``count`` members, merged, from the place ``offset`` on.

    Arguments:
        low: the lowest score, and
        firsts, ends: the rank of the first member of each schedule that counts, and of the first behind them
            that doesn't.
    """
    keys = _schedules(store)
    if len(keys) == 1:
        firsts, offset = [firsts[0] + offset], 0
    else:
        firsts, offset = _approach(store, low, firsts, ends, offset)
    pages = _ranked(
        store,
        [
            (key, first, min(end, first + offset + count) - 1)
            for key, first, end in zip(keys, firsts, ends, strict=True)
            if first < end
        ],
    )
    return [*islice(heapq.merge(*pages, key=_order), offset, offset + count)]


def _approach(
    store: Store, low: str, firsts: Sequence[int], ends: Sequence[int], offset: int
) -> tuple[Sequence[int], int]:
    """Leave out members before the place ``offset``, until it is ``NEAR`` or less.

    A member is guessed that is near the place, as shards have about equal shares of each time, and the
    members before it are counted in each schedule. Each guess leaves out what is before it, or behind it.

    Returns the new ``firsts``, and the place counted from there.
    """
    keys, begins, place = _schedules(store), firsts, sum(firsts) + offset
    while place - sum(firsts) > NEAR:
        sizes, left = [end - first for first, end in zip(firsts, ends, strict=True)], place - sum(firsts)
        at = sizes.index(max(sizes))
        rank = firsts[at] + sizes[at] * left // max(sum(sizes), 1)
        [guess] = _ranked(store, [(keys[at], rank, rank)])
        if not guess or left >= sum(sizes):  # others are moved or removed meanwhile
            break
        bounds = [(key, f"{'(' if n > at else ''}{guess[0][1]!r}") for n, key in enumerate(keys)]
        counts = _numbers(store, [methodcaller("zcount", key, low, high) for key, high in bounds])
        before = [begin + count for begin, count in zip(begins, counts, strict=True)]
        before[at] = rank
        if sum(before) > place:
            ends = [*map(min, ends, before)]
        elif (following := [*map(max, firsts, before)]) != firsts:
            firsts = following
        else:
            break
    return firsts, place - sum(firsts)


def place_after(store: Store, member: str, score: float) -> int:
    """Return the place, as ``slice`` takes it, of the first behind ``member`` with ``score``.

    ``member`` need not be there any more, or may have another score.
    """
    place = _place_in(store, store.parts.of(member), member, score)
    if not store.parts.is_divided:
        return place
    asks = []
    for key, last in _others(store, member, score):
        if score < 0:
            asks.append(methodcaller("zcount", key, "0", "+inf"))
        asks.append(methodcaller("zcount", key, "-inf" if score < 0 else "0", last))
    return place + sum(_numbers(store, asks))


def _place_in(store: Store, part: Keys, member: str, score: float) -> int:
    """Return how many members of one part are ``member`` with ``score`` or before it."""
    key = part.schedule
    [never], [number] = _sizes(store, [key])
    rank = _rank_in_part(store, member)
    if rank is not None and scores_of(store, [member]) == [score]:
        return (rank - never) % number + 1

    def place_at(place: int) -> tuple[bool, float, bytes]:
        rank = (place + never) % number
        [found] = _ranked(store, [(key, rank, rank)])
        return _place_of(found[0]) if found else (True, inf, b"")  # others are removed meanwhile

    return bisect_right(range(number), _place_of((member, score)), key=place_at)


def _ranked(store: Store, asked: Sequence[tuple[str, int, int]]) -> list[list[tuple[str, float]]]:
    """Return the members with some ranks: each is of a schedule, from one rank to another."""
    found = store.ask_each([methodcaller("zrange", *ranks, withscores=True) for ranks in asked])
    return [[(text_of(member), score) for member, score in rows] for rows in found]


def members_in_order(store: Store, last_score: float | None = None) -> Iterator[list[tuple[str, float]]]:
    """Yield the members with their scores, page by page: the lowest score first, negative ones last.

    Members with the same score are in the order of their bytes, shard by shard. One that is moved
    meanwhile may come twice.

    Arguments:
        last_score: only those with a score from 0 to this; None: all.
    """
    parts = store.all_parts
    size = max(CHUNK_SIZE // len(parts), MIN_PAGE)
    readers = [_Reader(part.schedule, size, last_score) for part in parts]

    def rows_of(reader: _Reader) -> Iterator[tuple[str, float]]:
        while True:
            while reader.is_reading and not reader.rows:
                low = [one for one in readers if one.is_low]
                for one, found in zip(low, store.ask_each([one.ask for one in low]), strict=True):
                    one.take(found)
            if not reader.rows:
                return
            yield reader.rows.popleft()

    return in_chunks(heapq.merge(*map(rows_of, readers), key=_order))


def entry_keys(store: Store) -> Iterator[str]:
    """Yield the keys of all entries in the schedule, in order."""
    for page in members_in_order(store):
        yield from (store.keys.entry_of(member) for member, _ in page)


def first_members(store: Store, count: int) -> list[str]:
    """Return at most ``count`` members of one part, the lowest score first; []: no part has any."""
    asks = [methodcaller("zrange", key, 0, count - 1) for key in _schedules(store)]
    return [*map(text_of, next(filter(None, store.ask_each(asks)), []))]


def scan_members(store: Store) -> Iterator[list[tuple[str, float]]]:
    """Yield all members with their scores in any order, about 500 at a time.

    A member that is there all the time comes at least once; one that is moved meanwhile may come twice.
    """
    count = max(CHUNK_SIZE // len(store.all_parts), MIN_PAGE)
    for page in store.scan_parts(attrgetter("schedule"), count):
        yield [(text_of(member), score) for member, score in page]


def remove_members(store: Store, members: Sequence[str]) -> None:
    """Remove members from the schedule; the entries under their keys stay."""
    for chunk in in_chunks(members):
        groups = store.parts.by_part(chunk)
        store.ask_each(
            [methodcaller("zrem", part.schedule, *map(as_stored, those)) for part, those in groups]
        )


class _Reader:
    """Reads the members of one schedule in order, a page at a time.

    Attributes:
        rows: what was read, and isn't used yet.
        is_reading: there may be more.
    """

    def __init__(self, key: str, size: int, last_score: float | None) -> None:
        self.rows = deque[tuple[str, float]]()
        self._key, self._size = key, size
        self._spans = [("0", "+inf"), ("-inf", "(0")] if last_score is None else [("0", repr(last_score))]
        self._begin_span()

    def _begin_span(self) -> None:
        self.is_reading = bool(self._spans)
        if self.is_reading:
            self._begin, self._last = self._spans.pop(0)
            self._at_begin = 0  # how many members with the score ``_begin`` were seen
            self._latest = (-inf, b"")

    @property
    def is_low(self) -> bool:
        """Whether it may as well read on."""
        return self.is_reading and len(self.rows) < self._size // 2

    def ask(self, client: Any) -> Any:
        """Ask for what comes next."""
        start = max(self._at_begin - self._size, 0)  # some of these may have been moved meanwhile
        return client.zrangebyscore(
            self._key, self._begin, self._last, start=start, num=2 * self._size, withscores=True
        )

    def take(self, answer: Sequence[tuple[Any, float]]) -> None:
        """Take what was answered."""
        found = [(text_of(member), score) for member, score in answer]
        page = [one for one in found if (one[1], as_stored(one[0])) > self._latest][: self._size]
        self.rows += page
        if len(found) < 2 * self._size and len(page) < self._size:
            self._begin_span()
        elif page:
            self._latest = page[-1][1], as_stored(page[-1][0])
            same = sum(1 for _, score in page if score == self._latest[0])
            self._at_begin = self._at_begin + same if repr(self._latest[0]) == self._begin else same
            self._begin = repr(self._latest[0])
        else:
            self._at_begin += self._size


def _order(row: tuple[str, float]) -> tuple[bool, float]:
    """Return the key by which the members of several schedules are merged."""
    return row[1] < 0, row[1]


def _place_of(row: tuple[str, float]) -> tuple[bool, float, bytes]:
    """Return the key by which the members of one schedule are ordered."""
    member, score = row
    return score < 0, score, as_stored(member)
