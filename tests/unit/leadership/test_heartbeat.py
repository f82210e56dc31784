"""The heartbeat goes on whatever happens to it, and tells the scheduler what it has found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis
from celery import Celery

from redbeat.config.timing import MIN_LOCK_SECONDS, Timing
from redbeat.errors import LockLost, StoreUnavailable
from redbeat.leadership.heartbeat import Heartbeat, Renewal
from redbeat.store import scripts as lua
from redbeat.store.records import Fence, LockStatus
from redbeat.store.store import Store
from tests.support.logs import errors_in
from tests.support.polling import eventually

FENCE = Fence("redbeat::lock", "redbeat:3:host:1:2:3", 60_000)


Start = Callable[..., "tuple[Heartbeat, Renewal]"]
#: a renewal every 10 ms
FAST = Timing(0.04)


@pytest.fixture
def beating(fake_app: Celery) -> Iterator[Start]:
    """Heartbeats that were started, and are stopped at the end."""
    started: list[Heartbeat] = []

    def start(app: Celery = fake_app) -> tuple[Heartbeat, Renewal]:
        made, renewal = Heartbeat(app, FAST), Renewal(FENCE)
        made.add(renewal)
        started.append(made)
        return made, renewal

    yield start
    for made in started:
        made.stop()


def raising(*errors: Exception) -> Callable[..., Any]:
    """A renewal that fails so at first, and then is the store's own."""
    left, renew = list(errors), Store.renew_lock

    def renew_lock(store: Store, *args: Any) -> None:
        if left:
            raise left.pop(0)
        renew(store, *args)

    return renew_lock


def test_an_error_nobody_has_thought_of_is_logged_once_and_renewing_goes_on(
    fake_app: Celery, beating: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [RuntimeError("a bug"), RuntimeError("a bug"), ValueError("another"), RuntimeError("a bug")]
    monkeypatch.setattr(Store, "renew_lock", raising(*errors))
    _, renewal = beating()
    eventually(lambda: fake_app.redbeat_redis.get(FENCE.lock_key) == FENCE.token)
    assert renewal.lost is None
    assert errors_in(caplog) == [
        "beat: The heartbeat failed, and goes on: RuntimeError: a bug",
        "beat: The heartbeat failed, and goes on: ValueError: another",
    ]


def test_it_tells_the_scheduler_that_another_beat_holds_the_lock(fake_app: Celery, beating: Start) -> None:
    fake_app.redbeat_redis.set(FENCE.lock_key, "another", px=60_000)
    _, renewal = beating()
    eventually(lambda: renewal.lost is not None)
    assert isinstance(renewal.lost, LockLost)
    assert fake_app.redbeat_redis.get(FENCE.lock_key) == "another"


def test_a_client_that_cannot_be_made_ends_nothing_and_is_made_later(
    fake_app: Celery, beating: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def connect(app: Celery, _patience_seconds: float) -> Any:
        """As a cluster's client, which connects when it is made."""
        tries.append(threading.current_thread().name)
        if len(tries) < 3:
            raise StoreUnavailable("nobody is there")
        return app.redbeat_redis

    monkeypatch.setattr("redbeat.store.store.get_hasty_redis", connect)
    beating()
    eventually(lambda: fake_app.redbeat_redis.get(FENCE.lock_key) == FENCE.token)
    assert tries == ["redbeat-heartbeat"] * 3


def test_a_heartbeat_that_is_stopped_while_it_connects_takes_nothing_back(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def connect(_app: Celery, _patience_seconds: float) -> Any:
        begun.set()
        may_end.wait()
        return fakeredis.FakeRedis(server=fake_app.redbeat_redis.connection_pool.connection_kwargs["server"])

    monkeypatch.setattr("redbeat.store.store.get_hasty_redis", connect)
    made = Heartbeat(fake_app, FAST)
    made.add(Renewal(FENCE))
    begun.wait()
    made.stop()
    [thread] = [one for one in threading.enumerate() if one.name == "redbeat-heartbeat"]
    may_end.set()
    thread.join()
    assert not fake_app.redbeat_redis.exists(FENCE.lock_key)


def test_a_lock_that_was_taken_back_is_told_once_even_if_nothing_could_be_written_after_it(
    fake_app: Celery, beating: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, renewal = beating()
    assert eventually(renewal.take_retaken), "it was free at the first renewal"
    assert not renewal.take_retaken()

    is_away, renew = threading.Event(), lua.renew_lock

    def renew_lock(*args: Any) -> Any:
        """Redis goes away right after the renewal that takes the lock back."""
        question = renew(*args)

        def ask(client: Any) -> LockStatus:
            if is_away.is_set():
                raise redis.exceptions.ConnectionError
            status = question.ask(client)
            if status is LockStatus.RETAKEN:
                is_away.set()
            return status

        return SimpleNamespace(ask=ask)

    monkeypatch.setattr(lua, "renew_lock", renew_lock)

    def has_gone_away() -> bool:
        if not is_away.is_set():  # a renewal that was on its way may have taken it back
            fake_app.redbeat_redis.delete(FENCE.lock_key)
        made.note_progress()  # or it would count as stuck on a machine that stalls for 5 s
        return is_away.is_set()

    eventually(has_gone_away)
    assert eventually(renewal.take_retaken)
    assert not renewal.take_retaken()


@pytest.mark.parametrize(("idle_seconds", "holds"), [(4.5, True), (5, False)])
def test_with_the_shortest_lock_a_scheduler_on_a_busy_machine_keeps_it(
    fake_app: Celery,
    idle_seconds: float,
    holds: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: idle_seconds)
    monkeypatch.setattr("redbeat.leadership.heartbeat.time", clock)
    fence = replace(FENCE, lock_ms=MIN_LOCK_SECONDS * 1000)
    made = Heartbeat(fake_app, Timing(MIN_LOCK_SECONDS))
    made.add(Renewal(fence))
    made.progressed_at = made.excused_at = 0.0  # before it beats for the first time
    eventually(lambda: fake_app.redbeat_redis.exists(FENCE.lock_key) or errors_in(caplog))
    made.stop()
    assert fake_app.redbeat_redis.exists(FENCE.lock_key) == holds
