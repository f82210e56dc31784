"""RetryingConnection: what is tried again, for how long, and what is said about it. The clock is a fake."""

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
from redbeat.store import scripts as lua
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
def test_a_command_is_tried_again_until_redis_is_back(clock: Clock, error: Exception) -> None:
    client = Flaky(error, error, error)
    assert RetryingConnection(60, client).get("k") == "value"
    assert client.calls == [("get", "k")] * 4
    assert clock.pauses == sorted(clock.pauses)
    assert max(clock.pauses) <= RetryingConnection.RETRY_MAX_WAIT


def test_a_script_is_tried_again(clock: Clock) -> None:
    client = Flaky(AWAY, AWAY)
    assert lua.release_lock("lock", "token", wake="wake").ask(RetryingConnection(60, client))
    assert len(client.calls) == 3


def test_a_registered_script_and_a_lock_of_the_redis_client_are_tried_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Flaky(AWAY, AWAY)
    monkeypatch.setattr(redis.Redis, "evalsha", lambda self, *values: flaky.evalsha(*values))
    monkeypatch.setattr(redis.Redis, "set", lambda self, *values, **options: flaky.get("lock"))
    retrying = RetryingConnection(60, redis.Redis())
    assert retrying.register_script("return 1")() == 1
    assert len(flaky.calls) == 3
    flaky.errors = [AWAY]
    assert retrying.lock("lock", timeout=5).acquire(blocking=False)
    assert len(flaky.calls) == 5


def test_a_pipeline_is_sent_whole_again_on_a_fresh_pipeline(clock: Clock) -> None:
    client = Flaky(AWAY, AWAY)
    with RetryingConnection(60, client).pipeline(transaction=False) as pipeline:
        assert pipeline.set("a", "1").set("b", "2", nx=True) is pipeline
        assert len(pipeline) == 2
        assert pipeline.execute(raise_on_error=False) == [True, True]
        assert pipeline.execute() == []
    commands = [("a", "1", False), ("b", "2", True)]
    assert client.calls == [(False, False, commands)] * 3 + [(False, True, [])]


def test_a_pipeline_left_early_sends_nothing(clock: Clock) -> None:
    client = Flaky()
    pipeline = RetryingConnection(60, client).pipeline()
    with pipeline:
        pipeline.set("a", "1")
    assert (len(pipeline), client.calls) == (0, [])


@pytest.mark.parametrize("name", ["watch", "multi", "unwatch"])
def test_a_pipeline_that_needs_answers_in_between_is_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no {name}; use the client's transaction"):
        getattr(RetryingConnection(60, Flaky()).pipeline(), name)


@pytest.mark.parametrize("period", [0, 0.05, 10, 60])
def test_after_the_period_it_gives_up_with_the_clients_error(clock: Clock, period: float) -> None:
    client = Flaky(AWAY, is_endless=True)
    with pytest.raises(exceptions.ConnectionError, match="away"):
        RetryingConnection(period, client).get("k")
    assert period <= clock.now - 1000 <= period + RetryingConnection.RETRY_MAX_WAIT
    assert len(client.calls) == len(clock.pauses) + 1


def test_minus_one_is_for_ever(clock: Clock) -> None:
    client = Flaky(*[AWAY] * 500)
    assert RetryingConnection(-1, client).get("k") == "value"
    assert clock.now - 1000 > 200


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
def test_what_trying_again_does_not_help_is_not_tried_again(clock: Clock, error: Exception) -> None:
    client = Flaky(error)
    with pytest.raises(type(error)):
        RetryingConnection(-1, client).get("k")
    assert (len(client.calls), clock.pauses) == (1, [])


def test_a_cluster_whose_nodes_refuse_the_password_is_not_waited_for() -> None:
    """Its client says that it can't be connected, and puts what a node has said behind that."""
    for cause, expected in ((exceptions.AuthenticationError("WRONGPASS"), False), (AWAY, True)):
        wrapped = exceptions.RedisClusterException("Redis Cluster cannot be connected.")
        wrapped.__cause__ = cause
        assert is_transient(wrapped) is expected


def test_a_client_that_was_sent_from_node_to_node_has_lost_no_connection() -> None:
    """Nor is the request at fault, which is tried again: a slot is on its way to another node."""
    moving = exceptions.ClusterError("TTL exhausted.")
    assert is_transient(moving)
    assert not is_reset(moving)
    assert is_reset(exceptions.ConnectionError("reset by peer"))


