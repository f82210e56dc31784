"""The members of the schedule's zset, which are entries' keys or their bare names, and their scores."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import Any

from redbeat.log.text import as_stored
from redbeat.store.chunks import CHUNK_SIZE, in_chunks
from redbeat.store.parts import Part
from redbeat.store.records import text_of
from redbeat.store.scripts.repairs import MemberRepair as MemberRepair
from redbeat.store.scripts.repairs import repair_members
from redbeat.store.store import Store


class Members:
    """The members of the schedule of ``store``. Scores are UNIX seconds, < 0: never."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count(self) -> int:
        """Return how many there are."""
        client = self._store.client
        with self._store.translating():
            return sum(self._store.parts.read(lambda part: [int(client.zcard(part.keys.schedule))]))

    def scores_of(self, members: Sequence[str]) -> list[float | None]:
        """Return the score of each; None: it isn't a member."""
        client, part_of = self._store.client, self._store.parts.of
        with self._store.translating(), client.pipeline(transaction=False) as pipeline:
            for one in members:
                pipeline.zscore(part_of(one).keys.schedule, as_stored(one))
            return list(pipeline.execute())

    def rank_of(self, member: str) -> int | None:
        """Return its place, 0 for the next one due; None: it isn't there."""
        key = self._store.parts.of(member).keys.schedule
        rank: int | None = self._store.ask(lambda client: client.zrank(key, as_stored(member)))
        return rank

    def slice(self, offset: int, count: int) -> list[tuple[str, float]]:
        """Return at most ``count`` of what ``in_order`` yields, from the place ``offset`` on; 0: the first.

        It takes no longer far behind than at the beginning.
        """
        if len(self._store.parts) > 1:
            return [*islice(chain.from_iterable(self.in_order()), offset, offset + count)]
        key, never, number = self._sizes()
        last = min(offset + count, number) - 1
        first_never = number - never  # the place of the first that never runs
        rows: list[tuple[str, float]] = []
        for first, end, shift in (
            (offset, min(last, first_never - 1), never),
            (max(offset, first_never), last, -first_never),
        ):
            if first <= end:
                rows += self._ranked(key, first + shift, end + shift)
        return rows

    def place_after(self, member: str, score: float) -> int:
        """Return the place, as ``slice`` takes it, of the first behind ``member`` with ``score``.

        ``member`` need not be there any more, or may have another score.
        """
        before = _place_of((member, score))
        if len(self._store.parts) > 1:
            return sum(1 for row in chain.from_iterable(self.in_order()) if _place_of(row) <= before)
        key, never, number = self._sizes()
        rank = self.rank_of(member)
        if rank is not None and self.scores_of([member]) == [score]:
            return (rank - never) % number + 1

        def place_at(place: int) -> tuple[bool, float, bytes]:
            rank = (place + never) % number
            found = self._ranked(key, rank, rank)
            return _place_of(found[0]) if found else (True, inf, b"")  # others are removed meanwhile

        return bisect_right(range(number), before, key=place_at)

    def _sizes(self) -> tuple[str, int, int]:
        """Return the key of the one part, how many of its members never run again, and how many it has."""
        [part] = self._store.parts
        key = part.keys.schedule
        never = int(self._store.ask(lambda client: client.zcount(key, "-inf", "(0")))
        return key, never, self.count()

    def _ranked(self, key: str, first: int, last: int) -> list[tuple[str, float]]:
        found = self._store.ask(lambda client: client.zrange(key, first, last, withscores=True))
        return [(text_of(member), score) for member, score in found]

    def in_order(self, last_score: float | None = None) -> Iterator[list[tuple[str, float]]]:
        """Yield the members with their scores, page by page: the lowest score first, negative ones last.

        Members with the same score are in the order of their bytes. One that is moved meanwhile may come
        twice.

        Arguments:
            last_score: only those with a score from 0 to this; None: all.
        """

        def read(part: Part) -> Iterator[tuple[str, float]]:
            yield from self._range(part, "0", "+inf" if last_score is None else repr(last_score))
            if last_score is None:
                yield from self._range(part, "-inf", "(0")

        return in_chunks(self._store.parts.read(read, _place_of))

    def entries(self) -> Iterator[str]:
        """Yield the keys of all entries in the schedule, in order."""
        for page in self.in_order():
            yield from (self._store.keys.entry_of(member) for member, _ in page)

    def _range(self, part: Part, begin: str, last: str) -> Iterator[tuple[str, float]]:
        at_begin = 0  # how many members with the score ``begin`` were seen
        latest = (-inf, b"")
        while True:
            # some of these may have been moved meanwhile
            options = {"start": max(at_begin - CHUNK_SIZE, 0), "num": 2 * CHUNK_SIZE}
            found = self._scored(part, begin, last, options)
            page = [one for one in found if (one[1], as_stored(one[0])) > latest][:CHUNK_SIZE]
            yield from page
            if len(found) < 2 * CHUNK_SIZE and len(page) < CHUNK_SIZE:
                return
            if page:
                latest = page[-1][1], as_stored(page[-1][0])
                same = sum(1 for _, score in page if score == latest[0])
                at_begin = at_begin + same if repr(latest[0]) == begin else same
                begin = repr(latest[0])
            else:
                at_begin += CHUNK_SIZE

    def _scored(self, part: Part, first: str, last: str, options: dict[str, int]) -> list[tuple[str, float]]:
        key = part.keys.schedule
        found = self._store.ask(
            lambda client: client.zrangebyscore(key, first, last, withscores=True, **options)
        )
        return [(text_of(member), score) for member, score in found]

    def first(self, count: int) -> list[str]:
        """Return at most ``count`` members of one part, the lowest score first; []: no part has any."""

        def read(part: Part) -> Iterator[list[Any]]:
            yield self._store.ask(lambda client: client.zrange(part.keys.schedule, 0, count - 1))

        return [*map(text_of, next(filter(None, self._store.parts.read(read)), []))]

    def scan(self) -> Iterator[list[tuple[str, float]]]:
        """Yield all members with their scores in any order, about 500 at a time.

        A member that is there all the time comes at least once; one that is moved meanwhile may come twice.
        """

        def read(part: Part) -> Iterator[list[tuple[Any, float]]]:
            key = part.keys.schedule
            return self._store.scan(lambda client, cursor: client.zscan(key, cursor, count=CHUNK_SIZE))

        for page in self._store.parts.read(read):
            yield [(text_of(member), score) for member, score in page]

    def remove(self, members: Sequence[str]) -> None:
        """Remove members from the schedule; the entries under their keys stay."""
        for part, chunk in self._store.parts.chunks(members):
            with self._store.translating():
                self._store.client.zrem(part.keys.schedule, *map(as_stored, chunk))

    def repair(self, repairs: Sequence[MemberRepair]) -> list[bool]:
        """Make each repair that is still needed; tell of each whether it was made."""
        done: list[bool] = []
        for part, chunk in self._store.parts.chunks(repairs, lambda one: one.key):
            with self._store.translating():
                done += repair_members(self._store.client, part.keys, chunk)
        return done


def _place_of(row: tuple[str, float]) -> tuple[bool, float, bytes]:
    """Return the key by which members are ordered."""
    member, score = row
    return score < 0, score, as_stored(member)
