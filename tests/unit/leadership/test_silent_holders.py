"""Whose lock a standby takes over: that of a RedBeat 3 that all looks, for long enough, found not renewed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from redbeat.errors import StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.lock import LeaderLock
from redbeat.store.locks import FOR_EVER

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
        takeover_seconds: float | None = TAKEOVER_SECONDS,
        frozen: tuple[float, float] = (0, 0),
    ) -> float | None:
        class Key:
            def __init__(self, *_: object) -> None:
                pass

            def rest_ms(self) -> int:
                if rest is None:
                    raise StoreUnavailable("away")
                return FOR_EVER if rest < 0 else int(rest * 1000)

            def token(self) -> str:
                return holder

            def is_frozen(self) -> bool:
                return frozen[0] <= now < frozen[1]

            def take(self, _token: str, _taken_ms: int, _mark: str, *, silent: str, **_: object) -> bool:
                return silent == holder

        now, rest = 0.0, None
        monkeypatch.setattr("redbeat.leadership.lock.LockKey", Key)
        monkeypatch.setattr(
            "redbeat.leadership.lock.time", SimpleNamespace(monotonic=lambda: now, time=lambda: now)
        )
        store = SimpleNamespace(renew_lock=lambda _fence: None, keys=Keys())
        lock = LeaderLock(store, "redbeat::lock", LOCK_SECONDS, takeover_seconds)  # type: ignore[arg-type]
        for look in looks:
            now, rest = look
            try:
                if lock.acquire():
                    return now
            except StoreUnavailable:
                pass
        return None

    return acquire


def test_a_holder_that_is_silent_for_takeover_after_is_replaced_and_not_before(taken_at: Acquire) -> None:
    assert taken_at(untouched(range(8))) is None
    assert taken_at(untouched(range(30))) == TAKEOVER_SECONDS


def test_a_holder_that_renews_its_lock_is_left_alone(taken_at: Acquire) -> None:
    assert taken_at((at, LOCK_SECONDS - at % 2) for at in range(100)) is None
    assert taken_at((at, LOCK_SECONDS - at % 7) for at in range(100)) is None


def test_one_that_has_renewed_it_once_more_is_waited_for_anew(taken_at: Acquire) -> None:
    looks = [*untouched(range(7)), *((at, LOCK_SECONDS + 7 - at) for at in range(7, 40))]
    assert taken_at(looks) == 7 + TAKEOVER_SECONDS


def test_the_lock_of_celery_redbeat_2x_is_left_to_expire(taken_at: Acquire) -> None:
    assert taken_at(untouched(range(59)), holder="0123456789abcdef0123456789abcdef") is None


def test_what_was_not_looked_at_is_not_known_to_be_silence(taken_at: Acquire) -> None:
    assert taken_at(untouched([0, 1, 2, 20, 21])) is None
    assert taken_at(untouched([0, 1, 2, *range(20, 40)])) == 20 + TAKEOVER_SECONDS


def test_a_look_that_got_no_answer_is_not_one(taken_at: Acquire) -> None:
    looks: list[Look] = [(at, None if at == 6 else LOCK_SECONDS - at) for at in range(30)]
    assert taken_at(looks) == 7 + TAKEOVER_SECONDS


def test_a_lock_that_never_ends_was_set_by_hand_and_is_left_alone(taken_at: Acquire) -> None:
    assert taken_at((at, -1) for at in range(100)) is None


def test_without_takeover_after_nobody_is_replaced(taken_at: Acquire) -> None:
    assert taken_at(untouched(range(59)), takeover_seconds=None) is None


def test_a_lock_that_is_taken_some_time_after_the_look_is_expected_to_end_so_much_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With thousands of locks, or a busy processor, that is longer than the slack: it would seem renewed."""
    now = 100.0
    monkeypatch.setattr(
        "redbeat.leadership.lock.time", SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    )
    lock = LeaderLock(SimpleNamespace(keys=Keys()), "redbeat::lock", LOCK_SECONDS, TAKEOVER_SECONDS)  # type: ignore[arg-type]
    assert not lock.note_look(60_000, 91.0)
    assert not lock.note_look(57_000, 94.0)
    assert not lock.note_look(54_000, 97.0)
    assert lock.note_look(52_000, 99.0), "its takeover time is over by now"
    assert lock.begin_take(52_000, HOLDER).rest_ms == 51_000
    assert lock.begin_take(52_000).rest_ms == 52_000


def test_a_holder_that_nobody_could_have_renewed_is_replaced_only_after_it_could(taken_at: Acquire) -> None:
    frozen_until = 3 * TAKEOVER_SECONDS
    replaced_at = taken_at(untouched(range(48)), frozen=(2, frozen_until))
    assert replaced_at is not None
    assert replaced_at >= frozen_until + TAKEOVER_SECONDS - 1
