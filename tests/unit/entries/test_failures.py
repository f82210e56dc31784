"""The record of a failure, also where somebody else wrote something into its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from redbeat.beat.planner import Run, commit_failed, commit_quarantined, plan_run
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import Failure, failure_of, sha1_of
from redbeat.store.records import Claimed

DEFINITION = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})


def claimed(error: str | None, nominal: str = "104") -> Claimed:
    return Claimed("redbeat:x", nominal, DEFINITION, error=error, score=nominal)


RECORD: dict[str, Any] = {
    "reason": "broken", "since": "2026-06-01T12:00:00+00:00", "definition_sha1": sha1_of(claimed(None)),
    "attempts": 3, "due": "100.000000", "retry_at": "104.000000", "is_asked": False,
}  # fmt: skip

NOT_OURS = {
    "no json": "{oops",
    "nested": "[" * 100_000,
    "a list": "[]",
    "a number": "5",
    "half": json.dumps({"reason": "broken"}),
    **{
        f"{field} {text}": json.dumps({**RECORD, field: "@"}).replace('"@"', text)
        for field, texts in {
            "is_asked": ["1", "null", '"yes"', "[]"],
            "attempts": ["Infinity", "NaN", "-1", "1.5", '"many"', "1" + "0" * 400, "[]", "null"],
            "retry_at": ['"soon"', "[1]", '{"a": 1}', "1" + "0" * 400],
            "due": ['"soon"', "[1]", "-1", "Infinity", "NaN", "1e30"],
        }.items()
        for text in texts
    },
}


def test_a_record_is_read_as_it_was_written() -> None:
    failure = Failure(**RECORD)
    assert failure_of(claimed(failure.to_json())) == failure
    assert json.loads(failure.to_json()) == RECORD


def test_a_record_that_says_nothing_of_who_asked_is_read() -> None:
    record = {name: value for name, value in RECORD.items() if name != "is_asked"}
    assert failure_of(claimed(json.dumps(record))) == Failure(**RECORD)


def test_no_record_is_no_failure() -> None:
    assert failure_of(claimed(None)) is None


@pytest.mark.parametrize("error", NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_not_ours_counts_as_none_and_hurts_nobody(app: Celery, error: str) -> None:
    entry = claimed(error)
    assert failure_of(entry) is None
    run = plan_run(RedBeatSchedulerEntry, app, entry, 105.0)
    assert isinstance(run, Run)
    assert 106 <= float(str(commit_failed(run, "broken", 105.0)[0].new_score)) <= 106.25
    assert commit_quarantined(entry, "bad", 105.0, 300)[1]


@pytest.mark.parametrize(
    ("attempts", "pause"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (100, 60), (2**31 - 1, 60)]
)
def test_the_pause_doubles_up_to_a_minute_with_jitter(attempts: int, pause: float) -> None:
    pauses = {Failure(**{**RECORD, "attempts": attempts}).backoff_seconds() for _ in range(100)}
    assert pause <= min(pauses) <= max(pauses) <= 1.25 * pause
    assert len(pauses) > 90


@pytest.mark.parametrize(
    ("nominal", "retry_at", "expected"),
    [("104", "104.000000", True), ("104.0", "104.0", True), ("103", "104.000000", False), ("104", "", False)],
)
def test_a_score_is_a_retry_only_when_it_is_as_written(nominal: str, retry_at: str, expected: bool) -> None:
    failure = Failure(**{**RECORD, "retry_at": retry_at})
    assert failure.is_waiting_for(claimed(None, nominal)) is expected


@pytest.mark.parametrize(
    ("changes", "reason", "expected"),
    [({}, "broken", True), ({}, "otherwise", False), ({"definition_sha1": "0"}, "broken", False)],
)
def test_a_failure_is_the_same_for_the_same_definition_and_reason(
    changes: dict[str, str], reason: str, expected: bool
) -> None:
    assert Failure(**{**RECORD, **changes}).is_about(claimed(None), reason) is expected