@pytest.mark.parametrize(
    "code", ["OOM", "NOREPLICAS", "MISCONF", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "READONLY"]
)
def test_a_refusal_that_passes_is_transient_by_its_code_only(code: str) -> None:
    assert is_transient(exceptions.ResponseError(f"{code} not at the moment"))
    assert not is_transient(exceptions.ResponseError(f"ERR {code} not at the moment"))


def test_a_refusal_inside_a_script_is_told_by_what_redis_6_puts_at_the_end() -> None:
    text = "Error running script (call to f_0123): @user_script:4: @user_script: 4: -{} You can't write"
    assert is_transient(exceptions.ResponseError(text.format("READONLY")))
    assert not is_transient(exceptions.ResponseError(text.format("WRONGTYPE")))


def test_errors_with_a_class_of_their_own_are_told_apart() -> None:
    passing = (
        "ReadOnlyError", "BusyLoadingError", "OutOfMemoryError", "ClusterDownError", "TimeoutError",
        "TryAgainError",
    )  # fmt: skip
    lasting = (
        "AuthenticationError", "NoPermissionError", "AuthenticationWrongNumberOfArgsError", "DataError",
    )  # fmt: skip
    classes = {name: getattr(exceptions, name, None) for name in (*passing, *lasting)}
    for name, error in classes.items():  # some are in newer versions of the redis client only
        assert error is None or is_transient(error("as it is")) is (name in passing), name


@pytest.mark.parametrize("name", ["MovedError", "AskError"])
def test_a_slot_at_another_node_passes_also_where_the_cluster_s_client_fails_over_it(name: str) -> None:
    told = getattr(exceptions, name)("1234 127.0.0.1:7001")
    assert is_transient(told)
    uncovered = exceptions.SlotNotCoveredError("no node")
    uncovered.__context__ = told
    assert is_transient(uncovered)


def test_an_outage_is_logged_when_it_begins_and_ends(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery.beat"):
        RetryingConnection(-1, Flaky(*[AWAY] * 50)).get("k")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "beat: Retrying Redis connection in 0.1 seconds... (away)"),
        ("WARNING", f"beat: Redis is back after {clock.now - 1000:.1f} s."),
    ]


def test_what_is_no_call_passes_through(clock: Clock) -> None:
    retrying = RetryingConnection(60, Flaky())
    assert retrying.answer_to_everything == 42
    with pytest.raises(AttributeError, match="nothing"):
        _ = retrying.nothing


def test_making_a_client_is_tried_again_too(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("retry_period", [0, 5, -1])
def test_with_a_retry_period_the_apps_client_is_wrapped(retry_period: float) -> None:
    app = memory_app(redbeat_redis_url="redis://h", redbeat_redis_options={"retry_period": retry_period})
    client = get_redis(app)
    assert isinstance(client, RetryingConnection)
    assert client.retry_period == retry_period
    assert isinstance(client.wrapped_connection, redis.Redis)


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
def test_a_request_that_breaks_its_connection_thrice_while_others_are_answered_is_given_up(
    clock: Clock, retry_period: float | None
) -> None:
    client = Breaking(breaks=9)
    with pytest.raises(RequestBroken, match="proto-max-bulk-len"):
        watched(client, retry_period).large()
    assert client.calls == ["large", "small"] * 3
    assert clock.pauses == [HICCUP_SECONDS]


@pytest.mark.parametrize("retry_period", [None, 60, -1])
def test_one_that_breaks_twice_is_not_the_reason(clock: Clock, retry_period: float | None) -> None:
    client = Breaking(breaks=2)
    assert watched(client, retry_period).large() == "done"
    assert client.calls == [*["large", "small"] * 2, "large"]


@pytest.mark.parametrize("retry_period", [None, 60, -1])
def test_one_that_breaks_once_is_sent_again_at_once(clock: Clock, retry_period: float | None) -> None:
    client = Breaking(breaks=1)
    assert watched(client, retry_period).large() == "done"
    assert client.calls == ["large", "small", "large"]
    assert not clock.pauses


def test_a_server_that_is_away_is_waited_for_however_often_the_request_breaks(clock: Clock) -> None:
    client = Breaking(breaks=7, away=7)
    assert watched(client, -1).large() == "done"
    assert client.calls == [*["large", "small"] * 7, "large"]
    assert len(clock.pauses) == 7


def test_a_server_that_is_away_is_not_waited_for_without_a_period(clock: Clock) -> None:
    with pytest.raises(exceptions.ConnectionError, match="reset"):
        watched(Breaking(breaks=1, away=1), None).large()
    assert not clock.pauses
