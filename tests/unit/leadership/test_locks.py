"""The lock: whose it is by its token, how it is renewed, and when a silent holder is replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from celery import Celery
from redis.exceptions import ResponseError

from redbeat.config.timing import MIN_LOCK_SECONDS, Timing
from redbeat.errors import LockLost, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.heartbeat import Heartbeat
from redbeat.leadership.leadership import Leadership
from redbeat.leadership.lock import LeaderLock
from redbeat.leadership.membership import Membership
from redbeat.store.lock_tokens import beat_of, new_beat, new_token
from redbeat.store.locks import FOR_EVER, NO_KEY, Sight, renew_locks
from redbeat.store.store import Store
from tests.support.logs import errors_in
from tests.support.polling import eventually

HOLDER = "redbeat:3:host:1:2:3"


LOCK_SECONDS, TAKEOVER_SECONDS = 60.0, 8.0


#: the standby's clock, and the seconds that the lock has left then; None: Redis couldn't be asked
Look = tuple[float, "float | None"]


Acquire = Callable[..., "float | None"]


def untouched(seconds: Iterable[float]) -> list[Look]:
    """Looks at a lock that nobody renews."""
    return [(at, LOCK_SECONDS - at) for at in seconds]


@pytest.fixture
def taken_at(monkeypatch: pytest.MonkeyPatch) -> Acquire:
    """Returns when a standby that looks at these times takes the lock; None: it doesn't."""

    def acquire(
        looks: Iterable[Look],
        holder: str = HOLDER,
        frozen: tuple[float, float] = (0, 0),
    ) -> float | None:
        def look(_store: object, _locks: object, _besides: object) -> tuple[list[Sight], list[object]]:
            if rest is None:
                raise StoreUnavailable("away")
            rest_ms = FOR_EVER if rest < 0 else int(rest * 1000) or NO_KEY
            return [Sight(rest_ms, holder if rest else "")], []

        def take(_store: object, calls: Iterable[Any]) -> list[bool | StoreRefused]:
            if frozen[0] <= now < frozen[1]:
                refused = StoreRefused("full")
                refused.__cause__ = ResponseError("OOM command not allowed")
                return [refused for _ in calls]
            return [call.args["silent"] == (holder if rest else "") for call in calls]

        now, rest = 0.0, None
        for name, call in {
            "look_at_locks": look,
            "ask_locks": take,
            "renew_locks": lambda _store, locks: [None] * len(locks),
        }.items():
            monkeypatch.setattr(f"redbeat.leadership.lock.{name}", call)
        monkeypatch.setattr(
            "redbeat.leadership.lock.time", SimpleNamespace(monotonic=lambda: now, time=lambda: now)
        )
        store = SimpleNamespace(keys=Keys())
        lock = LeaderLock(store, "redbeat::lock", Timing(LOCK_SECONDS, TAKEOVER_SECONDS))  # type: ignore[arg-type]
        for look in looks:
            now, rest = look
            try:
                if lock.acquire():
                    return now
            except StoreUnavailable:
                pass
        return None

    return acquire


def test_silent_holder_is_replaced_after_the_takeover_time(taken_at: Acquire) -> None:
    assert taken_at(untouched(range(8))) is None
    assert taken_at(untouched(range(30))) == TAKEOVER_SECONDS


def test_holder_that_renews_is_left_alone(taken_at: Acquire) -> None:
    assert taken_at((at, LOCK_SECONDS - at % 2) for at in range(100)) is None
    assert taken_at((at, LOCK_SECONDS - at % 7) for at in range(100)) is None


def test_the_lock_of_celery_redbeat_2x_is_left_to_expire(taken_at: Acquire) -> None:
    assert taken_at(untouched(range(59)), holder="0123456789abcdef0123456789abcdef") is None


def test_time_without_a_look_is_not_silence(taken_at: Acquire) -> None:
    assert taken_at(untouched([0, 1, 2, 20, 21])) is None
    assert taken_at(untouched([0, 1, 2, *range(20, 40)])) == 20 + TAKEOVER_SECONDS


def test_look_without_an_answer_does_not_count(taken_at: Acquire) -> None:
    looks: list[Look] = [(at, None if at == 6 else LOCK_SECONDS - at) for at in range(30)]
    assert taken_at(looks) == 7 + TAKEOVER_SECONDS


def test_lock_without_an_expiry_is_left_alone(taken_at: Acquire) -> None:
    assert taken_at((at, -1) for at in range(100)) is None


def test_holder_that_could_not_renew_is_left_alone(taken_at: Acquire) -> None:
    frozen = 2, 3 * TAKEOVER_SECONDS
    renewed_again = [(at, LOCK_SECONDS - at if at < frozen[1] else LOCK_SECONDS) for at in range(48)]
    assert taken_at(renewed_again, frozen=frozen) is None
    replaced_at = taken_at(untouched(range(48)), frozen=frozen)
    assert replaced_at is not None
    assert replaced_at >= frozen[1]


