"""Records of runs in a history, as Python reads them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from redbeat.history import ENDED_OUTCOMES, OUTCOMES, PastRun, decode_history, sent_record, unsent_record

AT = {"at": 1769844600.5, "due": 1769844600}
ENDED = {
    "wait": 1.5, "ran": 2.25, "worker": "celery@h", "attempt": 2, "delivery": "b9f0", "ended": 1769844604.25,
}  # fmt: skip


def read(members: str | dict[str, Any]) -> PastRun:
    given = json.loads(f"{{{members}}}") if isinstance(members, str) else members
    [run] = decode_history([json.dumps({**AT, **given})], lambda due: f"id of {due:%H:%M}")
    return run


def test_a_run_whose_end_nobody_has_recorded_was_sent() -> None:
    run = read({})
    assert (run.outcome, run.is_sent, run.task_id) == ("sent", True, "id of 07:30")
    assert (run.ended, run.run_seconds, run.error) == (None, None, "")


@pytest.mark.parametrize("outcome", ENDED_OUTCOMES)
def test_the_outcome_of_a_run_that_was_sent_becomes_what_became_of_it(outcome: str) -> None:
    run = read({"outcome": outcome, **ENDED})
    assert (run.outcome, run.is_sent, run.is_span, run.task_id) == (outcome, True, False, "id of 07:30")
    assert (run.wait_seconds, run.run_seconds, run.worker, run.attempt) == (1.5, 2.25, "celery@h", 2)
    assert run.ended == datetime(2026, 1, 31, 7, 30, 4, 250_000, timezone.utc)


def test_failed_without_an_end_is_what_3_0_0b1_called_unsent() -> None:
    assert read({"outcome": "failed", "why": "no broker"}).outcome == "unsent"
    assert read({"outcome": "failed", "error": "ValueError: no", **ENDED}).outcome == "failed"
    assert read(unsent_record("1769844600", "no broker")) == read({"outcome": "failed", "why": "no broker"})


def test_runs_that_were_not_sent_have_no_task_id() -> None:
    for outcome in OUTCOMES.keys() - ENDED_OUTCOMES.keys() - {"sent"}:
        run = read({"outcome": outcome, "why": "so"})
        assert (run.is_sent, run.task_id, run.why) == (False, None, "so")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"outcome": "skipped", "held_by": "x", "worker": "celery@h", "since": 1769844601.25},
            "the run x was at work on celery@h since 2026-01-31 07:30:01.250 UTC",
        ),
        (
            {"outcome": "skipped", "held_by": "x", "since": 1769844601},
            "the run x was on its queue since 2026-01-31 07:30:01 UTC",
        ),
        (
            {"outcome": "waiting", "held_by": "x", "why": "overlap"},
            "the run x was on its queue; it is sent when that one has ended",
        ),
        (
            {
                "outcome": "skipped",
                "held_by": "x",
                "worker": "celery@h",
                "since": 1769844601,
                "held_state": "retrying",
                "held_attempt": 3,
            },
            "the run x waited for attempt 3, which may begin from 2026-01-31 07:30:01 UTC on",
        ),
        (
            {"outcome": "skipped", "held_by": "x", "since": 1769844601, "held_state": "spawned"},
            "the run x had its own task behind it, and its workflow at work since 2026-01-31 07:30:01 UTC",
        ),
        (
            {"outcome": "skipped", "held_by": "x", "worker": "celery@h", "behind": "y"},
            "another run waits already, y, for the run x, which was at work on celery@h",
        ),
        ({"outcome": "skipped", "held_by": "x", "behind": "x"}, "another run waits already, x"),
    ],
)
def test_why_a_run_was_held_back_names_the_run_in_its_way(given: dict[str, Any], why: str) -> None:
    run = read(given)
    assert (run.why, run.held_by, run.held_on, run.worker) == (why, "x", given.get("worker"), None)


def test_a_rerun_names_the_run_that_it_repeats() -> None:
    run = read(sent_record("1769844600", "b", is_manual=True, rerun_of='a"'))
    assert (run.task_id, run.is_manual, run.rerun_of) == ("b", True, 'a"')


def test_a_record_as_json_has_times_in_iso_8601() -> None:
    run = read({"outcome": "succeeded", **ENDED, "late": "failed", "since": 1769844600})
    found = run.to_dict()
    assert found == json.loads(json.dumps(found))
    assert (found["ended"], found["since"]) == (
        "2026-01-31T07:30:04.250000+00:00",
        "2026-01-31T07:30:00+00:00",
    )
    assert (found["late"], found["late_seconds"], found["run_seconds"]) == ("failed", 0.5, 2.25)


@pytest.mark.parametrize(
    "broken", [{"ran": "x"}, {"ended": "now"}, {"attempt": []}, {"since": 1e30}, {"wait": {}}]
)
def test_a_record_with_an_unreadable_end_is_left_out(broken: dict[str, Any]) -> None:
    records = [json.dumps({**AT, "outcome": "succeeded", **ENDED, **broken}), json.dumps(AT)]
    assert [run.outcome for run in decode_history(records, str)] == ["sent"]


def test_a_length_of_time_that_is_no_number_counts_as_unknown() -> None:
    assert read({"ran": float("nan"), "wait": float("inf")}).run_seconds is None
