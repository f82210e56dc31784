"""What became of a run, from what Celery tells of its task."""

from __future__ import annotations

import json
import random
import timeit
from datetime import datetime, timedelta, timezone
from statistics import median
from time import process_time
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, Terminated
from celery.utils.serialization import UnpickleableExceptionWrapper

from redbeat.config.masking import mask_secrets
from redbeat.history import PastRun
from redbeat.keys import Keys
from redbeat.runs.deadlines import Action, Deadline, judge
from redbeat.runs.figures import Figures, figures_of
from redbeat.runs.outcomes import (
    MAX_ERROR,
    Busy,
    Duplicate,
    Expired,
    Seen,
    Superseded,
    Told,
    Verdict,
    error_of,
    expiry_of_successor,
    judge_failure,
    judge_return,
    seconds_until,
)
from redbeat.store.run_record import decode_record
from tests.conftest import SEED

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
TOLD = Told(1.5)
AGAIN = Told(1.5, 7.0)
LOST = WorkerLostError("exited")
LOST_TEXT = "WorkerLostError: exited"
NEXT = "replaced by the next run"
LATER = Reject("later", requeue=True)


@pytest.mark.parametrize(
    ("told", "seen", "verdict"),
    [
        (TOLD, Seen(), Verdict("succeeded")),
        # it returns after retry(throw=False)
        (AGAIN, Seen(), Verdict("retrying", retry_seconds=7.0)),
        # a greenlet that was killed returns, too, and the gate hasn't told anything
        (None, Seen(is_revoked=True), Verdict("revoked", "terminated")),
        (None, Seen(is_revoked=True, terminated_for="replaced"), Verdict("revoked", NEXT)),
        # it was too quick to be terminated
        (TOLD, Seen(is_revoked=True, terminated_for="overdue"), Verdict("succeeded")),
    ],
    ids=["returns", "returns and is retried", "killed", "killed for the next run", "too quick"],
)  # fmt: skip
def test_a_task_that_has_returned(told: Told | None, seen: Seen, verdict: Verdict) -> None:
    assert judge_return(told, seen) == verdict


