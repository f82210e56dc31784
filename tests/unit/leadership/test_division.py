"""Which parts a beat takes and hands over: at once what is its own, after a while what others leave alone."""

from __future__ import annotations

import pytest

from redbeat.config.timing import Timing
from redbeat.keys import shard_prefix
from redbeat.leadership.division import LEFT_LOOKS, LEFT_SECONDS, REFUSED_SECONDS, Division
from redbeat.leadership.rendezvous import find_leaders

PARTS = [shard_prefix("redbeat:", number) for number in range(8)]
ME, OTHER, THIRD = "a:1:00000000", "b:2:11111111", "c:3:22222222"
TWO, THREE = frozenset((ME, OTHER)), frozenset((ME, OTHER, THIRD))
USUAL = Timing(60.0, 8.0)


@pytest.fixture
def division() -> Division:
    made = Division(ME, USUAL)
    made.set_parts(PARTS)
    return made


def part_of(beat: str, live: frozenset[str] = TWO) -> str:
    """A part that this beat is to lead."""
    return next(part for part, leader in find_leaders(PARTS, live).items() if leader == beat)


def test_alone_a_beat_is_to_lead_all_parts(division: Division) -> None:
    assert division.own(frozenset((ME,))) == set(PARTS)


def test_a_free_part_is_taken_at_once_by_the_beat_that_is_to_lead_it(division: Division) -> None:
    assert division.may_take_free(part_of(ME), TWO, 0)
    assert not division.may_take_free(part_of(OTHER), TWO, 0)


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [(USUAL, 8), (Timing(3.0, 8.0), 3), (Timing(1500.0, None), LEFT_SECONDS)],
    ids=["takeover", "short lock", "no takeover"],
)
def test_a_part_that_is_left_alone_is_taken_by_any_after_a_while(timing: Timing, seconds: float) -> None:
    division = Division(ME, timing)
    division.set_parts(PARTS)
    assert not division.may_take_free(part_of(OTHER), TWO, seconds - 0.1)
    assert division.may_take_free(part_of(OTHER), TWO, seconds)


def test_a_silent_holder_is_not_there_even_if_it_says_so(division: Division) -> None:
    silent = frozenset((OTHER,))
    assert division.may_take_silent(part_of(OTHER), TWO, silent, 0), "it is all that is left"
    mine = [part for part in PARTS if find_leaders(PARTS, {ME, THIRD})[part] == ME]
    for part in PARTS:
        assert division.may_take_silent(part, THREE, silent, 0) == (part in mine)
        assert division.may_take_silent(part, THREE, silent, LEFT_LOOKS * USUAL.look_seconds)


def test_who_was_silent_itself_still_takes_parts(division: Division) -> None:
    assert division.may_take_silent(PARTS[0], frozenset((ME,)), frozenset((ME,)), 0)


def test_a_part_is_handed_over_to_the_beat_that_is_to_lead_it(division: Division) -> None:
    assert division.heir_of(part_of(OTHER), TWO, 0.0) == OTHER
    assert division.heir_of(part_of(ME), TWO, 0.0) is None
    assert division.heir_of(part_of(OTHER), frozenset((ME,)), 0.0) is None


def test_a_beat_that_let_a_part_lie_is_not_offered_it_for_a_while(division: Division) -> None:
    part, *others = (part for part in PARTS if find_leaders(PARTS, TWO)[part] == OTHER)
    division.refuse(part, OTHER, 100.0)
    assert division.heir_of(part, TWO, 101.0) is None
    assert [division.heir_of(one, TWO, 101.0) for one in others] == [OTHER] * len(others)
    assert division.heir_of(part, TWO, 100.0 + REFUSED_SECONDS) == OTHER


def test_it_is_offered_it_again_when_it_has_been_away(division: Division) -> None:
    part = part_of(OTHER)
    division.refuse(part, OTHER, 100.0)
    division.forget_refusals(TWO, 101.0)
    assert division.heir_of(part, TWO, 101.0) is None
    division.forget_refusals(frozenset((ME,)), 102.0)
    assert division.heir_of(part, TWO, 103.0) == OTHER


def test_other_parts_are_divided_anew(division: Division) -> None:
    division.set_parts(PARTS[:2])
    assert len(division.own(TWO)) == 1
