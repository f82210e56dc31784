"""Which beat is to lead which part of a schedule: all beats that know of the same others find the same. Pure.

That is rendezvous hashing with bounded load. Each pair of a part and a beat has a score, a hash of both, and
the pairs are gone through from the highest score on: at first each beat takes one part, so that none is idle
as long as there are enough; then they take more, up to the bound. In this order, and with no tighter bound,
fewer parts change their leaders when a beat comes or goes than by others that were tried
(tests/unit/leadership/test_rendezvous.py measures it).

Invariants: nobody has more than ``max_parts``; nobody has none where there are as many parts as beats; the
order in which parts and beats are given doesn't matter.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

__all__ = ["find_leaders", "max_parts"]


def max_parts(parts: int, beats: int) -> int:
    """Return how many of so many parts one of so many beats leads at most."""
    return -(-parts // beats) + 1


def find_leaders(parts: Collection[str], beats: Collection[str]) -> dict[str, str]:
    """Return which beat is to lead each part; {} where there are no beats.

    Arguments:
        parts: what each is known by, its prefix.
        beats: their ids.
    """
    pairs = sorted(((_score(part, beat), part, beat) for part in parts for beat in beats), reverse=True)
    leaders: dict[str, str] = {}
    counts = dict.fromkeys(beats, 0)
    for most in (1, max_parts(len(parts), len(counts) or 1)):
        for _, part, beat in pairs:
            if part not in leaders and counts[beat] < most:
                leaders[part] = beat
                counts[beat] += 1
    return leaders


def _score(part: str, beat: str) -> bytes:
    return blake2b(f"{part}\0{beat}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
