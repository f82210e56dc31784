"""Which beat leads which shard: within a bound, alike for all, and with few moves when one comes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from statistics import fmean

import pytest

from redbeat.config.timing import Timing
from redbeat.keys import shard_prefix
from redbeat.leadership.assignment import (
    LEFT_SECONDS,
    REFUSED_SECONDS,
    ShardAssignment,
    find_leaders,
    max_shards,
)
from tests.conftest import SEED


def leaders_of(shards: Iterable[str], there: Collection[str]) -> dict[str, str]:
    return find_leaders(tuple(shards), frozenset(there))


def parts(count: int) -> list[str]:
    return [shard_prefix("redbeat:", number) for number in range(count)]


def beats(count: int, chance: random.Random) -> list[str]:
    return [
        f"host-{chance.randrange(10)}:{chance.randrange(9999)}:{chance.randbytes(4).hex()}"
        for _ in range(count)
    ]


def companies(count: int) -> Iterable[tuple[list[str], list[str], random.Random]]:
    """Parts and beats by chance: up to 64 of each."""
    chance = random.Random(f"{SEED} rendezvous")
    for _ in range(count):
        yield parts(chance.randint(1, 64)), beats(chance.randint(1, 64), chance), chance


def test_no_beat_leads_more_than_the_bound_and_none_is_idle() -> None:
    for shards, there, _ in companies(60):
        loads = Counter(leaders_of(shards, there).values())
        assert sum(loads.values()) == len(shards)
        assert max(loads.values()) <= max_shards(len(shards), len(there))
        assert len(loads) == min(len(shards), len(there))


def test_leaders_are_the_same_in_any_order() -> None:
    for shards, there, chance in companies(20):
        found = leaders_of(shards, there)
        assert leaders_of(chance.sample(shards, len(shards)), chance.sample(there, len(there))) == found


def test_leaders_are_the_same_in_every_version() -> None:
    """Beats of different versions lead together while they are replaced one after the other."""
    found = leaders_of(parts(8), ["a:1:00000000", "b:2:11111111", "c:3:22222222"])
    assert "".join(beat[0] for beat in found_in_order(found)) == "bccabaab"


def found_in_order(found: dict[str, str]) -> list[str]:
    return [found[part] for part in parts(len(found))]


@pytest.mark.parametrize("there", [1, 2, 4, 8, 16])
def test_new_beat_moves_little_more_than_its_share(there: int) -> None:
    chance = random.Random(f"{SEED} moves {there}")
    print(f"REDBEAT_SEED={SEED}")
    moved = []
    for _ in range(60):
        known = beats(there + 1, chance)
        before, after = leaders_of(parts(64), known[:-1]), leaders_of(parts(64), known)
        moved.append(sum(before[part] != after[part] for part in before))
    assert fmean(moved) < 1.6 * 64 / (there + 1)


# -- what a beat takes and hands over


PARTS = [shard_prefix("redbeat:", number) for number in range(8)]


ME, OTHER, THIRD = "a:1:00000000", "b:2:11111111", "c:3:22222222"


TWO, THREE = frozenset((ME, OTHER)), frozenset((ME, OTHER, THIRD))


USUAL = Timing(60.0, 8.0)


@pytest.fixture
def assignment() -> ShardAssignment:
    made = ShardAssignment(ME, USUAL)
    made.shards = tuple(PARTS)
    return made


def part_of(beat: str, live: frozenset[str] = TWO) -> str:
    """A part that this beat is to lead."""
    return next(part for part, leader in leaders_of(PARTS, live).items() if leader == beat)


def test_free_shard_is_taken_at_once_by_its_leader(assignment: ShardAssignment) -> None:
    assert assignment.may_take(part_of(ME), TWO, frozenset(), 0)
    assert not assignment.may_take(part_of(OTHER), TWO, frozenset(), 0)


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [(USUAL, 8), (Timing(3.0, 8.0), 3), (Timing(1500.0, None), LEFT_SECONDS)],
    ids=["takeover", "short lock", "no takeover"],
)
def test_shard_left_alone_is_taken_by_any_beat_later(timing: Timing, seconds: float) -> None:
    assignment = ShardAssignment(ME, timing)
    assignment.shards = tuple(PARTS)
    assert not assignment.may_take(part_of(OTHER), TWO, frozenset(), seconds - 0.1)
    assert assignment.may_take(part_of(OTHER), TWO, frozenset(), seconds)


def test_silent_holder_does_not_count_as_present(assignment: ShardAssignment) -> None:
    silent = frozenset((OTHER,))
    assert assignment.may_take(part_of(OTHER), TWO, silent, 0), "it is all that is left"
    mine = [part for part in PARTS if leaders_of(PARTS, {ME, THIRD})[part] == ME]
    for part in PARTS:
        assert assignment.may_take(part, THREE, silent, 0) == (part in mine)
        assert assignment.may_take(part, THREE, silent, LEFT_SECONDS)


def test_shard_is_handed_over_to_its_leader(assignment: ShardAssignment) -> None:
    assert assignment.heir_of(part_of(OTHER), TWO, 0.0) == OTHER
    assert assignment.heir_of(part_of(ME), TWO, 0.0) is None
    assert assignment.heir_of(part_of(OTHER), frozenset((ME,)), 0.0) is None


def test_beat_that_refused_a_shard_is_not_offered_it_for_a_while(assignment: ShardAssignment) -> None:
    part, *others = (part for part in PARTS if leaders_of(PARTS, TWO)[part] == OTHER)
    assignment.refuse(part, OTHER, 100.0)
    assert assignment.heir_of(part, TWO, 101.0) is None
    assert [assignment.heir_of(one, TWO, 101.0) for one in others] == [OTHER] * len(others)
    assert assignment.heir_of(part, TWO, 100.0 + REFUSED_SECONDS) == OTHER
