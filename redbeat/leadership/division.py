"""Which parts of a schedule a beat is to lead, take and hand over, by what it knows of the others. Pure.

Invariant: each part that nobody leads is taken by somebody, whatever the beats know: at once by the one that
is to lead it, or else, after a while, by any. No part goes to and fro between a beat that leads it and one
that says that it is there, and can't.

Which beat is to lead which part is found by rendezvous hashing with bounded load: all beats that know of the
same others find the same. Each pair of a part and a beat has a score, a hash of both, and the pairs are gone
through from the highest score on: at first each beat takes one part, so that none is idle as long as there
are enough; then they take more, up to the bound. In this order, and with no tighter bound, fewer parts change
their leaders when a beat comes or goes than by others that were tried
(tests/unit/leadership/test_division.py measures it). No beat has more than ``max_parts``; the order in which
parts and beats are given doesn't matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from redbeat.config.timing import Timing
from redbeat.process.memory import Memory

#: a part that the beat that is to lead it leaves alone is taken by any after so long, or the takeover time
LEFT_SECONDS = 8.0
#: a silent lock that the beat that is to lead its part leaves alone is taken by any after so many more looks
LEFT_LOOKS = 3
#: for how long a part isn't handed over to a beat that let it lie
REFUSED_SECONDS = 300.0


class Division:
    """How one beat sees the parts divided among those that are there. Times are monotonic.

    Arguments:
        beat: its id.
        timing: of the parts' locks.
    """

    def __init__(self, beat: str, timing: Timing) -> None:
        self._beat = beat
        self.timing = timing
        self._parts: tuple[str, ...] = ()
        self._leaders = Memory[frozenset[str], dict[str, str]](16)
        self._refused: dict[tuple[str, str], float] = {}  # until when

    def set_parts(self, parts: Collection[str]) -> None:
        """Let these be the parts, by their prefixes."""
        self._parts = tuple(parts)
        self._leaders.clear()
        self._refused = {pair: until for pair, until in self._refused.items() if pair[0] in parts}

    def leader_of(self, part: str, live: frozenset[str]) -> str:
        """Return which of the beats that are there is to lead the part."""
        leaders = self._leaders.get(live)
        if leaders is None:
            leaders = self._leaders[live] = find_leaders(self._parts, live)
        return leaders[part]

    def own(self, live: frozenset[str]) -> set[str]:
        """Return the parts that this beat is to lead."""
        return {part for part in self._parts if self.leader_of(part, live) == self._beat}

    def may_take_free(self, part: str, live: frozenset[str], free_seconds: float) -> bool:
        """Tell whether to take a part that nobody has led for so long."""
        left_seconds = min(self.timing.replaced_after_seconds, LEFT_SECONDS)
        return self.leader_of(part, live) == self._beat or free_seconds >= left_seconds

    def may_take_silent(
        self, part: str, live: frozenset[str], silent: frozenset[str], late_seconds: float
    ) -> bool:
        """Tell whether to take over a part whose holder is silent.

        Arguments:
            silent: the beats whose locks are; they don't count as there, also if they say that they are.
            late_seconds: since when it could have been taken over.
        """
        there = (live - silent) | {self._beat}
        left_seconds = LEFT_LOOKS * self.timing.look_seconds
        return self.leader_of(part, there) == self._beat or late_seconds >= left_seconds

    def heir_of(self, part: str, live: frozenset[str], now: float) -> str | None:
        """Return to whom this beat, which leads the part, is to hand it over; None: to nobody."""
        leader = self.leader_of(part, live)
        if leader == self._beat or self._refused.get((part, leader), now) > now:
            return None
        return leader

    def refuse(self, part: str, beat: str, now: float) -> None:
        """Note that this beat has taken the part from that one, or in its place, which says it is there."""
        if beat != self._beat:
            self._refused[part, beat] = now + REFUSED_SECONDS

    def forget_refusals(self, live: frozenset[str], now: float) -> None:
        """Forget what is about beats that aren't there: when one is there again, all is well with it."""
        if self._refused:
            left = {pair: until for pair, until in self._refused.items() if until > now and pair[1] in live}
            self._refused = left


def max_parts(parts: int, beats: int) -> int:
    """Return how many of so many parts one of so many beats leads at most."""
    return -(-parts // beats) + 1


def find_leaders(parts: Collection[str], beats: Collection[str]) -> dict[str, str]:
    """Return which beat is to lead each part; {} where there are no beats.

    Arguments:
        parts: what each is known by, its prefix.
        beats: their ids.
    """
    ordered, there = tuple(sorted(set(parts))), sorted(set(beats))
    rows = [_row(ordered, beat) for beat in there]
    leaders: dict[int, int] = {}
    if there:
        _fill(leaders, rows, 1)
        _fill(leaders, rows, max_parts(len(ordered), len(there)))
    return {ordered[part]: there[beat] for part, beat in leaders.items()}


def _fill(leaders: dict[int, int], rows: Sequence[_Row], most: int) -> None:
    """Let each beat lead up to ``most`` parts, of those that nobody leads yet.

    Each goes through these parts, its best one first, and gets what nobody has, or another one with a lower
    score. That ends as going through all pairs by their scores would, and looks at few of them.
    """
    led = set(leaders)
    free = [most - count for count in map([*leaders.values()].count, range(len(rows)))]
    lefts = [(part for part in row.ranked if part not in led) for row in rows]
    asking = [*range(len(rows))]
    while asking:
        beat = asking.pop()
        while free[beat] and (part := next(lefts[beat], None)) is not None:
            other = leaders.get(part)
            if other is not None:
                if (rows[other].scores[part], other) > (rows[beat].scores[part], beat):
                    continue
                free[other] += 1
                asking.append(other)
            leaders[part] = beat
            free[beat] -= 1


class _Row(NamedTuple):
    """One beat's scores.

    Attributes:
        scores: that of each part, by its number.
        ranked: the parts' numbers, that of the highest score first.
    """

    scores: array[int]
    ranked: array[int]


@lru_cache(maxsize=256)  # when a beat comes or goes, those of the others stay
def _row(parts: tuple[str, ...], beat: str) -> _Row:
    scores = array("Q", (score(part, beat) for part in parts))
    ranked = sorted(range(len(parts)), key=lambda part: (scores[part], part), reverse=True)
    return _Row(scores, array("L", ranked))


def score(part: str, beat: str) -> int:
    """Return how much a beat prefers a part: a hash of both."""
    text = f"{part}\0{beat}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
