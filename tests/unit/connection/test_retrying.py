"""Retries of Redis commands: what is retried, for how long, and what is logged. The clock is a fake."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import redis
import redis.cluster
from redis import exceptions

from redbeat.connection import get_redis
from redbeat.connection.retry import (
    HICCUP_SECONDS,
    RequestBroken,
    RetryingConnection,
    WatchedConnection,
    is_reset,
    is_transient,
)
from tests.support.ticks import memory_app

AWAY = exceptions.ConnectionError("away")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


class Flaky:
    """A client that raises the errors it was given, one a call, and then answers."""

    answer_to_everything = 42

    def __init__(self, *errors: Exception, is_endless: bool = False) -> None:
        self.errors = list(errors)
        self.is_endless = is_endless
        self.calls: list[Any] = []

    def answer(self, call: Any, reply: Any) -> Any:
        self.calls.append(call)
        if self.errors:
            raise self.errors[0] if self.is_endless else self.errors.pop(0)
        return reply

    def get(self, key: str) -> Any:
        return self.answer(("get", key), "value")

    def evalsha(self, *values: Any) -> Any:
        return self.answer(("evalsha", *values), 1)

    def pipeline(self, transaction: bool = True) -> FlakyPipeline:
        return FlakyPipeline(self, transaction)


class FlakyPipeline:
    def __init__(self, client: Flaky, transaction: bool) -> None:
        self.client, self.transaction = client, transaction
        self.commands: list[Any] = []

    def set(self, key: str, value: str, nx: bool = False) -> None:
        self.commands.append((key, value, nx))

    def execute(self, raise_on_error: bool) -> Any:
        commands, self.commands = self.commands, []
        return self.client.answer((self.transaction, raise_on_error, commands), [True] * len(commands))


@pytest.mark.parametrize(
    "error",
    [
        AWAY, exceptions.TimeoutError(), exceptions.BusyLoadingError(), exceptions.ReadOnlyError(),
        exceptions.ClusterDownError("CLUSTERDOWN"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_command_is_retried_until_redis_is_back(clock: Clock, error: Exception) -> None:
    client = Flaky(error, error, error)
    assert RetryingConnection(60, client).get("k") == "value"
    assert client.calls == [("get", "k")] * 4
    assert clock.pauses == sorted(clock.pauses)
    assert max(clock.pauses) <= RetryingConnection.RETRY_MAX_WAIT


def test_registered_script_and_client_lock_are_retried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = Flaky(AWAY, AWAY)
    monkeypatch.setattr(redis.Redis, "evalsha", lambda self, *values: flaky.evalsha(*values))
    monkeypatch.setattr(redis.Redis, "set", lambda self, *values, **options: flaky.get("lock"))
    retrying = RetryingConnection(60, redis.Redis())
    assert retrying.register_script("return 1")() == 1
    assert len(flaky.calls) == 3
    flaky.errors = [AWAY]
    assert retrying.lock("lock", timeout=5).acquire(blocking=False)
    assert len(flaky.calls) == 5


def test_pipeline_is_retried_as_a_whole(clock: Clock) -> None:
    client = Flaky(AWAY, AWAY)
    with RetryingConnection(60, client).pipeline(transaction=False) as pipeline:
        assert pipeline.set("a", "1").set("b", "2", nx=True) is pipeline
        assert len(pipeline) == 2
        assert pipeline.execute(raise_on_error=False) == [True, True]
        assert pipeline.execute() == []
    commands = [("a", "1", False), ("b", "2", True)]
    assert client.calls == [(False, False, commands)] * 3 + [(False, True, [])]


@pytest.mark.parametrize("name", ["watch", "multi", "unwatch"])
def test_pipeline_with_watch_or_multi_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no {name}; use the client's transaction"):
        getattr(RetryingConnection(60, Flaky()).pipeline(), name)


@pytest.mark.parametrize("period", [0, 0.05, 10, 60])
def test_retries_end_after_the_period_with_the_error_of_the_client(clock: Clock, period: float) -> None:
    client = Flaky(AWAY, is_endless=True)
    with pytest.raises(exceptions.ConnectionError, match="away"):
        RetryingConnection(period, client).get("k")
    assert period <= clock.now - 1000 <= period + RetryingConnection.RETRY_MAX_WAIT
    assert len(client.calls) == len(clock.pauses) + 1


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthenticationError("WRONGPASS"),
        exceptions.ResponseError("NOPERM"),
        exceptions.NoScriptError(),
        ValueError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_lasting_error_is_not_retried(clock: Clock, error: Exception) -> None:
    client = Flaky(error)
    with pytest.raises(type(error)):
        RetryingConnection(-1, client).get("k")
    assert (len(client.calls), clock.pauses) == (1, [])


def test_outage_is_logged_when_it_begins_and_ends(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.beat"):
        RetryingConnection(-1, Flaky(*[AWAY] * 50)).get("k")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "beat: Retrying Redis connection in 0.1 seconds... (away)"),
        ("WARNING", f"beat: Redis is back after {clock.now - 1000:.1f} s."),
    ]


def test_making_a_cluster_client_is_retried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [AWAY, AWAY]

    def from_url(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return Flaky()

    monkeypatch.setattr(redis.cluster.RedisCluster, "from_url", from_url)
    options = {"retry_period": 60}
    app = memory_app(redbeat_redis_url="redis-cluster://h", redbeat_redis_options=options)
    assert get_redis(app).get("k") == "value"
    assert len(clock.pauses) == 2


class Breaking:
    """A client whose server is away at times; `large` breaks its connection as often as it is told to."""

    def __init__(self, breaks: int, away: int = 0) -> None:
        self.breaks, self.away = breaks, away
        self.calls: list[str] = []

    def large(self) -> str:
        self.calls.append("large")
        if self.breaks:
            self.breaks -= 1
            raise exceptions.ConnectionError("reset")
        return "done"

    def small(self) -> str:
        self.calls.append("small")
        if self.away:
            self.away -= 1
            raise AWAY
        return "here"


def watched(client: Breaking, retry_period: float | None) -> WatchedConnection:
    inner = client if retry_period is None else RetryingConnection(retry_period, client)
    return WatchedConnection(inner, lambda one: one.small())


@pytest.mark.parametrize("retry_period", [None, 60, -1])
def test_request_that_breaks_its_connection_three_times_is_given_up(
    clock: Clock, retry_period: float | None
) -> None:
    client = Breaking(breaks=9)
    with pytest.raises(RequestBroken, match="proto-max-bulk-len"):
        watched(client, retry_period).large()
    assert client.calls == ["large", "small"] * 3
    assert clock.pauses == [HICCUP_SECONDS]


def test_server_that_is_away_is_waited_for_however_often_the_request_breaks(clock: Clock) -> None:
    client = Breaking(breaks=7, away=7)
    assert watched(client, -1).large() == "done"
    assert client.calls == [*["large", "small"] * 7, "large"]
    assert len(clock.pauses) == 7


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


IN_SCRIPT = "Error running script (call to f_0123): @user_script:4: @user_script: 4: -{} You can't write"
MOVED = exceptions.MovedError("1234 127.0.0.1:7001")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *(
            (exceptions.ResponseError(f"{code} now"), True)
            for code in ("OOM", "NOREPLICAS", "MISCONF", "READONLY")
        ),
        *((exceptions.ResponseError(f"{code} now"), True) for code in ("MASTERDOWN", "TRYAGAIN", "BUSY")),
        (exceptions.ResponseError("ERR OOM now"), False),
        (exceptions.ResponseError(IN_SCRIPT.format("READONLY")), True),
        (exceptions.ResponseError(IN_SCRIPT.format("WRONGTYPE")), False),
        *(
            (getattr(exceptions, name)("x"), True)
            for name in ("BusyLoadingError", "TryAgainError", "OutOfMemoryError")
        ),
        *((getattr(exceptions, name)("x"), False) for name in ("NoPermissionError", "DataError")),
        (
            caused_by(exceptions.RedisClusterException("x"), exceptions.AuthenticationError("WRONGPASS")),
            False,
        ),
        (caused_by(exceptions.RedisClusterException("x"), AWAY), True),
        (exceptions.ClusterError("TTL exhausted."), True),
        (MOVED, True),
        (exceptions.AskError("1234 127.0.0.1:7001"), True),
        (caused_by(exceptions.SlotNotCoveredError("no node"), MOVED), True),
    ],
    ids=repr,
)
def test_error_is_transient_by_its_class_code_or_cause(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected
    if isinstance(error, exceptions.ClusterError):
        assert not is_reset(error), "a slot on its way to another node breaks no connection"


@pytest.mark.parametrize("retry_period", [None, 60, -1])
@pytest.mark.parametrize("breaks", [1, 2])
def test_request_that_breaks_its_connection_once_or_twice_is_sent_again(
    clock: Clock, retry_period: float | None, breaks: int
) -> None:
    client = Breaking(breaks=breaks)
    assert watched(client, retry_period).large() == "done"
    assert client.calls == [*["large", "small"] * breaks, "large"]
    assert len(clock.pauses) == breaks - 1
