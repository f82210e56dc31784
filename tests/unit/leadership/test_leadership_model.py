"""The lock's model, explored: at most one beat can commit a run, by the fence and by the comparison."""

from __future__ import annotations

from tests.support.leadership_model import RUNS, Rules, explore

#: steps in a row; 10 take some seconds, each one more doubles that
DEPTH = 10

SPLIT_BRAIN = "run 0 was sent by one beat while the other held the lock"

EVENTS = {
    "looks",
    "takes the lock",
    "takes over",
    "takes the lock, in vain",
    "takes over, in vain",
    "renews",
    "claims",
    "commits",
    "releases",
    "notices, and stands by",
    "crashes",
    "is started",
    "is paused",
    "goes on",
    "'s clock jumps",
    "the lock expires",
    "the lock is deleted by hand",
}
LATE = {"take", "renew", "claim", "commit", "release"}


def test_no_order_of_steps_sends_a_run_twice_or_from_two_leaders() -> None:
    explored = explore(DEPTH)

    print(f"{explored.states} states in {DEPTH} steps")
    assert explored.violation == "", explored.trace
    # it isn't good because nothing happens in it
    assert explored.steps >= EVENTS
    assert explored.steps >= {f"sends, unanswered: {script}" for script in LATE}
    assert explored.steps >= {f"a late command arrives: {script}" for script in LATE}
    assert explored.sent == RUNS


def test_without_the_fence_a_beat_sends_while_another_one_leads() -> None:
    explored = explore(DEPTH, Rules(is_fenced=False))

    print(f"{explored.states} states, then: " + "; ".join(explored.trace))
    assert explored.violation == SPLIT_BRAIN
    assert len(explored.trace) == 5
    assert explored.trace[-1].endswith("commits")


def test_without_the_comparison_a_commit_that_comes_twice_sends_twice() -> None:
    explored = explore(DEPTH, Rules(compares=False))

    print(f"{explored.states} states, then: " + "; ".join(explored.trace))
    assert explored.violation == "run 0 was sent twice"
