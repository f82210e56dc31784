"""Which beat is to lead which part: within the bound, alike for all, and so that few move when one comes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import pytest

from redbeat.keys import shard_prefix
from redbeat.leadership import rendezvous
from redbeat.leadership.rendezvous import find_leaders, max_parts
from tests.conftest import SEED

Assign = Callable[[Sequence[str], Sequence[str]], "dict[str, str]"]


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


def test_nobody_leads_more_than_the_bound_and_nobody_is_idle_as_long_as_there_are_enough() -> None:
    for shards, there, _ in companies(200):
        loads = Counter(find_leaders(shards, there).values())
        assert sum(loads.values()) == len(shards)
        assert max(loads.values()) <= max_parts(len(shards), len(there))
        assert len(loads) == min(len(shards), len(there))


def test_the_bound_is_an_even_share_rounded_up_and_one_more() -> None:
    assert [max_parts(16, count) for count in (1, 2, 3, 5, 16, 17)] == [17, 9, 7, 5, 2, 2]


def test_all_find_the_same_in_whatever_order_they_know_them() -> None:
    for shards, there, chance in companies(50):
        found = find_leaders(shards, there)
        assert find_leaders(chance.sample(shards, len(shards)), chance.sample(there, len(there))) == found


def test_it_is_as_if_all_pairs_were_gone_through_from_the_highest_score_on() -> None:
    for shards, there, _ in companies(100):
        pairs = sorted(
            ((rendezvous.score(shard, beat), shard, beat) for shard in shards for beat in there),
            reverse=True,
        )
        leaders: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for most in (1, max_parts(len(shards), len(there))):
            for _, shard, beat in pairs:
                if shard not in leaders and counts[beat] < most:
                    leaders[shard] = beat
                    counts[beat] += 1
        assert find_leaders(shards, there) == leaders


def test_when_a_beat_comes_or_goes_nothing_is_computed_again_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scored: list[str] = []
    score = rendezvous.score

    def note(shard: str, beat: str) -> int:
        scored.append(beat)
        return score(shard, beat)

    monkeypatch.setattr(rendezvous, "score", note)
    chance = random.Random(f"{SEED} company")
    shards, there = parts(50), beats(9, chance)
    find_leaders(shards, there)
    scored.clear()
    find_leaders(shards, there[1:])
    assert scored == []
    find_leaders(shards, [*there, "another:1:00000000"])
    assert set(scored) == {"another:1:00000000"}


def test_it_is_the_same_in_every_process_and_version() -> None:
    """Beats of different versions lead together while they are replaced one after the other."""
    found = find_leaders(parts(8), ["a:1:00000000", "b:2:11111111", "c:3:22222222"])
    assert "".join(beat[0] for beat in found_in_order(found)) == "bccabaab"


def found_in_order(found: dict[str, str]) -> list[str]:
    return [found[part] for part in parts(len(found))]


def test_without_beats_nobody_leads() -> None:
    assert find_leaders(parts(4), []) == {}
    assert find_leaders([], ["a:1:0"]) == {}


# -- how much moves


def in_turn(*limits_of: Callable[[int, int], Iterable[int]]) -> Assign:
    """Pairs from the highest score on, with a bound that is raised step by step."""
    [limits] = limits_of

    def assign(shards: Sequence[str], there: Sequence[str]) -> dict[str, str]:
        pairs = sorted(((hash((part, beat)), part, beat) for part in shards for beat in there), reverse=True)
        found: dict[str, str] = {}
        counts = dict.fromkeys(there, 0)
        for most in limits(len(shards), len(there)):
            for _, part, beat in pairs:
                if part not in found and counts[beat] < most:
                    found[part] = beat
                    counts[beat] += 1
        return found

    return assign


def in_order(shards: Sequence[str], there: Sequence[str]) -> dict[str, str]:
    """Consistent hashing with bounded loads: part by part, each to the first beat that has room."""
    found: dict[str, str] = {}
    counts = dict.fromkeys(there, 0)
    most = max_parts(len(shards), len(there))
    for part in shards:
        for beat in sorted(there, key=lambda beat: hash((part, beat))):
            if counts[beat] < most:
                found[part] = beat
                counts[beat] += 1
                break
    return found


#: others that were thought of
OTHERS: dict[str, Assign] = {
    "no tighter step first": in_turn(lambda parts, beats: [max_parts(parts, beats)]),
    "as even as can be": in_turn(lambda parts, beats: range(1, max_parts(parts, beats))),
    "even but for one": in_turn(lambda parts, beats: [max(parts // beats - 1, 1), max_parts(parts, beats)]),
    "part by part": in_order,
}


def moves(assign: Assign, shards: int, there: int, rounds: int, chance: random.Random) -> tuple[float, float]:
    """How many parts move when a beat comes, against the least there could be, its own share; and how many of
    the others' parts when it goes again."""
    came, others = [], []
    for _ in range(rounds):
        all_of_them = beats(there + 1, chance)
        before, after = assign(parts(shards), all_of_them[:-1]), assign(parts(shards), all_of_them)
        moved = [part for part in before if before[part] != after[part]]
        came.append(len(moved))
        others.append(sum(after[part] != all_of_them[-1] for part in moved))
    return fmean(came) / (shards / (there + 1)), fmean(others)


@pytest.mark.parametrize("there", [1, 2, 3, 4, 7, 8, 16, 31, 63])
def test_when_a_beat_comes_little_more_moves_than_its_share(there: int) -> None:
    chance = random.Random(f"{SEED} moves {there}")
    print(f"REDBEAT_SEED={SEED}")
    for shards in (2, 4, 8, 16, 32, 64):
        rounds = max(30, 2000 // (shards * there))
        ratio, others = moves(find_leaders, shards, there, rounds, chance)
        words = f"{ratio:.2f} x N/(M+1) move; {others:.2f} of the others' when it goes"
        print(f"{there} beats and one more, {shards} parts: {words}")
        if shards >= 4 * there:
            assert ratio < 1.6
        assert others < 7


@pytest.mark.long_form
def test_no_other_order_moves_less_within_the_bound() -> None:
    chance = random.Random(f"{SEED} orders")
    totals: Counter[str] = Counter()
    for there in (1, 2, 3, 4, 7, 8, 15, 16, 31, 63):
        for shards in (2, 4, 8, 16, 32, 64):
            if shards >= there:
                for name, assign in {"find_leaders": find_leaders, **OTHERS}.items():
                    totals[name] += moves(assign, shards, there, 60, chance)[0]
    for name, total in totals.most_common():
        print(f"{name}: {total / 47:.2f}")
    best = totals.pop("find_leaders")
    assert best < min(totals.values()) * 1.05