# -- the heartbeat


KEY = "redbeat::lock"


#: a renewal every 10 ms
FAST = Timing(0.04)


class Led(NamedTuple):
    """A shard that a beat leads, and its heartbeat."""

    leadership: Leadership
    heartbeat: Heartbeat

    @property
    def token(self) -> str:
        return self.leadership.fence.token


Start = Callable[..., Led]


@pytest.fixture
def beating(fake_app: Celery) -> Iterator[Start]:
    """Heartbeats that were started, and are stopped at the end."""
    started: list[Heartbeat] = []

    def start(timing: Timing = FAST) -> Led:
        led: list[Leadership] = []
        members, store = Membership(fake_app, timing), Store(fake_app)
        made = Heartbeat(fake_app, timing, members, lambda: led)
        leadership = Leadership(store, KEY, timing, made, members.beat)
        leadership.own.token, leadership.own.is_held = new_token(), True
        leadership.lead()
        led.append(leadership)
        made.start()
        started.append(made)
        return Led(leadership, made)

    yield start
    for made in started:
        made.stop()


def raising(*errors: Exception) -> Callable[..., Any]:
    """A renewal that fails so at first."""
    left = list(errors)

    def failing(*args: Any) -> Any:
        if left:
            raise left.pop(0)
        return renew_locks(*args)

    return failing


@pytest.mark.parametrize(
    ("errors", "logged"),
    [
        ([StoreUnavailable("away")], []),
        (
            [RuntimeError("a bug"), RuntimeError("a bug"), ValueError("another"), RuntimeError("a bug")],
            ["RuntimeError: a bug", "ValueError: another"],
        ),
    ],
    ids=["Redis is away", "unexpected"],
)
def test_heartbeat_goes_on_after_an_error_and_does_not_count_as_stuck(
    fake_app: Celery,
    beating: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    errors: list[Exception],
    logged: list[str],
) -> None:
    monkeypatch.setattr("redbeat.leadership.heartbeat.renew_locks", raising(*errors))
    led = beating()
    eventually(lambda: fake_app.redbeat_redis.get(KEY) == led.token)
    assert led.leadership.lost is None
    assert led.heartbeat.excused_at > led.heartbeat.progressed_at
    assert [line.partition(", and goes on: ")[2] for line in errors_in(caplog)] == logged


def test_heartbeat_reports_a_lost_lock(fake_app: Celery, beating: Start) -> None:
    fake_app.redbeat_redis.set(KEY, "another", px=60_000)
    led = beating()
    eventually(lambda: led.leadership.lost is not None)
    assert isinstance(led.leadership.lost, LockLost)
    assert fake_app.redbeat_redis.get(KEY) == "another"


def test_renewal_of_a_released_lock_does_not_take_it_back(fake_app: Celery, beating: Start) -> None:
    led = beating(Timing(MIN_LOCK_SECONDS))  # on a busy machine, too, it is held until it is released
    eventually(lambda: fake_app.redbeat_redis.get(KEY) == led.token)
    fence = led.leadership.fence
    led.leadership.lock.release()
    held = [(led.leadership.store, fence)]
    [lost] = renew_locks(led.leadership.store, held)  # one that was on its way
    assert isinstance(lost, LockLost)
    assert not fake_app.redbeat_redis.exists(KEY)
    assert not led.leadership.is_leader
    assert led.leadership.lost is None


@pytest.mark.parametrize(("idle_seconds", "holds"), [(4.5, True), (5, False)])
def test_shortest_lock_is_kept_on_a_busy_machine(
    fake_app: Celery,
    beating: Start,
    idle_seconds: float,
    holds: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: idle_seconds)
    monkeypatch.setattr("redbeat.leadership.heartbeat.time", clock)
    led = beating(Timing(MIN_LOCK_SECONDS))
    led.heartbeat.progressed_at = led.heartbeat.excused_at = 0.0  # before it beats for the first time
    eventually(lambda: fake_app.redbeat_redis.exists(KEY) or errors_in(caplog))
    led.heartbeat.stop()
    assert fake_app.redbeat_redis.exists(KEY) == holds


# -- tokens


def test_token_has_the_documented_form() -> None:
    mark, version, host, pid, since, chance = new_token(new_beat()).split(":")
    assert (mark, version, host, int(pid)) == ("redbeat", "3", socket.gethostname(), os.getpid())
    assert since.isdecimal()
    assert len(chance) == len(bytes.fromhex(chance)) * 2 == 16


@pytest.mark.parametrize("token", ["", "0" * 32, "redbeat:3", "redbeat:3:host:x:1:2", "redbeat:4:h:1:2:3"])
def test_foreign_token_names_no_beat(token: str) -> None:
    assert beat_of(token) is None
