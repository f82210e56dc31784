"""Which beat is to lead which part of a schedule: all beats that know of the same others find the same. Pure.

That is rendezvous hashing with bounded load. Each pair of a part and a beat has a score, a hash of both, and
the pairs are gone through from the highest score on: at first each beat takes one part, so that none is idle
as long as there are enough; then they take more, up to the bound. In this order, and with no tighter bound,
fewer parts change their leaders when a beat comes or goes than by others that were tried
(tests/unit/leadership/test_division.py measures it).

Invariants: nobody has more than ``max_parts``; nobody has none where there are as many parts as beats; the
order in which parts and beats are given doesn't matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["find_leaders", "max_parts", "score"]


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
