"""The members of the schedule, entries' keys or their bare names, and their scores: the zset itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from redbeat.log.text import as_stored
from redbeat.store.chunks import CHUNK_SIZE
from redbeat.store.records import text_of
from redbeat.store.scripts.repairs import MemberRepair as MemberRepair
from redbeat.store.scripts.repairs import repair_members
from redbeat.store.store import Store


class Members:
    """The members of the schedule of ``store``. Scores are UNIX seconds, < 0: never."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.keys.schedule

    def count(self) -> int:
        """Return how many there are."""
        return int(self._store.ask(lambda client: client.zcard(self._key)))

    def scores_of(self, members: Sequence[str]) -> list[float | None]:
        """Return the score of each, None for what isn't a member."""
        with self._store.translating():
            return [self._store.client.zscore(self._key, as_stored(member)) for member in members]

    def rank_of(self, member: str) -> int | None:
        """Return its place, 0 for the next one due; None: it isn't there."""
        rank: int | None = self._store.ask(lambda client: client.zrank(self._key, member))
        return rank

    def in_order(self, last_score: float | None = None) -> Iterator[list[tuple[str, float]]]:
        """Yield the members with their scores, the lowest score first and negative ones last, by the page.

        Those with one score come in the order of their bytes. What is moved meanwhile may come twice.

        Arguments:
            last_score: only those from 0 to this.
        """
        yield from self._range("0", "+inf" if last_score is None else repr(last_score))
        if last_score is None:
            yield from self._range("-inf", "(0")

    def _range(self, begin: str, last: str) -> Iterator[list[tuple[str, float]]]:
        at_begin = 0  # how many with that score were seen
        latest = (-inf, b"")
        while True:
            # some of them may have moved on
            options = {"start": max(at_begin - CHUNK_SIZE, 0), "num": 2 * CHUNK_SIZE}
            found = self._scored(begin, last, options)
            page = [one for one in found if (one[1], as_stored(one[0])) > latest][:CHUNK_SIZE]
            yield page
            if len(found) < 2 * CHUNK_SIZE and len(page) < CHUNK_SIZE:
                return
            if page:
                latest = page[-1][1], as_stored(page[-1][0])
                same = sum(1 for _, score in page if score == latest[0])
                at_begin = at_begin + same if repr(latest[0]) == begin else same
                begin = repr(latest[0])
            else:
                at_begin += CHUNK_SIZE

    def _scored(self, first: str, last: str, options: dict[str, int]) -> list[tuple[str, float]]:
        found = self._store.ask(
            lambda client: client.zrangebyscore(self._key, first, last, withscores=True, **options)
        )
        return [(text_of(member), score) for member, score in found]

    def first(self, count: int) -> list[str]:
        """Return the first ``count`` members, the lowest score first."""
        return [*map(text_of, self._store.ask(lambda client: client.zrange(self._key, 0, count - 1)))]

    def scan(self) -> Iterator[list[tuple[str, float]]]:
        """Yield all members with their scores in no order, about 500 at a time.

        What is there all the while comes at least once, what is moved meanwhile perhaps twice.
        """
        cursor = 0
        while True:
            with self._store.translating():
                cursor, found = self._store.client.zscan(self._key, cursor, count=CHUNK_SIZE)
            yield [(text_of(member), score) for member, score in found]
            if not int(cursor):
                return

    def remove(self, members: Sequence[str]) -> None:
        """Take members out of the schedule; what stands under their keys is left."""
        self._store.ask(lambda client: client.zrem(self._key, *map(as_stored, members)))

    def repair(self, repairs: Sequence[MemberRepair]) -> list[bool]:
        """Make each repair if it is still one; tell of each whether it was made."""
        wake = self._store.keys.wake
        done: list[bool] = self._store.ask(
            lambda client: repair_members(client, self._key, repairs, wake=wake)
        )
        return done