@pytest.mark.parametrize(
    ("exc", "told", "seen", "verdict"),
    [
        (ValueError("no"), TOLD, Seen(), Verdict("failed", "ValueError: no")),
        (Retry("", ValueError("no"), 3.5), AGAIN, Seen(), Verdict("retrying", "ValueError: no", 7.0)),
        (Retry("", None, 3.5), None, Seen(), Verdict("retrying", "", 3.5)),
        (Ignore(), TOLD, Seen(), Verdict("ignored")),
        (Ignore("Replaced by new task"), AGAIN, Seen(), Verdict("retrying", "", 7.0)),
        (Reject("bad"), TOLD, Seen(), Verdict("rejected", "bad")),
        (Reject(), TOLD, Seen(), Verdict("rejected")),
        (Reject("token=abc"), TOLD, Seen(), Verdict("rejected", "token=**")),
        (LATER, TOLD, Seen(is_requeued=True), Verdict("requeued", "later")),
        (LOST, None, Seen(), Verdict("failed", LOST_TEXT)),
        (LOST, None, Seen(is_requeued=True), Verdict("requeued", LOST_TEXT)),
        (LOST, None, Seen(events=("task-succeeded",)), Verdict("succeeded")),
        (LOST, None, Seen(events=("task-retried",)),
         Verdict("retrying", LOST_TEXT, 180.0)),
        (Terminated(15), None, Seen(), Verdict("revoked", "terminated")),
        (LOST, None, Seen(is_revoked=True), Verdict("revoked", "terminated")),
        (SystemExit(1), None, Seen(is_revoked=True, terminated_for="overdue"),
         Verdict("revoked", "longer than max_runtime")),
        (ValueError("no"), TOLD, Seen(is_revoked=True), Verdict("failed", "ValueError: no")),
        (TimeLimitExceeded(5), None, Seen(), Verdict("failed", "TimeLimitExceeded: 5")),
        (TimeLimitExceeded(5), None, Seen(is_requeued=True), Verdict("requeued", "TimeLimitExceeded: 5")),
        (Superseded("given up"), Told(0.0), Seen(), Verdict("superseded")),
        (Expired("too late"), Told(0.0), Seen(), Verdict("expired")),
        (Busy("twice", requeue=True), Told(0.0), Seen(is_requeued=True), None),
        (Duplicate("twice"), Told(0.0), Seen(), None),
    ],
)  # fmt: skip
def test_a_task_that_has_raised(exc: BaseException, told: Told | None, seen: Seen, verdict: Verdict) -> None:
    assert judge_failure(exc, told, seen, 180.0) == verdict


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError("\n\n  one\ntwo"), "ValueError: one"),
        (Rude(), "Rude"),
        (Leaving(), "Leaving"),
        (SoftTimeLimitExceeded(5), "SoftTimeLimitExceeded: 5"),
        (ValueError("red\x1b[31m\u202e"), "ValueError: red\\x1b[31m\\u202e"),
        (OSError("redis://user:pw@host:1/0 is away"), "OSError: redis://user:**@host:1/0 is away"),
        (OSError("GET http://a/b?password=x&c=d failed"), "OSError: GET http://a/b?password=**&c=d failed"),
        (ValueError("password='a b' user=me"), "ValueError: password=** user=me"),
        (ValueError('{"db_password": "x", "host": "y"}'), 'ValueError: {"db_password": **, "host": "y"}'),
        (ValueError("Authorization: Bearer abc, Host: h"), "ValueError: Authorization: **"),
        (ValueError("bad header b'Bearer abc.def'"), "ValueError: bad header b'Bearer **'"),
        (ValueError(repr("it's {'token': 'a b'}")), "ValueError: \"it's {'token': **}\""),
        (OSError("redis://[::1]:6379/0 and celery@h"), "OSError: redis://[::1]:6379/0 and celery@h"),
        (UnpickleableExceptionWrapper("m", "Odd", (), "Odd('text')"), "Odd: 'text'"),
    ],
)
def test_an_error_is_its_class_and_its_first_line_without_passwords(exc: Exception, text: str) -> None:
    assert error_of(exc) == text


def test_rejection_for_a_reason_without_a_text_names_its_class() -> None:
    assert judge_failure(Reject(Rude()), TOLD, Seen(), 180.0) == Verdict("rejected", "Rude")


@pytest.mark.parametrize("part", ["secret_", "a://b:c@", "token  ", "pass=\\'", "x://:p @"])
def test_masking_takes_time_in_proportion_to_the_text(part: str) -> None:
    def seconds(length: int) -> float:
        text = (part * length)[:length]
        return min(timeit.repeat(lambda: mask_secrets(text), timer=process_time, number=1, repeat=5))

    # ten times the text: a hundred times the time if parts of it were looked at again and again
    assert seconds(40_000) < 50 * max(seconds(4_000), 0.0005)


def test_an_error_is_cut() -> None:
    assert len(error_of(ValueError(10_000 * "x"))) == MAX_ERROR
    assert len(error_of(ValueError(10_000 * "\x00"))) == MAX_ERROR


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        (None, 0.0),
        (-5, 0.0),
        (NOW + timedelta(minutes=1), 60.0),
        ("2026-01-01T00:01:00", 60.0),
        ("2025-01-01T00:01:00+00:00", 0.0),
    ],
)
def test_how_long_it_is_until_the_next_attempt(when: Any, seconds: float) -> None:
    assert seconds_until(when, NOW) == seconds


EXPIRES = (NOW - timedelta(seconds=1)).isoformat()


