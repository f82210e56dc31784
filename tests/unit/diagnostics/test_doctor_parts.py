"""The doctor's own small decisions: excerpts, scores of what is put back, severities."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat.diagnostics.checks.entries import EXCERPT_LENGTH, excerpt_of
from redbeat.diagnostics.checks.finding import Finding, Severity, worst_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.saving import next_score
from redbeat.log.text import counted
from redbeat.store.records import KeyType, Stored
from tests.support.schedule import meta_json

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
MINUTELY = {"__type__": "interval", "every": 60}


@pytest.mark.parametrize(
    ("definition", "reason", "expected"),
    [
        ('{"task": 5}', "definition: task: must be the name of a task, not 5.", '{"task": 5}'),
        (f'{{"args": ["{"x" * EXCERPT_LENGTH}"], "task": 5}}', "definition: task: must be …", '…"task": 5}'),
        ('{"a": 1}', "definition: task: is missing.", '{"a": 1}'),
        ("nonsense", "definition: no valid JSON: Expecting value.", "nonsense"),
        ('{"a":\n  }', "definition: no valid JSON: Expecting value.", '{"a": }'),
        ("\udcff", "definition: no valid JSON.", "\\udcff"),
        (None, "the hash has no field 'definition'.", ""),
    ],
)
def test_excerpts_show_what_the_reason_is_about(definition: str | None, reason: str, expected: str) -> None:
    assert excerpt_of(Stored("k", definition, type=KeyType.HASH), reason) == expected


def test_an_excerpt_is_short_and_shows_the_place() -> None:
    text = json.dumps({"args": ["x" * 5000]}) + "}" + " " * 5000
    excerpt = excerpt_of(Stored("k", text, type=KeyType.HASH), "definition: no valid JSON: Extra data.")
    assert '"]}}' in excerpt
    assert excerpt.startswith("…")
    assert len(excerpt) <= EXCERPT_LENGTH + 2


def test_an_excerpt_may_be_of_the_meta_and_of_the_policy() -> None:
    stored = Stored("k", "{}", '{"last_run_at": 5}', policy='{"jitter": -1}', type=KeyType.HASH)
    assert excerpt_of(stored, "meta: last_run_at: must be a datetime.") == '{"last_run_at": 5}'
    assert excerpt_of(stored, "policy: jitter: must be a number.") == '{"jitter": -1}'


@pytest.mark.parametrize(
    ("last", "count", "policy", "expected"),
    [
        (None, 0, {}, timedelta(seconds=60)),
        (NOON - timedelta(seconds=30), 5, {}, timedelta(seconds=30)),
        (NOON - timedelta(hours=9, seconds=10), 5, {}, timedelta(seconds=50)),
        (NOON - timedelta(hours=9), 5, {"start_time": "2026-06-02T00:00Z"}, timedelta(hours=12)),
        (NOON - timedelta(hours=9), 5, {"max_runs": 5}, None),
        (NOON - timedelta(hours=9), 5, {"end_time": "2026-06-01T11:00Z"}, None),
    ],
)
def test_what_is_put_back_runs_at_its_next_time_and_makes_up_for_nothing(
    app: Celery, last: datetime | None, count: int, policy: dict[str, Any], expected: timedelta | None
) -> None:
    definition = json.dumps({"task": "t", "schedule": MINUTELY})
    stored = Stored(
        "redbeat:x", definition, meta_json(last, count), policy=json.dumps(policy), type=KeyType.HASH
    )
    score = next_score(decode_entry(RedBeatSchedulerEntry, stored, app), NOON)
    assert score == (-1 if expected is None else (NOON + expected).timestamp())


def test_the_worst_finding_counts() -> None:
    assert worst_of([]) == 0
    findings = [Finding(severity, "k", "a", "p.", "a.") for severity in (Severity.WARNING, Severity.NOTE)]
    assert worst_of(findings) == 1


def test_numbers_are_told_in_words() -> None:
    assert (counted(1), counted(2)) == ("1 entry", "2 entries")
