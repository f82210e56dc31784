"""Past runs: records of the history, failures, runs left out, and charts of what happened."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.exceptions import EncodeError, OperationalError

from redbeat.entries.failures import Failure, failure_of, sha1_of
from redbeat.entries.sending import naming_the_broker
from redbeat.errors import BrokerUnavailable, CallRefused, RunNotSent
from redbeat.history import ENDED_OUTCOMES, PastRun, decode_history, record_of
from redbeat.scheduler.decisions import Send, quarantine
from redbeat.scheduler.planner import Planner
from redbeat.schedules import cron
from redbeat.schedules.crontab import count_of_crontab, runs_back_of_crontab
from redbeat.schedules.timezones import find_change
from redbeat.store.records import Stored
from tests.faults.rounds import IS_LONG
from tests.support.fetched import fetched

AT = {"at": 1769844600.5, "due": 1769844600}


ENDED = {
    "wait": 1.5, "ran": 2.25, "worker": "celery@h", "attempt": 2, "delivery": "b9f0", "ended": 1769844604.25,
}  # fmt: skip


def read(members: dict[str, Any]) -> PastRun:
    [run] = decode_history([json.dumps({**AT, **members})], lambda due: f"id of {due:%H:%M}")
    return run


def test_record_without_an_end_is_a_sent_run() -> None:
    run = read({})
    assert (run.outcome, run.is_sent, run.task_id) == ("sent", True, "id of 07:30")
    assert (run.ended, run.run_seconds, run.error) == (None, None, "")


@pytest.mark.parametrize("outcome", ENDED_OUTCOMES)
def test_record_with_an_end_has_its_outcome(outcome: str) -> None:
    run = read({"outcome": outcome, **ENDED})
    assert (run.outcome, run.is_sent, run.is_span, run.task_id) == (outcome, True, False, "id of 07:30")
    assert (run.wait_seconds, run.run_seconds, run.worker, run.attempt) == (1.5, 2.25, "celery@h", 2)
    assert run.ended == datetime(2026, 1, 31, 7, 30, 4, 250_000, timezone.utc)


def test_record_of_a_run_that_was_not_sent_has_the_reason() -> None:
    run = read(json.loads(f"{{{record_of('1769844600', 'unsent', why='no broker')}}}"))
    assert (run.outcome, run.why, run.task_id) == ("unsent", "no broker", None)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"outcome": "skipped", "held_by": "x", "worker": "celery@h", "since": 1769844601.25},
            "the run x was at work on celery@h since 2026-01-31 07:30:01.250 UTC",
        ),
        (
            {"outcome": "waiting", "held_by": "x", "why": "overlap"},
            "the run x was on its queue; it is sent when that one has ended",
        ),
        (
            {"outcome": "skipped", "held_by": "x", "worker": "celery@h", "behind": "y"},
            "another run waits already, y, for the run x, which was at work on celery@h",
        ),
    ],
)
def test_held_back_run_names_the_run_in_its_way(given: dict[str, Any], why: str) -> None:
    run = read(given)
    assert (run.why, run.held_by, run.held_on, run.worker) == (why, "x", given.get("worker"), None)


@pytest.mark.parametrize(
    "broken", [{"ran": "x"}, {"ended": "now"}, {"attempt": []}, {"since": 1e30}, {"wait": {}}]
)
def test_unreadable_record_is_left_out(broken: dict[str, Any]) -> None:
    records = [json.dumps({**AT, "outcome": "succeeded", **ENDED, **broken}), json.dumps(AT)]
    assert [run.outcome for run in decode_history(records, str)] == ["sent"]


DEFINITION = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})


def due_entry(error: str | None, nominal: str = "104") -> Stored:
    return fetched("redbeat:x", nominal, DEFINITION, error=error)


RECORD: dict[str, Any] = {
    "reason": "broken", "since": "2026-06-01T12:00:00+00:00", "definition_sha1": sha1_of(due_entry(None)),
    "attempts": 3, "due": "100.000000", "retry_at": "104.000000", "is_asked": False,
}  # fmt: skip


NOT_OURS = {
    "no json": "{oops",
    "nested": "[" * 100_000,
    "half": json.dumps({"reason": "broken"}),
    "is_asked": json.dumps({**RECORD, "is_asked": "yes"}),
    "infinite attempts": json.dumps({**RECORD, "attempts": float("inf")}),
    "negative attempts": json.dumps({**RECORD, "attempts": -1}),
    "retry_at": json.dumps({**RECORD, "retry_at": "soon"}),
    "huge retry_at": json.dumps({**RECORD, "retry_at": 10**400}),
    "due": json.dumps({**RECORD, "due": float("nan")}),
}


@pytest.mark.parametrize("error", NOT_OURS.values(), ids=NOT_OURS)
def test_invalid_failure_record_is_ignored(app: Celery, error: str) -> None:
    entry = due_entry(error)
    assert failure_of(entry) is None
    run = Planner(app).plan(entry, 105.0)
    assert isinstance(run, Send)
    assert 106 <= float(str(run.retry("broken", 105.0)[0].commit.new_score)) <= 106.25
    assert quarantine(entry, "bad", 105.0, 300)[1]


@pytest.mark.parametrize(("attempts", "pause"), [(1, 1), (2, 2), (6, 32), (7, 60), (2**31 - 1, 60)])
def test_backoff_doubles_up_to_a_minute_with_jitter(attempts: int, pause: float) -> None:
    pauses = {Failure(**{**RECORD, "attempts": attempts}).backoff_seconds() for _ in range(100)}
    assert pause <= min(pauses) <= max(pauses) <= 1.25 * pause
    assert len(pauses) > 90


@pytest.mark.parametrize(("nominal", "due"), [("104", 100), ("104.0", 100), ("103", 103)])
def test_run_is_a_retry_only_at_the_score_of_its_failure(app: Celery, nominal: str, due: float) -> None:
    run = Planner(app).plan(due_entry(json.dumps(RECORD), nominal), 105.0)
    assert float(run.nominal) == due


def test_failure_is_news_unless_definition_and_reason_are_the_same() -> None:
    for changes, reason, is_news in (
        ({}, "broken", False),
        ({}, "x", True),
        ({"definition_sha1": "0"}, "broken", True),
    ):
        error = json.dumps({**RECORD, **changes})
        assert quarantine(due_entry(error), reason, 105.0, 300)[1] is is_news


ZONES = (
    *("Europe/Berlin", "America/Havana", "Australia/Lord_Howe"),
    *("Africa/Casablanca", "Antarctica/Troll", "UTC"),
)


MOMENTS = st.datetimes(datetime(2010, 1, 1), datetime(2026, 1, 1), timezones=st.just(timezone.utc))


FIELDS = (
    st.sampled_from(["*", "0", "*/15", "0,59"]),
    st.sampled_from(["*", "*/2", "0-3", "2", "23,0"]),
    st.sampled_from(["*", "1-15", "31", "LW"]),
    st.sampled_from(["*", "3,10,11", "2"]),
    st.sampled_from(["*", "mon-fri", "sun#1"]),
)


@settings(max_examples=300 if IS_LONG else 20, deadline=None)
@given(
    st.tuples(*FIELDS),
    st.sampled_from(ZONES),
    MOMENTS,
    st.timedeltas(timedelta(0), timedelta(days=20)),
    st.none() | st.sampled_from([-3600.0, -1e-6, 0.0, 1e-6, 1800.0]),
)
def test_counted_crontab_runs_equal_those_found_one_by_one(
    fields: tuple[str, ...], zone: str, after: datetime, span: timedelta, beside_change: float | None
) -> None:
    rule, tz = cron(" ".join(fields)), ZoneInfo(zone)
    week = timedelta(weeks=1)
    changes = (find_change(tz, after + n * week, after + (n + 1) * week) for n in range(53))
    change = next(filter(None, changes), None)
    if beside_change is not None and change is not None:
        after = change + timedelta(seconds=beside_change)
    until = after + span
    walked = sum(1 for due in runs_back_of_crontab(rule, until, tz, after) if due > after)
    assert count_of_crontab(rule, after, until, tz) == walked


APP = Celery("unsent", broker="amqp://somebody:secret@127.0.0.1:1//", set_as_current=False)


@pytest.mark.parametrize(
    ("raised", "expected", "named"),
    [
        (OperationalError("refused"), BrokerUnavailable, "amqp://somebody:**@127.0.0.1:1//"),
        (ConnectionResetError("reset"), BrokerUnavailable, "amqp://somebody:**@127.0.0.1:1//"),
        (TypeError("add() takes 2"), CallRefused, "TypeError('add() takes 2')"),
        (EncodeError("no JSON"), CallRefused, "EncodeError('no JSON')"),
        (KeyError("x"), RunNotSent, "KeyError('x')"),
    ],
)
def test_error_of_sending_tells_broker_from_call(
    raised: Exception, expected: type[RunNotSent], named: str
) -> None:
    with pytest.raises(RunNotSent) as caught, naming_the_broker(APP, "a"):
        raise raised
    assert type(caught.value) is expected
    assert named in str(caught.value)
    assert (caught.value.name, caught.value.__cause__) == ("a", raised)