@pytest.mark.parametrize(
    ("headers", "expires"),
    [
        ({}, None),
        ({"redbeat_queue_timeout": 60.0}, 60.0),
        ({"redbeat_queue_timeout": 60, "eta": (NOW + timedelta(seconds=30)).isoformat()}, 90.0),
        ({"redbeat_queue_timeout": 60.0, "redbeat_expires_after": 50.0}, 40.0),
        ({"redbeat_queue_timeout": 60.0, "redbeat_expires_after": 500.0}, 60.0),
        ({"redbeat_queue_timeout": 60.0, "expires": None}, None),
        ({"redbeat_queue_timeout": 60.0, "expires": (NOW + timedelta(hours=1)).isoformat()}, None),
        ({"redbeat_queue_timeout": "60"}, None),
        ({"redbeat_queue_timeout": True}, None),
    ],
    ids=str,
)
def test_the_next_attempt_may_wait_as_long_on_its_queue_as_the_first(
    headers: dict[str, Any], expires: float | None
) -> None:
    found = expiry_of_successor({"expires": EXPIRES, **headers}, EXPIRES, NOW.timestamp() - 10, NOW)
    assert found == (None if expires is None else NOW + timedelta(seconds=expires))


LEASE = 30.0
AT = 10_000.0


def deadline_of(record: Any, task_id: str = "id") -> Deadline:
    text = record if isinstance(record, str) or record is None else json.dumps(record)
    return Deadline(f"{task_id}\0{Keys().about('job').running}", "9999", text)


@pytest.mark.parametrize(
    ("record", "action", "outcome"),
    [
        ({"state": "sent", "sent": "1"}, Action.END, "never_started"),
        ({"state": "sent"}, Action.FORGET, ""),
        ({"state": "retrying", "started": "1"}, Action.END, "never_started"),
        ({"state": "started", "started": "1"}, Action.END, "lost"),
        ({"state": "started", "started": "9000", "max": 60, "overdue": 1}, Action.END, "lost"),
        ({"state": "started", "started": "9990", "max": 60}, Action.END, "lost"),
        ({"state": "started", "started": "9000", "max": 60}, Action.OVERDUE, ""),
        ({"state": "started", "started": "9940.000001", "max": 60}, Action.OVERDUE, ""),
        ({"state": "sent", "sent": "1", "terminate": "replaced"}, Action.END, "never_started"),
        ({"state": "started", "started": "1", "terminate": "replaced"}, Action.END, "lost"),
        ({"state": "spawned", "outcome": "succeeded"}, Action.END, "succeeded"),
        ({"state": "ended", "outcome": "failed"}, Action.END, "failed"),
        ({"state": "ended"}, Action.END, "lost"),
        ({"state": "unheard of"}, Action.FORGET, ""),
        ("{", Action.FORGET, ""),
        (None, Action.FORGET, ""),
    ],
)
def test_a_run_whose_deadline_has_come(record: Any, action: Action, outcome: str) -> None:
    decision = judge(deadline_of(record), AT, LEASE, watched_seconds=LEASE)
    assert (decision.action, decision.outcome) == (action, outcome)


@pytest.mark.parametrize("state", ["sent", "started", "retrying", "spawned"])
def test_a_run_is_not_given_up_before_redis_has_answered_for_a_lease(state: str) -> None:
    decision = judge(
        deadline_of({"state": state, "sent": "1", "started": "1"}), AT, LEASE, watched_seconds=12.0
    )
    assert (decision.action, decision.seconds, decision.outcome) == (Action.POSTPONE, 18.0, "")


@pytest.mark.parametrize("revoke", [0, 1])
def test_a_run_that_takes_too_long_is_revoked_if_its_policy_says_so(revoke: int) -> None:
    record = {"state": "started", "started": "9000", "max": 60, "revoke": revoke}
    settlement = judge(deadline_of(record), AT, LEASE, 0).settlement(Keys())
    assert (settlement.word, settlement.seconds) == ("revoke" if revoke else "", LEASE)


@pytest.mark.parametrize("member", ["", "\0", "nonsense", "\0\0", "a\0b\0c"])
def test_a_member_that_is_none_of_redbeat_s_is_forgotten_as_it_stands(member: str) -> None:
    settlement = judge(Deadline(member, "1", None), AT, LEASE, 0).settlement(Keys())
    assert settlement.member == member
    assert settlement.action == ("look" if member == "\0\0" else "forget")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"state": []}', "[" * 100_000, '{"started": NaN}', '{"sent": 1e14}']
)
def test_a_record_that_can_not_be_read_is_none(text: str) -> None:
    assert decode_record("id", text) is None


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
