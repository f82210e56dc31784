"""The assignment of shards to beats, as one beat computes it from what it knows of the others. Pure.

Invariant: each shard that no beat leads is taken by one, whatever the beats know: at once by the beat that it
is assigned to, or else, after a while, by any. No shard goes to and fro between a beat that leads it and one
that announces itself, and can't.

The assignment is rendezvous hashing with bounded load: all beats that know of the same others compute the
same. Each pair of a shard and a beat has a score, a hash of both, and the pairs are gone through from the
highest score on: at first each beat takes one shard, so that none is idle as long as there are enough; then
they take more, up to the bound. In this order, and with no tighter bound, fewer shards change their leaders
when a beat comes or goes than by others that were tried (tests/unit/leadership/test_assignment.py measures
it). No beat has more than ``max_shards``; the order in which shards and beats are given doesn't matter.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from hashlib import blake2b

from redbeat.config.timing import Timing

#: a shard that its beat leaves alone is taken by any after so long, or the takeover time
LEFT_SECONDS = 8.0
#: for how long a shard isn't handed over to a beat that left it alone
REFUSED_SECONDS = 300.0


class ShardAssignment:
    """The assignment as one beat sees it. Shards are known by their prefixes; times are monotonic.

    Arguments:
        beat: its id.
        timing: of the shards' locks.

    Attributes:
        shards: those that there are; they may change.
    """

    def __init__(self, beat: str, timing: Timing) -> None:
        self._beat = beat
        self._timing = timing
        self.shards: tuple[str, ...] = ()
        self._refused: dict[tuple[str, str], float] = {}  # until when

    def leader_of(self, shard: str, live: frozenset[str]) -> str:
        """Return which of the live beats is to lead the shard."""
        return find_leaders(self.shards, live)[shard]

    def may_take(self, shard: str, live: frozenset[str], silent: frozenset[str], left_seconds: float) -> bool:
        """Return True if this beat is to take a shard that is free, or whose holder is silent.

        Arguments:
            silent: the beats whose locks are silent; they don't count as live, also if they announce
                themselves. None of them, if this shard is free.
            left_seconds: for how long it could have been taken.
        """
        patience_seconds = min(self._timing.replaced_after_seconds, LEFT_SECONDS)
        there = (live - silent) | {self._beat}
        return self.leader_of(shard, there) == self._beat or left_seconds >= patience_seconds

    def heir_of(self, shard: str, live: frozenset[str], now: float) -> str | None:
        """Return the beat that this one, which leads the shard, is to hand it over to; None: no beat."""
        leader = self.leader_of(shard, live)
        if leader == self._beat or self._refused.get((shard, leader), now) > now:
            return None
        return leader

    def refuse(self, shard: str, beat: str, now: float) -> None:
        """Record that this beat has taken the shard from ``beat``, or in its place, which announces
        itself."""
        if beat != self._beat:
            self._refused[shard, beat] = now + REFUSED_SECONDS

    def forget_refusals(self, live: frozenset[str]) -> None:
        """Drop refusals of beats that have left: a beat that comes back has recovered."""
        self._refused = {pair: until for pair, until in self._refused.items() if pair[1] in live}


def max_shards(shards: int, beats: int) -> int:
    """Return how many of so many shards one of so many beats leads at most."""
    return -(-shards // beats) + 1


@lru_cache(maxsize=16)
def find_leaders(shards: tuple[str, ...], beats: frozenset[str]) -> dict[str, str]:
    """Return which beat is to lead each shard; {} if there are no beats.

    Arguments:
        shards: their prefixes.
        beats: their ids.
    """
    pairs = sorted(((score(shard, beat), shard, beat) for beat in beats for shard in shards), reverse=True)
    leaders, loads = dict[str, str](), Counter[str]()
    for most in (1, max_shards(len(shards), max(len(beats), 1))):
        for _, shard, beat in pairs:
            if shard not in leaders and loads[beat] < most:
                leaders[shard] = beat
                loads[beat] += 1
    return leaders


def score(shard: str, beat: str) -> int:
    """Return how much a beat prefers a shard: a hash of both."""
    text = f"{shard}\0{beat}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
