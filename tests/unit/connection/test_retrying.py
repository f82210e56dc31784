"""Retries of Redis commands: what is retried, for how long, and what is logged. The clock is a fake."""

from __future__ import annotations

import logging
import time
from unittest.mock import Mock, call

import pytest
import redis
import redis.cluster
from redis import exceptions

from redbeat.connection import get_redis
from redbeat.connection.retry import (
    HICCUP_SECONDS,
    RequestBroken,
    RetryingConnection,
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


@pytest.mark.parametrize(
    "error",
    [
        AWAY, exceptions.TimeoutError(), exceptions.BusyLoadingError(), exceptions.ReadOnlyError(),
        exceptions.ClusterDownError("CLUSTERDOWN"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_command_is_retried_until_redis_is_back(clock: Clock, error: Exception) -> None:
    client = Mock(**{"get.side_effect": [error, error, error, "value"]})
    assert RetryingConnection(60, client).get("k") == "value"
    assert client.mock_calls == [call.get("k")] * 4
    assert clock.pauses == sorted(clock.pauses)
    assert max(clock.pauses) <= RetryingConnection.RETRY_MAX_WAIT


def test_registered_script_and_client_lock_are_retried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    evalsha, lock = Mock(side_effect=[AWAY, AWAY, 1]), Mock(side_effect=[AWAY, True])
    monkeypatch.setattr(redis.Redis, "evalsha", evalsha)
    monkeypatch.setattr(redis.Redis, "set", lock)
    retrying = RetryingConnection(60, redis.Redis())
    assert retrying.register_script("return 1")() == 1
    assert retrying.lock("lock", timeout=5).acquire(blocking=False)
    assert (evalsha.call_count, lock.call_count) == (3, 2)


def test_pipeline_is_retried_as_a_whole(clock: Clock) -> None:
    client = Mock(**{"pipeline.return_value.execute.side_effect": [AWAY, AWAY, [True, True], []]})
    with RetryingConnection(60, client).pipeline(transaction=False) as pipeline:
        assert pipeline.set("a", "1").set("b", "2", nx=True) is pipeline
        assert len(pipeline) == 2
        assert pipeline.execute(raise_on_error=False) == [True, True]
        assert pipeline.execute() == []
    once = [
        call.pipeline(transaction=False),
        call.pipeline().set("a", "1"),
        call.pipeline().set("b", "2", nx=True),
    ]
    tried = [*once, call.pipeline().execute(raise_on_error=False)] * 3
    assert client.mock_calls[: len(tried)] == tried


@pytest.mark.parametrize("name", ["watch", "multi", "unwatch"])
def test_pipeline_with_watch_or_multi_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no {name}; use the client's transaction"):
        getattr(RetryingConnection(60, Mock()).pipeline(), name)


@pytest.mark.parametrize("period", [0, 0.05, 10, 60])
def test_retries_end_after_the_period_with_the_error_of_the_client(clock: Clock, period: float) -> None:
    client = Mock(**{"get.side_effect": AWAY})
    with pytest.raises(exceptions.ConnectionError, match="away"):
        RetryingConnection(period, client).get("k")
    assert period <= clock.now - 1000 <= period + RetryingConnection.RETRY_MAX_WAIT
    assert client.get.call_count == len(clock.pauses) + 1


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
    client = Mock(**{"get.side_effect": error})
    with pytest.raises(type(error)):
        RetryingConnection(-1, client).get("k")
    assert (client.get.call_count, clock.pauses) == (1, [])


def test_outage_is_logged_when_it_begins_and_ends(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.beat"):
        RetryingConnection(-1, Mock(**{"get.side_effect": [*[AWAY] * 50, "value"]})).get("k")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "beat: Retrying Redis connection in 0.1 seconds... (away)"),
        ("WARNING", f"beat: Redis is back after {clock.now - 1000:.1f} s."),
    ]


def test_making_a_cluster_client_is_retried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(**{"get.return_value": "value"})
    monkeypatch.setattr(redis.cluster.RedisCluster, "from_url", Mock(side_effect=[AWAY, AWAY, made]))
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


def watched(client: Breaking, retry_period: float | None) -> RetryingConnection:
    return RetryingConnection(retry_period, client, lambda one: one.small())


@pytest.mark.parametrize("retry_period", [None, 60, -1])
def test_request_that_breaks_its_connection_is_sent_again_twice_and_then_given_up(
    clock: Clock, retry_period: float | None
) -> None:
    for breaks in (1, 2):
        client = Breaking(breaks=breaks)
        assert watched(client, retry_period).large() == "done"
        assert client.calls == [*["large", "small"] * breaks, "large"]
        assert len(clock.pauses) == breaks - 1
    client = Breaking(breaks=9)
    with pytest.raises(RequestBroken, match="proto-max-bulk-len"):
        watched(client, retry_period).large()
    assert client.calls == ["large", "small"] * 3
    assert clock.pauses == [HICCUP_SECONDS] * 2


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
        *((exceptions.ResponseError(f"{code} now"), True) for code in (
            "OOM", "NOREPLICAS", "MISCONF", "READONLY", "MASTERDOWN", "TRYAGAIN", "BUSY",
        )),
        (exceptions.ResponseError("ERR OOM now"), False),
        (exceptions.ResponseError(IN_SCRIPT.format("READONLY")), True),
        (exceptions.ResponseError(IN_SCRIPT.format("WRONGTYPE")), False),
        (exceptions.BusyLoadingError("x"), True), (exceptions.TryAgainError("x"), True),
        (exceptions.OutOfMemoryError("x"), True), (exceptions.NoPermissionError("x"), False),
        (exceptions.DataError("x"), False), (exceptions.ClusterError("TTL exhausted."), True),
        (caused_by(exceptions.RedisClusterException("x"), exceptions.AuthenticationError("WRONG")), False),
        (caused_by(exceptions.RedisClusterException("x"), AWAY), True),
        (MOVED, True), (exceptions.AskError("1234 127.0.0.1:7001"), True),
        (caused_by(exceptions.SlotNotCoveredError("no node"), MOVED), True),
    ],
    ids=repr,
)  # fmt: skip
def test_error_is_transient_by_its_class_code_or_cause(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected
    if isinstance(error, exceptions.ClusterError):
        assert not is_reset(error), "a slot on its way to another node breaks no connection"
