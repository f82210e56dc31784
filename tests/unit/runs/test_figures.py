"""Figures of an entry's last runs."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from statistics import median
from typing import Any

from redbeat.history import PastRun
from redbeat.runs.figures import Figures, figures_of
from tests.conftest import SEED

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


def run(outcome: str, seconds: float | None = None, **fields: Any) -> PastRun:
    return PastRun(NOON, NOON, outcome, run_seconds=seconds, ended=NOON, **fields)


def test_without_runs_that_have_ended_nothing_is_said() -> None:
    history = [run("sent"), run("skipped"), run("merged"), run("unsent"), run("waiting")]
    assert figures_of(history) == Figures()
    assert figures_of([]).success_rate is None


def test_the_success_rate_counts_every_run_of_which_the_end_is_known() -> None:
    outcomes = ["succeeded", "failed", "lost", "never_started", "succeeded", "sent", "skipped"]
    found = figures_of([run(outcome) for outcome in outcomes], 2)
    assert (found.runs, found.succeeded, found.success_rate) == (5, 2, 0.4)
    assert found.failures_in_a_row == 2


def test_half_of_the_runs_take_longer_than_the_median_and_a_twentieth_longer_than_the_p95() -> None:
    chance = random.Random(SEED)
    for count in [1, 2, 3, 19, 20, 21, *(chance.randint(4, 200) for _ in range(50))]:
        seconds = [chance.expovariate(0.1) for _ in range(count)]
        found = figures_of([run("succeeded", one, wait_seconds=one / 2) for one in seconds])
        assert found.median_run_seconds == median(seconds), SEED
        assert found.median_wait_seconds == median([one / 2 for one in seconds]), SEED
        assert found.p95_run_seconds is not None
        longer = sum(one > found.p95_run_seconds for one in seconds)
        assert longer <= 0.05 * count < longer + 1, SEED


def test_runs_that_never_began_have_no_run_time_and_count_all_the_same() -> None:
    found = figures_of([run("never_started"), run("succeeded", 4.0), run("expired")])
    assert (found.runs, found.median_run_seconds, found.p95_run_seconds) == (3, 4.0, 4.0)
    assert found.median_wait_seconds is None


def test_figures_as_json_have_the_rate() -> None:
    found = figures_of([run("succeeded", 1.5), run("failed", 2.5)], 1).to_dict()
    assert found == {
        "runs": 2,
        "succeeded": 1,
        "median_run_seconds": 2.0,
        "p95_run_seconds": 2.5,
        "median_wait_seconds": None,
        "failures_in_a_row": 1,
        "success_rate": 0.5,
    }
