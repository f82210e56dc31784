"""What became of a run, from what Celery tells of its task."""

from __future__ import annotations

import timeit
from datetime import datetime, timedelta, timezone
from time import process_time
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, Terminated
from celery.utils.serialization import UnpickleableExceptionWrapper

from redbeat.config.masking import mask_secrets
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


class NamelessType(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=NamelessType):
    @property
    def exc_cls_name(self) -> str:
        raise RuntimeError("none, either")


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError("\n\n  one"), "ValueError: one"),
        (KeyError("name"), "KeyError: 'name'"),
        (Rude(), "Rude"),
        (Leaving(), "Leaving"),
        (Nameless("text"), "Nameless: text"),
        (SoftTimeLimitExceeded(5), "SoftTimeLimitExceeded: 5"),
        (ValueError("red\x1b[31m\u202e"), "ValueError: red\\x1b[31m\\u202e"),
        (OSError("redis://user:pw@host:1/0 is away"), "OSError: redis://user:**@host:1/0 is away"),
        (OSError("(amqp://a:b@c//, redis://:x@y)"), "OSError: (amqp://a:**@c//, redis://:**@y)"),
        (OSError("GET http://a/b?password=x&c=d failed"), "OSError: GET http://a/b?password=**&c=d failed"),
        (ValueError("password='a b' user=me"), "ValueError: password=** user=me"),
        (ValueError("API_KEY: abc, TOKEN=def"), "ValueError: API_KEY: **, TOKEN=**"),
        (ValueError('{"db_password": "x", "host": "y"}'), 'ValueError: {"db_password": **, "host": "y"}'),
        (ValueError("Authorization: Bearer abc, Host: h"), "ValueError: Authorization: **"),
        (
            ValueError("{'Authorization': 'Basic abc', 'Host': 'h'}"),
            "ValueError: {'Authorization': **, 'Host': 'h'}",
        ),
        (ValueError("bad header b'Bearer abc.def'"), "ValueError: bad header b'Bearer **'"),
        (
            ValueError("pass=a passphrase=b DB_PASS=c access_key=d"),
            "ValueError: pass=** passphrase=** DB_PASS=** access_key=**",
        ),
        (ValueError("password = 'a b"), "ValueError: password = **"),
        (ValueError('password="a \\" b" c'), "ValueError: password=** c"),
        (ValueError(repr("it's {'token': 'a b'}")), "ValueError: \"it's {'token': **}\""),
        (
            ValueError("'it\\'s {\"a\": \\'password: xy\\', \\'token\\': \\'a b\\'}"),
            "ValueError: 'it\\'s {\"a\": \\'password: **, \\'token\\': **}",
        ),
        (OSError("postgresql://u:p ss@host/ is away"), "OSError: postgresql://u:**@host/ is away"),
        (
            OSError("redis://host:6379 is away, says celery@h"),
            "OSError: redis://host:6379 is away, says celery@h",
        ),
        (OSError("redis://[::1]:6379/0 and celery@h"), "OSError: redis://[::1]:6379/0 and celery@h"),
        (UnpickleableExceptionWrapper("m", "Odd", (), "Odd('text')"), "Odd: 'text'"),
    ],
)
def test_an_error_is_its_class_and_its_first_line_without_passwords(exc: Exception, text: str) -> None:
    assert error_of(exc) == text


@pytest.mark.parametrize("reason", [Rude(), Leaving(), Nameless()])
def test_a_task_is_rejected_for_whatever_reason(reason: Exception) -> None:
    name = type(reason).__qualname__
    assert judge_failure(Reject(reason), TOLD, Seen(), 180.0) == Verdict("rejected", name)


def test_the_reason_of_a_rejection_is_masked() -> None:
    assert judge_failure(Reject("token=abc"), TOLD, Seen(), 180.0) == Verdict("rejected", "token=**")


@pytest.mark.parametrize(
    "part",
    [
        *(
            "secret_",
            "password",
            "a://",
            "a://b:",
            "a://b:c@",
            "token=",
            "token  ",
            "pass='",
            "pass=\\'",
            "a:",
        ),
        *("?pwd", "\\", "-", "bearer ", "x://:p @"),
    ],
)
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
        (5, 5.0),
        (-5, 0.0),
        (NOW + timedelta(minutes=1), 60.0),
        ("2026-01-01T00:01:00+00:00", 60.0),
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
